"""Builds the DataFrames of an epoch, from a template if one fits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import InitVar, dataclass, field, replace
from functools import cache
from typing import Any

from pyspark.sql import DataFrame

from strandline.plan.graph import FailedNode, LateNode, MapNode, Node, OperatorNode, PartialNode, SourceNode
from strandline.plan.pipeline import Operator
from strandline.runtime.rowlayout import ROWS, TIME
from strandline.spark.base.batch_limit import UNBOUNDED
from strandline.spark.base.mapping import BatchFunction, map_batches
from strandline.spark.base.pinned import Pinned
from strandline.spark.base.templates import (
    NoTemplateError,
    PlanTemplate,
    RepeatedFrame,
    empty_rdd,
    frame_of,
    has_present,
    output_ids,
    rdd_of,
)
from strandline.spark.keepers.exchange import Exchanges, clone_session, empty_frame, prepare_session
from strandline.spark.lower.chains import Chains, find_chains
from strandline.spark.lower.limits import row_limit
from strandline.spark.lower.nodes import TO, input_of, late_rows, lower_node, output_of
from strandline.spark.lower.plan import Plan
from strandline.spark.lower.reduction import limit_shuffle
from strandline.spark.sinks.base import Sink
from strandline.spark.streams.frames import FrameStep

_SOURCE = "source"
_MOST_CHANGES = 5
"""Of the plan, by users' functions of DataFrames: then it is made in each epoch."""
_END_S = 5.0
"""How long the end of a run waits for the thread that plans: a user's function may never return."""


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
    rows_of: Callable[[Node], DataFrame]
    """Returns the rows of a node of the pipeline."""
    reduced: Mapping[str, bool]
    """The aggregations, by uid, whose input Spark aggregates; whether the rows of each task alone."""

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
    source: InitVar[DataFrame]
    """The rows of all sources, of which only the schema is used."""
    max_row_bytes: int = 0
    """The largest size of a row to an operator; 0: no limit."""
    by_time: bool = False
    """Whether to sort the rows of a key by their times if the program defines no other order."""
    _templates: dict[Hashable, _Template | None] = field(default_factory=dict, init=False)
    """By what decides on the plan. None if there is no template."""

    def __post_init__(self, source: DataFrame) -> None:
        # A clone, as for Spark's query: later settings of the program's session must not affect epochs.
        self.no_rows = empty_frame(source, clone_session(source.sparkSession))
        """The rows of an epoch without rows."""
        nodes = self.plan.pipeline.nodes
        self._names: dict[Node, str] = {
            node: f"{node.uid if isinstance(node, OperatorNode) else node.name} (step {number})"
            for number, node in enumerate(nodes)
            if isinstance(node, OperatorNode | MapNode | FailedNode)
        }
        """Of functions, in Spark's plans."""
        self._may_repeat = not any(map(_is_of_epoch, nodes))
        self._changes = 0
        self._copies = _copies(self.operators)
        self._planning: threading.Thread | None = None

    def plan_ahead(self) -> None:
        """Plan the epochs in a thread, until the first one begins: in a cold JVM, it takes a second."""
        self._planning = threading.Thread(target=self._plan, name="strandline-plan", daemon=True)
        self._planning.start()

    def _plan(self) -> None:
        try:
            self._prepare(self.no_rows)
            self._template(self.no_rows)
        except BaseException:
            # The first epoch meets the same error, and reports it.
            self._templates.clear()

    def close(self) -> None:
        """Wait until no thread plans, unless a user's function takes too long."""
        if self._planning is not None:
            self._planning.join(_END_S)

    def build(self, df: DataFrame, work: EpochWork) -> EpochFrames:
        """Build the DataFrames of an epoch's rows; those that several sinks read are pinned, to be computed once."""
        if self._planning is not None:
            self._planning.join()
        self._prepare(df)
        template = self._template(df)
        chains = self._chains
        work = replace(work, functions=chains.combined(work.functions))
        if template is None or (rows := rdd_of(df)) is None:
            # Without a template, rows of all tasks are aggregated together.
            return replace(self._build(df, work, chains), reduced=dict.fromkeys(self._reducing, False))
        # Also those of map(): what they refer to in the program may have changed.
        functions = {self._names[node]: function.to_java(df.sparkSession) for node, function in work.functions.items()}
        pins: list[Pinned] = []
        rdds = {_SOURCE: rows}
        for name, pinned in template.pins.items():
            pins.append(Pinned(RepeatedFrame(pinned, dict(rdds), functions)))
            rdds[name] = pins[-1].rdd
        outputs: list[tuple[str, Sink, DataFrame]] = [
            (name, sink, RepeatedFrame(output, rdds, functions, template.row_bytes))
            for name, sink, output in template.outputs
        ]

        def rows_of(node: Node) -> DataFrame:
            return RepeatedFrame(template.of(node), rdds, functions, template.row_bytes)

        return EpochFrames(outputs, pins, rows_of, self._reducing)

    @property
    def _chains(self) -> Chains:
        return find_chains(self.operators, self.plan.pinned, by_time=self.by_time)

    @property
    def _reducing(self) -> dict[str, bool]:
        """The aggregations whose input is aggregated before it is sent, by uid: whether by the rows of each task."""
        return {uid: reduction.by_task for uid, reduction in self.plan.reductions.items() if reduction.on}

    def _prepare(self, df: DataFrame) -> None:
        prepare_session(df.sparkSession)
        if self.operators:
            limit_shuffle(df.sparkSession, max(operator.parallelism for operator in self.operators.values()))

    def _input_of(self, node: Node, rows: DataFrame) -> DataFrame:
        """Return the rows for the function of a node, of its parent's; those for an operator on its partitions."""
        if not isinstance(node, OperatorNode):
            return input_of(node, rows)
        operator = self.operators[node]
        to = None if node.broadcast_order is None else TO
        order = node.order_by or ((TIME,) if self.by_time and TIME in node.hidden else ())
        too_large = row_limit(node, self.max_row_bytes)
        exchange = self.exchanges.of(node.uid)
        return exchange.route(rows, node.keys, operator.max_parallelism, order, node.hidden, to, too_large)

    def _template(self, df: DataFrame) -> _Template | None:
        if not self._may_repeat:
            return None
        key = frozenset(self._reducing.items()), frozenset(self.plan.pinned)
        template = self._templates.get(key)
        if template is not None and not template.is_current():
            self._changes += 1
            self._may_repeat = self._changes < _MOST_CHANGES
        elif key in self._templates:
            return template
        self._templates[key] = None
        if self._may_repeat:
            with suppress(NoTemplateError):
                self._templates[key] = self._make_template(df)
        return self._templates[key]

    def _make_template(self, df: DataFrame) -> _Template:
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

        # Copies have other functions.
        functions: dict[Node, BatchFunction] = {node: BatchFunction(iter, output_of(node)) for node in self._names}
        frames = self._build(without_rows(_SOURCE, df), EpochWork(functions, None, None), self._chains, pin)

        by_task = [
            output_ids(_analyzed(frames.rows_of(node.parent)))[ROWS]
            for node in self.plan.pipeline.operators
            if node.parent is not None and self._reducing.get(node.uid)
        ]

        def template(df: DataFrame) -> PlanTemplate:
            return PlanTemplate(df, rdds, self.exchanges.anchors, self._names.values(), by_task)

        pins = {name: template(df) for name, df in pinned.items()}
        outputs = [(name, sink, template(df)) for name, sink, df in frames.outputs]
        steps = [
            (node, frames.rows_of(node.parent), _analyzed(frames.rows_of(node)))
            for node in self.plan.pipeline.nodes
            if isinstance(node, FrameStep) and not node.is_fixed and node.parent is not None
        ]
        source_bytes = UNBOUNDED if self.plan.sources.may_run_python else 0.0
        row_bytes = max([source_bytes, *(template.row_bytes for template in pins.values())])
        return _Template(pins, outputs, steps, row_bytes, cache(lambda node: template(frames.rows_of(node))))

    def _build(
        self, df: DataFrame, work: EpochWork, chains: Chains, pin: Callable[[DataFrame], DataFrame] | None = None
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
        reducing = self._reducing
        reduced = {node.parent for node in plan.pipeline.operators if node.uid in reducing}
        inner = chains.inner
        for node in plan.pipeline.nodes:
            if isinstance(node, SourceNode) or node in inner:
                continue
            together = chains.of(node)
            parents = [frames[parent] for parent in together[0].parents]
            match node:
                case OperatorNode() | MapNode() | FailedNode():
                    rows = self._input_of(together[0], *parents)
                    function = work.functions[node]
                    frames[node] = map_batches(rows, function.call, function.schema, self._names[node])
                case LateNode():
                    frames[node] = late_rows(node, parents[0], work.watermark_us, work.fired_us)
                case _:
                    frames[node] = lower_node(node, parents, self._copies.get(node, 0), is_reduced=node in reduced)
            if node in plan.pinned:
                frames[node] = pin(frames[node])
            # The task that computes the rows of the last operator runs all of them.
            frames |= dict.fromkeys(together, frames[node])
        outputs = []
        for name, sink, node in plan.sinks:
            hidden = node.columns.hidden
            outputs.append((name, sink, frames[node].drop(*hidden) if hidden else frames[node]))
        return EpochFrames(outputs, pins, frames.__getitem__, reducing)


@dataclass(frozen=True)
class _Template:
    """The templates of an epoch's DataFrames."""

    pins: Mapping[str, PlanTemplate]
    """In the order in which they read each other."""
    outputs: list[tuple[str, Sink, PlanTemplate]]
    steps: list[tuple[FrameStep, DataFrame, Any]]
    """Users' functions of DataFrames, each with an argument and the plan that it returned."""
    row_bytes: float
    """The most bytes of a row that Python functions read before the outputs: a sink's job may compute pins, too."""
    of: Callable[[Node], PlanTemplate]
    """Returns the template of a node's rows: keepers must get the rows that the outputs gave them."""

    def is_current(self) -> bool:
        """Whether users' functions return what they returned when the template was made."""
        return all(_is_same(_analyzed(node.step(df)), plan) for node, df, plan in self.steps)


def _analyzed(df: DataFrame) -> Any:
    jdf: Any = df._jdf
    return jdf.queryExecution().analyzed()


def _is_of_epoch(node: Node) -> bool:
    """Whether a node puts a time into the plan: late rows, the epoch's watermark; an aggregation, one of its SQL."""
    return isinstance(node, LateNode) or (
        isinstance(node, PartialNode) and has_present(*(part.many for part in node.parts.values()))
    )


def _is_same(plan: Any, other: Any) -> bool:
    # To Spark, results are the same that differ in the names of columns.
    return bool(plan.sameResult(other) and plan.schema() == other.schema())


def _copies(operators: Mapping[OperatorNode, Operator]) -> dict[Node, int]:
    """Return the number of copies of broadcast rows, by node: the highest parallelism of its operators."""
    copies: dict[Node, int] = {}
    for node, operator in operators.items():
        if node.parent is not None and node.broadcast_order is not None:
            copies[node.parent] = max(copies.get(node.parent, 0), operator.parallelism)
    return copies
