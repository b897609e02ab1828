"""History of a bootstrap: bounded rows in place of a job's sources, checked, sorted, and written to files by epoch."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, StructType

from strandline.core.errors import ConfigurationError
from strandline.core.ids import unique_name
from strandline.plan.columns import quoted
from strandline.plan.graph import WatermarkNode, sources_of
from strandline.plan.history import MOST_EPOCHS, Slice, event_time_of, make_slices, to_order
from strandline.plan.pipeline import Pipeline
from strandline.runtime.rowlayout import TIME
from strandline.spark.base.ddl import ddl_of, first_line
from strandline.spark.base.empty import no_rows
from strandline.spark.base.filesystem import FileSystem, open_filesystem
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.lower.query import Sources
from strandline.spark.streams.frames import FrameSource

log = logging.getLogger(__name__)

Frames = DataFrame | Mapping[str, DataFrame]
"""A history: a DataFrame for a job's only source, or one for each source by name."""
Order = str | Mapping[str, str] | None

_ORDER = "__strandline_order"
_TIMES = ("timestamp", "timestamp_ntz", "date")
_SAMPLE_FACTOR = 2
"""Spark splits by a sample: a file may have up to so many times the wanted rows."""
_STRICT = {"spark.sql.files.ignoreMissingFiles": "false", "spark.sql.files.ignoreCorruptFiles": "false"}
"""Overrides the user's session, which may ignore missing files: no sorted row may be lost."""
_WHOLE_FILES = {"spark.sql.files.maxPartitionBytes": str(1 << 50)}


@dataclass(frozen=True)
class SourceHistory:
    """All rows of all sources, in the form in which the job's query reads them, each with its order."""

    rows: DataFrame
    is_ordered: bool
    is_timed: bool
    """Whether orders are times, in microseconds since 1970."""
    orders: dict[str, str]
    """The SQL expression of the order, by source; only of sources that have an order."""
    is_read_in_order: bool
    """Whether an operator depends on the order in which the rows are read."""
    frames: dict[str, DataFrame]
    """The DataFrames that the caller passed, by source."""


def history_of(sources: Sources, pipeline: Pipeline, history: Frames, order_by: Order) -> SourceHistory:
    """Return a job's history; raise ConfigurationError if it does not fit the sources."""
    by_name = {node.name: node for node in sources.nodes}
    frames = _by_source(by_name, history, "history")
    expressions = _by_source(by_name, {} if order_by is None else order_by, "order_by")
    ordered, orders, kinds = {}, {}, set()
    checked: dict[str, DataFrame] = {}
    for name, node in by_name.items():
        if name in frames:
            df = checked[name] = _check_frame(_named(node), frames[name], node.df.schema)
            order = _order_of(node, expressions.get(name), pipeline)
        else:
            df, order = _no_rows(node.df), ""
            _warn_of_silence(node, pipeline)
        by, kind = _ordering(node, df, order)
        if order:
            orders[name] = order
            kinds.add("time" if kind in _TIMES else kind)
        ordered[name] = df.select(*(F.col(quoted(column)) for column in node.df.columns), by.alias(_ORDER))
    if sources.are_several and (others := kinds - {"time"}):
        raise ConfigurationError(
            f"the history of several sources is ordered by {', '.join(sorted(others))}, expected times",
            hint="give a time as the order of each source: order_by={name: expression}",
        )
    unsorted = any(not node.order_by and TIME not in node.hidden for node in pipeline.operators)
    return SourceHistory(
        sources.union(ordered, [_ORDER]), bool(orders), kinds == {"time"}, orders, bool(orders) and unsorted, checked
    )


def _by_source(nodes: Mapping[str, FrameSource], argument: object, what: str) -> dict[str, object]:
    """Return the value of an argument for each source, by name; a source without a name is the only one."""
    names = [name for name in nodes if name]
    if not isinstance(argument, Mapping):
        if len(nodes) > 1:
            raise ConfigurationError(
                f"{what} is one, and the job reads {', '.join(names)}", hint=f"write {what}={{name: …}}"
            )
        return dict.fromkeys(nodes, argument)
    unknown = [name for name in argument if name not in names]
    if unknown:
        reads = f"it reads {', '.join(names)}" if names else "it reads one source, which has no name"
        raise ConfigurationError(
            f"{what} has '{unknown[0]}', and the job has no source of that name; {reads}",
            hint="a source's name is what stream(df, name=…) says"
            if names
            else f"give its value alone: {what}={'df' if what == 'history' else 'expression'}",
        )
    if what == "history" and not argument:
        raise ConfigurationError("history is empty", hint="give a DataFrame for at least one source, if one of no rows")
    return dict(argument)


def _named(node: FrameSource) -> str:
    return f"the history of source '{node.name}'" if node.name else "the history"


def _warn_of_silence(node: FrameSource, pipeline: Pipeline) -> None:
    waiting = [each for each in pipeline.nodes if isinstance(each, WatermarkNode) and each.spec.idle_us is None]
    if any(node in sources_of(each) for each in waiting):
        log.warning(
            "the source '%s' has a watermark and no history: event time waits for it, and no window ends",
            node.name,
        )


def _no_rows(like: DataFrame) -> DataFrame:
    return no_rows(like.sparkSession, like.schema)


def _check_frame(what: str, df: object, wanted: StructType) -> DataFrame:
    """Return the history of a source if it is a bounded DataFrame with the source's columns."""
    if not isinstance(df, DataFrame):
        raise ConfigurationError(f"{what} is a {type(df).__name__}, expected a DataFrame of Spark")
    if df.isStreaming:
        raise ConfigurationError(f"{what} is a stream, expected a bounded DataFrame", hint="read it with spark.read")
    types = {field.name: ddl_of(field.dataType) for field in df.schema.fields}
    wrong = []
    for column in wanted.fields:
        kind = ddl_of(column.dataType)
        if df.columns.count(column.name) > 1:
            wrong.append(f"has the column '{column.name}' more than once")
        elif column.name not in types:
            wrong.append(f"has no column '{column.name}' ({kind})")
        elif types[column.name] != kind:
            wrong.append(f"column '{column.name}' is {types[column.name]}, expected {kind}")
    if wrong:
        raise ConfigurationError(
            f"{what} does not look like what the job reads: {'; '.join(wrong)}; it has {', '.join(df.columns)}",
            hint="rename and cast its columns, so that they are like those of the DataFrame in stream()",
        )
    return df


def _order_of(node: FrameSource, expression: object, pipeline: Pipeline) -> str:
    """Return the SQL expression that a source's history is ordered by; "" if it has no order."""
    if expression is None:
        column = event_time_of(node, pipeline.nodes)
        return "" if column is None else quoted(column)
    if not isinstance(expression, str) or not expression.strip():
        raise ConfigurationError(f"order_by is {expression!r}, expected a column or an SQL expression")
    return expression


def _ordering(node: FrameSource, df: DataFrame, order: str) -> tuple[Column, str]:
    """Return the column of the order, and its type."""
    if not order:
        return F.lit(None).cast("bigint"), ""
    try:
        with suppress_error_logs():
            kind = df.select(F.expr(order).alias("v")).schema["v"].dataType
    except AnalysisException as error:
        raise ConfigurationError(
            f"{_named(node)} cannot be ordered by {order}: {first_line(error)}", hint=to_order(node, "its order")
        ) from None
    if kind.typeName() in _TIMES:
        return F.unix_micros(F.expr(order).cast("timestamp")), kind.typeName()
    if not isinstance(kind, AtomicType):
        raise ConfigurationError(
            f"{_named(node)} cannot be ordered by {order}: it is {ddl_of(kind)}", hint=to_order(node, "its order")
        )
    return F.expr(order), ddl_of(kind)


@dataclass
class Spool:
    """A directory with a sorted copy of the history, so that each replay reads the same rows."""

    _spark: SparkSession
    root: str
    """A path or URL for Spark; no other job uses it."""
    _name: str = field(default_factory=unique_name)
    _schema: StructType | None = None
    _one_task: bool = False

    def write(self, history: SourceHistory, rows_per_epoch: int, time_per_epoch_us: int | None) -> list[Slice]:
        """Write the sorted history; return the slice for each epoch."""
        rows = history.rows
        wanted = max(1, math.ceil(rows.count() / rows_per_epoch))
        most = rows_per_epoch
        if history.is_ordered:
            order = F.col(_ORDER).asc_nulls_first()
            rows = rows.repartitionByRange(wanted, order).sortWithinPartitions(order)
            most = _SAMPLE_FACTOR * rows_per_epoch
        else:
            rows = rows.coalesce(wanted)
        where = self._files.for_spark(self._name)
        rows.write.option("maxRecordsPerFile", most).option("compression", "zstd").parquet(where)
        written = self._spark.read.parquet(where)
        self._schema = written.schema
        # Several tasks would mix up rows that no operator sorts again.
        self._one_task = history.is_read_in_order
        period = F.lit(None).cast("bigint")
        if time_per_epoch_us is not None and history.is_timed:
            period = F.floor(F.col(_ORDER) / time_per_epoch_us)
        slices = (
            written.select(F.col("_metadata.file_name").alias("file"), period.alias("period"), _ORDER)
            .groupBy("file", "period")
            .agg(F.count(F.lit(1)).alias("rows"), F.min(_ORDER).alias("first"), F.max(_ORDER).alias("last"))
            .select("file", "rows", "first", "last")
            .limit(MOST_EPOCHS + 1)
            .collect()
        )
        if len(slices) > MOST_EPOCHS:
            raise ConfigurationError(
                f"the history would be more than {MOST_EPOCHS:,} epochs",
                hint="give a longer time_per_epoch or more rows_per_epoch",
            )
        return make_slices((row.file, row.rows, row.first, row.last) for row in slices)

    def read(self, session: SparkSession, part: Slice) -> DataFrame:
        """Return the rows of one epoch. Sets options of the session, which must not be the user's."""
        assert self._schema is not None
        for name, value in {**_STRICT, **(_WHOLE_FILES if self._one_task else {})}.items():
            session.conf.set(name, value)
        df = session.read.schema(self._schema).parquet(self._files.for_spark(f"{self._name}/{part.file}"))
        if not part.is_whole:
            order = F.col(_ORDER)
            df = df.where(order.isNull() if part.first is None else order.between(part.first, part.last))
        return df.drop(_ORDER)

    def delete(self) -> None:
        """Delete the files of `write`."""
        self._files.delete(self._name)

    def delete_all(self) -> None:
        """Delete the files of all bootstraps of the job, also of killed ones."""
        self._files.delete("")

    @property
    def _files(self) -> FileSystem:
        return open_filesystem(self._spark, self.root, fsync=False)


def spool_root(store_url: str, scratch: str | None, identity: str) -> str:
    """Return the directory for the sorted history: beside the checkpoints, or in `scratch`."""
    if scratch is None:
        parts = urlsplit(store_url)
        if parts.scheme in ("az", "memory"):
            raise ConfigurationError(
                f"the sorted history cannot be written to {store_url}: Spark has other URLs for that storage",
                hint='give scratch="abfss://…", a directory that driver and executors reach',
            )
        scratch = store_url.replace("s3://", "s3a://", 1) if parts.scheme == "s3" else store_url
    return f"{scratch.rstrip('/')}/strandline-history-{identity}"


def describe(orders: Mapping[str, str]) -> str:
    """Return the orders of the sources as text."""
    return ", ".join(f"{name}: {order}" if name else order for name, order in orders.items())
