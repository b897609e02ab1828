"""Builds the DataFrames of an epoch, from a template if one fits."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from strandline.plan.graph import FailedNode, LateNode, MapNode, Node, OperatorNode, SourceNode
from strandline.plan.pipeline import Operator
from strandline.spark.base.mapping import BatchFunction, map_batches
from strandline.spark.base.pinned import Pinned
from strandline.spark.base.templates import NoTemplateError, PlanTemplate, RepeatedFrame, empty_rdd, frame_of, rdd_of
from strandline.spark.keepers.exchange import Exchanges
from strandline.spark.lower.nodes import input_of, late_rows, lower_node
from strandline.spark.lower.plan import Plan
from strandline.spark.sinks.base import Sink
from strandline.spark.streams.frames import FrameStep

_SOURCE = "source"


@dataclass(frozen=True)
class EpochWork:
    """The work of an epoch on its rows: the functions that Python computes, by node, and the times of late rows."""

    functions: Mapping[Node, BatchFunction]
    watermark_us: int | None
    fired_us: int | None


@dataclass(frozen=True)
class EpochFrames:
    """One epoch's DataFrames: those of the sinks, and those that are pinned."""

    outputs: list[tuple[str, Sink, DataFrame]]
    pins: list[Pinned]
    _operators: Callable[[], Mapping[str, DataFrame]]

    def output_of(self, uid: str) -> DataFrame:
        """Return the output of an operator."""
        return self._operators()[uid]

    def close(self) -> None:
        """Release the pinned rows."""
        for pin in self.pins:
            pin.release()


@dataclass
class FrameBuilder:
    """Builds one epoch's DataFrames after the other, in one run of a job."""

    plan: Plan
    operators: Mapping[OperatorNode, Operator]
    exchanges: Exchanges
    route: Callable[[OperatorNode, DataFrame], DataFrame]
    """Sends rows to an operator's partitions."""
    _templates: dict[Hashable, _Template | None] = field(default_factory=dict, init=False)
    """By what decides on the plan. None if there is no template."""

    def __post_init__(self) -> None:
        nodes = self.plan.pipeline.nodes
        self._names: dict[Node, str] = {
            node: f"{node.uid if isinstance(node, OperatorNode) else node.name} (step {number})"
            for number, node in enumerate(nodes)
            if isinstance(node, OperatorNode | MapNode | FailedNode)
        }
        """Of functions, in Spark's plans."""
        # Late rows are compared with the epoch's watermark, which is a part of the plan.
        self._may_repeat = not any(isinstance(node, LateNode) or _changes(node) for node in nodes)
        self._copies = _copies(self.operators)

    def build(self, df: DataFrame, work: EpochWork) -> EpochFrames:
        """Build the DataFrames of an epoch's rows; those that several sinks read are pinned, to be computed once."""
        template = self._template(df, work) if self._may_repeat else None
        if template is None or (rows := rdd_of(df)) is None:
            return self._build(df, work)
        functions = {
            self._names[node]: function.to_java(df.sparkSession)
            for node, function in work.functions.items()
            if function.changes
        }
        pins: list[Pinned] = []
        rdds = {_SOURCE: rows}
        for name, pinned in template.pins.items():
            pins.append(Pinned(RepeatedFrame(pinned, dict(rdds), functions)))
            rdds[name] = pins[-1].rdd
        outputs: list[tuple[str, Sink, DataFrame]] = [
            (name, sink, RepeatedFrame(output, rdds, functions)) for name, sink, output in template.outputs
        ]

        def operators() -> Mapping[str, DataFrame]:
            built = self._build(df, work)
            pins.extend(built.pins)
            return built._operators()

        return EpochFrames(outputs, pins, operators)

    def _template(self, df: DataFrame, work: EpochWork) -> _Template | None:
        reducing = frozenset(uid for uid, reduction in self.plan.reductions.items() if reduction.on)
        key = reducing, frozenset(self.plan.pinned)
        if key not in self._templates:
            self._templates[key] = None
            with suppress(NoTemplateError):
                self._templates[key] = self._make_template(df, work)
        return self._templates[key]

    def _make_template(self, df: DataFrame, work: EpochWork) -> _Template:
        spark = df.sparkSession
        rdds: dict[str, Any] = {}
        pinned: dict[str, DataFrame] = {}

        def without_rows(name: str, df: DataFrame) -> DataFrame:
            # What Spark knows of the rows of one epoch, such as how they are partitioned, is not true in others.
            rdds[name] = empty_rdd(spark)
            return frame_of(spark, rdds[name], df._jdf.schema())

        def pin(df: DataFrame) -> DataFrame:
            name = f"pinned {len(pinned)}"
            pinned[name] = df
            return without_rows(name, df)

        frames = self._build(without_rows(_SOURCE, df), work, pin)

        def template(df: DataFrame) -> PlanTemplate:
            return PlanTemplate(df, rdds, self.exchanges.anchors, self._names.values())

        pins = {name: template(df) for name, df in pinned.items()}
        outputs = [(name, sink, template(df)) for name, sink, df in frames.outputs]
        return _Template(pins, outputs)

    def _build(
        self, df: DataFrame, work: EpochWork, pin: Callable[[DataFrame], DataFrame] | None = None
    ) -> EpochFrames:
        plan = self.plan
        pins: list[Pinned] = []

        def pin_rows(df: DataFrame) -> DataFrame:
            pins.append(Pinned(df))
            return pins[-1].rows

        pin = pin or pin_rows
        if plan.sources.are_several:
            # Each source's branch would read the rows of all sources again.
            df = pin(df)
        frames = plan.sources.split(df)
        reducing = {uid for uid, reduction in plan.reductions.items() if reduction.on}
        reduced = {node.parent for node in plan.pipeline.operators if node.uid in reducing}
        for node in plan.pipeline.nodes:
            parents = [frames[parent] for parent in node.parents]
            match node:
                case SourceNode():
                    continue
                case OperatorNode() | MapNode() | FailedNode():
                    rows = self.route(node, *parents) if isinstance(node, OperatorNode) else input_of(node, *parents)
                    function = work.functions[node]
                    frames[node] = map_batches(rows, function.call, function.schema, self._names[node])
                case LateNode():
                    frames[node] = late_rows(node, parents[0], work.watermark_us, work.fired_us)
                case _:
                    frames[node] = lower_node(node, parents, self._copies.get(node, 0), is_reduced=node in reduced)
            if node in plan.pinned:
                frames[node] = pin(frames[node])
        outputs = []
        for name, sink, node in plan.sinks:
            hidden = node.columns.hidden
            outputs.append((name, sink, frames[node].drop(*hidden) if hidden else frames[node]))
        return EpochFrames(outputs, pins, lambda: {node.uid: frames[node] for node in plan.pipeline.operators})


@dataclass(frozen=True)
class _Template:
    """The templates of an epoch's DataFrames."""

    pins: Mapping[str, PlanTemplate]
    """In the order in which they read each other."""
    outputs: list[tuple[str, Sink, PlanTemplate]]


def _changes(node: Node) -> bool:
    return isinstance(node, FrameStep) and not node.is_fixed


def _copies(operators: Mapping[OperatorNode, Operator]) -> dict[Node, int]:
    """Return the number of copies of broadcast rows, by node: the highest parallelism of its operators."""
    copies: dict[Node, int] = {}
    for node, operator in operators.items():
        if node.parent is not None and node.broadcast_order is not None:
            copies[node.parent] = max(copies.get(node.parent, 0), operator.parallelism)
    return copies
