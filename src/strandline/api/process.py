"""Base classes of process functions, and the context that each call receives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from strandline.api.states import Keys, State

if TYPE_CHECKING:
    import datetime as dt

    import pyarrow as pa


class Timers(Protocol):
    """The timers of the current key: at most one of each kind for a time. They are state: they survive failures."""

    def set(self, at: dt.datetime) -> None:
        """Call on_timer for this key when the watermark passes a time: no event of that time or earlier is expected."""
        ...

    def delete(self, at: dt.datetime) -> None:
        """Delete the timer for a time, if there is one."""
        ...

    def set_processing(self, at: dt.datetime) -> None:
        """Call on_timer for this key when the processing time reaches a time, with or without events."""
        ...

    def delete_processing(self, at: dt.datetime) -> None:
        """Delete the processing-time timer for a time, if there is one."""
        ...


class Timer(Protocol):
    """The timer that fires, as on_timer receives it."""

    is_processing_time: bool

    @property
    def timestamp(self) -> dt.datetime:
        """The time that the timer was set for."""
        ...


class Context(Protocol):
    """Key, epoch, partition and times of a call. All calls receive the same object: read it, do not keep it."""

    key: Any
    """The current key: the column's value, or a tuple when the stream is keyed by several columns."""
    epoch: int
    """The current epoch. After a failure, the epochs since the last checkpoint are processed again."""
    partition: int
    """Index of this parallel instance."""
    uid: str
    """The operator's uid."""

    @property
    def timers(self) -> Timers:
        """The timers of the current key."""
        ...

    @property
    def timestamp(self) -> dt.datetime | Any:
        """The event's time by the stream's watermark(), or the timer's; None for an event or a stream without one."""
        ...

    @property
    def watermark(self) -> dt.datetime | None:
        """The time before which no more events are expected; None until it is known."""
        ...

    @property
    def is_late(self) -> bool:
        """Whether the event is older than the watermark; False in on_timer."""
        ...

    @property
    def is_draining(self) -> bool:
        """Whether the job is draining, so that event time has ended: a timer that is set now fires at once."""
        ...

    @property
    def now(self) -> dt.datetime:
        """The processing time: the same in all calls of an epoch."""
        ...

    def emit(self, side: str, row: Any) -> None:
        """Send a row, a dict or a tuple, to a side output that process() declares in `sides`."""
        ...


class BatchContext(Protocol):
    """Keys, epoch and partition of a call to on_batch."""

    keys: Keys
    epoch: int
    partition: int
    uid: str

    def emit(self, side: str, rows: pa.RecordBatch | pa.Table) -> None:
        """Send rows to a side output that `sides` of process() declares."""
        ...


class _StatefulFunction:
    """Base of both kinds of process functions. It refuses assignments that would replace a state's handle."""

    _bound_states: Mapping[str, State] = MappingProxyType({})
    """The states by name, set when a job runs the function. Outside of a job, there are no handles to protect."""

    not_state: ClassVar[Sequence[str]] = ()
    """Names of variables of the instance, class or module that events change and that may be lost, such as caches.
    A change to any other variable is an error in a harness, and a warning in the first epochs of a job."""

    # Hidden from type checkers: with __setattr__, they accept assignments to any name.
    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            if name in self._bound_states:
                raise self._bound_states[name].assigned(value)
            super().__setattr__(name, value)

    def open(self) -> None:
        """Run once in each process before the first event or batch."""

    def close(self) -> None:
        """Run once when the process ends without a crash."""


class KeyedProcess(_StatefulFunction):
    """A function with state, called once for each event of a keyed stream.

    Declare state as class attributes. A partition makes one call at a time, and all events of a key go to the same
    partition. The instance is pickled to other processes: open resources in `open`, not in `__init__`. Instance
    attributes are not state: they are lost when the process ends. A harness refuses a function whose events change
    them, unless `open` created them, or `not_state` names them.

    >>> class Count(KeyedProcess):
    ...     seen = Value("bigint", default=0)
    ...     def on_event(self, event, ctx):
    ...         self.seen.value += 1
    ...         yield {"key": ctx.key, "seen": self.seen.value}
    """

    def on_event(self, event: Any, ctx: Context, /) -> Iterable[Any] | None:
        """Handle one event; yield or return output rows: dicts by column name, or tuples in column order.

        `event` has the columns as attributes, and by name with `event["any name"]`.
        """
        raise NotImplementedError

    def on_timer(self, timer: Timer, ctx: Context, /) -> Iterable[Any] | None:
        """Handle a timer of `ctx.key`, with its state as in on_event; yield or return output rows.

        Timers fire in the order of their times, before the events that follow the watermark or clock that made them
        due. A timer may set further timers; those that are already due fire next.
        """
        raise NotImplementedError


class KeyedBatchProcess(_StatefulFunction):
    """A vectorised process function, called with Arrow batches. Its states have `get_many` and `put_many`.

    >>> class Sum(KeyedBatchProcess):
    ...     total = Value("bigint")
    ...     def on_batch(self, batch, ctx):
    ...         keys, row_of = ctx.keys.unique()
    ...         old = self.total.get_many(keys)
    """

    def on_batch(self, batch: pa.RecordBatch, ctx: BatchContext, /) -> pa.RecordBatch | pa.Table | None:
        """Handle a batch of events of many keys; return output rows as a RecordBatch or Table, or None."""
        raise NotImplementedError
