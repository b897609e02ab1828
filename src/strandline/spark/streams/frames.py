"""What Spark reads, and the steps that are its own: it says what their rows look like."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from strandline.core.errors import ConfigurationError
from strandline.core.times import FIRST_US, LAST_US
from strandline.plan.columns import Columns, in_order, quoted
from strandline.plan.graph import LateNode, Node, SourceNode, StepNode, WatermarkNode, sources_of
from strandline.runtime.rowlayout import HIDDEN, ORIGIN, TIME
from strandline.runtime.watermarks import WatermarkSpec
from strandline.spark.base.ddl import ddl_of, first_line
from strandline.spark.base.quiet import errors_reported
from strandline.spark.sources.files import Cleaning

Step = Callable[[DataFrame], DataFrame]
_LIMIT = re.compile(r"^[ :+-]*(GlobalLimit|LocalLimit|Offset|Tail)\b", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class FrameSource(SourceNode):
    """A Structured Streaming DataFrame that a job reads."""

    df: DataFrame = field(kw_only=True)
    cleaning: Cleaning | None = None
    """What becomes of its files once no checkpoint needs them."""

    def type_of(self, node: Node, expression: str, what: str) -> str:
        """Return the DDL of an SQL expression over the rows of a node that came of this source."""
        try:
            with errors_reported():
                # In an aggregate, where it will stand: in there, an aggregate or an explode() is refused.
                found = probe_of(node).groupBy().agg(F.expr(f"first({expression}) as v"))
                return ddl_of(found.schema["v"].dataType)
        except AnalysisException as error:
            raise ConfigurationError(
                f"{what} does not fit the stream's columns ({', '.join(node.columns.names)}): {first_line(error)}"
            ) from None


@dataclass(frozen=True, eq=False)
class FrameStep(StepNode):
    """A step that stays a Spark DataFrame operation."""

    step: Step = field(kw_only=True)
    probe: DataFrame = field(kw_only=True)
    """Without rows: what follows is checked on it, so that names and columns of an earlier step are found."""


def read(df: DataFrame, name: str = "", cleaning: Cleaning | None = None) -> FrameSource:
    """Return the node of what Spark reads."""
    return FrameSource(_columns(df.schema), name=name, df=df, cleaning=cleaning)


def transformed(node: Node, step: Step) -> FrameStep:
    """Return the node of a step of Spark's on the rows of another; refuse one that does not fit."""
    try:
        with errors_reported():
            after = step(probe_of(node))
    except AnalysisException as error:
        raise ConfigurationError(
            f"a step does not fit the stream's columns ({', '.join(node.columns.names)}): {first_line(error)}"
        ) from None
    return FrameStep(_columns(after.schema), node, step=step, probe=after, stops_early=_has_limit(after))


def with_times(df: DataFrame, spec: WatermarkSpec) -> DataFrame:
    """Give every row its time, and whose watermark it moves."""
    at = F.unix_micros(F.col(quoted(spec.column)))
    # Spark has times that Python does not.
    in_time = F.when(at > LAST_US, F.lit(LAST_US)).when(at < FIRST_US, F.lit(FIRST_US)).otherwise(at)
    timed = df.withColumn(TIME, in_time)
    return timed.withColumn(ORIGIN, F.col(quoted(spec.per)).cast("string")) if spec.per else timed


def probe_of(node: Node) -> DataFrame:
    """Return an empty DataFrame that looks like a node's rows, for checking what follows."""
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
            return node.df.sparkSession.createDataFrame([], node.df.schema)
        case WatermarkNode(parent=Node() as parent):
            return with_times(probe_of(parent), node.spec)
        case LateNode(parent=Node() as parent):
            return probe_of(parent).drop(ORIGIN)
    return source.df.sparkSession.createDataFrame([], node.columns.ddl)


def _columns(schema: StructType) -> Columns:
    shown = [column for column in schema.fields if column.name not in HIDDEN]
    return Columns(tuple((column.name, ddl_of(column.dataType)) for column in shown), in_order(schema.names))


def _has_limit(df: DataFrame) -> bool:
    """Return whether some step of a plan need not read all of its rows."""
    return bool(_LIMIT.search(df._jdf.queryExecution().analyzed().toString()))
