"""What a checkpoint lists of a sink that writes to another system: committables, JSON each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from strandline.core.errors import CorruptionError

T = TypeVar("T")


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """A committable."""

    @property
    def text(self) -> str:
        """As the checkpoint lists it."""
        return msgspec.json.encode(self).decode()


def read_listed(pending: Sequence[str], kinds: msgspec.json.Decoder[T], sink: str) -> list[T]:
    """Read committables, each once: a list that has one twice would have its rows come twice."""
    found = []
    for text in dict.fromkeys(pending):
        try:
            found.append(kinds.decode(text))
        except msgspec.MsgspecError as error:
            raise CorruptionError(f"{sink}: the checkpoint lists what it has not staged: {text:.200}") from error
    return found
