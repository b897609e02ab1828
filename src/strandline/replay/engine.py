"""A pipeline of a job, run epoch by epoch in this process: operators in a harness's partitions, steps by Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strandline.backends.base import LocalFile
from strandline.core.ids import Epoch, Partition
from strandline.core.scratch import Scratch
from strandline.core.settings import BackendName
from strandline.format.epochs import EpochRecord
from strandline.plan.graph import FailedNode, MapNode, Node, OperatorNode, OutputNode, PairNode, UnionNode
from strandline.plan.pipeline import Operator
from strandline.plan.upgrade import plan_upgrade
from strandline.replay.frames import Steps, in_parts, is_sparks, placed_after, to_frame, to_rows
from strandline.replay.recorded import Origin
from strandline.runtime.program import Process
from strandline.runtime.task.task import EpochTimes
from strandline.runtime.task.unsaved import Finding
from strandline.spark.keepers.exchange import clone_session
from strandline.spark.lower.plan import Plan
from strandline.storage.place import Place
from strandline.testing.nodes import Rows, evaluate, schema_of
from strandline.testing.operator import Hooks, Partitions
from strandline.testing.stored import Restoring, restoring_from, save


@dataclass(frozen=True)
class EpochOutput:
    """The rows of one epoch: those of each operator, by uid, and those of the sinks, by name."""

    record: EpochRecord
    operators: Mapping[str, Rows]
    sinks: Mapping[str, pa.RecordBatch]
    nodes: Mapping[Node, Rows]
    """The rows of all nodes that are known here: not of those that Spark computes on the way to others."""


@dataclass
class ReplayRun:
    """Runs epochs on restored state. A `commit` or an `abort` follows each `run`."""

    plan: Plan
    operators: Sequence[Operator]
    origin: Origin
    backend: BackendName
    loaded: Callable[[Process, str, Partition], None] = lambda process, uid, partition: None
    """Called with each function before it is bound to its state: a debugger wraps its methods."""
    findings: list[Finding] = field(default_factory=list)
    """Data that functions keep outside of their states."""
    follows: bool = True
    """Whether it is rescaled where the job was."""
    also: Collection[Node] = ()
    """Nodes whose rows are wanted, beside those that are needed."""

    def __post_init__(self) -> None:
        self._sinks = {name: node for name, _, node in self.plan.sinks}
        self._scratch = Scratch("replay")
        self.partitions: dict[Node, Partitions] = {}
        try:
            self._open(self.operators, self.origin.restoring(self.operators), self.origin.epoch)
        except BaseException:
            self.close()
            raise

    def _open(self, operators: Sequence[Operator], restoring: Restoring, epoch: Epoch) -> None:
        self.operators, self.steps = operators, Steps(self.plan, operators, self.also)
        hooks = Hooks(self.loaded, restoring, self.findings.append)
        for number, operator in enumerate(operators):
            directory = self._scratch.path / f"{epoch}-{number}"
            opened = self.partitions[operator.node] = Partitions(operator, self.backend, directory, hooks)
            opened.open(None, epoch)

    def _rescale(self, numbers: Mapping[str, int], epoch: Epoch) -> None:
        """Go on with another parallelism of operators, by uid, from the state after an epoch."""
        folder = self._scratch.path / f"rescaled-{epoch}"
        infos = [operator.info(self.backend) for operator in self.operators]
        files = {uid: some for uid, (_, some) in self.snapshots().items()}
        saved = save(self.origin.jobdir.job, epoch, infos, files, folder, now_us=0, watermarks={})
        for each in self.partitions.values():
            each.abandon()
        operators = [replace(each, parallelism=numbers.get(each.uid, each.parallelism)) for each in self.operators]
        migrations = plan_upgrade(saved.operators, operators).migrations
        operators = [replace(each, migration=migrations[each.uid]) for each in operators]
        self._open(operators, restoring_from(saved, Place(url=folder.as_uri(), fsync=False), operators), epoch)

    def run(self, record: EpochRecord, rows: Mapping[Node, Rows]) -> EpochOutput:
        """Run one epoch; `rows` has those of the nodes in `steps.front`, none in an epoch without rows."""
        numbers = record.parallelism if self.follows else {}
        if any(numbers.get(each.uid, each.parallelism) != each.parallelism for each in self.operators):
            self._rescale(numbers, Epoch(record.epoch - 1))
        times = _times_of(record)
        results: dict[Node, Rows] = {node: rows[node] if node in rows else no_rows(node) for node in self.steps.front}
        for node in self.plan.pipeline.nodes:
            if node in self.steps.before:
                continue
            results[node] = self._evaluate(node, [results[parent] for parent in node.parents], record, times)
        visible = {name: _visible(node, results[node]) for name, node in self._sinks.items()}
        by_uid = {node.uid: rows for node, rows in results.items() if isinstance(node, OperatorNode)}
        return EpochOutput(record, by_uid, visible, results)

    def _evaluate(self, node: Node, parents: Sequence[Rows], record: EpochRecord, times: EpochTimes) -> Rows:
        match node:
            case OperatorNode():
                partitions = self.partitions[node]
                return in_parts(partitions.outputs(record.epoch, times, parents[0]), partitions.output_schema)
            case FailedNode():
                return parents[0]
            case UnionNode() | PairNode():
                placed = list(parents[:1])
                for rows in parents[1:]:
                    placed.append(placed_after(rows, placed[-1]))
                return evaluate(node, placed, times)
            case MapNode() | OutputNode():
                return evaluate(node, parents, times, lambda count, last: None)
        if not any(rows.num_rows for rows in parents):
            return no_rows(node)
        return self.steps.compute(node, parents, record, self.session)

    @cached_property
    def session(self) -> SparkSession:
        """The session of the steps that Spark computes behind operators, with settings of its own."""
        return clone_session(self.plan.sources.session)

    def rows_of(self, node: Node, inputs: Mapping[Node, Rows], record: EpochRecord) -> Rows:
        """Return the rows of a node that come of some rows of the sources and operators above it."""
        if node in inputs:
            return inputs[node]
        if is_sparks(node):
            self.steps.prepare(self.session)
            return to_rows(node, self._frame_of(node, inputs, record))
        parents = [self.rows_of(parent, inputs, record) for parent in node.parents]
        return self._evaluate(node, parents, record, _times_of(record))

    def _frame_of(self, node: Node, inputs: Mapping[Node, Rows], record: EpochRecord) -> DataFrame:
        """Return the rows of a node as a DataFrame: steps of Spark in a row are one job."""
        if node in inputs or not is_sparks(node):
            return to_frame(node, self.rows_of(node, inputs, record), self.session)
        return self.steps.frame(node, [self._frame_of(parent, inputs, record) for parent in node.parents], record)

    def run_alone(self, node: OperatorNode, rows: Rows, record: EpochRecord) -> Rows:
        """Return what an operator gives for some rows of an epoch, which is forgotten."""
        partitions = self.partitions[node]
        try:
            return in_parts(partitions.outputs(record.epoch, _times_of(record), rows), partitions.output_schema)
        finally:
            partitions.abort()

    def commit(self) -> None:
        """Keep the epoch that has run."""
        for each in self.partitions.values():
            each.commit()

    def abort(self) -> None:
        """Forget the epoch that has run, or failed."""
        for each in self.partitions.values():
            each.abort()

    def find(self, uid: str) -> Partitions:
        """Return the partitions of an operator."""
        return next(each for each in self.partitions.values() if each.node.uid == uid)

    def snapshots(self) -> dict[str, tuple[str, list[list[LocalFile]]]]:
        """Return, by operator, the backend and a snapshot of each partition; the files stay until `close`."""
        return {each.node.uid: (self.backend, each.snapshot()) for each in self.partitions.values()}

    def close(self) -> None:
        """Close the state, and remove its directory; functions are not closed, as after a kill."""
        for each in self.partitions.values():
            each.abandon()
        self._scratch.close()


def _times_of(record: EpochRecord) -> EpochTimes:
    return EpochTimes(record.watermark_us, record.now_us, record.fired_us)


def no_rows(node: Node) -> Rows:
    """Return the rows of a node in an epoch without any."""
    return pa.RecordBatch.from_pylist([], schema_of(node.columns))


def _visible(node: Node, rows: Rows) -> pa.RecordBatch:
    return rows.select(node.columns.names)
