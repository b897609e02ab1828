"""The harness, in which a test runs process functions or a pipeline epoch by epoch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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
from strandline.spark.streams.stream import Stream, as_names
from strandline.testing.events import Events, Right
from strandline.testing.nodes import Rows
from strandline.testing.run import Output, PipelineRun
from strandline.testing.stored import StoredState
from strandline.testing.streams import StreamOptions, check_function, streams_of
from strandline.testing.times import Times
from strandline.types.spark_schema import SparkType


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The contents of a checkpoint: state, watermarks and output after an epoch."""

    epoch: int
    files: list[list[list[LocalFile]]]
    watermarks: dict[str, int]
    output: Output


class Harness:
    """Runs a process function with its real state, without Spark and without other processes.

    Each call is one epoch. Keys assign rows to partitions as in Spark, the real backend keeps state in a temporary
    directory, and the function is pickled as in a job: the instance that runs is a copy of the test's instance. Errors
    are those of a job; an epoch that fails is not applied.

    `event_time` is the column of event times. The watermark moves by `advance_watermark`; with `watermark`, it also
    follows the events at this delay when an epoch ends, as in `Stream.watermark`. The clock starts at 2024-01-01 UTC
    and moves only by `advance_clock`.

    With `order_by`, each epoch's events are sorted by these columns, as by `key_by(…, order_by=)`.

    For a function of two streams, a KeyedCoProcess or KeyedBroadcastProcess, `right` is the schema of the second one.
    `push_right`, or `push` with `Right`, pushes its events. For connected streams, `right_key`, `right_event_time` and
    `right_watermark` default to those of the left stream, and the slower watermark counts. Rules have no key, an event
    time only by `right_event_time`, and apply in the order of the columns `order_by`, then as in a job.

    For windows, built-in aggregates and whole pipelines, pass a stream that begins with `testing.events`. It has all
    options but `backend` and `parallelism`, and its watermark follows the events.

    `from_snapshot` makes one with the state of a job's checkpoint or savepoint, `stored`.

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
        backend: BackendName | None = None,
        parallelism: int | None = None,
        max_parallelism: int | None = None,
        stored: StoredState | None = None,
    ) -> None:
        backend = backend or (stored.backend if stored else "filesystem")
        if backend not in BACKENDS:
            raise ConfigurationError(f"Harness: backend is {backend!r}, expected one of {', '.join(BACKENDS)}")
        if parallelism is not None and (not isinstance(parallelism, int) or parallelism < 1):
            raise ConfigurationError(f"Harness: parallelism is {parallelism!r}, expected a positive number")
        lefts = StreamOptions(schema, key, event_time, watermark)
        rights = StreamOptions(right, right_key, right_event_time, right_watermark)
        if isinstance(process, Stream):
            defaults = StreamOptions(), StreamOptions(), "operator", None, None, None, None, "fail"
            if (lefts, rights, uid, output, sides, order_by, max_parallelism, on_error) != defaults:
                raise ConfigurationError(
                    "Harness: only backend and parallelism are options for a stream, which has all others itself",
                    hint="leave the others out: testing.events(schema) and the stream's methods take them",
                )
            self._end = process
        else:
            check_function(process)
            if schema is None or key is None:
                raise ConfigurationError(
                    "Harness: schema and key of the events are missing",
                    hint='write schema="user string, n int", key="user"',
                )
            keyed = streams_of(process, uid, lefts, rights, order_by)
            if output is None:
                raise ConfigurationError(
                    f"operator '{uid}': output, the columns of its rows, is missing",
                    hint='write output="user string, n bigint"',
                )
            self._end = keyed.process(
                process, output, uid=uid, sides=sides, max_parallelism=max_parallelism, on_error=on_error
            )
        self._epoch = self._first = stored.manifest.epoch if stored else Epoch(0)
        self._output: Output = {}
        self._last: Snapshot | None = None
        self._start: Snapshot | None = None
        """Of a harness that began with a snapshot, its state then."""
        self._run = PipelineRun(backend, parallelism, stored)
        try:
            self._run.extend(self._end._node, in_full=isinstance(process, Stream))
        except BaseException:
            self.close()
            raise
        pipeline = self._run.pipeline
        self._sources = {source.name: source for source in pipeline.sources}
        self._events = {
            name: Events(source, "right " if name == "right" else "") for name, source in self._sources.items()
        }
        now_us = stored.now_us if stored else None
        follows = isinstance(process, Stream) or watermark is not None
        self._times = Times(pipeline.watermarks, follows=follows, now_us=now_us)
        if stored is not None:
            self._times.restore(stored.watermarks)
            self._start = self._last = self.snapshot()

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
        """Add an operator that reads the main output of the last one, or its side output `side`; before any epoch.

        Then the harness returns the rows of the new operator. To read several streams, write a pipeline that begins
        with `testing.events`.
        """
        if self._epoch != self._first:
            raise ConfigurationError("Harness: then() was called after an epoch", hint="build the chain first")
        before = self._end if side is None else self._end.side(side)
        check_function(process)
        keyed = before.key_by(*as_names(key))
        end = keyed.process(process, output, uid=uid, sides=sides, max_parallelism=max_parallelism, on_error=on_error)
        self._run.extend(end._node)
        self._end = end
        if self._start is not None:
            self._start = self.snapshot()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Call each function's `close`, and remove the temporary directory."""
        self._run.close()

    # -- epochs

    def push(self, *events: Any, **by_source: Sequence[Any]) -> list[Any]:
        """Process one epoch of events, dicts or tuples, and return its output rows.

        A column that a dict does not name is null. Wrap events of the right stream in `Right`. Pass events of named
        sources by name: `push(payments=[…], orders=[…])`; in a job, the order within an epoch is undefined. Timers
        that become due by this epoch's events fire in the next epoch, as in a job: `tick` runs it.
        """
        pushed: dict[str, list[tuple[int, Any]]] = {name: [] for name in self._sources}
        # The only or left stream of a function, or the only source of a pipeline.
        first = "left" if "left" in pushed else next(iter(pushed)) if len(pushed) == 1 else ""
        named = [("right", event.event) if isinstance(event, Right) else (first, event) for event in events]
        named += [(name, event) for name, batch in by_source.items() for event in batch]
        for name in (*by_source, *(name for name, _ in named)):
            if name == "right" and name not in pushed:
                raise ConfigurationError(
                    "Harness: there is no right stream: the function reads one stream",
                    hint="derive it from KeyedCoProcess or KeyedBroadcastProcess, or use push() alone",
                )
            if name not in pushed:
                raise ConfigurationError(
                    f"Harness: push() was given events of {name or 'no named source'}; the sources are "
                    f"{', '.join(pushed)}",
                    hint="pass each source's events by its name: push(payments=[…], orders=[…])",
                )
        for at, (name, event) in enumerate(named):
            pushed[name].append((at, event))
        return self._process(pushed)

    def push_right(self, *events: Any) -> list[Any]:
        """Process one epoch of events of the right stream, and return its output rows."""
        return self.push(*map(Right, events))

    def tick(self) -> list[Any]:
        """Run epochs without events until no timer is due, as a job does while its source is silent."""
        rows = self._process({})
        while self._run.is_due(self._times.of_epoch):
            rows += self._process({})
        return rows

    def advance_watermark(self, to: dt.datetime) -> list[Any]:
        """Move the watermark to a time, run an epoch without events, and return its output rows."""
        self._times.advance_watermark(to)
        return self._process({})

    def advance_to_end(self) -> list[Any]:
        """End event time, as a job's drain does; run an epoch without events, and return its output rows.

        Windows output their results, and all event-time timers fire, as do the timers they set, up to 1000 in a row.
        Processing-time timers fire before, if the clock has reached them. All events that are pushed later are late.
        """
        rows: list[Any] = []
        while self._run.is_due(EpochTimes(None, self._times.now_us)):
            rows += self._process({})
        self._times.advance_to_end()
        return rows + self._process({})

    def advance_clock(self, by: str | dt.timedelta | dt.datetime) -> list[Any]:
        """Move the clock by a duration, or to a time; run an epoch without events, and return its output rows."""
        self._times.move_clock(by)
        return self._process({})

    # -- results

    @property
    def output(self) -> list[Any]:
        """All rows so far of the last stream of the pipeline, or of the last operator's main output."""
        return list(self._output.get(self._end._node, []))

    def side(self, name: str) -> list[Any]:
        """Return all rows so far of a side output; if several have the name, of the last operator's."""
        return list(self._output.get(self._run.side(name), []))

    @property
    def dead_letters(self) -> list[Any]:
        """Return all dead letters so far, of every operator whose `on_error` is "dead-letter"."""
        return [row for node in self._run.dead_letters for row in self._output.get(node, [])]

    def state(self, key: Any, uid: str | None = None) -> dict[str, Any]:
        """Return the states of a key by name, or their defaults; in a chain, `uid` names the operator.

        Lists are lists, maps and broadcast states are dicts, and an aggregating state is its result.
        """
        return self._run.find(uid).state(key)

    def broadcast_state(self) -> dict[str, dict[Any, Any]]:
        """Return the Broadcast states by name; raise UserCodeError if they are not the same in all partitions."""
        self._run.check_open()
        return self._run.broadcasting.broadcast_state()

    def timers(self, key: Any, uid: str | None = None, *, processing: bool = False) -> list[dt.datetime]:
        """Return the times of a key's timers of one kind, in order."""
        timers = self._run.find(uid).timers(key)
        return [as_datetime(at_us) for at_us, is_processing in timers if is_processing is processing]

    @property
    def watermark(self) -> dt.datetime | None:
        """The watermark of the next epoch."""
        at_us = self._times.watermark_us
        return None if at_us is None else as_datetime(at_us)

    @property
    def now(self) -> dt.datetime:
        """The clock."""
        return as_datetime(self._times.now_us)

    @property
    def epoch(self) -> int:
        """The number of epochs applied to the state."""
        return self._epoch

    @property
    def late_rows(self) -> int:
        """The number of events of the last epoch that were late at their first operator."""
        return self._run.late_rows

    @property
    def failed_events(self) -> int:
        """The number of events of the last epoch that failed and that `on_error` skipped."""
        return self._run.failed_events

    # -- failures

    def snapshot(self) -> Snapshot:
        """Take a checkpoint, to which `crash` and `restore` go back."""
        self._run.check_open()
        output = {at: list(rows) for at, rows in self._output.items()}
        self._last = Snapshot(self._epoch, self._run.snapshot(), self._times.stored(), output)
        return self._last

    def crash(self) -> None:
        """Lose everything since the last snapshot, or since the start, and restart from its files.

        Output since then is removed too, as by an exactly-once sink. The clock does not go back.
        """
        self.restore(self._last)

    def restore(self, snapshot: Snapshot | None) -> None:
        """Go back to a snapshot of this harness, or to the start for None; open new backends with its files."""
        self._run.check_open()
        snapshot = snapshot or self._start
        if snapshot is not None and not self._run.fits(snapshot.files):
            raise ConfigurationError(
                "Harness: the snapshot is of another harness, with other operators or another parallelism",
                hint="pass restore() a result of snapshot() of this harness",
            )
        epoch = Epoch(snapshot.epoch if snapshot else 0)
        self._run.restore(snapshot.files if snapshot else None, epoch)
        self._last = snapshot
        self._times.restore(snapshot.watermarks if snapshot else {})
        self._epoch = epoch
        self._output = {at: list(rows) for at, rows in snapshot.output.items()} if snapshot else {}

    def _process(self, pushed: Mapping[str, Sequence[tuple[int, Any]]]) -> list[Any]:
        """Run one epoch through the pipeline."""
        self._run.check_open()
        epoch = Epoch(self._epoch + 1)
        rows: dict[Node, Rows] = {
            source: self._events[name].rows(pushed.get(name, [])) for name, source in self._sources.items()
        }
        output = self._run.run(epoch, self._times, rows)
        self._epoch = epoch
        for node, records in output.items():
            self._output.setdefault(node, []).extend(records)
        return output[self._end._node]


def from_snapshot(
    url: str | Path,
    process: KeyedProcess | KeyedBatchProcess | Stream,
    *,
    drop: Sequence[str] = (),
    from_now: Sequence[str] = (),
    reopen: bool = False,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> Harness:
    """Return a harness whose state is that of a snapshot: a checkpoint, a savepoint, or a job's newest checkpoint.

    `url` is its path or url, `options` are those of `Harness`; `backend` and `parallelism` are the snapshot's unless
    they are given. A function needs the `uid` that it has in the job, and gets this operator's state alone. A stream is
    a whole pipeline: it must have all operators with state. What a start of a job with this snapshot checks of the
    state is checked: values are migrated, and IncompatibleStateError has all reasons why not; `drop`, `from_now` and
    `reopen` are those of `Job.start`. The watermark goes on from the snapshot's, and the clock begins when it was
    taken.

    The snapshot's folder is only read, without a pin in it. Its files are copied when the harness opens: of a running
    job, take one that stays for so long. `crash` goes back to the snapshot, or to a later one of the harness.

    >>> from strandline import KeyedProcess, Value
    >>> class Total(KeyedProcess):
    ...     total = Value("bigint", default=0)
    ...     def on_event(self, event, ctx):
    ...         self.total.value += event.amount
    ...         yield ctx.key, self.total.value
    >>> total = dict(schema="card string, amount int", key="card", output="card string, total bigint", uid="totals")
    >>> with from_snapshot("s3://prod/ck/totals", Total(), **total) as h:  # doctest: +SKIP
    ...     rows = h.push({"card": "c1", "amount": 5})
    """
    stored = StoredState.open(url, storage_options, drop=drop, from_now=from_now, reopen=reopen)
    return Harness(process, stored=stored, **options)
