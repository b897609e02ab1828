"""The streams with which a program defines its pipeline. Their methods only record and check the steps.

All kinds are in one file, since their methods return each other; the steps are in `plan/` and the modules around.
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
from strandline.spark.streams.frames import FrameStep, frame_source, readable_rows
from strandline.spark.streams.hints import MissingMethodHints, needs_uid
from strandline.spark.streams.html import stream_html
from strandline.spark.streams.malformed import check_malformed, corrupt_column
from strandline.spark.streams.steps import Steps
from strandline.types.spark_schema import SparkType, check_names


@dataclass(frozen=True, eq=False)
class Output:
    """A stream and the sink that its rows are sent to."""

    stream: Stream
    sink: Sink
    line: str = field(default_factory=line_of_program)
    """The line of the program that creates it."""


class Stream(Steps):
    """Rows between sources, keyed operators and sinks. Every method returns a new stream."""

    def __init__(self, node: Node, operator: OperatorNode | MapNode | None = None) -> None:
        super().__init__(node)
        self._operator = operator
        """The operator whose main output this is, None after any other step."""

    def side(self, name: str) -> Stream:
        """Return a side output of the last operator: the rows that its function sends there with ctx.emit()."""
        if not isinstance(self._operator, OperatorNode):
            raise ConfigurationError(
                f"side: there is no side output '{name}' here, known: none",
                hint="call side() on the result of process(…, sides={…}), before any other step",
            )
        return Stream(output_of(self._operator, name))

    @property
    def dead_letters(self) -> Stream:
        """The events for which the last step failed, if its `on_error` is "dead-letter".

        The columns are the same for every step: `operator`, `step` (the method that failed, or "key_by", "read"),
        `reason`, `key` and `event` as JSON, `event_time` and `traceback`. Each failed event is exactly one row.
        """
        if isinstance(self._node, FrameStep) and self._node.failed is not None:
            return Stream(self._node.failed)
        if self._operator is None or not self._operator.on_error.has_dead_letters:
            raise ConfigurationError(
                "dead_letters: there are none here",
                hint='set on_error="dead-letter" in process(…), map(), a join, files_source() or another step, and use '
                "dead_letters of its result, before any other step",
            )
        return Stream(output_of(self._operator, DEAD_LETTERS))

    def _mapped(self, node: MapNode) -> Stream:
        return Stream(output_of(node), node)

    def union(self, *others: Stream) -> Stream:
        """Return the rows of this stream and of others as one stream; a stream that is passed twice counts twice.

        All need the same columns, by name and type, in any order. Each keeps its watermark, and the smallest counts, as
        with several sources: set `idle` for a stream that may be silent. Rows of all streams are mixed, in the order in
        which Spark's shuffle delivers them.
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

        One partition gets all rows of a key, in the order in which Spark's shuffle delivers them; with `order_by`, the
        rows of each epoch are sorted by these columns.
        """
        return KeyedStream(keyed_by(self._node, keys, as_names(order_by)))

    def to(self, sink: Sink) -> Output:
        """Send the stream into a sink."""
        if not isinstance(sink, Sink):
            is_target = isinstance(sink, Target)
            hint = "write sinks.Transactional(target)" if is_target else "use one from sl.sinks, for example files()"
            raise ConfigurationError(f"to() was given {sink!r}, expected a sink", hint=hint)
        output = Output(self, sink)
        for source in sources_of(self._node):
            source.outputs.append(output)
        return output


class Aggregates(MissingMethodHints):
    """The methods of keyed and windowed streams for built-in aggregation."""

    _is_keyed = True

    def _cut(self) -> tuple[Keyed, WindowKind | None, Rules]:
        """Return the keyed rows, and the kind of window and its rules, if any."""
        raise NotImplementedError

    @needs_uid
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
        """Compute built-in aggregates in Spark and Arrow: no Python code runs per row.

        The output has the key columns, window_start and window_end for windows of time, and a column for each result.
        Without windows, each epoch emits the new results of the keys that it changed. A window emits its results when
        the watermark reaches its end; with `lateness`, it emits results again that late events change. Pass results
        whose names cannot be keywords as a dict. `uid`, `parallelism` and `max_parallelism` are as in process().
        `on_error` is the policy for rows without a key: "fail", "skip", "dead-letter", or an `sl.OnError`; see
        `dead_letters`.

        Stored state is matched to results by name: write `total=sl.agg.sum("v").added()` for a new result,
        `.renamed(was="old")` for one that had another name, and `drop=["uid.result"]` in start() for a removed one.
        """
        keyed, kind, rules = self._cut()
        numbers = parallelism, max_parallelism
        aggregates = combine_aggregates(results, more)
        return _main_output(aggregate_on(keyed, kind, rules, aggregates, uid, name or "agg", *numbers, on_error))


_Process = TypeVar("_Process", bound=KeyedProcess | KeyedBatchProcess)


class Processed(MissingMethodHints, Generic[_Process]):
    """Rows of one or two streams, partitioned by key, to be processed by a function with state."""

    _is_keyed = True

    def __init__(self, keyed: Keyed) -> None:
        self._keyed = keyed

    def _repr_html_(self) -> str:
        return stream_html(self._description, self._keyed.node, {"key": ", ".join(self._keyed.keys)})

    @needs_uid
    def process(
        self,
        process: _Process,
        output: str | SparkType,
        *,
        uid: str,
        sides: Mapping[str, str | SparkType] | None = None,
        keeps_key: bool = False,
        **options: Unpack[OperatorOptions],
    ) -> Stream:
        """Run a function with state on each event, of both streams if there are two, or on each Arrow batch.

        `output` is the DDL schema of its output rows, `sides` that of each side output by name: `side(name)` of the
        result has the rows that ctx.emit() sends there. `uid` names the operator's state in every checkpoint; rename it
        by `uid=sl.uid("new", was="old")`. `parallelism` is its number of partitions, by default the job's, and may
        change at every start; `max_parallelism` is its upper bound, and changes only by a savepoint (`sl.state.patch`).
        `on_error` is the policy for events for which the function fails: "fail", "skip", "dead-letter", or an
        `sl.OnError`; see `dead_letters`.

        With `keeps_key`, each row of `output` has the key of the events that it comes of, in columns of the same names:
        if the next step is key_by() of the same columns and process(), reduce(), fold() or a window's function, both
        run in one task, and no shuffle is between them. A row with another key ends the job.
        """
        return _main_output(process_on(self._keyed, process, output, uid, sides=sides, keeps_key=keeps_key, **options))


class ConnectedStreams(Processed[KeyedCoProcess]):
    """Two streams with the same key, to be processed by a function of the events of both."""

    _description = "a pair of connected streams"


class BroadcastStream(Processed[KeyedBroadcastProcess]):
    """A keyed stream and a broadcast stream, to be processed by a KeyedBroadcastProcess."""

    _description = "a stream with a broadcast one"


class KeyedStream(Processed[KeyedProcess | KeyedBatchProcess], Aggregates):
    """A stream partitioned by key, to be processed by functions with state."""

    _description = "a keyed stream"

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
        """Group each key's events into windows by their event time.

        A window emits its result when the watermark reaches its end. Until the watermark is `lateness` past the end,
        later events still change the result, and the window emits it again. Events that are too late for every window,
        or have no time, are dropped and counted; with `late`, they are the side output of this name. With `early`,
        windows that changed also emit their results so far: after this time by the clock, or as sl.Early defines. Each
        result covers all events of the window; with accumulate=False, those since its last result. With
        `time="processing"`, windows use the clock in place of event time.
        """
        rules = windows.rules_of(self._keyed, kind, lateness, late, early, time, accumulate)
        return WindowedStream(self._keyed, kind, rules)

    @needs_uid
    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        *,
        uid: str,
        ttl: TTL | None = None,
        **options: Unpack[OperatorOptions],
    ) -> Stream:
        """Reduce each key's events to one row, and emit it after each event.

        `function(event, event)` returns a row with the same columns. The first event of a key is emitted unchanged, and
        the key columns always have the key. With `ttl`, a key without events for this time starts again. `uid`,
        `parallelism`, `max_parallelism` and `on_error` are as in process().

        >>> highest = sales.key_by("user").reduce(lambda a, b: a if a.amount >= b.amount else b, uid="highest")
        """
        return _main_output(rolling.reduce_on(self._keyed, function, uid, ttl, options))

    @needs_uid
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
        """Fold each key's events into one value, `function(value, event)`, and emit it after each event.

        The output has the key columns and those of `output`. If `output` has one column, the value is that column's; if
        several, the value is a row, read by name and returned as a tuple or dict. `ttl` and the others are as in
        reduce().

        >>> totals = sales.key_by("user").fold("total bigint", 0, lambda total, e: total + e.amount, uid="totals")
        """
        return _main_output(rolling.fold_on(self._keyed, output, initial, function, uid, ttl, options))

    def connect(self, other: KeyedStream) -> ConnectedStreams:
        """Connect two streams with the same key, for a function of the events of both."""
        return ConnectedStreams(joins.connect(self._keyed, _keyed_of(other, "connect")))

    def broadcast(self, rules: Stream, *, order_by: str | Iterable[str] = ()) -> BroadcastStream:
        """Send a small stream to every partition, for a KeyedBroadcastProcess: rules, settings, exchange rates.

        In each epoch, its rows come before those of the keyed stream, sorted by `order_by`, then by event time.
        """
        if not isinstance(rules, Stream):
            raise ConfigurationError(
                f"broadcast() was given a {type(rules).__name__}, expected a Stream",
                hint="write a.key_by(…).broadcast(rules): rules have no key, every partition gets all of them",
            )
        return BroadcastStream(joins.broadcast(self._keyed, rules._node, as_names(order_by)))

    @needs_uid
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
        """Pair rows of one key whose event times are close: `within` is the interval for the other row's time.

        `("-10 min", "5 min")` pairs a row with those of the other stream from 10 minutes before it to 5 minutes after
        it, both included; bounds="()", "[)" or "(]" exclude them. The result has this stream's columns, then the
        other's; a key column with the same name in both appears once, and `prefixes` distinguish other columns. A pair
        has the later of the two times. `how` is `inner`, or `left`, `right` or `full`: then a row without partner is
        emitted with nulls, once the watermark shows that none can come. Rows older than the watermark are dropped; with
        late=("a", "b"), this stream's are the side output "a", and the other's "b". `on_error` is the policy for rows
        without a key or a time. It, `uid`, `parallelism` and `max_parallelism` are as in process().
        """
        join_options = joins.JoinOptions("join", uid, how, prefixes, late, options)
        return _main_output(joins.interval_join(self._keyed, _keyed_of(other, "join"), within, bounds, join_options))

    @needs_uid
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

        Session windows are those of both streams together: rows of either stream extend a session. A gap function is
        called with rows of both. Arguments and columns are as in join(), followed by the columns `window_start` and
        `window_end`. Results have the last time inside the window. Rows whose windows are all complete are dropped, or
        are side outputs as in join().
        """
        join_options = joins.JoinOptions("window_join", uid, how, prefixes, late, options)
        return _main_output(joins.window_join(self._keyed, _keyed_of(other, "window_join"), kind, join_options))

    @needs_uid
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

        Each row of `versions` is a new version of its key, valid from its event time until that of the next one. Of two
        with the same time, the last to arrive counts. A row is emitted when the watermark has passed its time, and has
        that time. A row without a version, or whose version is older than `max_age`, is dropped, or has nulls if `how`
        is "left". `deleted` names a boolean column of the versions, which the result does not have: if it is true, the
        key has no version from that time on. Rows older than the watermark are dropped; versions older than it apply to
        rows that are emitted later. With late=("a", "b"), both kinds are side outputs. Columns, `uid` and the others
        are as in join().
        """
        join_options = joins.JoinOptions("as_of_join", uid, how, prefixes, late, options)
        keyed = _keyed_of(versions, "as_of_join")
        return _main_output(joins.as_of_join(self._keyed, keyed, max_age, deleted, join_options))


@dataclass(frozen=True)
class WindowedStream(Aggregates):
    """A keyed stream in windows, to be processed by functions of a window's events.

    Output rows have the key columns, `window_start`, `window_end` (neither for Global windows) and the columns of the
    result. A row's time is the last time inside its window, so that a following window of the same size includes it.
    `uid`, `parallelism`, `max_parallelism` and `on_error` are as in process() of a keyed stream. A window whose result
    fails is one dead letter; it emits no result, and ends normally.
    """

    _description = "a windowed stream"

    keyed: Keyed
    kind: WindowKind
    rules: Rules

    def _cut(self) -> tuple[Keyed, WindowKind, Rules]:
        return self.keyed, self.kind, self.rules

    def _repr_html_(self) -> str:
        values = {"key": ", ".join(self.keyed.keys), "windows": self.kind}
        return stream_html(self._description, self.keyed.node, values)

    @needs_uid
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
        """Fold each window's events into one value: `function(value, event)` returns the next value.

        `output` is the DDL of the result's columns. If it has one column, the value is that column's; if several, the
        value is a row, read by name and returned as a tuple or dict. Session windows also need `merge(value, value)`.

        >>> hours = sales.window(Tumbling("1h"))
        >>> totals = hours.fold("total bigint", 0, lambda total, e: total + e.amount, uid="totals")
        """
        return self._run(windows.fold(output, initial, function, merge, uid), uid, options)

    @needs_uid
    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        *,
        uid: str,
        **options: Unpack[OperatorOptions],
    ) -> Stream:
        """Reduce each window's events to one row: `function(event, event)` returns a row with the same columns.

        >>> top = sales.window(Tumbling("1h")).reduce(lambda a, b: a if a.amount >= b.amount else b, uid="top")
        """
        return self._run(windows.reduce(self.keyed, function, uid), uid, options)

    @needs_uid
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

        `type` is the accumulator's type; the result is the value of the one column of `output`, or a tuple or dict of
        several. Session windows also need `merge(acc, acc) -> acc`.

        >>> mean = sales.window(Session("10 min")).aggregate(
        ...     "struct<n: bigint, total: bigint>", create=lambda: (0, 0),
        ...     add=lambda acc, e: (acc.n + 1, acc.total + e.amount),
        ...     merge=lambda a, b: (a.n + b.n, a.total + b.total), result=lambda acc: acc.total / acc.n,
        ...     output="mean double", uid="mean")
        """
        aggregated = windows.aggregate(type, create, add, result, merge, output, uid)
        return self._run(aggregated, uid, options)

    @needs_uid
    def process(
        self,
        function: Callable[[Any, Any, list[Any]], Iterable[Any] | None],
        output: str | SparkType,
        *,
        uid: str,
        **options: Unpack[OperatorOptions],
    ) -> Stream:
        """Keep each window's events and call `function(key, window, events)` with all of them.

        Events are in the order of their epochs; within an epoch, in the order of key_by(). `window` has `start` and
        `end`; it is None for Global windows. The function yields or returns rows, dicts or tuples, of the columns in
        `output`. It may be called more than once for a window: with `early`, for late events, after a failure.

        >>> def top3(key, window, events):
        ...     for event in sorted(events, key=lambda e: -e.amount)[:3]:
        ...         yield {"amount": event.amount}
        >>> best = sales.window(Tumbling("1h")).process(top3, output="amount bigint", uid="top3")
        """
        return self._run(windows.process(self.keyed, function, output, uid), uid, options)

    def _run(self, function: windows.WindowFunction, uid: str, options: OperatorOptions) -> Stream:
        return _main_output(windows.windows_on(self.keyed, self.kind, self.rules, function, uid, options))


def as_names(names: Any) -> tuple[Any, ...]:
    """Return one name or several as a tuple. Other values pass too: the check of the names refuses them."""
    return (names,) if isinstance(names, str | Column) or not isinstance(names, Iterable) else tuple(names)


def _main_output(operator: OperatorNode) -> Stream:
    return Stream(output_of(operator), operator)


def _keyed_of(other: object, method: str) -> Keyed:
    if not isinstance(other, KeyedStream):
        raise ConfigurationError(
            f"{method}: the other stream is a {type(other).__name__}, expected a keyed stream",
            hint=f"key it by the same columns: a.key_by(…).{method}(b.key_by(…), …)",
        )
    return other._keyed


def stream(df: DataFrame, name: str | None = None, *, on_error: OnError | Then | None = None) -> Stream:
    """Begin a pipeline with a Structured Streaming DataFrame: any source, any stateless steps.

    If a job reads several sources, each needs a `name` that never changes: checkpoints store positions by name.
    `on_error` is the policy for malformed rows, whose text Spark has put into `_corrupt_record`: "fail", or
    "dead-letter", see `dead_letters`. The stream does not have this column.

    >>> payments = stream(spark.readStream.schema(schema).json("in/"), name="payments")
    """
    return source_stream(df, name, on_error=on_error)


def source_stream(
    df: DataFrame,
    name: str | None = None,
    cleaning: Cleaning | None = None,
    on_error: OnError | Then | None = None,
) -> Stream:
    """Check a source, and return its stream."""
    check_source(df)
    check_names(df.columns, "stream()")
    source = frame_source(df, check_source_name(name), cleaning)
    if on_error is None:
        return Stream(source)
    return Stream(readable_rows(source, corrupt_column(df), check_malformed("stream()", on_error)))
