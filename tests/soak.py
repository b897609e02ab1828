"""What only `make soak` runs: more cases of a test, more examples of a property. What others show cheaper, it runs alone.

Some 200 of the cases are jobs in which something breaks, each by its seed: tests/spark/test_faults_*.py (processes of
Spark, its files and tasks, slow storage, clocks), test_cluster.py (executors), test_driver_kills.py, test_keeper_kills.py
and test_event_time.py. `pytest -m soak --collect-only` on these files lists them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from strandline.api.config import Changelog, KafkaLog

PROFILE = "soak"
_MANY = 30
_FEW = 0.1
"""What bounds the time of a run of all tests."""


def register() -> None:
    """Make the profile known that `--hypothesis-profile` chooses, and set the one that holds without it."""
    # A machine may be busy with something else: how long an example takes says nothing.
    patient: dict[str, Any] = {"deadline": None, "suppress_health_check": (HealthCheck.too_slow,)}
    settings.register_profile(PROFILE, max_examples=100 * _MANY, **patient)
    settings.register_profile("tests", max_examples=round(100 * _FEW), **patient)
    settings.load_profile("tests")


def soaking(values: Iterable[Any]) -> list[Any]:
    """Return parameters of a test that belong to the soak tests, beside those that are always run."""
    return [pytest.param(value, marks=pytest.mark.soak) for value in values]


MODE: Any = os.environ.get("STRANDLINE_TEST_MODE", "incremental")
"""The mode of the checkpoints in tests that do not choose one; `make soak` runs them in each."""
_TOPIC = os.environ.get("STRANDLINE_TEST_LOG", "").split()
SMALL_LOG = Changelog(parts=3, log=KafkaLog(_TOPIC[0], _TOPIC[1]) if _TOPIC else None)
"""A log that is replaced by a new base with each third checkpoint: in files, or in a topic ("localhost:9092 topic")."""

BACKENDS = [*soaking(["memory"]), "filesystem", "rocksdb"]
"""Parameters of tests of operators: `memory` and `filesystem` are one backend but for its files, tests/backends has both."""


def examples(count: int, **given: Any) -> settings:
    """Return the settings of a property that is tried with so many examples, and with many more in the soak tests."""
    factor = _MANY if settings.get_current_profile_name() == PROFILE else _FEW
    return settings(max_examples=max(2, round(count * factor)), deadline=None, **given)


def seeds(always: Iterable[int], soak: Iterable[int]) -> list[Any]:
    """Return the seeds of a test that injects faults: those that are always run, and those of the soak tests.

    Each is the whole of a case: which faults, where and when. `-k seed017` runs it again.
    """
    return [
        *(pytest.param(seed, id=f"seed{seed:03}") for seed in always),
        *(pytest.param(seed, id=f"seed{seed:03}", marks=pytest.mark.soak) for seed in soak),
    ]
