"""A job's pipeline, checked as a whole, and built into DataFrames once an epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from strandline.core.errors import ConfigurationError
from strandline.core.keygroups import check_parallelism, default_max_parallelism
from strandline.format.manifest import StateInfo
from strandline.runtime.program import key_schema, state_infos
from strandline.runtime.watermarks import WatermarkSpec
from strandline.spark.base.hidden import without_hidden
from strandline.spark.lower.query import Sources
from strandline.spark.sinks.base import Sink
from strandline.spark.streams.joins import PairNode, movers_of
from strandline.spark.streams.late import LateNode
from strandline.spark.streams.nodes import Node, OperatorNode, SourceNode, StepNode, WatermarkNode
from strandline.spark.streams.stream import Output

RunOperator = Callable[[OperatorNode | LateNode, DataFrame], DataFrame]


@dataclass(frozen=True)
class Operator:
    """A keyed operator with its numbers settled."""

    node: OperatorNode
    parallelism: int
    max_parallelism: int

    @property
    def uid(self) -> str:
        """The operator's uid."""
        return self.node.uid

    @property
    def key_schema(self) -> str:
        """DDL of the key columns."""
        return key_schema(self.node.input_schema, list(self.node.keys))

    @property
    def states(self) -> list[StateInfo]:
        """The declared states."""
        return state_infos(self.node.process)


class Plan:
    """The graph from the sources to the sinks."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        if not isinstance(outputs, Sequence) or not all(isinstance(output, Output) for output in outputs):
            raise ConfigurationError(
                f"sinks={outputs!r} is no list of outputs",
                hint="give it sinks=[stream.to(strandline.sinks.files('out/'))]",
            )
        if not outputs:
            raise ConfigurationError(
                "the job has no sinks", hint="give it sinks=[stream.to(strandline.sinks.files('out/'))]"
            )
        if len({id(output.sink) for output in outputs}) < len(outputs):
            # It would take the rows of the one stream for those of the other, staged again.
            raise ConfigurationError(
                "several streams go into one and the same sink object",
                hint="make one sink for each: two files() sinks may write to the same directory",
            )
        self._outputs = list(outputs)
        self._nodes = self._in_order()
        self._kept = self._find_branches() | self._find_cut_off()
        self.sources = Sources([node for node in self._nodes if isinstance(node, SourceNode)])
        self.operators = [node for node in self._nodes if isinstance(node, OperatorNode)]
        self._check_uids()
        self._check_late()
        # One that no operator's events move would stand still for ever, and hold back the others.
        movers = {operator.uid: found for operator in self.operators if any(found := movers_of(operator))}
        moved = {mover for found in movers.values() for mover in found}
        watermarks = [node for node in self._nodes if isinstance(node, WatermarkNode) and node in moved]
        self.watermarks = self._named_watermarks(watermarks)
        self.measuring = {
            uid: tuple(None if mover is None else watermarks.index(mover) for mover in found)
            for uid, found in movers.items()
        }
        """Which watermarks an operator's events move, by uid: of those that get them straight from one."""
        self.counting = self._find_counting()
        self.sinks = self._named_sinks()
        self._parallelism = 0

    def settle(self, parallelism: int, stored: dict[str, int]) -> list[Operator]:
        """Give every operator its parallelism and, stored or chosen or by default, its max_parallelism."""
        self._parallelism = parallelism
        settled = []
        for node in self.operators:
            most = node.max_parallelism or stored.get(node.uid) or default_max_parallelism(parallelism)
            check_parallelism(node.uid, parallelism, most)
            settled.append(Operator(node, parallelism, most))
        return settled

    def keep(self, uids: Collection[str]) -> bool:
        """Have what these operators give computed in full, however little of it is read; False if it is already."""
        nodes = {node for node in self.operators if node.uid in uids}
        is_new = not nodes <= self._kept
        self._kept |= nodes
        return is_new

    def build(self, df: DataFrame, run: RunOperator) -> Built:
        """Build one epoch's DataFrames; what several sinks read is kept, so that it is computed once."""
        kept: list[DataFrame] = []
        if self.sources.are_several:
            # Every branch reads all of it: without this, once a branch from the sources.
            df = df.persist(StorageLevel.MEMORY_AND_DISK)
            kept.append(df)
        made = self.sources.apart(df)
        for node in self._nodes:
            parents = [made[parent] for parent in node.parents]
            if isinstance(node, StepNode | WatermarkNode):
                made[node] = node.step(*parents)
            elif isinstance(node, PairNode):
                made[node] = node.pack(self._parallelism, *parents)
            elif isinstance(node, OperatorNode | LateNode):
                made[node] = run(node, *parents)
            if node in self._kept:
                made[node] = made[node].persist(StorageLevel.MEMORY_AND_DISK)
                kept.append(made[node])
        outputs = [(name, sink, without_hidden(made[node])) for name, sink, node in self.sinks]
        return Built(outputs, {node.uid: made[node] for node in self.operators}, kept)

    def moved(self, uid: str, newest_us: Mapping[str, int]) -> dict[int, dict[str, int]]:
        """Return what an operator's newest times say, by watermark and origin."""
        movers = self.measuring.get(uid, ())
        if len(movers) < 2:
            return {index: dict(newest_us) for index in movers if index is not None}
        found: dict[int, dict[str, int]] = {}
        for tagged, time_us in newest_us.items():
            # As the pair's packing writes it: which input, then whose time of those that its watermark tells apart.
            at, _, origin = tagged.partition("/")
            index = movers[int(at)]
            if index is not None:
                found.setdefault(index, {})[origin] = time_us
        return found

    def _in_order(self) -> list[Node]:
        """Return every node after its parents."""
        found: dict[Node, None] = {}

        def visit(node: Node) -> None:
            if node not in found:
                for parent in node.parents:
                    visit(parent)
                found[node] = None

        for output in self._outputs:
            visit(output.stream._node)
        return list(found)

    def _find_branches(self) -> set[Node]:
        """Return the nodes behind an operator that more than one reader reads."""
        readers = Counter(parent for node in self._nodes for parent in node.parents)
        for output in self._outputs:
            readers[output.stream._node] += 1 if output.sink.reads_once else 2
        return {node for node, count in readers.items() if count > 1 and _has_operator(node)}

    def _find_cut_off(self) -> set[Node]:
        """Return the nodes behind an operator of which the next step does not read all rows, as limit() does."""
        steps = [node for node in self._nodes if isinstance(node, StepNode) and node.stops_early]
        return {parent for node in steps for parent in node.parents if _has_operator(parent)}

    def _named_watermarks(self, nodes: Sequence[WatermarkNode]) -> list[WatermarkSpec]:
        """Return what they say; with several sources, named by these: the program may mention them in any order."""
        if not self.sources.are_several:
            return [node.spec for node in nodes]
        counted: Counter[str] = Counter()
        specs = []
        for node in nodes:
            source = _first_source(node)
            counted[source] += 1
            name = source if counted[source] == 1 else f"{source}:{counted[source]}"
            specs.append(replace(node.spec, name=name))
        return specs

    def _find_counting(self) -> set[str]:
        """Return uids of operators whose rows are the job's: if there are such, they get each source's rows once."""
        counting: set[str] = set()
        counted: set[Node] = set()
        read = {operator.uid: _sources_of(*operator.parents) for operator in self.operators}
        for uid, sources in sorted(read.items(), key=lambda item: -len(item[1])):
            if sources and not sources & counted:
                counting.add(uid)
                counted |= sources
        return counting

    def _check_uids(self) -> None:
        counted = Counter(node.uid for node in self.operators)
        twice = [uid for uid, count in counted.items() if count > 1]
        if twice:
            names = ", ".join(node.name for node in self.operators if node.uid == twice[0])
            raise ConfigurationError(
                f"the uid '{twice[0]}' is used by {counted[twice[0]]} operators ({names})",
                hint="give each operator a uid of its own: its state is found by it",
            )

    def _check_late(self) -> None:
        uids = {node.uid for node in self.operators}
        for node in self._nodes:
            if isinstance(node, LateNode) and node.uid not in uids:
                raise ConfigurationError(
                    f"the late events of the operator '{node.uid}' go to a sink, its results to none",
                    hint="send its results to a sink too, or sl.sinks.noop(): nothing is late for what does not run",
                )

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
    kept: list[DataFrame]

    def close(self) -> None:
        """Let go of what was kept."""
        for df in self.kept:
            df.unpersist()


def _has_operator(node: Node) -> bool:
    return isinstance(node, OperatorNode) or any(map(_has_operator, node.parents))


def _first_source(node: Node) -> str:
    while node.parent is not None:
        node = node.parent
    return node.name if isinstance(node, SourceNode) else ""


def _sources_of(*nodes: Node) -> set[Node]:
    """Return the sources whose rows reach these nodes without an operator in between."""
    found: set[Node] = set()
    for node in nodes:
        if isinstance(node, SourceNode):
            found.add(node)
        elif not isinstance(node, OperatorNode | LateNode):
            found |= _sources_of(*node.parents)
    return found
