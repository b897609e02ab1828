"""Keyed streams cut into windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.api.windows import WindowKind
from strandline.spark.aggregation import Aggregates

if TYPE_CHECKING:
    from strandline.spark.stream import KeyedStream


@dataclass(frozen=True)
class WindowedStream(Aggregates):
    """A keyed stream cut into windows: the place for functions of a window's events."""

    keyed: KeyedStream
    kind: WindowKind
    lateness_us: int = 0

    def _cut(self) -> tuple[KeyedStream, WindowKind, int]:
        return self.keyed, self.kind, self.lateness_us
