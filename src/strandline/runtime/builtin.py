"""The contract of built-in operators: their tables, windows and needs, as the rest of the engine asks for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from strandline.api.states import State
from strandline.api.windows import Global, Session, WindowKind
from strandline.core.errors import StateTypeError
from strandline.format.manifest import AggregateInfo, CountWindows, FixedWindows, SessionWindows, StateInfo, Windows


@dataclass(frozen=True)
class Aggregated:
    """Some aggregates: what manifests say of them, and what they say of older versions of the program."""

    infos: Mapping[str, AggregateInfo]
    """By the names of their results."""
    merges: Mapping[str, str]
    """By column of the accumulator: how two become one."""
    empty: Mapping[str, Any]
    """By column: what it is of no rows, where that is not null."""
    was: Mapping[str, str]
    """By result: what it was called before."""
    added: Collection[str]
    """Results that may begin empty where there is state without them."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Of a view: by result, the aggregate as its query has it. Equal columns then have equal names."""
    same: Mapping[str, str] = field(default_factory=dict)
    """By column: another one that has the same values."""
    is_changed: bool = False
    """Whether rows may be taken back, also those that came before an aggregate did."""


class BuiltinOperator:
    """A process function that is ours. Its instances say what users' say by their class."""

    own_states: Mapping[str, State] = MappingProxyType({})
    """Declared states, whose types depend on the stream."""
    own_tables: Sequence[StateInfo] = ()
    """States in tables of its own, as they are written into manifests."""
    own_windows: Windows | None = None
    """How it cuts time, as far as its state depends on it: of its first state."""
    own_is_whole: bool = True
    """Whether a window's result is of all rows of the window so far, and given between epochs or by a timer."""
    own_aggregated: Aggregated | None = None
    """Of what its states hold accumulators, if they do."""
    own_replays: bool = False
    """Whether it gives all that it holds in its first epoch: what computes something of that is new."""
    own_metrics: Mapping[str, int] = MappingProxyType({})
    """Figures for people to look at, since this process began."""
    own_step: str = ""
    """The method that users call for it: of what no function of theirs does, errors say that it failed."""
    own_hides_events: bool = False
    """Whether its events are not as users know them."""
    own_function: str = ""
    """What the user's function that it calls is called in errors, if it calls one."""

    def explained(self, error: BaseException) -> BaseException:
        """Return what the user's function is told of an error: it knows nothing of the state that its value is in."""
        return error


IN_VALUE = ".value"
"""Where what a user's function gave is in the state of an operator of ours."""


def explained_value(error: BaseException, value_type: str) -> BaseException:
    """Return what a function is told whose value does not fit."""
    if not isinstance(error, StateTypeError) or not error.fields.get("path", "").startswith(IN_VALUE):
        return error
    inner = error.path.removeprefix(IN_VALUE)
    why = error.why.replace(f" at {error.path}", f" at {inner}" if inner else "")
    return StateTypeError(
        f"what it gave does not fit {value_type}: {why}", hint="return what fits, or declare another type"
    )


def windows_info(kind: WindowKind, *, processing: bool = False, lateness_us: int = 0) -> Windows | None:
    """Say how windows are cut, as far as state depends on it; None if that says all by itself.

    >>> from strandline.api.windows import Tumbling
    >>> str(windows_info(Tumbling("10s", offset="25s"))), str(windows_info(Session("10s"), processing=True))
    ('10000 ms every 10000 ms from 5000 ms', 'sessions by the clock')
    """
    if isinstance(kind, Global):
        return None if kind.count is None else CountWindows(events=kind.count)
    time: Literal["event", "processing"] = "processing" if processing else "event"
    if isinstance(kind, Session):
        return SessionWindows(time=time, lateness_ms=lateness_us // 1000)
    size, every, start = (us // 1000 for us in (kind.size_us, kind.every_us, kind.offset_us % kind.every_us))
    return FixedWindows(
        size_ms=size, every_ms=every, start_ms=start, time=time, lateness_ms=lateness_us // 1000
    )  # fmt: skip
