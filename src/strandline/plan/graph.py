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
from strandline.runtime.builtin import Aggregated, BuiltinOperator
from strandline.runtime.rowlayout import TIME, RowLayout
from strandline.runtime.task.asyncfunction import AsyncRowFunction, Calls
from strandline.runtime.task.outputs import raw_ddl
from strandline.runtime.task.rowfunction import Report, RowFunction
from strandline.runtime.watermarks import WatermarkSpec
from strandline.types.datatypes import DataType


@dataclass(frozen=True, eq=False)
class Node:
    """A step of a pipeline, and the columns of its rows."""

    columns: Columns
    parent: Node | None = None

    @property
    def parents(self) -> tuple[Node, ...]:
        """The nodes whose rows it reads."""
        return () if self.parent is None else (self.parent,)


@dataclass(frozen=True, eq=False)
class SourceNode(Node):
    """A source of a pipeline. Each engine has its own kinds."""

    name: str = ""
    """Its name in checkpoints; empty if it is the only source."""
    line: str = field(default_factory=line_of_program, kw_only=True)
    """The line of the program that made it."""
    operators: list[OperatorNode] = field(default_factory=list, kw_only=True)
    """All operators that the program made on it, also those that no job runs."""
    outputs: list[Any] = field(default_factory=list, kw_only=True)
    """All outputs that the program made from it."""
    views: dict[Any, tuple[Any, ...]] = field(default_factory=dict, kw_only=True)
    """Operators of views, by what they mean and the streams that they read: views share equal ones."""

    def type_of(self, node: Node, expression: str, what: str) -> str:
        """Return the DDL of an SQL expression over rows of a node below it; errors begin with `what`."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class StepNode(Node):
    """A stateless step of an engine, opaque to the plan."""


@dataclass(frozen=True, eq=False)
class MapNode(Node):
    """A Python function that returns any number of rows for each row. They keep the row's hidden columns."""

    function: Callable[[Any], Iterable[Any] | None] = field(kw_only=True)
    input: str = field(kw_only=True)
    """DDL of the columns that the function reads."""
    output: str = field(kw_only=True)
    step: str = field(default="flat_map", kw_only=True)
    """The method that users call."""
    calls: Calls | None = None
    """Limits of the calls of an asynchronous function; None for others."""
    on_error: OnError = FAIL
    """How a row is handled that the function fails for."""
    name: str = ""
    """The name of the function in dead letters and in log messages."""
    is_counted: bool = True
    """Whether this step counts rows that fail; False if an operator counts them."""
    line: str = field(default_factory=line_of_program, kw_only=True)
    """The line of the program that made it."""

    @property
    def raw_ddl(self) -> str:
        """DDL of the function's rows, with dead letters among them, followed by hidden columns."""
        sides = {DEAD_LETTERS: DEAD_LETTER} if self.on_error.has_dead_letters else {}
        return Columns.of(raw_ddl(self.output, sides, timed=False), self.columns.hidden).ddl

    def row_function(self, carried: Sequence[str], report: Report | None = None) -> RowFunction:
        """Return a function of batches of rows that end with these hidden columns."""
        time_at = carried.index(TIME) - len(carried) if TIME in carried else None
        args = (
            self.function, self.input, self.output, len(carried), self.step, self.on_error, self.name, time_at, report
        )  # fmt: skip
        return RowFunction(*args) if self.calls is None else AsyncRowFunction(*args, self.calls)


@dataclass(frozen=True, eq=False)
class KeylessNode(Node):
    """The rows with null in a column of the key, or with a value for keepers that cannot be read."""

    keys: tuple[str, ...] = ()
    read: tuple[tuple[str, DataType], ...] = ()
    """SQL and types of the values for keepers."""


@dataclass(frozen=True, eq=False)
class FailedNode(Node):
    """Rows that a source could not read, as dead letters: the step passes them on and counts each."""

    on_error: OnError = field(kw_only=True)
    name: str = ""
    """The name of the source in dead letters."""
    step: str = "read"


@dataclass(frozen=True, eq=False)
class WatermarkNode(Node):
    """The step that assigns a time to each row."""

    spec: WatermarkSpec = field(default_factory=lambda: WatermarkSpec(""))


Movers: TypeAlias = "WatermarkNode | tuple[Movers, ...] | None"
"""The watermark that rows advance: one, none, or one for each input; then rows record their input."""


@dataclass(frozen=True)
class Keyed:
    """Rows partitioned by key, the input of keyed operators."""

    node: Node
    keys: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    method: Literal["key_by", "connect", "broadcast"] = "key_by"

    @property
    def columns(self) -> Columns:
        """The columns of the rows."""
        return self.node.columns


@dataclass(frozen=True, eq=False)
class PairNode(Node):
    """Two streams as one stream of pairs: both rows as structs, one of them null, then the key and the order."""

    other: Node | None = None
    halves: tuple[Keyed, ...] = ()
    """Both inputs. Broadcast rows have no key and no order: the pairs have them."""
    names: tuple[str, ...] = ()
    """Names of the key's columns and of the order's."""
    movers: tuple[Movers, ...] = ()
    """One entry for all rows, or one for each input; then a row's origin begins with the number of its input."""
    broadcast_order: tuple[str, ...] | None = None
    """If every partition gets the right rows: the columns that sort them."""
    has_keys_once: bool = False
    """Whether both rows come without the key, which the pair has."""

    def row_of(self, half: Keyed) -> Columns:
        """Return the columns of one of both rows."""
        columns = half.columns
        return columns.without(half.keys) if self.has_keys_once else columns

    @property
    def parents(self) -> tuple[Node, ...]:
        """The nodes whose rows it reads."""
        return tuple(node for node in (self.parent, self.other) if node is not None)

    @property
    def tells_inputs_apart(self) -> bool:
        """Whether a row's origin names its input."""
        return len(self.movers) > 1


@dataclass(frozen=True, eq=False)
class UnionNode(Node):
    """The rows of several streams as one stream. All have its columns, in any order."""

    others: tuple[Node, ...] = ()
    movers: tuple[Movers, ...] = ()
    """As in PairNode."""

    @property
    def parents(self) -> tuple[Node, ...]:
        """The nodes whose rows it reads, one perhaps more than once."""
        return (*super().parents, *self.others)

    @property
    def tells_inputs_apart(self) -> bool:
        """Whether a row's origin names its input."""
        return len(self.movers) > 1


@dataclass(frozen=True, eq=False)
class LateNode(Node):
    """The rows that keepers drop since all of their windows are complete, and those without a time.

    They depend on the epoch's watermark alone, which the driver sends to keepers. Like the output of an operator, they
    advance no watermark and do not count as rows of the source.
    """

    kind: Any = None
    """Tumbling or Sliding."""
    lateness_us: int = 0
    uid: str = ""
    """The operator whose late events these are."""
    keys: tuple[str, ...] = ()
    read: tuple[tuple[str, DataType], ...] = ()
    """As in KeylessNode; empty if `on_error` fails. Such a row is a bad record, not a late one."""


@dataclass(frozen=True)
class Cut:
    """The split of rows by time before Spark aggregates them."""

    every_us: int = 0
    """Rows of one key in one interval of this length become one; 0 for no intervals."""
    offset_us: int = 0
    sends_pane: bool = False
    """Whether keepers get the end of the interval, in the column PANE."""
    sends_span: bool = False
    """Whether keepers get the first and the last time, in FIRST and LAST."""
    order_by: tuple[str, ...] = ()
    """The columns that order rows if each stays one row; keepers get them, too."""
    is_whole: bool = False
    """Whether Spark never aggregates rows."""


@dataclass(frozen=True, eq=False)
class PartialNode(Node):
    """The step that turns rows into accumulators: one for many rows if that reduces them, or one for each."""

    keys: tuple[str, ...] = ()
    cut: Cut = field(default_factory=Cut)
    parts: Mapping[str, AccumulatorColumn] = field(default_factory=dict)
    """The accumulator's columns."""
    more: tuple[str, ...] = ()
    """Further columns for keepers."""
    read: tuple[tuple[str, DataType], ...] = ()
    """SQL and types of values. A row with one that cannot be read is left without a key and not aggregated."""


@dataclass(frozen=True, eq=False)
class OperatorNode(Node):
    """A keyed operator. Its columns are the main output's; an OutputNode selects the rows of one output."""

    uid: str = ""
    was: str = ""
    """Its former uid, if the program declares one."""
    group: str = ""
    """Of a view's operator: the uid that its meaning gives; of an aggregation, the beginning that is that of all of the
    same groups of rows."""
    is_changed: bool = False
    """Whether rows that it has read may be taken back, so that it must have read all of them."""
    name: str = ""
    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    process: KeyedProcess | KeyedBatchProcess = field(default_factory=KeyedProcess)
    input_schema: str = ""
    output_schema: str = ""
    sides: dict[str, str] = field(default_factory=dict)
    sides_before: dict[str, Node] = field(default_factory=dict)
    """Side outputs that come from its input, not from its keepers."""
    parallelism: int | None = None
    """None for the job's."""
    max_parallelism: int | None = None
    on_error: OnError = FAIL
    """How an event is handled that its function fails for."""
    keeps_key: bool = False
    """Whether each row of the main output has the key that its function was called for."""
    line: str = field(default_factory=line_of_program, kw_only=True)
    """The line of the program that made it."""

    @property
    def aggregated(self) -> Aggregated | None:
        """Its aggregates, or None for an operator without any."""
        return self.process.own_aggregated if isinstance(self.process, BuiltinOperator) else None

    @property
    def hidden(self) -> tuple[str, ...]:
        """The hidden columns of its input."""
        return self.parent.columns.hidden if self.parent else ()

    @property
    def layout(self) -> RowLayout:
        """The hidden values of its input's rows."""
        return RowLayout.of(self.hidden)

    @property
    def raw_schema(self) -> str:
        """DDL of its keepers' rows, with side outputs."""
        return raw_ddl(self.output_schema, self.sides, timed=self.layout.timed)

    @property
    def broadcast_order(self) -> tuple[str, ...] | None:
        """If it has a broadcast input: the columns that sort its rows."""
        return self.parent.broadcast_order if isinstance(self.parent, PairNode) else None


@dataclass(frozen=True, eq=False)
class OutputNode(Node):
    """The main output or a side output of an operator or of a MapNode."""

    side: int = 0
    """0 for the main one."""


def with_ancestors(*nodes: Node) -> Iterator[Node]:
    """Yield these nodes and all of their ancestors, each once and after its parents."""
    visited: set[Node] = set()

    def visit(node: Node) -> Iterator[Node]:
        if node not in visited:
            visited.add(node)
            for parent in node.parents:
                yield from visit(parent)
            yield node

    for node in nodes:
        yield from visit(node)


def operators_above(*nodes: Node) -> set[OperatorNode]:
    """Return the operators whose rows reach these nodes without another one in between."""
    operators: set[OperatorNode] = set()
    for node in nodes:
        operators |= {node} if isinstance(node, OperatorNode) else operators_above(*node.parents)
    return operators


def sources_of(node: Node) -> list[SourceNode]:
    """Return the sources of a node's rows."""
    return [source for source in with_ancestors(node) if isinstance(source, SourceNode)]
