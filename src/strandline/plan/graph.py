"""The steps of a pipeline as a graph. Streams make its nodes; an engine knows how to run each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from strandline.api.badrecords import DEAD_LETTER, DEAD_LETTERS, FAIL, OnError
from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.core.program import line_of_program
from strandline.plan.aggregates import AccumulatorColumn
from strandline.plan.columns import Columns
from strandline.runtime.rowlayout import TIME, RowLayout
from strandline.runtime.task.asyncfunction import AsyncRowFunction, Calls
from strandline.runtime.task.outputs import raw_ddl
from strandline.runtime.task.rowfunction import Report, RowFunction
from strandline.runtime.watermarks import WatermarkSpec
from strandline.types.datatypes import DataType


@dataclass(frozen=True, eq=False)
class Node:
    """A step of a pipeline, and what its rows look like."""

    columns: Columns
    parent: Node | None = None

    @property
    def parents(self) -> tuple[Node, ...]:
        """The nodes whose rows it gets."""
        return () if self.parent is None else (self.parent,)


@dataclass(frozen=True, eq=False)
class SourceNode(Node):
    """What a pipeline reads. Each engine has its own."""

    name: str = ""
    """What it is found by in checkpoints; empty: nothing, it is the only one."""
    line: str = field(default_factory=line_of_program, kw_only=True)
    """Where in the program it was written."""
    operators: list[OperatorNode] = field(default_factory=list, kw_only=True)
    """All that were ever made on it, whether or not a job has them."""
    outputs: list[Any] = field(default_factory=list, kw_only=True)
    """All that was ever sent from it into sinks."""

    def type_of(self, node: Node, expression: str, what: str) -> str:
        """Return the DDL of an SQL expression over the rows of a node that came of it; errors begin with `what`."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class StepNode(Node):
    """A stateless step of an engine's own: it is opaque here."""


@dataclass(frozen=True, eq=False)
class MapNode(Node):
    """A Python function of each row, which gives any number of rows. What came of a row carries what it carried."""

    function: Callable[[Any], Iterable[Any] | None] = field(kw_only=True)
    input: str = field(kw_only=True)
    """DDL of what the function sees of a row."""
    output: str = field(kw_only=True)
    step: str = field(default="flat_map", kw_only=True)
    """What users call it."""
    calls: Calls | None = None
    """Of a function that waits for other systems: how many of its calls run at once."""
    on_error: OnError = FAIL
    """What becomes of a row that the function fails for."""
    name: str = ""
    """What dead letters, and the job's own words, call the function."""
    is_counted: bool = True
    """Whether rows that fail are counted here, and not by an operator that gets them too."""
    line: str = field(default_factory=line_of_program, kw_only=True)
    """Where in the program it was written."""

    @property
    def raw_ddl(self) -> str:
        """DDL of what the function's rows travel as, dead letters among them; and behind, what rows carry unseen."""
        sides = {DEAD_LETTERS: DEAD_LETTER} if self.on_error.has_dead_letters else {}
        return Columns.of(raw_ddl(self.output, sides, timed=False), self.columns.hidden).ddl

    def row_function(self, carried: Sequence[str], report: Report | None = None) -> RowFunction:
        """Return what runs on batches of rows with these columns behind, which the function does not see."""
        time_at = carried.index(TIME) - len(carried) if TIME in carried else None
        given = (self.function, self.input, self.output, len(carried), self.step)
        more = (self.on_error, self.name, time_at, report)
        return RowFunction(*given, *more) if self.calls is None else AsyncRowFunction(*given, *more, self.calls)


@dataclass(frozen=True, eq=False)
class KeylessNode(Node):
    """The rows of which some column of the key is null, or something that keepers would get cannot be read."""

    keys: tuple[str, ...] = ()
    read: tuple[tuple[str, DataType], ...] = ()
    """What keepers would get: its SQL, and its type."""


@dataclass(frozen=True, eq=False)
class FailedNode(Node):
    """Rows that could not be read, as dead letters: they pass as they are, and each is counted."""

    on_error: OnError = field(kw_only=True)
    name: str = ""
    """What dead letters call the source."""
    step: str = "read"


@dataclass(frozen=True, eq=False)
class WatermarkNode(Node):
    """The step that gives every row its time."""

    spec: WatermarkSpec = field(default_factory=lambda: WatermarkSpec(""))


Movers: TypeAlias = "WatermarkNode | tuple[Movers, ...] | None"
"""Whose watermark rows move: one, none, or each input's, where rows are told apart by the input that they came by."""


@dataclass(frozen=True)
class Keyed:
    """Rows partitioned by key: what keyed operators are made on."""

    node: Node
    keys: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    made_by: Literal["key_by", "connect", "broadcast"] = "key_by"

    @property
    def columns(self) -> Columns:
        """What the rows look like."""
        return self.node.columns


@dataclass(frozen=True, eq=False)
class PairNode(Node):
    """Two streams packed into one of pairs: both rows as structs, of which one is null, the key, and the order."""

    other: Node | None = None
    halves: tuple[Keyed, ...] = ()
    """Both inputs; rules have no key, and no order: that is the pairs'."""
    names: tuple[str, ...] = ()
    """Of the key's columns and the order's."""
    movers: tuple[Movers, ...] = ()
    """Whose watermark the rows move: one for all of them, or each input's, and then origins begin with its number."""
    broadcast_order: tuple[str, ...] | None = None
    """If the right rows are for every partition: by which of their columns they are sorted."""

    @property
    def parents(self) -> tuple[Node, ...]:
        """The nodes whose rows it gets."""
        return tuple(node for node in (self.parent, self.other) if node is not None)

    @property
    def tells_inputs_apart(self) -> bool:
        """Whether origins say of which input a row is."""
        return len(self.movers) > 1


@dataclass(frozen=True, eq=False)
class UnionNode(Node):
    """The rows of several streams as one stream. All have its columns, in any order."""

    others: tuple[Node, ...] = ()
    movers: tuple[Movers, ...] = ()
    """As of pairs: one for all rows, or each input's, and then origins begin with its number."""

    @property
    def parents(self) -> tuple[Node, ...]:
        """The nodes whose rows it gets, one perhaps more than once."""
        return (*super().parents, *self.others)

    @property
    def tells_inputs_apart(self) -> bool:
        """Whether origins say of which input a row is."""
        return len(self.movers) > 1


@dataclass(frozen=True, eq=False)
class LateNode(Node):
    """The rows that keepers will drop since all of their windows are done, and those without a time.

    Which these are depends on an epoch's watermark alone, which keepers have from the driver. Like what an operator
    gives, they move no watermark and are not the source's rows once more.
    """

    kind: Any = None
    """Tumbling or Sliding."""
    lateness_us: int = 0
    uid: str = ""
    """The operator whose late events they are."""
    keys: tuple[str, ...] = ()
    read: tuple[tuple[str, DataType], ...] = ()
    """As of KeylessNode, where `on_error` counts: such a row is a bad record and not late."""


@dataclass(frozen=True)
class Cut:
    """How rows are told apart by time before they are aggregated."""

    every_us: int = 0
    """Rows of one key in one stretch of this length are aggregated into one; 0: whenever they are."""
    offset_us: int = 0
    sends_pane: bool = False
    """Whether keepers get the stretch's end, in the column PANE."""
    sends_span: bool = False
    """Whether they get the first and the last time, in FIRST and LAST."""
    order_by: tuple[str, ...] = ()
    """In which order rows count, where each is one: these columns are sent too."""
    is_whole: bool = False
    """Whether rows are not to be aggregated at all."""


@dataclass(frozen=True, eq=False)
class PartialNode(Node):
    """Rows become accumulators: one of many rows where that makes them fewer, or one of each."""

    keys: tuple[str, ...] = ()
    cut: Cut = field(default_factory=Cut)
    parts: Mapping[str, AccumulatorColumn] = field(default_factory=dict)
    """The accumulator's columns."""
    more: tuple[str, ...] = ()
    """Columns that keepers get beside the key's and the accumulator's."""
    read: tuple[tuple[str, DataType], ...] = ()
    """SQL and types: rows of which one of these cannot be read are not aggregated, but left without a key."""


@dataclass(frozen=True, eq=False)
class OperatorNode(Node):
    """A keyed operator. Its columns are the main output's; if it has sides, the nodes that follow tell them apart."""

    uid: str = ""
    was: str = ""
    """The uid that it had before, if it is said to have had another."""
    name: str = ""
    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    process: KeyedProcess | KeyedBatchProcess = field(default_factory=KeyedProcess)
    input_schema: str = ""
    output_schema: str = ""
    sides: dict[str, str] = field(default_factory=dict)
    sides_before: dict[str, Node] = field(default_factory=dict)
    """Side outputs that its keepers do not give: they are told from its input."""
    parallelism: int | None = None
    """Its own; None: as the job says."""
    max_parallelism: int | None = None
    on_error: OnError = FAIL
    """What becomes of an event that its function fails for."""
    line: str = field(default_factory=line_of_program, kw_only=True)
    """Where in the program it was written."""

    @property
    def hidden(self) -> tuple[str, ...]:
        """The hidden columns of its input."""
        return self.parent.columns.hidden if self.parent else ()

    @property
    def layout(self) -> RowLayout:
        """What its rows come with."""
        return RowLayout.of(self.hidden)

    @property
    def raw_schema(self) -> str:
        """DDL of what its keepers give."""
        return raw_ddl(self.output_schema, self.sides, timed=self.layout.timed)

    @property
    def broadcast_order(self) -> tuple[str, ...] | None:
        """If it has rules for every partition: by which of their columns they are sorted."""
        return self.parent.broadcast_order if isinstance(self.parent, PairNode) else None


@dataclass(frozen=True, eq=False)
class OutputNode(Node):
    """The main output of an operator, or a side output; its parent is the operator, or a function of each row."""

    side: int = 0
    """0 for the main one."""


def above(*nodes: Node) -> Iterator[Node]:
    """Give these nodes and all that they come of, each once and after its parents."""
    found: set[Node] = set()

    def visit(node: Node) -> Iterator[Node]:
        if node not in found:
            found.add(node)
            for parent in node.parents:
                yield from visit(parent)
            yield node

    for node in nodes:
        yield from visit(node)


def sources_of(node: Node) -> list[SourceNode]:
    """Return the sources that a node's rows come of."""
    return [found for found in above(node) if isinstance(found, SourceNode)]
