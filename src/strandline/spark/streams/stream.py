"""Streams: what a program is written with. Building one does nothing but remember and check the steps.

All kinds stand in one file, since each gives others; what they do is in the modules around.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, Unpack

from pyspark.sql import Column, DataFrame

from strandline.api.aggregates import Aggregate
from strandline.api.badrecords import DEAD_LETTERS, OnError, Then
from strandline.api.joins import KeyedBroadcastProcess, KeyedCoProcess
from strandline.api.options import OperatorOptions
from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.api.states import TTL
from strandline.api.windows import Early, WindowKind
from strandline.core.errors import ConfigurationError
from strandline.core.program import line_of_program
from strandline.core.settings import Duration
from strandline.ends.target import Target
from strandline.plan import joins, rolling, unions, windows
from strandline.plan.aggregation import aggregate_on, combine_aggregates
from strandline.plan.graph import Keyed, MapNode, Node, OperatorNode, sources_of
from strandline.plan.operators import keyed_by, output_of, process_on
from strandline.runtime.operators.asof import AsOfHow
from strandline.runtime.operators.joins import Bounds, How
from strandline.runtime.operators.windows.operator import Rules
from strandline.spark.sinks.base import Sink
from strandline.spark.sources.checks import check_source, check_source_name
from strandline.spark.sources.files import Cleaning
from strandline.spark.streams.frames import FrameStep, read, readable
from strandline.spark.streams.malformed import check_malformed, corrupt_column
from strandline.spark.streams.steps import Steps
from strandline.spark.streams.words import Worded
from strandline.types.spark_schema import SparkType, check_names


@dataclass(frozen=True, eq=False)
class Output:
    """A stream on its way into a sink."""

    stream: Stream
    sink: Sink
    line: str = field(default_factory=line_of_program)
    """Where in the program it was written."""


class Stream(Steps):
    """Rows on their way from a source to keyed operators and sinks. Every method gives a new stream."""

    def __init__(self, node: Node, operator: OperatorNode | MapNode | None = None) -> None:
        super().__init__(node)
        self._operator = operator
        """What this is the main output of, if there is nothing in between."""

    def side(self, name: str) -> Stream:
        """Return a side output of the operator just before: what its function sends there with ctx.emit()."""
        if not isinstance(self._operator, OperatorNode):
            raise ConfigurationError(
                f"side: there is no side output '{name}' here, known: none",
                hint="call side() on what process(…, sides={…}) gave, before any other step",
            )
        return Stream(output_of(self._operator, name))

    @property
    def dead_letters(self) -> Stream:
        """The events that the step just before failed for, where its `on_error` is "dead-letter".

        Rows of `operator`, `step` (the method that failed, or "key_by", "read"), `reason`, `key` and `event` as JSON,
        `event_time` and `traceback`: the same columns of every operator. Each failing event gives exactly one.
        """
        if isinstance(self._node, FrameStep) and self._node.failed is not None:
            return Stream(self._node.failed)
        if self._operator is None or not self._operator.on_error.has_dead_letters:
            raise ConfigurationError(
                "dead_letters: there are none here",
                hint='say process(…, on_error="dead-letter"), or so of map(), a join, files_source() and the others, '
                "and take dead_letters of what that gave, before any other step",
            )
        return Stream(output_of(self._operator, DEAD_LETTERS))

    def _mapped(self, node: MapNode) -> Stream:
        return Stream(output_of(node), node)

    def union(self, *others: Stream) -> Stream:
        """Return the rows of this stream and of others as one stream; the same one twice gives its rows twice.

        All need the same columns, by name and type; they may be in another order. Each keeps its watermark, and the
        slowest one's counts, as with several sources: `idle` of one that may be silent. Rows come as Spark's shuffle
        delivers them, whichever stream they are of.
        """
        for other in others:
            if not isinstance(other, Stream):
                raise ConfigurationError(
                    f"union: it was given a {type(other).__name__}, expected a Stream",
                    hint="unite streams before they are keyed: a.union(b, c).key_by(…)",
                )
        if not others:
            raise ConfigurationError("union: no other stream was given", hint="write a.union(b), or a.union(b, c)")
        return Stream(unions.union(self._node, [other._node for other in others]))

    def key_by(self, *keys: str, order_by: str | Iterable[str] = ()) -> KeyedStream:
        """Partition the stream by key columns.

        Rows of one key meet in one place, in the order in which Spark's shuffle delivers them; with `order_by`, the
        rows of each epoch are sorted by these columns.
        """
        return KeyedStream(keyed_by(self._node, keys, listed(order_by)))

    def to(self, sink: Sink) -> Output:
        """Send the stream into a sink."""
        if not isinstance(sink, Sink):
            is_target = isinstance(sink, Target)
            hint = "write sinks.Transactional(target)" if is_target else "take one from sl.sinks, for example files()"
            raise ConfigurationError(f"to() was given {sink!r}, expected a sink", hint=hint)
        output = Output(self, sink)
        for source in sources_of(self._node):
            source.outputs.append(output)
        return output


class Aggregates(Worded):
    """The methods that keyed and windowed streams have for built-in aggregation."""

    _is_before_key_by = True

    def _cut(self) -> tuple[Keyed, WindowKind | None, Rules]:
        """Return the keyed rows, and the kind of window if there is one, with its rules."""
        raise NotImplementedError

    def agg(
        self,
        results: Mapping[str, Aggregate] | None = None,
        /,
        *,
        uid: str,
        name: str | None = None,
        parallelism: int | None = None,
        max_parallelism: int | None = None,
        on_error: OnError | Then = "fail",
        **more: Aggregate,
    ) -> Stream:
        """Compute built-in aggregates, at the speed of Spark and Arrow: no Python runs per row.

        Gives the key columns, of windows of some time window_start and window_end, and each result by its name. Without
        windows, each epoch gives the new results of the keys it changed. A window's results come once the watermark has
        reached its end; with `lateness`, those that late events change come again. Results that cannot be keywords are
        given as a dict first. `uid`, `parallelism` and `max_parallelism` are as in process(). `on_error` says what
        becomes of rows without a key: "fail", "skip", "dead-letter", or an `sl.OnError`; see `dead_letters`.

        Where there is state already, each result goes on by its name: `total=sl.agg.sum("v").added()` for one that is
        new, `.renamed(was="old")` for one that had another name, and `drop=["uid.result"]` of the start for one that
        is gone.
        """
        keyed, kind, rules = self._cut()
        numbers = parallelism, max_parallelism
        given = combine_aggregates(results, more)
        return _main_output(aggregate_on(keyed, kind, rules, given, uid, name or "agg", *numbers, on_error))


_Process = TypeVar("_Process", bound=KeyedProcess | KeyedBatchProcess)


class Processed(Worded, Generic[_Process]):
    """Rows partitioned by key, of one stream or of two: the place for a function with state."""

    _is_before_key_by = True

    def __init__(self, keyed: Keyed) -> None:
        self._keyed = keyed

    def process(
        self,
        process: _Process,
        output: str | SparkType,
        *,
        uid: str,
        sides: Mapping[str, str | SparkType] | None = None,
        **options: Unpack[OperatorOptions],
    ) -> Stream:
        """Run a function with state on each event, of both streams if there are two, or on each Arrow batch.

        `output` is the DDL schema of the rows it gives, `sides` that of each side output by name: what ctx.emit()
        sends there is read with `side(name)` of the result. `uid` names the operator's state in every checkpoint:
        `uid=sl.uid("new", was="old")` to rename it. `parallelism` is its number of partitions where that is not to be
        the job's, and may change at every start; `max_parallelism` bounds it, and changes through a savepoint alone
        (`sl.state.patch`). `on_error` says what becomes of an event that the function fails for: "fail", "skip",
        "dead-letter", or an `sl.OnError`; see `dead_letters`.
        """
        return _main_output(process_on(self._keyed, process, output, uid, sides=sides, **options))


class ConnectedStreams(Processed[KeyedCoProcess]):
    """Two streams that are keyed alike: the place for a function that sees the events of both."""

    _is_called = "a pair of connected streams"


class BroadcastStream(Processed[KeyedBroadcastProcess]):
    """A keyed stream, and another of which every partition hears: the place for a KeyedBroadcastProcess."""

    _is_called = "a stream with a broadcast one"


class KeyedStream(Processed[KeyedProcess | KeyedBatchProcess], Aggregates):
    """A stream partitioned by key: the place for functions with state."""

    _is_called = "a keyed stream"

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return self._keyed.keys

    def _cut(self) -> tuple[Keyed, None, Rules]:
        return self._keyed, None, Rules()

    def window(
        self,
        kind: WindowKind,
        *,
        lateness: Duration = "0s",
        late: str | None = None,
        early: Duration | Early | None = None,
        accumulate: bool = True,
        time: windows.Time = "event",
    ) -> WindowedStream:
        """Cut each key's events into windows by their event time.

        A window's result comes once the watermark has reached its end. An event that comes later still changes the
        result, which then comes again, until the watermark is `lateness` beyond the end. Events that are too late for
        every window, or have no time, are dropped and counted; with `late`, they are the side output of this name.
        With `early`, the results so far of windows that changed come too: so often by the clock, or as sl.Early says.
        Each is of all of the window's events; with accumulate=False, of those since its last result. With
        `time="processing"`, windows follow the clock alone.
        """
        rules = windows.rules_of(self._keyed, kind, lateness, late, early, time, accumulate)
        return WindowedStream(self._keyed, kind, rules)

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        *,
        uid: str,
        ttl: TTL | None = None,
        **options: Unpack[OperatorOptions],
    ) -> Stream:
        """Reduce each key's events to one, and give it after each event.

        `function(event, event)` gives a row of the same columns. The first event of a key is given as it is, and the
        key's columns are always the key. With `ttl`, a key that had no events for so long begins anew. `uid`,
        `parallelism`, `max_parallelism` and `on_error` are as in process().

        >>> highest = sales.key_by("user").reduce(lambda a, b: a if a.amount >= b.amount else b, uid="highest")
        """
        return _main_output(rolling.reduce_on(self._keyed, function, uid, ttl, options))

    def fold(
        self,
        output: str | SparkType,
        initial: Any,
        function: Callable[[Any, Any], Any],
        *,
        uid: str,
        ttl: TTL | None = None,
        **options: Unpack[OperatorOptions],
    ) -> Stream:
        """Fold each key's events into one value, and give it after each event: `function(value, event)` gives the next.

        Gives rows of the key's columns and those of `output`. Of one column, the value is what stands in it; of
        several, it is a row of them: read by name, given as a tuple or dict. `ttl` and the others are as in reduce().

        >>> totals = sales.key_by("user").fold("total bigint", 0, lambda total, e: total + e.amount, uid="totals")
        """
        return _main_output(rolling.fold_on(self._keyed, output, initial, function, uid, ttl, options))

    def connect(self, other: KeyedStream) -> ConnectedStreams:
        """Bring together two streams that are keyed alike, for a function that sees the events of both."""
        return ConnectedStreams(joins.connect(self._keyed, _keyed_of(other, "connect")))

    def broadcast(self, rules: Stream, *, order_by: str | Iterable[str] = ()) -> BroadcastStream:
        """Let every partition hear of a small stream, for a KeyedBroadcastProcess: rules, settings, exchange rates.

        Its rows of one epoch come before the keyed stream's, sorted by `order_by`, then by their event times.
        """
        if not isinstance(rules, Stream):
            raise ConfigurationError(
                f"broadcast() was given a {type(rules).__name__}, expected a Stream",
                hint="write a.key_by(…).broadcast(rules): rules have no key here, every partition hears of all",
            )
        return BroadcastStream(joins.broadcast(self._keyed, rules._node, listed(order_by)))

    def join(
        self,
        other: KeyedStream,
        within: tuple[Duration, Duration],
        *,
        uid: str,
        how: How = "inner",
        bounds: Bounds = "[]",
        prefixes: tuple[str, str] = ("", ""),
        late: joins.Late = (None, None),
        **options: Unpack[OperatorOptions],
    ) -> Stream:
        """Pair rows of one key whose event times are near: `within` says how much earlier or later the other's may be.

        `("-10 min", "5 min")` pairs a row with those of the other stream from 10 minutes before it to 5 minutes after
        it, both included; not so with bounds="()", "[)" or "(]". The result has this stream's columns, then the
        other's; a key that has one name in both is there once, and `prefixes` tell other columns apart. A pair has the
        later of the two times. `how` is `inner`, or `left`, `right` or `full`: then a row without partner comes alone,
        with nulls, once the watermark says that none can come. Rows older than the watermark are left out; with
        late=("a", "b"), this stream's are the side output "a", and the other's "b". Rows without a key
        or a time are bad: `on_error` says what becomes of them. It, `uid`, `parallelism` and `max_parallelism` are as
        in process().
        """
        said = joins.JoinOptions("join", uid, how, prefixes, late, options)
        return _main_output(joins.interval_join(self._keyed, _keyed_of(other, "join"), within, bounds, said))

    def window_join(
        self,
        other: KeyedStream,
        kind: WindowKind,
        *,
        uid: str,
        how: How = "inner",
        prefixes: tuple[str, str] = ("", ""),
        late: joins.Late = (None, None),
        **options: Unpack[OperatorOptions],
    ) -> Stream:
        """Pair all rows of one key whose event times are in one window, when the watermark reaches its end.

        Of session windows, those of both streams together: a row prolongs the session whichever stream it is of. Where
        the gap is a function, it is asked about the rows of both.
        Arguments and columns are as in join(), and behind the columns `window_start` and `window_end`. Results have the
        time of the last moment of the window. Rows that come when all of their windows are complete are left out, or
        side outputs as in join().
        """
        said = joins.JoinOptions("window_join", uid, how, prefixes, late, options)
        return _main_output(joins.window_join(self._keyed, _keyed_of(other, "window_join"), kind, said))

    def as_of_join(
        self,
        versions: KeyedStream,
        *,
        uid: str,
        how: AsOfHow = "inner",
        max_age: Duration | None = None,
        deleted: str | None = None,
        prefixes: tuple[str, str] = ("", ""),
        late: joins.Late = (None, None),
        **options: Unpack[OperatorOptions],
    ) -> Stream:
        """Pair each row with the version of its key that was valid at its event time: prices, rates, addresses.

        Each row of `versions` is a new version of its key, valid from its event time on until that of the next one. Of
        two with the same time, the one that comes last counts. A row waits until the watermark has passed its time,
        and is given with that time; one without a version is left out, or comes with nulls if `how` is "left", and so
        if the version is older than `max_age`. `deleted` names a boolean column of the versions, which the result has
        not: where it is true, the key has no version from that time on. Rows older than the watermark are left out;
        versions older than it count from now on, and do not change what was given. With late=("a", "b"), both kinds are
        side outputs. Columns, `uid` and the others are as in join().
        """
        said = joins.JoinOptions("as_of_join", uid, how, prefixes, late, options)
        return _main_output(joins.as_of_join(self._keyed, _keyed_of(versions, "as_of_join"), max_age, deleted, said))


@dataclass(frozen=True)
class WindowedStream(Aggregates):
    """A keyed stream cut into windows: the place for functions of a window's events.

    What they give are rows of the key's columns, `window_start`, `window_end` (neither for Global windows) and the
    columns of the result. A row's time is the last one in its window, so that a following window of the same size
    takes it in. `uid`, `parallelism`, `max_parallelism` and `on_error` are as in process() of a keyed stream. A window
    whose result fails is a dead letter itself; it gives nothing, and ends as any other.
    """

    _is_called = "a windowed stream"

    keyed: Keyed
    kind: WindowKind
    rules: Rules

    def _cut(self) -> tuple[Keyed, WindowKind, Rules]:
        return self.keyed, self.kind, self.rules

    def fold(
        self,
        output: str | SparkType,
        initial: Any,
        function: Callable[[Any, Any], Any],
        *,
        uid: str,
        merge: Callable[[Any, Any], Any] | None = None,
        **options: Unpack[OperatorOptions],
    ) -> Stream:
        """Fold each window's events into one value: `function(value, event)` gives the next value.

        `output` is the DDL of the result's columns. Of one column, the value is what stands in it; of several, it is a
        row of them: read by name, given as a tuple or dict. Session windows need `merge(value, value)` too.

        >>> hours = sales.window(Tumbling("1h"))
        >>> totals = hours.fold("total bigint", 0, lambda total, e: total + e.amount, uid="totals")
        """
        return self._run(windows.fold(output, initial, function, merge, uid), uid, options)

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        *,
        uid: str,
        **options: Unpack[OperatorOptions],
    ) -> Stream:
        """Reduce each window's events to one: `function(event, event)` gives a row of the same columns.

        >>> top = sales.window(Tumbling("1h")).reduce(lambda a, b: a if a.amount >= b.amount else b, uid="top")
        """
        return self._run(windows.reduce(self.keyed, function, uid), uid, options)

    def aggregate(
        self,
        type: str | SparkType,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] = lambda accumulator: accumulator,
        merge: Callable[[Any, Any], Any] | None = None,
        output: str | SparkType,
        uid: str,
        **options: Unpack[OperatorOptions],
    ) -> Stream:
        """Aggregate each window's events: `create()`, `add(acc, event) -> acc`, `result(acc)`, as sl.Aggregating does.

        `type` is the accumulator's; the result is the value of the one column of `output`, or a tuple or dict of
        several. Session windows need `merge(acc, acc) -> acc` too.

        >>> mean = sales.window(Session("10 min")).aggregate(
        ...     "struct<n: bigint, total: bigint>", create=lambda: (0, 0),
        ...     add=lambda acc, e: (acc.n + 1, acc.total + e.amount),
        ...     merge=lambda a, b: (a.n + b.n, a.total + b.total), result=lambda acc: acc.total / acc.n,
        ...     output="mean double", uid="mean")
        """
        aggregated = windows.aggregate(type, create, add, result, merge, output, uid)
        return self._run(aggregated, uid, options)

    def process(
        self,
        function: Callable[[Any, Any, list[Any]], Iterable[Any] | None],
        output: str | SparkType,
        *,
        uid: str,
        **options: Unpack[OperatorOptions],
    ) -> Stream:
        """Keep each window's events and call `function(key, window, events)` with all of them.

        They come in the order of the epochs they came in; within one as key_by() has them. `window` has `start` and
        `end`; it is None for Global windows. The function yields or returns rows, dicts or tuples, of the columns in
        `output`. It may be called more than once for a window: with `early`, with late events, after a failure.

        >>> def top3(key, window, events):
        ...     for event in sorted(events, key=lambda e: -e.amount)[:3]:
        ...         yield {"amount": event.amount}
        >>> best = sales.window(Tumbling("1h")).process(top3, output="amount bigint", uid="top3")
        """
        return self._run(windows.process(self.keyed, function, output, uid), uid, options)

    def _run(self, function: windows.WindowFunction, uid: str, options: OperatorOptions) -> Stream:
        return _main_output(windows.windows_on(self.keyed, self.kind, self.rules, function, uid, options))


def listed(names: Any) -> tuple[Any, ...]:
    """Return one name or several as several; what is no name is refused with the names that there are."""
    return (names,) if isinstance(names, str | Column) or not isinstance(names, Iterable) else tuple(names)


def _main_output(operator: OperatorNode) -> Stream:
    return Stream(output_of(operator), operator)


def _keyed_of(other: object, what: str) -> Keyed:
    if not isinstance(other, KeyedStream):
        raise ConfigurationError(
            f"{what}: the other stream is a {type(other).__name__}, expected a keyed stream",
            hint=f"key it by the same thing: a.key_by(…).{what}(b.key_by(…), …)",
        )
    return other._keyed


def stream(df: DataFrame, name: str | None = None, *, on_error: OnError | Then | None = None) -> Stream:
    """Begin a pipeline with a Structured Streaming DataFrame: any source, any stateless steps.

    In a job that reads several, each needs a `name`, for the life of the job: how far it was read is found by it.
    `on_error` says what becomes of rows that could not be read, whose text Spark has put into `_corrupt_record`:
    "fail", or "dead-letter", see `dead_letters`. The stream has not got this column.

    >>> payments = stream(spark.readStream.schema(schema).json("in/"), name="payments")
    """
    return source_stream(df, name, on_error=on_error)


def source_stream(
    df: DataFrame,
    name: str | None = None,
    cleaning: Cleaning | None = None,
    on_error: OnError | Then | None = None,
) -> Stream:
    """Return the stream of a source, checked."""
    check_source(df)
    check_names(df.columns, "stream()")
    source = read(df, check_source_name(name), cleaning)
    if on_error is None:
        return Stream(source)
    return Stream(readable(source, corrupt_column(df), check_malformed("stream()", on_error)))
