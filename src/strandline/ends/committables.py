"""Committables: what tasks have staged of an epoch, listed in the checkpoint as JSON."""

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
    """The partition's index: those that make the same one write the same rows, perhaps at the same time."""
    name: str
    """What this attempt stages must bear it: no other attempt, of this or any other run, has the same."""


class JsonCommittable(msgspec.Struct, frozen=True, array_like=True):
    """A committable."""

    @property
    def text(self) -> str:
        """As the checkpoint lists it."""
        return msgspec.json.encode(self).decode()


def decode_committables(pending: Sequence[str], kinds: msgspec.json.Decoder[T], sink: str) -> list[T]:
    """Read committables, each once: a list that has one twice would have its rows come twice."""
    found = []
    for text in dict.fromkeys(pending):
        try:
            found.append(kinds.decode(text))
        except msgspec.MsgspecError as error:
            raise CorruptionError(f"{sink}: the checkpoint lists what it has not staged: {text:.200}") from error
    return found
