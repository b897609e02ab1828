"""A whole pipeline: its operators, its sources, its watermarks, and the operators that count its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from urllib.parse import quote

from strandline.api.badrecords import DEAD_LETTERS
from strandline.api.states import State, declared_states
from strandline.core.errors import ConfigurationError
from strandline.core.keygroups import check_parallelism, default_max_parallelism
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.plan.columns import quoted
from strandline.plan.graph import (
    FailedNode,
    LateNode,
    Movers,
    Node,
    OperatorNode,
    OutputNode,
    SourceNode,
    UnionNode,
    WatermarkNode,
    operators_above,
    sources_of,
    with_ancestors,
)
from strandline.plan.matching import match_operators
from strandline.plan.operators import branches_above, movers_above, watermarks_in
from strandline.plan.parallelism import Parallelism
from strandline.plan.upgrade import Migration
from strandline.runtime.builtin import Aggregated, BuiltinOperator
from strandline.runtime.operators.views.recomputing import Collecting, Comparing
from strandline.runtime.program import Program, pickle_process, state_infos
from strandline.runtime.watermarks import WatermarkSpec
from strandline.types.datatypes import parse_schema

WatermarkIndexes: TypeAlias = "int | tuple[WatermarkIndexes, ...] | None"
"""As Movers, with indexes of watermarks."""


@dataclass(frozen=True)
class Operator:
    """A keyed operator with its final parallelism."""

    node: OperatorNode
    parallelism: int
    max_parallelism: int
    is_explicit: bool = False
    """Whether its parallelism is explicit, and not the job's."""
    is_measured: bool = False
    """Whether the times of its events advance a watermark: no operator is between them."""
    migration: Migration = field(default_factory=Migration)
    """How it continues from stored state."""

    @property
    def uid(self) -> str:
        """The operator's uid."""
        return self.node.uid

    @property
    def was(self) -> str:
        """Its former uid, if the program declares one."""
        return self.node.was

    @property
    def group(self) -> str:
        """The beginning of the uids of aggregations of the same groups, if it is one of a view."""
        return self.node.group

    @property
    def changed_by(self) -> frozenset[str]:
        """The uids of the operators whose rows it reads, if these may be taken back."""
        return frozenset(each.uid for each in operators_above(*self.node.parents) if self.node.is_changed)

    @property
    def computed_of(self) -> frozenset[str]:
        """The uids of the operators that hold the rows of which its results are computed, if that is all it needs."""
        above = operators_above(*self.node.parents) if isinstance(self.node.process, Comparing) else ()
        return frozenset(each.uid for each in above if isinstance(each.process, Collecting))

    @property
    def declared(self) -> Mapping[str, State]:
        """The declarations of its states, by name."""
        return declared_states(self.node.process)

    @property
    def aggregated(self) -> Aggregated | None:
        """Its aggregates, or None for an operator without any."""
        return self.node.aggregated

    @property
    def key_schema(self) -> str:
        """DDL of the key columns."""
        types = parse_schema(self.node.input_schema).types_of(self.node.keys)
        return ", ".join(f"{quoted(name)} {kind.ddl}" for name, kind in zip(self.node.keys, types, strict=True))

    @property
    def states(self) -> list[StateInfo]:
        """The declared states, with all schemas that their stored values may have."""
        return self.migration.infos(state_infos(self.node.process))

    def info(self, backend: str) -> OperatorInfo:
        """Return its entry for a manifest, without partitions."""
        return OperatorInfo(
            uid=self.uid, backend=backend, parallelism=self.parallelism, max_parallelism=self.max_parallelism,
            key_schema=self.key_schema, states=self.states, partitions=[],
        )  # fmt: skip

    def program(self, **run: Any) -> Program:
        """Return the program for its keepers; `run` has the fields that depend on the run, and its files."""
        node = self.node
        return Program(
            uid=node.uid,
            name=node.name,
            process=pickle_process(self._process, node.uid),
            key_columns=list(node.keys),
            input_schema=node.input_schema,
            output_schema=node.output_schema,
            sides=node.sides,
            # If another step makes dead letters of its bad rows, the operator only counts them.
            on_error=replace(node.on_error, then="skip") if DEAD_LETTERS in node.sides_before else node.on_error,
            layout=node.layout,
            measured=self.is_measured,
            broadcast_order=list(node.broadcast_order or ()),
            schemas=dict(self.migration.schemas),
            was=dict(self.migration.was),
            dropped=list(self.migration.dropped),
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            **run,
        )

    @property
    def _process(self) -> Any:
        process = self.node.process
        if self.migration.replays:
            assert isinstance(process, BuiltinOperator)
            process = copy(process)
            process.own_replays = True
        return process


class Pipeline:
    """The graph that ends in some nodes."""

    def __init__(self, ends: Sequence[Node]) -> None:
        self.nodes = list(with_ancestors(*ends))
        """Every node after its parents."""
        self.operators = [node for node in self.nodes if isinstance(node, OperatorNode)]
        self.sources = sorted(
            (node for node in self.nodes if isinstance(node, SourceNode)), key=lambda source: source.name
        )
        if len(self.sources) > 1:
            _check_names([node.name for node in self.sources])
        self._check_uids()
        self._check_late()
        # A watermark that no operator's events advance would hold back the others for ever.
        movers = {operator.uid: mover for operator in self.operators if (mover := movers_above(operator.parent))}
        moved = set().union(*map(watermarks_in, movers.values()))
        watermarks = [node for node in self.nodes if isinstance(node, WatermarkNode) and node in moved]
        self.watermarks = self._named_watermarks(watermarks)
        self.measuring = {uid: _indexes_of(mover, watermarks) for uid, mover in movers.items()}
        """By uid: the watermarks that an operator's events advance, if no operator is between."""
        self.counting = self._find_counting()

    def settle(self, parallelism: Parallelism, stored: Sequence[OperatorInfo] = ()) -> list[Operator]:
        """Return every operator with its parallelism and its max_parallelism: explicit, stored or by default."""
        matches = match_operators(self.operators, stored)
        common = parallelism.common(stored)
        settled = []
        for node in self.operators:
            known = matches.get(node.uid)
            explicit = parallelism.explicit(node)
            number = explicit or parallelism.job or (known.parallelism if known else common)
            # Leave room for the job's parallelism, and for the largest that it may have later.
            by_default = (
                known.max_parallelism if known else default_max_parallelism(max(number, common, parallelism.most))
            )
            most = node.max_parallelism or by_default
            if parallelism.is_room and not explicit:
                number = min(number, most)
            check_parallelism(node.uid, number, most)
            settled.append(Operator(node, number, most, explicit is not None, node.uid in self.measuring))
        return settled

    def moved(self, uid: str, newest_us: Mapping[str, int]) -> dict[int, dict[str, int]]:
        """Return the newest times of an operator's events, by watermark and origin."""
        newest: dict[int, dict[str, int]] = {}
        for origin, time_us in newest_us.items():
            index = self.measuring.get(uid)
            while isinstance(index, tuple):
                # Pairs and unions put the number of the input before the origin.
                at, _, origin = origin.partition("/")
                index = index[int(at)]
            if index is not None:
                newest.setdefault(index, {})[origin] = time_us
        return newest

    def _named_watermarks(self, nodes: Sequence[WatermarkNode]) -> list[WatermarkSpec]:
        """Return the watermarks with names that do not depend on their order in the program."""
        branches: dict[WatermarkNode, set[str]] = {}
        for operator in self.operators:
            for node, branch in branches_above(operator.parent, quote(operator.uid, safe="")):
                branches.setdefault(node, set()).add(branch)
        specs = []
        for node in nodes:
            # A watermark on a union has all of its sources, in an order of their own.
            source = "+".join(sorted(source.name for source in sources_of(node))) if len(self.sources) > 1 else ""
            specs.append(replace(node.spec, source=source, branch="+".join(sorted(branches[node]))))
        return specs

    def _find_counting(self) -> dict[str, int]:
        """Return the operators, by uid, that count the job's rows, and how many copies of each row they get.

        Together they read each source once. They get copies only if a stream is united with itself.
        """
        counting: dict[str, int] = {}
        counted: set[Node] = set()
        read = {operator.uid: _sources_of(*operator.parents) for operator in self.operators}
        copies = {operator.uid: _copies_to(*operator.parents) for operator in self.operators}
        for uid, sources in sorted(read.items(), key=lambda item: (-len(item[1]), copies[item[0]])):
            if sources and not sources & counted:
                counting[uid] = copies[uid]
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
        heirs = Counter(node.was for node in self.operators if node.was)
        for node in self.operators:
            if node.was in counted or heirs[node.was] > 1:
                other = next(o for o in self.operators if o is not node and node.was in (o.uid, o.was))
                raise ConfigurationError(
                    f"the operator '{node.uid}' was '{node.was}', and so {'is' if node.was in counted else 'was'} "
                    f"'{other.uid}' ({other.name})",
                    hint="the state that is stored under one uid goes to one operator: leave was= out of the other",
                )

    def _check_late(self) -> None:
        uids = {node.uid for node in self.operators}
        for node in self.nodes:
            if isinstance(node, LateNode) and node.uid not in uids:
                raise ConfigurationError(
                    f"the late events of the operator '{node.uid}' go to a sink, its results to none",
                    hint="send its results to a sink too, or sl.sinks.noop(): nothing is late for what does not run",
                )


def _indexes_of(movers: Movers, watermarks: Sequence[WatermarkNode]) -> WatermarkIndexes:
    if isinstance(movers, tuple):
        return tuple(_indexes_of(each, watermarks) for each in movers)
    return None if movers is None else watermarks.index(movers)


def _sources_of(*nodes: Node) -> set[Node]:
    """Return the sources whose rows reach these nodes without an operator in between."""
    sources: set[Node] = set()
    for node in nodes:
        if isinstance(node, SourceNode):
            sources.add(node)
        elif not isinstance(node, OperatorNode | LateNode | FailedNode) and not (
            # Rows of a side output, such as dead letters, do not count as rows of the source.
            isinstance(node, OutputNode) and node.side
        ):
            sources |= _sources_of(*node.parents)
    return sources


def _copies_to(*nodes: Node) -> int:
    """Return how many copies of each row of the sources reach these nodes, or 1 if the numbers differ."""
    copies = set()
    for node in nodes:
        if isinstance(node, UnionNode):
            counts = Counter(node.parents)
            copies.add(_copies_to(*counts) * counts[node.parents[0]] if len(set(counts.values())) == 1 else 1)
        elif isinstance(node, SourceNode | OperatorNode | LateNode | FailedNode):
            copies.add(1)
        else:
            copies.add(_copies_to(*node.parents))
    return copies.pop() if len(copies) == 1 else 1


def _check_names(names: Sequence[str]) -> None:
    nameless = names.count("")
    if nameless:
        raise ConfigurationError(
            f"the job reads {len(names)} sources, and {nameless} of them have no name",
            hint='name each for life, as in stream(df, name="payments"): what was read is found by it; branches of one '
            "DataFrame begin with one stream()",
        )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigurationError(
            f"two sources are named '{twice[0]}'",
            hint="give each a name of its own; branches of one DataFrame begin with one stream()",
        )
