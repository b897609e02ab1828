"""The steps of a pipeline that Spark computes, between rows in this process: an epoch's rows come, and go, as Arrow.

Partitions of a DataFrame become numbers in the column AT, so that rows keep the order in which a shuffle of one process
sends them: by partition, and within a partition as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.format.epochs import EpochRecord
from strandline.plan.graph import (
    KeylessNode,
    LateNode,
    Node,
    PartialNode,
    SourceNode,
    StepNode,
    UnionNode,
    WatermarkNode,
)
from strandline.plan.pipeline import Operator
from strandline.runtime.rowlayout import ROWS
from strandline.spark.base.ddl import schema_of as spark_schema
from strandline.spark.base.templates import PlanTemplate, RepeatedFrame, frame_of, output_ids
from strandline.spark.keepers.exchange import prepare_session
from strandline.spark.lower.nodes import late_rows, lower_node
from strandline.spark.lower.plan import Plan
from strandline.spark.lower.reduction import limit_shuffle
from strandline.testing.events import AT
from strandline.testing.nodes import Rows, schema_of

PARTITION_BITS = 32
"""The bits of AT below the number of a row's partition."""
_PARTITION = "__strandline_replayed_from"
_ONE_BATCH = {
    # A batch becomes a partition.
    "spark.sql.execution.arrow.maxRecordsPerBatch": str((1 << 31) - 1),
    "spark.sql.execution.arrow.localRelationThreshold": "0",
}


class Steps:
    """Computes nodes of a plan with Spark."""

    def __init__(self, plan: Plan, operators: Sequence[Operator], also: Collection[Node] = ()) -> None:
        """`also` are nodes whose rows are wanted, too."""
        self._plan = plan
        self._most_partitions = max((operator.parallelism for operator in operators), default=0)
        nodes = plan.pipeline.nodes
        self._uids = {each.parent: each.uid for each in plan.pipeline.operators if isinstance(each.parent, PartialNode)}
        """Of the operator behind each PartialNode."""
        self.before: set[Node] = set()
        """The nodes whose rows Spark computes of the sources alone."""
        for node in nodes:
            if isinstance(node, SourceNode) or (is_sparks(node) and self.before.issuperset(node.parents)):
                self.before.add(node)
        needed = {parent for node in nodes if node not in self.before for parent in node.parents}
        needed.update(node for _, _, node in plan.sinks)
        needed.update(also)
        self.front = [node for node in nodes if node in self.before and node in needed]
        """Those of them whose rows are needed: by an operator, a function or a sink behind, or by the caller."""

    def read(self, sources: Mapping[Node, DataFrame], record: EpochRecord) -> dict[Node, Rows]:
        """Return the rows of the nodes in `front`, of each source's rows of an epoch."""
        frames = dict(sources)
        self.prepare(next(iter(frames.values())).sparkSession)
        for node in self._plan.pipeline.nodes:
            if node in self.before and node not in frames:
                frames[node] = self.frame(node, [frames[parent] for parent in node.parents], record)
        return {node: to_rows(node, frames[node]) for node in self.front}

    def compute(self, node: Node, parents: Sequence[Rows], record: EpochRecord, session: SparkSession) -> Rows:
        """Return the rows of a node behind an operator or a function."""
        self.prepare(session)
        frames = [to_frame(parent, rows, session) for parent, rows in zip(node.parents, parents, strict=True)]
        return to_rows(node, self.frame(node, frames, record))

    def read_sources(self, sources: Mapping[Node, DataFrame]) -> dict[Node, Rows]:
        """Return the rows of the sources themselves."""
        self.prepare(next(iter(sources.values())).sparkSession)
        return {node: to_rows(node, df) for node, df in sources.items()}

    def frame(self, node: Node, parents: Sequence[DataFrame], record: EpochRecord) -> DataFrame:
        """Return a node's rows, which Spark has not computed yet, of those of its parents."""
        if isinstance(node, LateNode):
            return late_rows(node, parents[0], record.watermark_us, record.fired_us)
        by_task = record.reduced.get(self._uids[node]) if isinstance(node, PartialNode) else None
        if by_task:
            return _reduced_by_task(node, parents[0])
        return lower_node(node, parents, 0, is_reduced=by_task is not None)

    def prepare(self, session: SparkSession) -> None:
        """Set what these steps need of a session."""
        prepare_session(session)
        if self._most_partitions:
            limit_shuffle(session, self._most_partitions)


def _reduced_by_task(node: Node, df: DataFrame) -> DataFrame:
    """Return accumulators of the rows of each task, computed as a job computes them."""
    jdf: Any = df._jdf
    rows = {"rows": jdf.queryExecution().toRdd()}
    scan = frame_of(df.sparkSession, rows["rows"], jdf.schema())
    reduced = lower_node(node, [scan], 0, is_reduced=True)
    analyzed: Any = reduced._jdf
    by_task = [output_ids(analyzed.queryExecution().analyzed())[ROWS]]
    return RepeatedFrame(PlanTemplate(reduced, rows, [], [], by_task), rows, {})


def is_sparks(node: Node) -> bool:
    """Whether Spark computes a node, here as in a job."""
    return isinstance(node, StepNode | WatermarkNode | KeylessNode | LateNode | PartialNode | UnionNode)


def to_rows(node: Node, df: DataFrame) -> Rows:
    """Compute the rows of a node, in the order of partitions."""
    table = df.select("*", F.spark_partition_id().alias(_PARTITION)).toArrow()
    partitions = table.column(_PARTITION).to_numpy().astype(np.int64)
    places = (partitions << PARTITION_BITS) + np.arange(len(partitions))
    schema = schema_of(node.columns)
    columns = [table.column(field.name).combine_chunks() for field in schema if field.name != AT]
    arrays = [column.cast(field.type) for column, field in zip([*columns, pa.array(places)], schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_frame(node: Node, rows: Rows, session: SparkSession) -> DataFrame:
    """Return rows as a DataFrame with their partitions."""
    partitions = rows.column(AT).to_numpy() >> PARTITION_BITS
    cuts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), rows.num_rows]
    plain = rows.drop_columns([AT])
    batches = [plain.slice(start, end - start) for start, end in pairwise(cuts)]
    with _conf(session, _ONE_BATCH):
        return session.createDataFrame(pa.Table.from_batches(batches, plain.schema), spark_schema(node.columns.ddl))


def placed_after(rows: Rows, before: Rows) -> Rows:
    """Return rows of a second input, with partitions that follow those of the first, as in a union of Spark."""
    last = pc.max(before.column(AT)).as_py()
    if last is None:
        return rows
    places = pc.add(rows.column(AT), pa.scalar(((last >> PARTITION_BITS) + 1) << PARTITION_BITS, pa.int64()))
    return rows.set_column(rows.schema.get_field_index(AT), AT, places)


def in_parts(parts: Iterator[list[pa.RecordBatch]], schema: pa.Schema) -> Rows:
    """Return the output of an operator's partitions as rows."""
    columns: list[pa.RecordBatch] = []
    for number, batches in enumerate(parts):
        for batch in batches:
            at = sum(each.num_rows for each in columns)
            places = pa.array(np.arange(at, at + batch.num_rows) + (number << PARTITION_BITS))
            columns.append(batch.cast(schema).append_column(AT, places))
    whole = schema.append(pa.field(AT, pa.int64()))
    return pa.concat_batches([pa.RecordBatch.from_pylist([], whole), *(batch.cast(whole) for batch in columns)])


def shuffled(rows: Rows) -> Rows:
    """Return rows with their partitions in the opposite order; rows of one partition keep their order."""
    places = rows.column(AT).to_numpy()
    if not len(places):
        return rows
    partitions = places >> PARTITION_BITS
    opposite = ((partitions.max() - partitions) << PARTITION_BITS) + (places & ((1 << PARTITION_BITS) - 1))
    rows = rows.set_column(rows.schema.get_field_index(AT), AT, pa.array(opposite))
    return rows.take(pc.sort_indices(rows, sort_keys=[(AT, "ascending")]))


@contextmanager
def _conf(session: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    before = {name: session.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, earlier)
