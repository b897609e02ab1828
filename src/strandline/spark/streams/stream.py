"""Streams: what a program is written with. Building one does nothing but remember and check the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame

from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.api.windows import WindowKind
from strandline.core.errors import ConfigurationError
from strandline.runtime.operators.joins import How, check_inputs
from strandline.runtime.operators.windows.operator import Rules
from strandline.runtime.program import check_process, check_sides, check_ttl, state_infos
from strandline.runtime.task.outputs import SIDE
from strandline.spark.base.ddl import check_keys, first_line, input_schema, quoted
from strandline.spark.base.hidden import TIME, hidden_of, visible, without_hidden
from strandline.spark.base.reported import errors_reported
from strandline.spark.sinks.base import Sink
from strandline.spark.sources.checks import check_source, check_source_name
from strandline.spark.sources.files import Cleaning
from strandline.spark.streams.aggregation import Aggregates
from strandline.spark.streams.nodes import (
    Node,
    OperatorNode,
    SourceNode,
    Step,
    StepNode,
    WatermarkNode,
    has_limit,
    make_operator,
)
from strandline.spark.streams.rows import RowFunction
from strandline.spark.streams.watermark import make_spec, with_times
from strandline.spark.streams.windows import WindowedStream, cut
from strandline.types.datatypes import parse_schema

if TYPE_CHECKING:
    from strandline.spark.streams.joins import BroadcastStream, ConnectedStreams


@dataclass(frozen=True, eq=False)
class Output:
    """A stream on its way into a sink."""

    stream: Stream
    sink: Sink


class Stream:
    """Rows on their way from a source to keyed operators and sinks. Every method gives a new stream."""

    def __init__(self, node: Node, operator: OperatorNode | None = None) -> None:
        self._node = node
        self._operator = operator
        """The operator whose main output this is, if there is nothing in between."""

    @property
    def columns(self) -> list[str]:
        """Names of the stream's columns."""
        return visible(self._node.probe.columns)

    @property
    def schema(self) -> Any:
        """The stream's Spark schema."""
        return without_hidden(self._node.probe).schema

    def select(self, *columns: str | Column) -> Stream:
        """Keep or compute columns, as DataFrame.select does."""
        return self._select(lambda df, hidden: df.select(*columns, *hidden))

    def select_expr(self, *expressions: str) -> Stream:
        """Keep or compute columns with SQL expressions."""
        return self._select(lambda df, hidden: df.selectExpr(*expressions, *hidden))

    def _select(self, step: Callable[[DataFrame, list[str]], DataFrame]) -> Stream:
        """Select columns; the hidden ones stay, unless a `*` took them along already."""
        hidden = hidden_of(self._node.probe)
        if hidden and TIME in self.transform(lambda df: step(df, []))._node.probe.columns:
            hidden = []
        return self.transform(lambda df: step(df, hidden))

    def with_column(self, name: str, column: Column) -> Stream:
        """Add or replace a column."""
        return self.transform(lambda df: df.withColumn(name, column))

    def where(self, condition: str | Column) -> Stream:
        """Keep the rows that fulfil a condition, SQL or a Column."""
        return self.transform(lambda df: df.where(condition))

    filter = where

    def transform(self, step: Step) -> Stream:
        """Apply any stateless function from DataFrame to DataFrame.

        One that keeps the columns it does not know, as withColumn does, keeps the rows' event time too.
        """
        try:
            with errors_reported():
                probe = step(self._node.probe)
        except AnalysisException as error:
            raise ConfigurationError(
                f"a step does not fit the stream's columns ({', '.join(self.columns)}): {first_line(error)}"
            ) from None
        return Stream(StepNode(probe, self._node, step, stops_early=has_limit(probe)))

    def map(self, function: Callable[[Any], Any], output: str) -> Stream:
        """Apply a Python function to each row; it returns a dict or tuple that fits the schema `output`."""
        return self.flat_map(_One(function), output)

    def flat_map(self, function: Callable[[Any], Iterable[Any] | None], output: str) -> Stream:
        """Apply a Python function to each row; it yields any number of dicts or tuples that fit `output`."""
        hidden = hidden_of(self._node.probe)
        ddl = parse_schema(output).ddl
        rows = RowFunction(function, input_schema(self._node.probe, "map"), ddl, len(hidden))
        names = [*map(quoted, self.columns), *hidden]
        schema = self._node.probe.sparkSession.createDataFrame([], ddl).schema
        for name in hidden:
            schema.add(self._node.probe.schema[name])
        return self.transform(lambda df: df.select(*names).mapInArrow(rows, schema))

    def watermark(self, column: str, delay: str = "0s", *, per: str | None = None, idle: str | None = None) -> Stream:
        """Give every row the time in a timestamp column, and the stream a watermark.

        The watermark is the newest time so far, less `delay`: how late events may come. It moves when an epoch ends.
        With `per`, the newest times of that column's values (a partition, a device) are told apart and the slowest
        counts; with `idle`, a value that was silent for so long is not waited for. Without it the job remembers every
        value for ever, and one that ends holds the watermark up. Rows count once they reach the first keyed operator.
        What operators give has the time of the event, or the timer, that it came of.
        """
        spec = make_spec(self._node.probe, column, delay, per, idle)

        def step(df: DataFrame) -> DataFrame:
            return with_times(df, spec)

        return Stream(WatermarkNode(step(self._node.probe), self._node, step, spec))

    def side(self, name: str) -> Stream:
        """Return a side output of the operator just before: what its function sends there with ctx.emit()."""
        operator = self._operator
        if operator is not None and name in operator.sides_before:
            return Stream(operator.sides_before[name])
        if operator is None or name not in operator.sides:
            known = ", ".join([*operator.sides, *operator.sides_before] if operator else []) or "none"
            raise ConfigurationError(
                f"side: there is no side output '{name}' here, known: {known}",
                hint="call side() on what process(…, sides={…}) gave, before any other step",
            )
        return _output_of(operator, 1 + list(operator.sides).index(name))

    def key_by(self, *keys: str, order_by: str | Iterable[str] = ()) -> KeyedStream:
        """Partition the stream by key columns.

        Rows of one key meet in one place, in the order in which Spark's shuffle delivers them; with `order_by`, the
        rows of each epoch are sorted by these columns.
        """
        one = isinstance(order_by, str | Column) or not isinstance(order_by, Iterable)
        order: tuple[Any, ...] = (order_by,) if one else tuple(order_by)
        check_keys(self._node.probe, keys, order)
        return KeyedStream(self._node, keys, order)

    def to(self, sink: Sink) -> Output:
        """Send the stream into a sink."""
        if not isinstance(sink, Sink):
            raise ConfigurationError(
                f"to() was given {sink!r}, expected a sink", hint="take one from strandline.sinks, for example files()"
            )
        return Output(self, sink)


class KeyedStream(Aggregates):
    """A stream partitioned by key: the place for functions with state."""

    _made_by: Literal["key_by", "connect", "broadcast"] = "key_by"

    def __init__(self, node: Node, keys: tuple[str, ...], order_by: tuple[str, ...] = ()) -> None:
        self._node = node
        self._keys = keys
        self._order_by = order_by

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return self._keys

    @property
    def hidden(self) -> list[str]:
        """Hidden columns that its rows carry."""
        return hidden_of(self._node.probe)

    def input_schema(self, where: str) -> str:
        """Return the DDL of its columns; errors about them begin with `where`."""
        return input_schema(self._node.probe, where)

    def _cut(self) -> tuple[KeyedStream, None, Rules]:
        return self, None, Rules()

    def process(
        self,
        process: KeyedProcess | KeyedBatchProcess,
        output: str,
        uid: str,
        *,
        sides: Mapping[str, str] | None = None,
        name: str | None = None,
        max_parallelism: int | None = None,
    ) -> Stream:
        """Run a function with state on each event, or on each Arrow batch.

        `output` is the DDL schema of the rows it gives, `sides` that of each side output by name: what ctx.emit()
        sends there is read with `side(name)` of the result. `uid` names the operator's state in every checkpoint for
        the life of the job: choose it once, never change it. `max_parallelism` bounds the number of partitions for
        life.
        """
        if not isinstance(uid, str) or not uid.strip():
            raise ConfigurationError(
                f"process() of {type(process).__name__} has no uid",
                hint="give it a name of its own that never changes, for example uid='detect': state is found by it",
            )
        check_process(process, uid)
        check_sides(uid, sides or {})
        check_inputs(process, uid, self._made_by)
        state_infos(process)
        schema = parse_schema(output).ddl
        raw_sides = {side: parse_schema(ddl).ddl for side, ddl in (sides or {}).items()}
        check_ttl(process, uid, timed=TIME in self.hidden)
        node = make_operator(
            self._node,
            process,
            uid,
            name=name or type(process).__name__,
            keys=self._keys,
            order_by=self._order_by,
            output=schema,
            sides=raw_sides,
            max_parallelism=max_parallelism,
        )
        return _output_of(node, 0)

    def window(
        self,
        kind: WindowKind,
        *,
        lateness: str = "0s",
        late: str | None = None,
        early: str | None = None,
        time: Literal["event", "processing"] = "event",
    ) -> WindowedStream:
        """Cut each key's events into windows by their event time.

        A window's result comes once the watermark has reached its end. An event that comes later still changes the
        result, which then comes again, until the watermark is `lateness` beyond the end. Events that are too late for
        every window, or have no time, are dropped and counted; with `late`, they are the side output of this name.
        With `early`, the results so far of windows that changed come too, so often by the clock. With
        `time="processing"`, windows follow the clock alone.
        """
        return cut(self, kind, lateness, late, early, time)

    def connect(self, other: KeyedStream) -> ConnectedStreams:
        """Bring together two streams that are keyed alike, for a function that sees the events of both."""
        from strandline.spark.streams.joins import connect

        return connect(self, other)

    def broadcast(self, rules: Stream, *, order_by: str | Iterable[str] = ()) -> BroadcastStream:
        """Let every partition hear of a small stream, for a KeyedBroadcastProcess: rules, settings, exchange rates.

        Its rows of one epoch come before the keyed stream's, sorted by `order_by`, then by their event times.
        """
        from strandline.spark.streams.joins import broadcast

        return broadcast(self, rules, (order_by,) if isinstance(order_by, str) else tuple(order_by))

    def join(
        self,
        other: KeyedStream,
        within: tuple[str, str],
        uid: str,
        *,
        how: How = "inner",
        prefixes: tuple[str, str] = ("", ""),
        max_parallelism: int | None = None,
    ) -> Stream:
        """Pair rows of one key whose event times are near: `within` says how much earlier or later the other's may be.

        `("-10 min", "5 min")` pairs a row with those of the other stream from 10 minutes before it to 5 minutes after
        it, both included. The result has this stream's columns, then the other's; a key that has one name in both is
        there once, and `prefixes` tell other columns apart. A pair has the later of the two times. `how` is `inner`, or
        `left`, `right` or `full`: then a row without partner comes alone, with nulls, once the watermark says that none
        can come. Rows older than the watermark are left out.
        """
        from strandline.spark.streams.joins import interval_join

        return interval_join(self, other, within, uid, how, prefixes, max_parallelism)

    def window_join(
        self,
        other: KeyedStream,
        kind: WindowKind,
        uid: str,
        *,
        how: How = "inner",
        prefixes: tuple[str, str] = ("", ""),
        max_parallelism: int | None = None,
    ) -> Stream:
        """Pair all rows of one key whose event times are in one window, when the watermark reaches its end.

        Columns and `how` are as in join(), and behind them `window_start` and `window_end`. Results have the time of
        the last moment of the window. Rows that come after the end are left out.
        """
        from strandline.spark.streams.joins import window_join

        return window_join(self, other, kind, uid, how, prefixes, max_parallelism)


def _output_of(operator: OperatorNode, side: int) -> Stream:
    """Return the main output of an operator, or a side output."""
    if not operator.sides:
        return Stream(operator, operator)
    ddl = [operator.output_schema, *operator.sides.values()][side]
    names = [quoted(name) for name in parse_schema(ddl).names]
    wanted = names if side == 0 else [f"{SIDE}_{side}.{name}" for name in names]
    hidden = hidden_of(operator.probe)

    def step(df: DataFrame) -> DataFrame:
        return df.where(f"{SIDE} = {side}").select(*wanted, *hidden)

    return Stream(StepNode(step(operator.probe), operator, step), operator if side == 0 else None)


class _One:
    """A map function as a flat_map function."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, row: Any) -> tuple[Any]:
        return (self._function(row),)


def stream(df: DataFrame, name: str | None = None) -> Stream:
    """Begin a pipeline with a Structured Streaming DataFrame: any source, any stateless steps.

    In a job that reads several, each needs a `name`, for the life of the job: how far it was read is found by it.

    >>> payments = stream(spark.readStream.schema(schema).json("in/"), name="payments")
    """
    return source_stream(df, name)


def source_stream(df: DataFrame, name: str | None = None, cleaning: Cleaning | None = None) -> Stream:
    """Return the stream of a source, checked."""
    check_source(df)
    probe = df.sparkSession.createDataFrame([], df.schema)
    return Stream(SourceNode(probe, df=df, name=check_source_name(name), cleaning=cleaning))
