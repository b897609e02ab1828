"""Graph nodes of Spark's sources and DataFrame steps, whose columns and types Spark computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from weakref import WeakSet

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from strandline.api.badrecords import OnError
from strandline.core.errors import ConfigurationError
from strandline.core.program import line_of_program
from strandline.core.times import FIRST_US, LAST_US
from strandline.plan.columns import Columns, quoted, sort_hidden
from strandline.plan.graph import FailedNode, LateNode, Node, SourceNode, StepNode, WatermarkNode, sources_of
from strandline.runtime.rowlayout import HIDDEN, ORIGIN, TIME
from strandline.runtime.watermarks import WatermarkSpec
from strandline.spark.base.ddl import ddl_of, first_line, schema_of
from strandline.spark.base.plans import find_computed_column, find_cross_row_operation
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.base.spark_errors import raise_unreadable
from strandline.spark.sources.checks import leaves_of, source_of_leaf
from strandline.spark.sources.files import Cleaning

Step = Callable[[DataFrame], DataFrame]
_ACTION = "must be executed with writeStream.start"
"""Part of Spark's error for an action on a stream."""
_COLUMN_HINT = "df.v is a column of that DataFrame alone: write F.col('v'), or 'v' in SQL"


@dataclass(frozen=True, eq=False)
class FrameSource(SourceNode):
    """A Structured Streaming DataFrame that a job reads."""

    df: DataFrame = field(kw_only=True)
    cleaning: Cleaning | None = None
    """What to do with its files once no checkpoint needs them."""

    @cached_property
    def probe(self) -> DataFrame:
        """A stream with the same columns. Like an epoch's rows, it is another DataFrame than `df`."""
        return stream_of(self.df.sparkSession, self.df.schema)

    def type_of(self, node: Node, expression: str, what: str) -> str:
        """Return the DDL type of an SQL expression over the rows of a node below this source."""
        try:
            with suppress_error_logs():
                # In an aggregate, as it is used later: Spark then refuses nested aggregates and explode().
                probe = probe_of(node)
                result = probe.groupBy().agg(F.expr(f"first({expression}) as v"))
        except AnalysisException as error:
            raise ConfigurationError(
                f"{what} does not fit the stream's columns ({', '.join(node.columns.names)}): {first_line(error)}"
            ) from None
        _check_hidden(probe, result, what, node.columns.hidden)
        return ddl_of(result.schema["v"].dataType)


all_sources: WeakSet[FrameSource] = WeakSet()
"""All sources of this process, in jobs or not."""


@dataclass(frozen=True, eq=False)
class FrameStep(StepNode):
    """A step that stays a Spark DataFrame operation."""

    step: Step = field(kw_only=True)
    probe: DataFrame = field(kw_only=True)
    """A DataFrame for checks of the steps that follow; it never runs."""
    is_fixed: bool = True
    """False for a user's function and for SQL with the present time, which each epoch calls: it may return another
    computation each time."""
    failed: FailedNode | None = None
    """The dead letters of a source's malformed rows, which this step removes."""


def frame_source(df: DataFrame, name: str = "", cleaning: Cleaning | None = None) -> FrameSource:
    """Return the node of a DataFrame that Spark reads."""
    source = FrameSource(_columns(df.schema), name=name, df=df, cleaning=cleaning)
    all_sources.add(source)
    return source


def readable_rows(source: FrameSource, column: str, on_error: OnError) -> FrameStep:
    """Return the rows of a source that are not malformed; `column` has the text of malformed ones."""
    bad, name = F.col(quoted(column)), source.name.replace("'", "''")
    if on_error.fails:
        unreadable = F.expr(raise_unreadable(name, quoted(column))).cast("boolean")
        return apply_step(source, lambda df: df.where(bad.isNull() | unreadable).drop(column), "stream")
    letter = {
        "operator": f"nullif('{name}', '')",
        "step": "'read'",
        "reason": "'the row cannot be read: it does not fit the schema'",
        "key": "cast(null as string)",
        "event": quoted(column),
        "event_time": "cast(null as timestamp)",
        "traceback": "cast(null as string)",
    }
    letters = [f"{sql} as {name}" for name, sql in letter.items()]
    dead_letters = apply_step(source, lambda df: df.where(bad.isNotNull()).selectExpr(*letters), "stream")
    failed = FailedNode(dead_letters.columns, dead_letters, on_error=on_error, name=source.name or "the source")
    good = apply_step(source, lambda df: df.where(bad.isNull()).drop(column), "stream")
    return replace(good, failed=failed)


def apply_step(node: Node, step: Step, method: str = "transform", *, is_fixed: bool = True) -> FrameStep:
    """Return the node of a DataFrame step on the rows of a node; raise ConfigurationError if it does not fit."""
    where, before = f"{method}() in {line_of_program()}", probe_of(node)
    try:
        with suppress_error_logs():
            after = step(before)
    except AnalysisException as error:
        if _ACTION in str(error):
            raise ConfigurationError(
                f"{where} reads rows (with an action of Spark, such as count(), collect() or cache()): a step only "
                "defines a computation, and there are no rows yet",
                hint="sinks.foreach_batch(…) runs a function with each epoch's rows; map() calls one for each row",
            ) from None
        raise ConfigurationError(
            f"{where} does not fit the stream's columns ({', '.join(node.columns.names)}): {first_line(error)}",
            hint=_COLUMN_HINT if "RESOLVED_ATTRIBUTE" in str(error) else "",
        ) from None
    if not isinstance(after, DataFrame):
        raise ConfigurationError(
            f"{where} returned {after!r:.100}, expected a DataFrame",
            hint="return a DataFrame computed from the argument",
        )
    _check_step(before, after, where, node.columns.hidden)
    return _step_node(node, step, after, is_fixed=is_fixed)


def unchecked_step(node: Node, step: Step) -> FrameStep:
    """Return the node of a step of ours, which may have what users' may not: aggregates of an epoch's rows."""
    return _step_node(node, step, step(probe_of(node)))


def _step_node(node: Node, step: Step, probe: DataFrame, *, is_fixed: bool = True) -> FrameStep:
    return FrameStep(_columns(probe.schema), node, step=step, probe=probe, is_fixed=is_fixed)


def _check_step(before: DataFrame, after: DataFrame, where: str, hidden: Sequence[str]) -> None:
    """Raise ConfigurationError for a step across rows, with rows of another stream, or with hidden columns."""
    known = [source_of_leaf(leaf) for leaf in leaves_of(before)]
    sources = [source_of_leaf(leaf) for leaf in leaves_of(after)]
    if not sources:
        raise ConfigurationError(
            f"{where} returns rows of a table, and none of the stream: each epoch would emit the table's rows again",
            hint="return a DataFrame computed from the argument: lambda df: df.join(table, …)",
        )
    operation = find_cross_row_operation(after)
    if operation is None and not all(any(source.equals(each) for each in known) for source in sources):
        raise ConfigurationError(
            f"{where} uses another stream, which the job does not read",
            hint="begin it with sl.stream(other, name='…') too, and combine streams by key: "
            "a.key_by(…).join(b.key_by(…), …) or connect(…)",
        )
    if operation is not None:
        raise ConfigurationError(f"{where} has {operation.name}: {operation.reason}", hint=operation.hint)
    _check_hidden(before, after, where, hidden)


def _check_hidden(before: DataFrame, after: DataFrame, where: str, hidden: Sequence[str]) -> None:
    """Raise ConfigurationError for a computation with hidden columns."""
    if column := find_computed_column(after, before, hidden):
        raise ConfigurationError(
            f"{where} computes with all columns, including the hidden column {column}: a '*' inside a function "
            "includes it",
            hint="name the stream's columns: F.struct(*stream.columns), df.na.drop(subset=stream.columns)",
        )


def with_times(df: DataFrame, spec: WatermarkSpec) -> DataFrame:
    """Add the hidden columns of the row's time, and of the origin whose watermark it moves."""
    time = F.unix_micros(F.col(quoted(spec.column)))
    # Spark has times outside the range of Python's.
    clamped = F.when(time > LAST_US, F.lit(LAST_US)).when(time < FIRST_US, F.lit(FIRST_US)).otherwise(time)
    timed = df.withColumn(TIME, clamped)
    return timed.withColumn(ORIGIN, F.col(quoted(spec.per)).cast("string")) if spec.per else timed


def probe_of(node: Node) -> DataFrame:
    """Return a streaming DataFrame with a node's columns, for checks of the steps that follow; it never runs."""
    source, *_ = sources_of(node)
    if not isinstance(source, FrameSource):
        raise ConfigurationError(
            "Spark must run this step, but the stream has a test's events, and there is no Spark",
            hint="use map() or flat_map(), or begin the test with rows as this step returns them",
        )
    match node:
        case FrameStep():
            return node.probe
        case FrameSource():
            return node.probe
        case WatermarkNode(parent=Node() as parent):
            return with_times(probe_of(parent), node.spec)
        case LateNode(parent=Node() as parent):
            return probe_of(parent).drop(ORIGIN)
    return stream_of(source.df.sparkSession, schema_of(node.columns.ddl))


def stream_of(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a streaming DataFrame with these columns, for inspection of its plan."""
    nulls = (F.lit(None).cast(column.dataType).alias(column.name) for column in schema.fields)
    return spark.readStream.format("rate").load().select(*nulls)


def _columns(schema: StructType) -> Columns:
    visible = [column for column in schema.fields if column.name not in HIDDEN]
    return Columns(tuple((column.name, ddl_of(column.dataType)) for column in visible), sort_hidden(schema.names))
