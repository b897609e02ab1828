"""Bounded rows in place of a job's sources: checked, put in order, and cut into files that are an epoch each."""

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

Given = DataFrame | Mapping[str, DataFrame]
"""What a job is given as history: of its only source, or of each by name."""
Order = str | Mapping[str, str] | None

_ORDER = "__strandline_order"
_TIMES = ("timestamp", "timestamp_ntz", "date")
_SPARE = 2
"""Spark cuts by a sample: up to so many times as many rows as wanted are left together."""
_TRUSTED = {"spark.sql.files.ignoreMissingFiles": "false", "spark.sql.files.ignoreCorruptFiles": "false"}
"""Whatever the user's session passes over: of what was put in order, nothing may be lost."""
_WHOLE_FILES = {"spark.sql.files.maxPartitionBytes": str(1 << 50)}


@dataclass(frozen=True)
class History:
    """All rows of all sources, as the job's query would read them, each with its order."""

    rows: DataFrame
    is_ordered: bool
    is_timed: bool
    """Whether orders are times, in microseconds since 1970."""
    orders: dict[str, str]
    """By which SQL expression each source is ordered, of those that are."""
    is_read_in_order: bool
    """Whether some operator gets rows whose order nothing but their place in the history says."""
    given: dict[str, DataFrame]
    """What each source was given, of those that were."""


def history_of(sources: Sources, pipeline: Pipeline, given: Given, order_by: Order) -> History:
    """Return a job's history; raise ConfigurationError, before anything runs, for what does not fit."""
    by_name = {node.name: node for node in sources.nodes}
    frames = _by_source(by_name, given, "history")
    said = _by_source(by_name, {} if order_by is None else order_by, "order_by")
    found, orders, kinds = {}, {}, set()
    checked: dict[str, DataFrame] = {}
    for name, node in by_name.items():
        if name in frames:
            df = checked[name] = _checked(_named(node), frames[name], node.df.schema)
            order = _order_of(node, said.get(name), pipeline)
        else:
            df, order = _no_rows(node.df), ""
            _warn_of_silence(node, pipeline)
        by, kind = _ordering(node, df, order)
        if order:
            orders[name] = order
            kinds.add("time" if kind in _TIMES else kind)
        found[name] = df.select(*(F.col(quoted(column)) for column in node.df.columns), by.alias(_ORDER))
    if sources.are_several and (others := kinds - {"time"}):
        raise ConfigurationError(
            f"the history of several sources is ordered by {', '.join(sorted(others))}, expected times",
            hint="say for each source by which time its rows come: order_by={name: expression}",
        )
    unsorted = any(not node.order_by and TIME not in node.hidden for node in pipeline.operators)
    return History(
        sources.union(found, [_ORDER]), bool(orders), kinds == {"time"}, orders, bool(orders) and unsorted, checked
    )


def _by_source(nodes: Mapping[str, FrameSource], given: object, what: str) -> dict[str, object]:
    """Return what was given for each source by its name; one without a name is the only one."""
    names = [name for name in nodes if name]
    if not isinstance(given, Mapping):
        if len(nodes) > 1:
            raise ConfigurationError(
                f"{what} is one, and the job reads {', '.join(names)}", hint=f"write {what}={{name: …}}"
            )
        return dict.fromkeys(nodes, given)
    unknown = [name for name in given if name not in names]
    if unknown:
        reads = f"it reads {', '.join(names)}" if names else "it reads one source, which has no name"
        raise ConfigurationError(
            f"{what} has '{unknown[0]}', and the job has no source of that name; {reads}",
            hint="a source's name is what stream(df, name=…) says"
            if names
            else f"give what is its own: {what}={'df' if what == 'history' else 'expression'}",
        )
    if what == "history" and not given:
        raise ConfigurationError("history is empty", hint="give a DataFrame for at least one source, if one of no rows")
    return dict(given)


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


def _checked(what: str, df: object, wanted: StructType) -> DataFrame:
    """Return what was given as a source's history, if it has the source's columns."""
    if not isinstance(df, DataFrame):
        raise ConfigurationError(f"{what} is a {type(df).__name__}, expected a DataFrame of Spark")
    if df.isStreaming:
        raise ConfigurationError(f"{what} is a stream, expected a bounded DataFrame", hint="read it with spark.read")
    there = {field.name: ddl_of(field.dataType) for field in df.schema.fields}
    wrong = []
    for column in wanted.fields:
        kind = ddl_of(column.dataType)
        if df.columns.count(column.name) > 1:
            wrong.append(f"has the column '{column.name}' more than once")
        elif column.name not in there:
            wrong.append(f"has no column '{column.name}' ({kind})")
        elif there[column.name] != kind:
            wrong.append(f"column '{column.name}' is {there[column.name]}, expected {kind}")
    if wrong:
        raise ConfigurationError(
            f"{what} does not look like what the job reads: {'; '.join(wrong)}; it has {', '.join(df.columns)}",
            hint="rename and cast its columns, so that they are as those of the DataFrame that stream() was given",
        )
    return df


def _order_of(node: FrameSource, said: object, pipeline: Pipeline) -> str:
    """Return the SQL expression that a source's history is ordered by; "" if it has no order."""
    if said is None:
        column = event_time_of(node, pipeline.nodes)
        return "" if column is None else quoted(column)
    if not isinstance(said, str) or not said.strip():
        raise ConfigurationError(f"order_by is {said!r}, expected a column or an SQL expression")
    return said


def _ordering(node: FrameSource, df: DataFrame, order: str) -> tuple[Column, str]:
    """Return what rows are ordered by, and of which type that is."""
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
    """A directory in which history lies in order while a job runs over it: read once, and the same however often."""

    _spark: SparkSession
    root: str
    """A path or url as Spark knows it, which is the spools' of one job alone."""
    _name: str = field(default_factory=unique_name)
    _schema: StructType | None = None
    _one_task: bool = False

    def write(self, history: History, rows_per_epoch: int, time_per_epoch_us: int | None) -> list[Slice]:
        """Put history in order; return what each epoch is to read."""
        rows = history.rows
        wanted = max(1, math.ceil(rows.count() / rows_per_epoch))
        most = rows_per_epoch
        if history.is_ordered:
            order = F.col(_ORDER).asc_nulls_first()
            rows = rows.repartitionByRange(wanted, order).sortWithinPartitions(order)
            most = _SPARE * rows_per_epoch
        else:
            rows = rows.coalesce(wanted)
        where = self._files.for_spark(self._name)
        rows.write.option("maxRecordsPerFile", most).option("compression", "zstd").parquet(where)
        written = self._spark.read.parquet(where)
        self._schema = written.schema
        # Several tasks would mix up what is not sorted again on its way.
        self._one_task = history.is_read_in_order
        stretch = F.lit(None).cast("bigint")
        if time_per_epoch_us is not None and history.is_timed:
            stretch = F.floor(F.col(_ORDER) / time_per_epoch_us)
        found = (
            written.select(F.col("_metadata.file_name").alias("file"), stretch.alias("stretch"), _ORDER)
            .groupBy("file", "stretch")
            .agg(F.count(F.lit(1)).alias("rows"), F.min(_ORDER).alias("first"), F.max(_ORDER).alias("last"))
            .select("file", "rows", "first", "last")
            .limit(MOST_EPOCHS + 1)
            .collect()
        )
        if len(found) > MOST_EPOCHS:
            raise ConfigurationError(
                f"the history would be more than {MOST_EPOCHS:,} epochs",
                hint="give a longer time_per_epoch or more rows_per_epoch",
            )
        return make_slices((row.file, row.rows, row.first, row.last) for row in found)

    def read(self, session: SparkSession, part: Slice) -> DataFrame:
        """Return the rows of one epoch, with a session that is ours alone."""
        assert self._schema is not None
        for name, value in {**_TRUSTED, **(_WHOLE_FILES if self._one_task else {})}.items():
            session.conf.set(name, value)
        df = session.read.schema(self._schema).parquet(self._files.for_spark(f"{self._name}/{part.file}"))
        if not part.is_whole:
            order = F.col(_ORDER)
            df = df.where(order.isNull() if part.first is None else order.between(part.first, part.last))
        return df.drop(_ORDER)

    def delete(self) -> None:
        """Take away what `write` has left."""
        self._files.delete(self._name)

    def delete_all(self) -> None:
        """Take away what others have left here, who are gone."""
        self._files.delete("")

    @property
    def _files(self) -> FileSystem:
        return open_filesystem(self._spark, self.root, fsync=False)


def spool_root(store_url: str, scratch: str | None, identity: str) -> str:
    """Return where a job's history lies meanwhile: beside its checkpoints, unless told otherwise."""
    if scratch is None:
        parts = urlsplit(store_url)
        if parts.scheme in ("az", "memory"):
            raise ConfigurationError(
                f"the history cannot lie in {store_url} meanwhile: Spark has other addresses for that storage",
                hint='say where: scratch="abfss://…", a directory that driver and executors reach',
            )
        scratch = store_url.replace("s3://", "s3a://", 1) if parts.scheme == "s3" else store_url
    return f"{scratch.rstrip('/')}/strandline-history-{identity}"


def describe(orders: Mapping[str, str]) -> str:
    """Return by what history was ordered."""
    return ", ".join(f"{name}: {order}" if name else order for name, order in orders.items())
