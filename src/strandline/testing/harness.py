"""The harness: a process function, or a chain of them, run epoch by epoch as a test says."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from strandline.api.badrecords import OnError, Then
from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.backends.base import LocalFile
from strandline.core.errors import ConfigurationError
from strandline.core.ids import Epoch
from strandline.core.settings import BACKENDS, BackendName
from strandline.core.times import as_datetime
from strandline.plan.graph import Node
from strandline.runtime.task.task import EpochTimes
from strandline.spark.streams.stream import Stream, listed
from strandline.testing.events import Events, Right
from strandline.testing.nodes import Rows
from strandline.testing.run import Output, PipelineRun
from strandline.testing.streams import StreamOptions, check_function, streams_of
from strandline.testing.times import Times
from strandline.types.spark_schema import SparkType


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint holds: the state after an epoch, how far event time was, and the rows given until then."""

    epoch: int
    files: list[list[list[LocalFile]]]
    watermarks: dict[str, int]
    output: Output


class Harness:
    """Runs a process function with its real state, without Spark and without other processes.

    Each call is one epoch. Rows are placed by their keys as Spark places them, state is kept by the real backend in a
    temporary directory, and the function is shipped as a job ships it: by pickling, so that the instance a test
    makes is not the one that runs. Errors are those of a job; an epoch that fails is not applied.

    With `event_time`, events have the time in that column, and the watermark stands still until `advance_watermark`;
    with `watermark` too, it follows the events at this delay, as `Stream.watermark` lets it: when an epoch has ended.
    The clock moves only when told to; it starts at 2024-01-01 UTC.

    With `order_by`, each epoch's events come in the order of these columns, as `key_by(…, order_by=)` sorts them.

    A function of two streams, a KeyedCoProcess or KeyedBroadcastProcess, has the schema of the other one as `right`,
    whose events are given by `push_right`, or by `push` in `Right`. Of connected streams, `right_key`,
    `right_event_time` and `right_watermark` are as on the left unless given, and the slower side's watermark counts.
    Rules have no key, no event time unless `right_event_time` says which, and apply in the order of the columns
    `order_by`, then as in a job.

    Windows, built-in aggregates and whole pipelines are given as a stream, which begins with `testing.events`: it says
    all but `backend` and `parallelism` itself, and its watermark follows the events.

    >>> from strandline import KeyedProcess, Value
    >>> class Count(KeyedProcess):
    ...     seen = Value("bigint", default=0)
    ...     def on_event(self, event, ctx):
    ...         self.seen.value += 1
    ...         yield ctx.key, self.seen.value
    >>> with Harness(Count(), schema="user string", key="user", output="user string, seen bigint") as h:
    ...     rows = h.push({"user": "ann"}, {"user": "bob"}, {"user": "ann"})
    ...     h.crash()
    >>> rows
    [Record(user='ann', seen=1), Record(user='bob', seen=1), Record(user='ann', seen=2)]

    >>> from strandline import KeyedCoProcess
    >>> class Greet(KeyedCoProcess):
    ...     name = Value("string")
    ...     def on_left(self, visit, ctx):
    ...         yield ctx.key, f"Hello {self.name.value}, this is {visit.page}"
    ...     def on_right(self, user, ctx):
    ...         self.name.value = user.name
    >>> streams = dict(schema="id int, page string", right="id int, name string", key="id")
    >>> with Harness(Greet(), **streams, output="id int, text string") as h:
    ...     before = h.push_right({"id": 7, "name": "Ann"})
    ...     rows = h.push({"id": 7, "page": "home"})
    >>> before, rows
    ([], [Record(id=7, text='Hello Ann, this is home')])
    """

    def __init__(
        self,
        process: KeyedProcess | KeyedBatchProcess | Stream,
        *,
        schema: str | SparkType | None = None,
        key: str | Sequence[str] | None = None,
        output: str | SparkType | None = None,
        event_time: str | None = None,
        watermark: str | None = None,
        right: str | SparkType | None = None,
        right_key: str | Sequence[str] | None = None,
        right_event_time: str | None = None,
        right_watermark: str | None = None,
        order_by: str | Sequence[str] | None = None,
        sides: Mapping[str, str | SparkType] | None = None,
        on_error: OnError | Then = "fail",
        uid: str = "operator",
        backend: BackendName = "filesystem",
        parallelism: int = 1,
        max_parallelism: int | None = None,
    ) -> None:
        if backend not in BACKENDS:
            raise ConfigurationError(f"Harness: backend is {backend!r}, expected one of {', '.join(BACKENDS)}")
        if not isinstance(parallelism, int):
            raise ConfigurationError(f"Harness: parallelism is {parallelism!r}, expected a number")
        lefts = StreamOptions(schema, key, event_time, watermark)
        rights = StreamOptions(right, right_key, right_event_time, right_watermark)
        if isinstance(process, Stream):
            nothing = StreamOptions(), StreamOptions(), "operator", None, None, None, None, "fail"
            if (lefts, rights, uid, output, sides, order_by, max_parallelism, on_error) != nothing:
                raise ConfigurationError(
                    "Harness: only backend and parallelism can be said of a stream: it has said all else already",
                    hint="leave the others out: testing.events(schema) and the stream's own methods have them",
                )
            self._end = process
        else:
            check_function(process)
            if schema is None or key is None:
                raise ConfigurationError(
                    "Harness: it is not said what the events are", hint='give schema="user string, n int", key="user"'
                )
            keyed = streams_of(process, uid, lefts, rights, order_by)
            if output is None:
                raise ConfigurationError(
                    f"operator '{uid}': it is not said which columns its rows have",
                    hint='give output="user string, n bigint"',
                )
            self._end = keyed.process(
                process, output, uid=uid, sides=sides, max_parallelism=max_parallelism, on_error=on_error
            )
        self._epoch = Epoch(0)
        self._output: Output = {}
        self._last: Snapshot | None = None
        self._run = PipelineRun(backend, parallelism)
        try:
            self._run.extend(self._end._node)
        except BaseException:
            self.close()
            raise
        pipeline = self._run.pipeline
        self._sources = {source.name: source for source in pipeline.sources}
        self._events = {
            name: Events(source, "right " if name == "right" else "") for name, source in self._sources.items()
        }
        self._times = Times(pipeline.watermarks, follows=isinstance(process, Stream) or watermark is not None)

    def then(
        self,
        process: KeyedProcess | KeyedBatchProcess,
        *,
        key: str | Sequence[str],
        output: str | SparkType,
        uid: str,
        sides: Mapping[str, str | SparkType] | None = None,
        side: str | None = None,
        max_parallelism: int | None = None,
        on_error: OnError | Then = "fail",
    ) -> Self:
        """Add an operator that reads the main output of the one before, or its side output `side`; before any epoch.

        From then on the harness gives the new operator's rows. What reads several streams is written as a pipeline of
        `testing.events`.
        """
        if self._epoch:
            raise ConfigurationError("Harness: then() was called after an epoch", hint="build the chain first")
        before = self._end if side is None else self._end.side(side)
        check_function(process)
        keyed = before.key_by(*listed(key))
        end = keyed.process(process, output, uid=uid, sides=sides, max_parallelism=max_parallelism, on_error=on_error)
        self._run.extend(end._node)
        self._end = end
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End in an orderly way: each function's `close` is called, and the temporary directory removed."""
        self._run.close()

    # -- epochs

    def push(self, *events: Any, **of: Sequence[Any]) -> list[Any]:
        """Process one epoch of events, dicts or tuples, and return the rows it gave.

        A column that a dict does not name is null. Events of the right one of two streams are put into `Right`, those
        of a pipeline's named sources are given by their names, `push(payments=[…], orders=[…])`; in a job, those of an
        epoch come in any order. Timers that the epoch's events made due fire in the next one, as in a job: `tick` runs
        it.
        """
        given: dict[str, list[tuple[int, Any]]] = {name: [] for name in self._sources}
        # Of a function's one stream, or the left one of two; a pipeline of one source may name it.
        first = "left" if "left" in given else next(iter(given)) if len(given) == 1 else ""
        named = [("right", event.event) if isinstance(event, Right) else (first, event) for event in events]
        named += [(name, event) for name, some in of.items() for event in some]
        for name in (*of, *(name for name, _ in named)):
            if name == "right" and name not in given:
                raise ConfigurationError(
                    "Harness: there is no right stream, as the function is one of one stream",
                    hint="derive it from KeyedCoProcess or KeyedBroadcastProcess, or use push() alone",
                )
            if name not in given:
                raise ConfigurationError(
                    f"Harness: push() was given events of {name or 'no named source'}; the sources are "
                    f"{', '.join(given)}",
                    hint="give each source's events by its name: push(payments=[…], orders=[…])",
                )
        for at, (name, event) in enumerate(named):
            given[name].append((at, event))
        return self._process(given)

    def push_right(self, *events: Any) -> list[Any]:
        """Process one epoch of events of the right one of two streams, and return the rows it gave."""
        return self.push(*map(Right, events))

    def tick(self) -> list[Any]:
        """Run epochs without events until no timer is due, as a job does while its source is silent."""
        found = self._process({})
        while self._run.is_due(self._times.of_epoch):
            found += self._process({})
        return found

    def advance_watermark(self, to: dt.datetime) -> list[Any]:
        """Let the watermark reach a time, run an epoch without events, and return the rows that timers gave."""
        self._times.let_watermark_reach(to)
        return self._process({})

    def advance_to_end(self) -> list[Any]:
        """Bring event time to its end, as a job's drain does; run an epoch without events, and return its rows.

        Windows give what they have, and all event-time timers fire, those too that they set, up to 1000 in a row;
        timers of processing time fire if they are due by the clock, in epochs before. Every event that is pushed
        afterwards is late.
        """
        found: list[Any] = []
        while self._run.is_due(EpochTimes(None, self._times.now_us)):
            found += self._process({})
        self._times.come_to_end()
        return found + self._process({})

    def advance_clock(self, by: str | dt.timedelta | dt.datetime) -> list[Any]:
        """Move the clock by a duration, or to a time; run an epoch without events, and return its rows."""
        self._times.move_clock(by)
        return self._process({})

    # -- what came of it

    @property
    def output(self) -> list[Any]:
        """All rows so far of the stream that the pipeline ends with, or of the last operator's main output."""
        return list(self._output.get(self._end._node, []))

    def side(self, name: str) -> list[Any]:
        """Return all rows of a side output so far; of several with the name, the last operator's."""
        return list(self._output.get(self._run.side(name), []))

    @property
    def dead_letters(self) -> list[Any]:
        """Return all dead letters so far, of every operator whose `on_error` is "dead-letter"."""
        return [row for node in self._run.dead_letters for row in self._output.get(node, [])]

    def state(self, key: Any, uid: str | None = None) -> dict[str, Any]:
        """Return the states of a key by name, defaults for what it does not have; in a chain, say whose by its uid.

        A list is a list, a map a dict, of broadcast rules too; of an aggregating state, it is the result.
        """
        return self._run.find(uid).state(key)

    def broadcast_state(self) -> dict[str, dict[Any, Any]]:
        """Return the Broadcast states by name; raise UserCodeError if they are not the same in all partitions."""
        self._run.check_open()
        return self._run.broadcasting.broadcast_state()

    def timers(self, key: Any, uid: str | None = None, *, processing: bool = False) -> list[dt.datetime]:
        """Return when a key's timers of one kind are set for, the first one first."""
        found = self._run.find(uid).timers(key)
        return [as_datetime(at_us) for at_us, is_processing in found if is_processing is processing]

    @property
    def watermark(self) -> dt.datetime | None:
        """How far event time has come: the next epoch's watermark."""
        at_us = self._times.watermark_us
        return None if at_us is None else as_datetime(at_us)

    @property
    def now(self) -> dt.datetime:
        """The clock."""
        return as_datetime(self._times.now_us)

    @property
    def epoch(self) -> int:
        """How many epochs the state has seen."""
        return self._epoch

    @property
    def late_rows(self) -> int:
        """How many events of the last epoch were late when they reached their first operator."""
        return self._run.late_rows

    @property
    def failed_events(self) -> int:
        """How many events of the last epoch a function failed for, and `on_error` has left out."""
        return self._run.failed_events

    # -- failures

    def snapshot(self) -> Snapshot:
        """Take a checkpoint: what `crash` goes back to, and `restore`."""
        self._run.check_open()
        output = {at: list(rows) for at, rows in self._output.items()}
        self._last = Snapshot(self._epoch, self._run.snapshot(), self._times.stored(), output)
        return self._last

    def crash(self) -> None:
        """Lose everything since the last snapshot, or since the beginning, and start anew from its files.

        Rows given since are forgotten too, as a sink with exactly-once rows forgets them. The clock goes on.
        """
        self.restore(self._last)

    def restore(self, snapshot: Snapshot | None) -> None:
        """Go back to a snapshot of this harness, None for the beginning: new backends are opened with its files."""
        self._run.check_open()
        if snapshot is not None and not self._run.fits(snapshot.files):
            raise ConfigurationError(
                "Harness: the snapshot is one of another harness, with other operators or another parallelism",
                hint="give restore() what snapshot() of this harness returned",
            )
        epoch = Epoch(snapshot.epoch if snapshot else 0)
        self._run.restore(snapshot.files if snapshot else None, epoch)
        self._last = snapshot
        self._times.restore(snapshot.watermarks if snapshot else {})
        self._epoch = epoch
        self._output = {at: list(rows) for at, rows in snapshot.output.items()} if snapshot else {}

    # -- inside

    def _process(self, given: Mapping[str, Sequence[tuple[int, Any]]]) -> list[Any]:
        """Run one epoch through the pipeline."""
        self._run.check_open()
        epoch = Epoch(self._epoch + 1)
        rows: dict[Node, Rows] = {
            source: self._events[name].rows(given.get(name, [])) for name, source in self._sources.items()
        }
        found = self._run.run(epoch, self._times, rows)
        self._epoch = epoch
        for node, records in found.items():
            self._output.setdefault(node, []).extend(records)
        return found[self._end._node]
