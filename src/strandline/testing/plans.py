"""What a harness runs beside process functions: operators of ours, which know their output by themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.api.windows import WindowKind
from strandline.core.errors import ConfigurationError
from strandline.runtime.operators.windows.functions import follows_event_time
from strandline.runtime.operators.windows.operator import Rules
from strandline.testing.rows import Rows
from strandline.types.datatypes import StructType


@dataclass(frozen=True, slots=True)
class Before:
    """What becomes of a stream's rows on their way to the operator."""

    schema: str
    change: Callable[[Rows], Rows]


@dataclass(frozen=True, slots=True)
class Planned:
    """An operator on a stream, and the DDL of what it gives."""

    operator: Any
    output: str
    sides: Mapping[str, str]
    before: Before | None = None


class Prepared(ABC):
    """Something to be computed of a stream's events, before it is known which stream that is."""

    @abstractmethod
    def plan(self, schema: StructType, keys: Sequence[str], uid: str, *, timed: bool) -> Planned:
        """Return the operator on a stream."""


def check_timed(kind: WindowKind, rules: Rules, *, timed: bool) -> None:
    """Refuse windows of event time where there is none."""
    if follows_event_time(kind, rules) and not timed:
        raise ConfigurationError(
            f"Harness: {type(kind).__name__} windows need the events' times, and there is no event time",
            hint='say which column has it: Harness(…, event_time="ts"), or take window(…, time="processing")',
        )
