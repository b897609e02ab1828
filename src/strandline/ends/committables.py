"""Committables: the staged output of one task in one epoch, listed in the checkpoint as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from strandline.core.errors import CorruptionError

T = TypeVar("T")


@dataclass(frozen=True)
class TaskAttempt:
    """One attempt of a task to write its partition's rows of an epoch."""

    partition: int
    """The partition's index. Attempts of the same partition write the same rows, perhaps at the same time."""
    name: str
    """Unique among all attempts of all runs: the names of staged files contain it."""


class JsonCommittable(msgspec.Struct, frozen=True, array_like=True):
    """A committable."""

    @property
    def text(self) -> str:
        """The committable as JSON, for the checkpoint."""
        return msgspec.json.encode(self).decode()


def decode_committables(pending: Sequence[str], kinds: msgspec.json.Decoder[T], sink: str) -> list[T]:
    """Decode committables, without duplicates, which would duplicate rows."""
    committables = []
    for text in dict.fromkeys(pending):
        try:
            committables.append(kinds.decode(text))
        except msgspec.MsgspecError as error:
            raise CorruptionError(f"{sink}: the checkpoint lists what the sink has not staged: {text:.200}") from error
    return committables
