"""A job's pipeline, checked as a whole, and built into DataFrames once an epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pyspark.sql import DataFrame

from strandline.api.badrecords import DEAD_LETTERS
from strandline.core.errors import ConfigurationError
from strandline.plan.graph import (
    LateNode,
    MapNode,
    Node,
    OperatorNode,
    OutputNode,
    PartialNode,
    SourceNode,
    sources_of,
    with_ancestors,
)
from strandline.plan.pipeline import Operator, Pipeline
from strandline.runtime.task.rowfunction import Report
from strandline.spark.base.empty import no_rows
from strandline.spark.base.pinned import Pinned
from strandline.spark.base.quiet import errors_reported
from strandline.spark.keepers.exchange import users_session_active
from strandline.spark.lower.nodes import lowered
from strandline.spark.lower.query import Sources
from strandline.spark.lower.reduction import Reduction
from strandline.spark.sinks.base import Sink
from strandline.spark.sinks.simple import NoopSink
from strandline.spark.sinks.sink_errors import name_error
from strandline.spark.streams.frames import FrameStep, probe_of
from strandline.spark.streams.stream import Output

RunOperator = Callable[[OperatorNode | LateNode, DataFrame], DataFrame]


class Plan:
    """The graph from the sources to the sinks."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        hint = "give it sinks=[stream.to(strandline.sinks.files('out/'))]"
        if not isinstance(outputs, Sequence) or not all(isinstance(output, Output) for output in outputs):
            raise ConfigurationError(f"sinks={outputs!r} is no list of outputs", hint=hint)
        if not outputs:
            raise ConfigurationError("the job has no sinks", hint=hint)
        if len({id(output.sink) for output in outputs}) < len(outputs):
            # It would take the rows of the one stream for those of the other, staged again.
            raise ConfigurationError(
                "several streams go into one and the same sink object",
                hint="make one sink for each: two files() sinks may write to the same directory",
            )
        self._outputs = list(outputs)
        self.pipeline = Pipeline([output.stream._node for output in outputs])
        self._check_dead_letters()
        self.sources = Sources(self.pipeline.sources)
        self._kept = self._find_branches()
        self.sinks = self._named_sinks()
        self.reductions = {
            node.uid: Reduction(possible=not node.parent.cut.is_whole)
            for node in self.pipeline.operators
            if isinstance(node.parent, PartialNode)
        }
        """Of built-in aggregations, by uid: whether their input is aggregated before it is sent."""

    def without_sinks(self) -> Plan:
        """Return the same pipeline with all operators at work, whose results nobody sees."""
        named = zip(self._outputs, self.sinks, strict=True)
        plan = Plan([Output(output.stream, NoopSink(name=name)) for output, (name, _, _) in named])
        reached: set[Node] = set()
        sinks = []
        # What stands further down runs what is above it as well.
        for name, sink, node in sorted(plan.sinks, key=lambda each: -len(_operators_above(each[2]))):
            if new := _operators_above(node) - reached:
                reached |= new
                sinks.append((name, sink, node))
        plan.sinks = sinks
        return plan

    def check_sinks(self) -> None:
        """Have each sink say now what it would say of every epoch."""
        for name, sink, node in self.sinks:
            # Most have nothing to say, and need no DataFrame for it.
            if type(sink).try_out is not Sink.try_out:
                try:
                    with errors_reported():
                        schema = probe_of(node).drop(*node.columns.hidden).schema
                        # A probe streams, and Spark writes no stream so.
                        with users_session_active(self.sources.session):
                            empty = no_rows(self.sources.session, schema)
                        sink.try_out(empty)
                except Exception as error:
                    raise name_error(error, name) from None

    def keep(self, uids: Collection[str]) -> bool:
        """Have what these operators give computed in full, however little of it is read; False if it is already."""
        nodes = {node for node in self.pipeline.operators if node.uid in uids}
        is_new = not nodes <= self._kept
        self._kept |= nodes
        return is_new

    def build(
        self,
        df: DataFrame,
        run: RunOperator,
        operators: Mapping[OperatorNode, Operator],
        reports: Mapping[Node, Report] = MappingProxyType({}),
    ) -> Built:
        """Build one epoch's DataFrames; what several sinks read is kept, so that it is computed once.

        `reports`: what steps tell of rows that fail.
        """
        copies = _copies(operators)
        kept: list[Pinned] = []

        def pinned(df: DataFrame) -> DataFrame:
            kept.append(Pinned(df))
            return kept[-1].rows

        if self.sources.are_several:
            # Every branch reads all of it: without this, once a branch from the sources.
            df = pinned(df)
        made = self.sources.apart(df)
        reducing = {uid for uid, reduction in self.reductions.items() if reduction.on}
        reduced = {node.parent for node in self.pipeline.operators if node.uid in reducing}
        for node in self.pipeline.nodes:
            parents = [made[parent] for parent in node.parents]
            if isinstance(node, OperatorNode | LateNode):
                made[node] = run(node, *parents)
            elif not isinstance(node, SourceNode):
                report = reports.get(node)
                made[node] = lowered(node, parents, copies.get(node, 0), reduced=node in reduced, report=report)
            if node in self._kept:
                made[node] = pinned(made[node])
        outputs = []
        for name, sink, node in self.sinks:
            hidden = node.columns.hidden
            outputs.append((name, sink, made[node].drop(*hidden) if hidden else made[node]))
        return Built(outputs, {node.uid: made[node] for node in self.pipeline.operators}, kept)

    def _check_dead_letters(self) -> None:
        """Refuse dead letters that go nowhere: whoever asked for them does not mean to lose them."""
        read = {(node.parent, node.side) for node in self.pipeline.nodes if isinstance(node, OutputNode)}
        for each in self.pipeline.operators:
            side = each.sides_before.get(DEAD_LETTERS)
            is_read = side in self.pipeline.nodes if side else (each, 1 + _index(each.sides, DEAD_LETTERS)) in read
            if each.on_error.has_dead_letters and not is_read:
                raise _unread(f"operator '{each.uid}'")
        for node in self.pipeline.nodes:
            if isinstance(node, MapNode) and node.on_error.has_dead_letters and (node, 1) not in read:
                raise _unread(f"{node.step} ({node.name}, in {node.line})")
            if isinstance(node, FrameStep) and node.failed is not None and node.failed not in self.pipeline.nodes:
                source = sources_of(node)[0].name
                raise _unread(f"the source '{source}'" if source else "the job's source")

    def _find_branches(self) -> set[Node]:
        """Return the nodes behind an operator, or a function of Python's, that more than one reader reads.

        What calls another system is to do so once a row; and a function that gives a number of its own, or another one
        each time, is to give the same to all who read it.
        """
        readers = Counter(parent for node in self.pipeline.nodes for parent in node.parents)
        for output in self._outputs:
            readers[output.stream._node] += 1 if output.sink.reads_once else 2
        return {node for node, count in readers.items() if count > 1 and _has_python(node)}

    def _named_sinks(self) -> list[tuple[str, Sink, Node]]:
        named: list[tuple[str, Sink, Node]] = []
        for at, output in enumerate(self._outputs):
            kind = type(output.sink).__name__.removesuffix("Sink").lower()
            named.append((output.sink.name or f"{kind}-{at}", output.sink, output.stream._node))
        counted = Counter(name for name, _, _ in named)
        twice = [name for name, count in counted.items() if count > 1]
        if twice:
            raise ConfigurationError(f"two sinks are named '{twice[0]}'", hint="give each a name of its own")
        return named


@dataclass(frozen=True)
class Built:
    """One epoch's DataFrames: each sink's, and those to let go of afterwards."""

    outputs: list[tuple[str, Sink, DataFrame]]
    operators: dict[str, DataFrame]
    """What each operator gives, by uid."""
    kept: list[Pinned]

    def close(self) -> None:
        """Let go of what was kept."""
        for pinned in self.kept:
            pinned.release()


def _unread(where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where}: on_error is 'dead-letter', and its dead letters go to no sink",
        hint='send them to one, as in totals.dead_letters.to(sl.sinks.files("dead/", format="json")), or say '
        "on_error='skip'; sl.sinks.noop() keeps nothing, and they are counted",
    )


def _index(names: Iterable[str], name: str) -> int:
    """Return a name's place; -1 if it is not there."""
    return next((at for at, each in enumerate(names) if each == name), -1)


def _copies(operators: Mapping[OperatorNode, Operator]) -> dict[Node, int]:
    """Return, for what every partition hears of, how many there are: the most that an operator behind it has."""
    found: dict[Node, int] = {}
    for node, operator in operators.items():
        if node.parent is not None and node.broadcast_order is not None:
            found[node.parent] = max(found.get(node.parent, 0), operator.parallelism)
    return found


def _operators_above(node: Node) -> set[Node]:
    return {found for found in with_ancestors(node) if isinstance(found, OperatorNode)}


def _has_python(node: Node) -> bool:
    """Whether a node's rows come of an operator, or of a function that is called for each row."""
    return isinstance(node, OperatorNode | MapNode) or any(map(_has_python, node.parents))
