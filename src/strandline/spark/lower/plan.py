"""A job's plan: its pipeline as a whole, which it checks, and its sinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from strandline.api.badrecords import DEAD_LETTERS
from strandline.core.errors import ConfigurationError
from strandline.plan.graph import (
    MapNode,
    Node,
    OperatorNode,
    OutputNode,
    PartialNode,
    sources_of,
    with_ancestors,
)
from strandline.plan.pipeline import Pipeline
from strandline.spark.base.empty import no_rows
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.keepers.exchange import keep_active_session
from strandline.spark.lower.query import Sources
from strandline.spark.lower.reduction import Reduction
from strandline.spark.sinks.base import Sink
from strandline.spark.sinks.simple import NoopSink
from strandline.spark.sinks.sink_errors import name_error
from strandline.spark.streams.frames import FrameStep, probe_of
from strandline.spark.streams.stream import Output


class Plan:
    """The graph from the sources to the sinks."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        hint = "pass sinks=[stream.to(strandline.sinks.files('out/'))]"
        if not isinstance(outputs, Sequence) or not all(isinstance(output, Output) for output in outputs):
            raise ConfigurationError(f"sinks={outputs!r} is not a list of outputs", hint=hint)
        if not outputs:
            raise ConfigurationError("the job has no sinks", hint=hint)
        if len({id(output.sink) for output in outputs}) < len(outputs):
            # It would take the rows of the second stream for a repetition of the first one's.
            raise ConfigurationError(
                "several streams have the same sink object",
                hint="create one sink for each: two files() sinks may write to the same directory",
            )
        self._outputs = list(outputs)
        self.pipeline = Pipeline([output.stream._node for output in outputs])
        self._check_dead_letters()
        self.sources = Sources(self.pipeline.sources)
        self._pinned_nodes = self._find_branches()
        self.sinks = self._named_sinks()
        self.reductions = {
            node.uid: Reduction(possible=not node.parent.cut.is_whole)
            for node in self.pipeline.operators
            if isinstance(node.parent, PartialNode)
        }
        """For built-in aggregations, by uid: whether to aggregate their input before it is sent."""

    def without_sinks(self) -> Plan:
        """Return the same pipeline, in which all operators run, and whose sinks discard the results."""
        pairs = zip(self._outputs, self.sinks, strict=True)
        plan = Plan([Output(output.stream, NoopSink(name=name)) for output, (name, _, _) in pairs])
        covered: set[Node] = set()
        sinks = []
        # A sink that is further downstream runs all operators above it: one sink is enough for them.
        for name, sink, node in sorted(plan.sinks, key=lambda each: -len(_operators_above(each[2]))):
            if new := _operators_above(node) - covered:
                covered |= new
                sinks.append((name, sink, node))
        plan.sinks = sinks
        return plan

    def check_sinks(self) -> None:
        """Let each sink raise now the errors that it would raise in every epoch."""
        for name, sink, node in self.sinks:
            # Most sinks check nothing, and need no DataFrame.
            if type(sink).try_out is not Sink.try_out:
                try:
                    with suppress_error_logs():
                        schema = probe_of(node).drop(*node.columns.hidden).schema
                        # The probe is a streaming DataFrame, which Spark cannot write as a batch.
                        with keep_active_session(self.sources.session):
                            empty = no_rows(self.sources.session, schema)
                        sink.try_out(empty)
                except Exception as error:
                    raise name_error(error, name) from None

    def keep(self, uids: Collection[str]) -> bool:
        """Pin these operators' output, so that it is computed in full; return False if all of it is pinned already."""
        nodes = {node for node in self.pipeline.operators if node.uid in uids}
        is_new = not nodes <= self._pinned_nodes
        self._pinned_nodes |= nodes
        return is_new

    @property
    def pinned(self) -> Collection[Node]:
        """The nodes whose rows are pinned in each epoch."""
        return self._pinned_nodes

    def _check_dead_letters(self) -> None:
        """Raise ConfigurationError for dead letters without a sink: they would be lost."""
        read = {(node.parent, node.side) for node in self.pipeline.nodes if isinstance(node, OutputNode)}
        for each in self.pipeline.operators:
            side = each.sides_before.get(DEAD_LETTERS)
            is_read = side in self.pipeline.nodes if side else (each, 1 + _index(each.sides, DEAD_LETTERS)) in read
            if each.on_error.has_dead_letters and not is_read:
                raise _dead_letters_error(f"operator '{each.uid}'")
        for node in self.pipeline.nodes:
            if isinstance(node, MapNode) and node.on_error.has_dead_letters and (node, 1) not in read:
                raise _dead_letters_error(f"{node.step} ({node.name}, in {node.line})")
            if isinstance(node, FrameStep) and node.failed is not None and node.failed not in self.pipeline.nodes:
                source = sources_of(node)[0].name
                raise _dead_letters_error(f"the source '{source}'" if source else "the job's source")

    def _find_branches(self) -> set[Node]:
        """Return the nodes below an operator or a Python function that have more than one reader.

        A function that calls another system must do so once a row, and all readers must see the same result of a
        function whose results differ between calls.
        """
        readers = Counter(parent for node in self.pipeline.nodes for parent in node.parents)
        for output in self._outputs:
            readers[output.stream._node] += 1 if output.sink.reads_once else 2
        return {node for node, count in readers.items() if count > 1 and _has_python(node)}

    def _named_sinks(self) -> list[tuple[str, Sink, Node]]:
        sinks: list[tuple[str, Sink, Node]] = []
        for at, output in enumerate(self._outputs):
            kind = type(output.sink).__name__.removesuffix("Sink").lower()
            sinks.append((output.sink.name or f"{kind}-{at}", output.sink, output.stream._node))
        counts = Counter(name for name, _, _ in sinks)
        duplicates = [name for name, count in counts.items() if count > 1]
        if duplicates:
            raise ConfigurationError(f"two sinks are named '{duplicates[0]}'", hint="give each sink another name")
        return sinks


def _dead_letters_error(where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where}: on_error is 'dead-letter', and its dead letters go to no sink",
        hint='send them to one, as in totals.dead_letters.to(sl.sinks.files("dead/", format="json")), or set '
        "on_error='skip'; sl.sinks.noop() discards them, and they are counted",
    )


def _index(names: Iterable[str], name: str) -> int:
    """Return a name's index; -1 if it is missing."""
    return next((at for at, each in enumerate(names) if each == name), -1)


def _operators_above(node: Node) -> set[Node]:
    return {each for each in with_ancestors(node) if isinstance(each, OperatorNode)}


def _has_python(node: Node) -> bool:
    """Whether a node's rows come from an operator, or from a function that is called for each row."""
    return isinstance(node, OperatorNode | MapNode) or any(map(_has_python, node.parents))
