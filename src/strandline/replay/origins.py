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
from strandline.replay.engine import EpochOutput, no_rows
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
CallPlace = tuple[int, str, int, int]
"""A call, by `Call.place`."""


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
    _places: dict[str, list[CallPlace]] = field(default_factory=dict)
    """Of the calls of each function, by uid."""

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
        if start in self.output.nodes:
            return self.output.nodes[start]
        if self.record.batch < 0:
            return no_rows(start)
        if not self._read:
            try:
                self._read.update(self.input.source_rows(self.record, self.replay.run.steps))
            except ConfigurationError as error:
                raise UnknownOriginError(f"the rows of the source cannot be read alone: {error}") from None
        return self._read[start]

    # -- calls

    def call_behind(self, operator: Operator, row: Rows) -> Change:
        """Return the call of a function that gave a row of its raw output, with its states before and after."""
        places, text = self._places_of(operator), _raw(row)[0]
        # What a call gives depends on the calls before it alone.
        number = bisect_left(
            range(len(places) + 1), True, key=lambda n: text in _raw(self._of_calls(operator, places[:n]))
        )
        if not number:
            raise UnknownOriginError("it comes without any call, as the dead letter of a row that cannot be read does")
        if number > len(places):
            raise _not_repeated(operator)
        return self.change_at(operator, places[number - 1])

    def change_at(self, operator: Operator, place: CallPlace) -> Change:
        """Return a call of a function, with its states before and after."""
        states, times = {operator.uid: [*operator.declared]}, {self.record.epoch: self.record.now_us}
        changes = note_changes(self.breaks, states, lambda call: call.place == place, times)
        self._alone(operator, self._input(operator))
        self.breaks.on_call = None
        if not changes:
            raise _not_repeated(operator)
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
        keys, text = [*map(repr, keys_in(node, rows))], _raw(row)[0]

        def comes(some: Sequence[str]) -> bool:
            wanted = {*some}
            mask = pa.array([key in wanted for key in keys], pa.bool_())
            return text in _raw(self._alone(operator, rows.filter(mask)))

        try:
            needed = only_one(list(dict.fromkeys(keys)), comes)
        except UnknownOriginError as error:
            raise UnknownOriginError(f"the key of '{operator.uid}' is not in the row: {error}") from None
        return keys_in(node, rows.slice(keys.index(needed), 1))[0]

    def _places_of(self, operator: Operator) -> list[CallPlace]:
        """Return the places of the calls of a function in the epoch, in their order."""
        if operator.uid not in self._places:
            places = self._places[operator.uid] = []
            self.breaks.on_call = lambda call, view: places.append(call.place)
            self._alone(operator, self._input(operator))
            self.breaks.on_call = None
        return self._places[operator.uid]

    def _of_calls(self, operator: Operator, some: Sequence[CallPlace]) -> Rows:
        """Return what a function gives if these calls are made, and no others."""
        places = {*some}
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


def _not_repeated(operator: Operator) -> UnknownOriginError:
    return UnknownOriginError(f"a second run of '{operator.uid}' gives other rows: it does not repeat itself")


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
    is_in_row = isinstance(node.process, BuiltinOperator) and {*node.keys} <= {*node.columns.names}
    # Rows of side outputs have null there, and those of an outer join where the left side has no row.
    if not is_in_row or any(row.column(name).null_count for name in node.keys):
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
