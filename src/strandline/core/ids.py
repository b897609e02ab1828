"""Distinct types for the numbers that cross module borders, and the only source of unique names."""

from __future__ import annotations

import random
from typing import NewType

Epoch = NewType("Epoch", int)
"""The number of epochs that an operator has applied; 0 is the empty state before the first."""

CheckpointId = NewType("CheckpointId", int)
"""Number of a checkpoint within one job; it only grows and is never reused."""

Generation = NewType("Generation", int)
"""Number of a driver's claim on a job; the newest claim owns the job."""

KeyGroup = NewType("KeyGroup", int)
"""The unit of key placement: a key's hash modulo max_parallelism."""

Partition = NewType("Partition", int)
"""Index of one parallel instance of an operator."""

_random = random.SystemRandom()


def unique_name() -> str:
    """Return a unique name: 128 random bits in hex."""
    return f"{_random.getrandbits(128):032x}"
