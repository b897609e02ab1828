"""Origins of a row within one epoch: the rows of a source, or the calls of a function, without which it does not come.

Steps between operators say nothing of where a row comes from. So they run again with a part of the rows: the row comes
as long as those are among them that it needs. Calls of a function are left out in the same way. Nothing is committed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from strandline.core.errors import ConfigurationError, UserCodeError
from strandline.format.epochs import EpochRecord
from strandline.plan.graph import Node, OperatorNode, SourceNode
from strandline.plan.pipeline import Operator
from strandline.replay.breaks import Breaks, Call
from strandline.replay.engine import EpochOutput
from strandline.replay.history import Change, note_changes
from strandline.replay.keys import keys_in
from strandline.replay.session import KeptInput, Replay
from strandline.runtime.builtin import BuiltinOperator
from strandline.runtime.operators.joins import LEFT
from strandline.runtime.rowlayout import SIDE
from strandline.testing.events import AT
from strandline.testing.nodes import Rows
from strandline.types.columns import to_python
from strandline.types.datatypes import parse_schema

T = TypeVar("T")
Place = tuple[Node, int]
"""A row, by its node and its number among the node's rows."""


class UnknownOriginError(Exception):
    """The reason why a row's origin is not known."""


def only_one(candidates: Sequence[T], comes: Callable[[Sequence[T]], bool]) -> T:
    """Return the one of some candidates with which something comes; the first one, if each of several is enough.

    Raises UnknownOriginError if it comes without any, or needs several.

    >>> only_one(range(100), lambda some: 17 in some)
    17
    """
    if comes([]):
        raise UnknownOriginError("it comes without any row of this epoch")
    # The last row of the shortest beginning with which it comes is needed.
    length = bisect_left(range(len(candidates) + 1), True, key=lambda n: comes(candidates[:n]))
    if length > len(candidates):
        raise UnknownOriginError("a second run gives other rows")
    if not comes(candidates[length - 1 : length]):
        raise UnknownOriginError("it needs several rows together")
    return candidates[length - 1]


@dataclass
class Origins:
    """Looks for the origins of rows of an epoch that has run and was aborted: the state is that before it."""

    replay: Replay
    input: KeptInput
    breaks: Breaks
    record: EpochRecord
    output: EpochOutput
    _read: dict[Node, Rows] = field(default_factory=dict)
    """The rows of the sources, once they were needed."""
    _calls: dict[str, list[Call]] = field(default_factory=dict)

    # -- rows without a state between

    def row_behind(self, node: Node, row: Rows) -> tuple[Node, Rows]:
        """Return the row of a source or operator that a row comes of, and no other operator is between.

        Of an operator, it is a row of its raw output, with side outputs. Steps between are of each row alone: a program
        with others is refused.
        """
        if isinstance(node, SourceNode | OperatorNode):
            return node, row
        inputs = {start: self._rows(start) for start in _starts(node)}
        (wanted,) = plain_rows(node, row)
        text = repr(wanted)

        def comes(places: Sequence[Place]) -> bool:
            if not places:
                return False
            some = {
                start: rows.take(pa.array([at for of, at in places if of is start], pa.int64()))
                for start, rows in inputs.items()
            }
            rows = self.replay.run.rows_of(node, some, self.record)
            return any(repr(each) == text for each in plain_rows(node, rows))

        alike = [place for start, rows in inputs.items() for place in _alike(start, rows, wanted)][:1]
        if alike and comes(alike):
            start, at = alike[0]
        else:
            start, at = only_one([(start, at) for start, rows in inputs.items() for at in range(rows.num_rows)], comes)
        return start, inputs[start].slice(at, 1)

    def _rows(self, start: Node) -> Rows:
        if isinstance(start, OperatorNode):
            return self.output.nodes[start]
        if not self._read:
            try:
                self._read.update(self.input.source_rows(self.record, self.replay.run.steps))
            except ConfigurationError as error:
                raise UnknownOriginError(f"the rows of the source cannot be read alone: {error}") from None
        return self._read[start]

    # -- calls

    def call_behind(self, operator: Operator, row: Rows) -> Change:
        """Return the call of a function that gave a row of its raw output, with its states before and after."""
        calls = self._calls_of(operator)
        text = _raw(row)[0]
        # What a call gives depends on the calls before it alone.
        number = bisect_left(
            range(len(calls) + 1), True, key=lambda n: text in _raw(self._of_calls(operator, calls[:n]))
        )
        if not 0 < number <= len(calls):
            raise UnknownOriginError(f"a second run of '{operator.uid}' gives other rows: it does not repeat itself")
        place = calls[number - 1].place
        times = {self.record.epoch: self.record.now_us}
        changes = note_changes(
            self.breaks, {operator.uid: [*operator.declared]}, lambda call: call.place == place, times
        )
        self._alone(operator, self._input(operator))
        self.breaks.on_call = None
        return changes[0]

    def event_behind(self, operator: Operator, call: Call) -> Rows:
        """Return the row that an event of a function is, among those of the node above the function."""
        rows = self._input(operator)
        wanted = repr((call.key, tuple(call.read)))
        events = zip(keys_in(operator.node, rows), _events_in(operator.node, rows), strict=True)
        for at, event in enumerate(events):
            if repr(event) == wanted:
                return rows.slice(at, 1)
        raise UnknownOriginError("its event is not among the rows of this epoch")

    def key_behind(self, operator: Operator, row: Rows) -> Any:
        """Return the key of a row that a function of batches or a built-in operator gave."""
        node, rows = operator.node, self._input(operator)
        key = _key_in(node, row)
        if key is not None:
            return key
        keys, text = keys_in(node, rows), _raw(row)[0]

        def comes(some: Sequence[str]) -> bool:
            mask = pa.array([repr(each) in some for each in keys], pa.bool_())
            return text in _raw(self._alone(operator, rows.filter(mask)))

        try:
            needed = only_one(list(dict.fromkeys(map(repr, keys))), comes)
        except UnknownOriginError as error:
            raise UnknownOriginError(f"the key of '{operator.uid}' is not in the row: {error}") from None
        return next(each for each in keys if repr(each) == needed)

    def _calls_of(self, operator: Operator) -> list[Call]:
        """Return the calls of a function in the epoch, in their order."""
        if operator.uid not in self._calls:
            calls = self._calls[operator.uid] = []

            def note(call: Call, view: Any) -> None:
                if call.operator == operator.uid:
                    calls.append(call)

            self.breaks.on_call = note
            self._alone(operator, self._input(operator))
            self.breaks.on_call = None
        return self._calls[operator.uid]

    def _of_calls(self, operator: Operator, calls: Sequence[Call]) -> Rows:
        """Return what a function gives if these calls are made, and no others."""
        places = {call.place for call in calls}
        self.breaks.only = lambda call: call.place in places
        try:
            return self._alone(operator, self._input(operator))
        finally:
            self.breaks.only = None

    def _input(self, operator: Operator) -> Rows:
        assert operator.node.parent is not None
        return self.output.nodes[operator.node.parent]

    def _alone(self, operator: Operator, rows: Rows) -> Rows:
        self.breaks.begin(self.record.epoch)
        try:
            return self.replay.run.run_alone(operator.node, rows, self.record)
        except UserCodeError:
            return self.output.nodes[operator.node].slice(0, 0)


def _starts(node: Node) -> Mapping[Node, None]:
    """Return the sources and operators above a node without another operator in between, in order."""
    if isinstance(node, SourceNode | OperatorNode):
        return {node: None}
    return {start: None for parent in node.parents for start in _starts(parent)}


def _alike(start: Node, rows: Rows, wanted: Mapping[str, Any]) -> Iterator[Place]:
    """Yield the rows that agree with another one in all columns of the same names, if there are any."""
    names = [name for name in start.columns.names if name in wanted and name in rows.schema.names]
    texts = [repr(wanted[name]) for name in names]
    columns = [rows.column(name).to_pylist() for name in names]
    for at, values in enumerate(zip(*columns, strict=True)):
        if [*map(repr, values)] == texts:
            yield start, at


def plain_rows(node: Node, rows: Rows) -> list[dict[str, Any]]:
    """Return rows without hidden columns; of an operator with side outputs, each as it is in its own output."""
    plain: list[dict[str, Any]] = rows.select([n for n in node.columns.names if n in rows.schema.names]).to_pylist()
    if isinstance(node, OperatorNode) and SIDE in rows.schema.names:
        for at, side in enumerate(rows.column(SIDE).to_pylist()):
            if side:
                plain[at] = rows.column(f"{SIDE}_{side}")[at].as_py()
    return plain


def _key_in(node: OperatorNode, row: Rows) -> Any:
    """Return the key that a row of a built-in operator's main output has as columns, or None."""
    is_builtin = isinstance(node.process, BuiltinOperator)
    if (
        not is_builtin
        or not {*node.keys} <= {*node.columns.names}
        or (SIDE in row.schema.names and row[SIDE][0].as_py())
    ):
        return None
    return keys_in(node, row)[0]


def _raw(rows: Rows) -> list[str]:
    """Return rows of an operator as texts, with their hidden columns."""
    return [repr(tuple(row.values())) for row in rows.drop_columns([AT]).to_pylist()]


def _events_in(node: OperatorNode, rows: Rows) -> list[tuple[Any, ...]]:
    """Return the events of the rows that a function reads; with a broadcast, they are the left rows alone."""
    schema = parse_schema(node.input_schema)
    if node.broadcast_order is not None:
        return [tuple(left or ()) for left in to_python(rows.column(LEFT), schema.fields[0].type)]
    return list(zip(*(to_python(rows.column(each.name), each.type) for each in schema.fields), strict=True))
