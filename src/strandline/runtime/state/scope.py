"""The context (`ctx`) of a call of the user's function: the current key, its time, its timers and its side outputs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from strandline.core.errors import ConfigurationError, StateTypeError, UserCodeError
from strandline.core.times import END_US, as_datetime
from strandline.runtime.state.timers import TimerTable
from strandline.types.coercion import short_repr
from strandline.types.scalars import timestamp_to_us


class NoKey:
    """The current key when there is none: each use of a key's state hashes it, which raises an error."""

    def __init__(self, uid: str, where: str, hint: str) -> None:
        self._uid, self._where, self._hint = uid, where, hint

    def __hash__(self) -> int:
        raise self.error("used the state of a key")

    def error(self, did: str) -> UserCodeError:
        """Return the error of an operation that needs a key."""
        return UserCodeError(f"operator '{self._uid}': {self._where} {did}, and there is no key", hint=self._hint)


@dataclass(slots=True, eq=False, repr=False)
class Scope:
    """The context of one operator partition. Users know it as `ctx`; times are kept in microseconds since 1970."""

    own_words: ClassVar[tuple[str, Sequence[str]]] = (
        "ctx", ("key", "keys (of batches)", "timestamp", "watermark", "is_late", "now", "timers", "emit()", "epoch",
                "partition", "uid"),
    )  # fmt: skip
    uid: str
    partition: int
    timers: Timers = field(init=False)
    key: Any = None
    keys: Any = None
    epoch: int = 0
    time_us: int | None = None
    watermark_us: int | None = None
    before_us: int | None = None
    """The watermark at the begin of the epoch; `watermark_us` moves on when timers fire."""
    now_us: int = 0
    in_broadcast: bool = False
    in_timer: bool = False
    guard: Any = None
    """The GuardedCalls, if errors do not end the job: built-in operators use it to call functions that may fail."""
    unsaved: Any = None
    """The UnsavedState, if unsaved state is looked for: records changes of values that were read."""
    _emit: Callable[[str, Any], None] | None = None
    _no_key: NoKey = field(init=False)

    def __post_init__(self) -> None:
        self._no_key = NoKey(
            self.uid, "something outside of an event, as open() and close() are,",
            "use state in on_event and on_timer: each key has its own; what open() makes is kept in plain attributes",
        )  # fmt: skip
        self.key = self._no_key

    def leave_key(self) -> None:
        """Clear the current key after an event: from now on, a use of state raises an error."""
        self.key = self._no_key

    @property
    def timestamp(self) -> dt.datetime | None:
        return None if self.time_us is None else as_datetime(self.time_us)

    @property
    def watermark(self) -> dt.datetime | None:
        return None if self.watermark_us is None else as_datetime(self.watermark_us)

    @property
    def is_draining(self) -> bool:
        """Whether event time has ended: every event-time timer fires now, also one that is set now."""
        return self.watermark_us == END_US

    @property
    def now(self) -> dt.datetime:
        """The processing time: when the driver began the epoch, equal in all partitions."""
        return as_datetime(self.now_us)

    @property
    def is_late(self) -> bool:
        """Whether the event is older than the watermark; a timer's time is always past, and that is not late."""
        if self.in_timer or self.time_us is None or self.watermark_us is None:
            return False
        return self.time_us < self.watermark_us

    def emit(self, side: str, row: Any) -> None:
        if self.in_broadcast:
            raise UserCodeError(
                f"operator '{self.uid}': on_broadcast cannot emit, as it runs in every partition",
                hint="give rows in on_event or on_timer",
            )
        if self._emit is None:
            raise UserCodeError(
                f"operator '{self.uid}' has no side output '{side}'",
                hint=f'declare it: process(…, sides={{"{side}": "the schema"}})',
            )
        self._emit(side, row)


@dataclass(slots=True, eq=False, repr=False)
class Timer:
    """The timer that on_timer is called for."""

    own_words: ClassVar[tuple[str, Sequence[str]]] = ("a timer", ("timestamp", "is_processing_time"))

    is_processing_time: bool
    time_us: int = 0

    @property
    def timestamp(self) -> dt.datetime:
        return as_datetime(self.time_us)


@dataclass(slots=True, eq=False, repr=False)
class Timers:
    """The timers of the current key. A key has at most one timer of each kind for a time."""

    own_words: ClassVar[tuple[str, Sequence[str]]] = (
        "ctx.timers",
        ("set(at)", "delete(at)", "set_processing(at)", "delete_processing(at)"),
    )

    _scope: Scope
    _encode: Callable[[Any], bytes]
    _event: TimerTable | None
    _processing: TimerTable | None
    _why_none: str
    _key: Any = field(default_factory=object)
    """The key that was encoded last: at first no key at all."""
    _encoded: bytes = b""

    def set(self, at: dt.datetime) -> None:
        self._of(self._event).set(self._current(), _us(at))

    def delete(self, at: dt.datetime) -> None:
        self._of(self._event).delete(self._current(), _us(at))

    def set_processing(self, at: dt.datetime) -> None:
        self._of(self._processing).set(self._current(), _us(at))

    def delete_processing(self, at: dt.datetime) -> None:
        self._of(self._processing).delete(self._current(), _us(at))

    def set_us(self, at_us: int) -> None:
        """Set an event-time timer, for built-in operators: without a datetime."""
        self._of(self._event).set(self._current(), at_us)

    def set_processing_us(self, at_us: int) -> None:
        """Set a processing-time timer, for built-in operators."""
        self._of(self._processing).set(self._current(), at_us)

    def _of(self, table: TimerTable | None) -> TimerTable:
        if table is None:
            raise ConfigurationError(f"operator '{self._scope.uid}' cannot set this timer: {self._why_none}")
        return table

    def _current(self) -> bytes:
        key = self._scope.key
        if self._scope.in_broadcast:
            raise UserCodeError(
                f"operator '{self._scope.uid}': on_broadcast cannot set a timer, as there is no key",
                hint="set timers in on_event or on_timer",
            )
        if type(key) is NoKey:
            raise key.error("set or deleted a timer")
        if key is not self._key:
            self._key, self._encoded = key, self._encode(key)
        return self._encoded


def _us(at: Any) -> int:
    if isinstance(at, dt.datetime) and at.tzinfo is not None:
        return timestamp_to_us(at)
    hint = "compute it from ctx.timestamp or ctx.now, as in ctx.now + timedelta(seconds=10)"
    if isinstance(at, dt.timedelta):
        hint = f"a timer is for a time, not after a duration: write ctx.timestamp + {at!r}, or ctx.now + …"
    elif isinstance(at, int | float) and not isinstance(at, bool):
        hint = (
            f"a number has no unit here: {at} s from now are ctx.now + timedelta(seconds={at}), and {at} ms since 1970 "
            f"are datetime.fromtimestamp({at} / 1000, timezone.utc)"
        )
    elif isinstance(at, dt.datetime):
        hint = "a time without a zone may be any: give it one, as in at.replace(tzinfo=timezone.utc)"
    raise StateTypeError(
        f"a timer's time is {short_repr(at)}, a {type(at).__name__}, expected a datetime with a time zone", hint=hint
    )
