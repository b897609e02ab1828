"""What Spark reads, and the steps that are its own: it says what their rows look like."""

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
from strandline.spark.sources.checks import brought_by, leaves_of
from strandline.spark.sources.files import Cleaning

Step = Callable[[DataFrame], DataFrame]
_ACTION = "must be executed with writeStream.start"
"""What Spark says of an action on a stream."""
_OTHERS = "df.v is a column of that DataFrame alone: write F.col('v'), or 'v' in SQL"


@dataclass(frozen=True, eq=False)
class FrameSource(SourceNode):
    """A Structured Streaming DataFrame that a job reads."""

    df: DataFrame = field(kw_only=True)
    cleaning: Cleaning | None = None
    """What becomes of its files once no checkpoint needs them."""

    @cached_property
    def probe(self) -> DataFrame:
        """A stream that looks like it, and is another one, as an epoch's rows are not the DataFrame `df` either."""
        return _stream_of(self.df.sparkSession, self.df.schema)

    def type_of(self, node: Node, expression: str, what: str) -> str:
        """Return the DDL of an SQL expression over the rows of a node that came of this source."""
        try:
            with suppress_error_logs():
                # In an aggregate, where it will stand: in there, an aggregate or an explode() is refused.
                probe = probe_of(node)
                found = probe.groupBy().agg(F.expr(f"first({expression}) as v"))
        except AnalysisException as error:
            raise ConfigurationError(
                f"{what} does not fit the stream's columns ({', '.join(node.columns.names)}): {first_line(error)}"
            ) from None
        _check_hidden(probe, found, what, node.columns.hidden)
        return ddl_of(found.schema["v"].dataType)


all_sources: WeakSet[FrameSource] = WeakSet()
"""All that this process has, in jobs or not."""


@dataclass(frozen=True, eq=False)
class FrameStep(StepNode):
    """A step that stays a Spark DataFrame operation."""

    step: Step = field(kw_only=True)
    probe: DataFrame = field(kw_only=True)
    """Never run: what follows is checked on it, so that names and columns of an earlier step are found."""
    failed: FailedNode | None = None
    """Of a source's rows, the dead letters of those that cannot be read, which are not among these."""


def read(df: DataFrame, name: str = "", cleaning: Cleaning | None = None) -> FrameSource:
    """Return the node of what Spark reads."""
    source = FrameSource(_columns(df.schema), name=name, df=df, cleaning=cleaning)
    all_sources.add(source)
    return source


def readable(source: FrameSource, column: str, on_error: OnError) -> FrameStep:
    """Return the rows of a source that could be read; the others have their text in a column."""
    bad, name = F.col(quoted(column)), source.name.replace("'", "''")
    if on_error.fails:
        unreadable = F.expr(raise_unreadable(name, quoted(column))).cast("boolean")
        return transformed(source, lambda df: df.where(bad.isNull() | unreadable).drop(column), "stream")
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
    of_bad = transformed(source, lambda df: df.where(bad.isNotNull()).selectExpr(*letters), "stream")
    failed = FailedNode(of_bad.columns, of_bad, on_error=on_error, name=source.name or "the source")
    good = transformed(source, lambda df: df.where(bad.isNull()).drop(column), "stream")
    return replace(good, failed=failed)


def transformed(node: Node, step: Step, what: str = "transform") -> FrameStep:
    """Return the node of a step of Spark's on the rows of another; refuse one that does not fit a stream."""
    said, before = f"{what}() in {line_of_program()}", probe_of(node)
    try:
        with suppress_error_logs():
            after = step(before)
    except AnalysisException as error:
        if _ACTION in str(error):
            raise ConfigurationError(
                f"{said} reads rows (with an action of Spark's, as count(), collect() and cache() are): a step says "
                "what is to be done with rows, and has none when it is written",
                hint="sinks.foreach_batch(…) runs a function with each epoch's rows; map() calls one for each row",
            ) from None
        raise ConfigurationError(
            f"{said} does not fit the stream's columns ({', '.join(node.columns.names)}): {first_line(error)}",
            hint=_OTHERS if "RESOLVED_ATTRIBUTE" in str(error) else "",
        ) from None
    if not isinstance(after, DataFrame):
        raise ConfigurationError(
            f"{said} gave {after!r:.100}, expected a DataFrame",
            hint="return what it makes of the DataFrame it is given",
        )
    _check_step(before, after, said, node.columns.hidden)
    return FrameStep(_columns(after.schema), node, step=step, probe=after)


def _check_step(before: DataFrame, after: DataFrame, said: str, hidden: Sequence[str]) -> None:
    """Refuse a step that looks at more than one row at a time, at rows of another stream, or at hidden columns."""
    own = [brought_by(leaf) for leaf in leaves_of(before)]
    brought = [brought_by(leaf) for leaf in leaves_of(after)]
    if not brought:
        raise ConfigurationError(
            f"{said} gives rows of a table, which would come again with each epoch, and none of the stream",
            hint="return what it makes of the DataFrame it is given: lambda df: df.join(table, …)",
        )
    found = find_cross_row_operation(after)
    if found is None and not all(any(one.equals(mine) for mine in own) for one in brought):
        raise ConfigurationError(
            f"{said} brings in another stream, which the job does not read",
            hint="begin it with sl.stream(other, name='…') as well; streams meet by key: "
            "a.key_by(…).join(b.key_by(…), …) or connect(…)",
        )
    if found is not None:
        raise ConfigurationError(f"{said} has {found.name}: {found.reason}", hint=found.hint)
    _check_hidden(before, after, said, hidden)


def _check_hidden(before: DataFrame, after: DataFrame, said: str, hidden: Sequence[str]) -> None:
    """Refuse what computes with hidden columns."""
    if unseen := find_computed_column(after, before, hidden):
        raise ConfigurationError(
            f"{said} makes something of all columns, and so of {unseen}, which rows carry unseen: a '*' inside of a "
            "function stands for it, too",
            hint="name the stream's columns: F.struct(*stream.columns), df.na.drop(subset=stream.columns)",
        )


def with_times(df: DataFrame, spec: WatermarkSpec) -> DataFrame:
    """Give every row its time, and whose watermark it moves."""
    at = F.unix_micros(F.col(quoted(spec.column)))
    # Spark has times that Python does not.
    in_time = F.when(at > LAST_US, F.lit(LAST_US)).when(at < FIRST_US, F.lit(FIRST_US)).otherwise(at)
    timed = df.withColumn(TIME, in_time)
    return timed.withColumn(ORIGIN, F.col(quoted(spec.per)).cast("string")) if spec.per else timed


def probe_of(node: Node) -> DataFrame:
    """Return a streaming DataFrame that looks like a node's rows, for checking what follows; it never runs."""
    source, *_ = sources_of(node)
    if not isinstance(source, FrameSource):
        raise ConfigurationError(
            "this step is Spark's to run, and the stream is one of a test's events: there is no Spark",
            hint="use map() or flat_map(), or begin the test with rows as this step gives them",
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
    return _stream_of(source.df.sparkSession, schema_of(node.columns.ddl))


def _stream_of(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a stream with these columns, for looking at its plan."""
    nothing = (F.lit(None).cast(column.dataType).alias(column.name) for column in schema.fields)
    return spark.readStream.format("rate").load().select(*nothing)


def _columns(schema: StructType) -> Columns:
    shown = [column for column in schema.fields if column.name not in HIDDEN]
    return Columns(tuple((column.name, ddl_of(column.dataType)) for column in shown), sort_hidden(schema.names))
