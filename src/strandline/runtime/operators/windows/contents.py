"""Contents of windows: the state of a window's events, an accumulator or the events themselves, and its result rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from strandline.api.states import Map, State
from strandline.api.windows import Window
from strandline.core.errors import ConfigurationError, OutputError, StateTypeError
from strandline.format.keys import KeyCodec
from strandline.format.values import ValueCodec
from strandline.runtime.output_rows import frozen, rows_of
from strandline.runtime.state.handles import coercion, none_returned
from strandline.runtime.state.maps import MapTable
from strandline.runtime.state.scope import Scope
from strandline.types.datatypes import ArrayType, parse_type

Row = tuple[Any, ...]

_FEW_CHUNKS = 64
_MOST_INDEXED = 1000
"""The number of keys whose chunks are indexed at a time."""


class Contents:
    """Base class: `value_type` is the type of each window's entry in the operator's state, `states` are further ones.

    A window is named by a number, `at`, that no other window of its key has while it lives.
    """

    value_type: str
    states: dict[str, State]
    is_value: ClassVar[bool]
    """Whether every event changes the value."""

    def open(self, operator: Any) -> None:
        """Prepare, when the operator's states are bound."""

    def start(self) -> Any:
        """Return the value of a window without events."""
        raise NotImplementedError

    def add(self, at: int, value: Any, event: Any) -> Any:
        """Add an event; return the new value."""
        raise NotImplementedError

    def merge(self, at: int, value: Any, other: int, other_value: Any) -> Any:
        """Merge another window, which is then deleted, into a window; return the new value."""
        raise NotImplementedError

    def take(self, at: int, value: Any, other: int, other_value: Any) -> Any:
        """Move another window, which is then deleted, into an empty window; return the new value."""
        return other_value

    def rows(self, key: Any, window: Window | None, at: int, value: Any) -> Iterable[Row]:
        """Return the result's rows, without key and window."""
        raise NotImplementedError

    def clear(self, at: int) -> None:
        """Delete a window's events."""


class Folding(Contents):
    """An accumulator: each event changes it, and the result is computed from it."""

    is_value = True

    def __init__(
        self,
        value_type: str,
        names: Sequence[str],
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any] | None = None,
        result: Callable[[Any], Any] | None = None,
    ) -> None:
        self.value_type = value_type
        self.states = {}
        self._names = tuple(names)
        self._create = create
        self._add = add
        self._merge = merge
        self._result = result

    @property
    def can_merge(self) -> bool:
        """Whether two accumulators can be merged, as sessions need it."""
        return self._merge is not None

    def open(self, operator: Any) -> None:
        """Prepare the check of new values: `add` always sees the accumulator as it is read from state."""
        self._coerce = ValueCodec(parse_type(self.value_type)).coerce

    def start(self) -> Any:
        return self._checked(self._create())

    def add(self, at: int, value: Any, event: Any) -> Any:
        return self._not_none(self._add(value, event))

    def merge(self, at: int, value: Any, other: int, other_value: Any) -> Any:
        assert self._merge is not None
        return self._checked(self._not_none(self._merge(value, other_value)))

    def _not_none(self, value: Any) -> Any:
        """Return a new value; refuse None, unless a window begins with it."""
        if value is None and self._create() is not None:
            raise none_returned("the function", "the new value")
        return value

    def _checked(self, value: Any) -> Any:
        return None if value is None else self._coerce(value)

    def rows(self, key: Any, window: Window | None, at: int, value: Any) -> Iterable[Row]:
        """Return one row, the result: the one column's value, or a tuple or dict of several."""
        result = value if self._result is None else self._result(value)
        return [(result,) if len(self._names) == 1 else as_row(self._names, result)]


class Keeping(Contents):
    """All events, in the order of arrival; a function gets them when the result is due."""

    value_type = "boolean"
    is_value = False

    def __init__(self, event_type: str, names: Sequence[str], function: Callable[[Any, Any, Any], Any]) -> None:
        self.states = {"events": Chunks(event_type)}
        self._names = tuple(names)
        self._function = function

    def open(self, operator: Any) -> None:
        self._events: ChunksHandle = operator.events

    def start(self) -> Any:
        # The entry only says that the window exists.
        return None

    def add(self, at: int, value: Any, event: Any) -> Any:
        self._events.append(at, event)
        return None

    def merge(self, at: int, value: Any, other: int, other_value: Any) -> Any:
        self._events.move(other, at)
        return None

    take = merge

    def rows(self, key: Any, window: Window | None, at: int, value: Any) -> Iterable[Row]:
        """Call the function; return its rows, dicts or tuples."""
        for row in rows_of(self._function(key, window, self._events.get(at))):
            yield frozen(as_row(self._names, row))

    def clear(self, at: int) -> None:
        self._events.clear(at)


def as_row(names: Sequence[str], row: Any) -> Row:
    """Convert a row of a user's function to a tuple in the order of the columns."""
    if isinstance(row, dict):
        if row.keys() != set(names):
            raise OutputError(
                f"the result row {row!r} has the columns {', '.join(map(str, row))}; expected {', '.join(names)}",
                hint="give the columns of `output` alone: the key's and the window's come by themselves",
            )
        return tuple(row[name] for name in names)
    if not isinstance(row, tuple | list) or len(row) != len(names):
        raise OutputError(
            f"a result row is {row!r}, expected a dict or a tuple of {', '.join(names)}",
            hint="give the columns of `output` alone: the key's and the window's come by themselves",
        )
    return tuple(row)


def first_or(function: Callable[[Any, Any], Any], value: Any, event: Any) -> Any:
    """Add an event with a reduce function: the first event is the value."""
    return event if value is None else reduced(function, value, event)


def reduced(function: Callable[[Any, Any], Any], value: Any, other: Any) -> Any:
    """Reduce two rows to one."""
    row = function(value, other)
    if row is None:
        # Stored, None would make the next event the first one.
        raise OutputError(
            "the function of reduce() gave None, expected a row of the events' columns",
            hint="return one of its two arguments, or a tuple or dict of all columns",
        )
    return row


class ChunksHandle:
    """The lists of the current key."""

    __slots__ = ("_coerce", "_copy", "_index", "_indexed", "_scope", "_table")

    def __init__(self, scope: Scope, table: MapTable, keys: KeyCodec, values: ValueCodec, name: str) -> None:
        assert isinstance(values.type, ArrayType)
        element = ValueCodec(values.type.element)
        self._scope = scope
        self._table = table
        self._coerce = coercion(scope, name, element, "an element")
        self._copy: Callable[[Any], Any] | None = element.copy if element.mutable else None
        self._index: dict[Any, dict[int, set[int]]] = {}
        """The epochs of each list's chunks, of keys with many, as of epoch `_indexed`; perhaps with deleted ones."""
        self._indexed = -1

    def append(self, at: int, element: Any) -> None:
        """Add an element at the end of a list."""
        self._table.append(self._scope.key, (at, self._scope.epoch), self._coerce(element))

    def get(self, at: int) -> list[Any]:
        """Return a copy of a whole list."""
        elements = [element for _, chunk in self._chunks(at) for element in chunk]
        return [self._copy(element) for element in elements] if self._copy else elements

    def move(self, at: int, to: int) -> None:
        """Move the elements of one list to another."""
        key = self._scope.key
        there = dict(self._chunks(to))
        for epoch, chunk in self._chunks(at):
            # A new list: an earlier epoch's list must not change, for an abort.
            self._table.put(key, (to, epoch), [*there.get(epoch, ()), *chunk])
            self._table.put(key, (at, epoch), None)
            if key in self._index:
                self._index[key][to].add(epoch)

    def clear(self, at: int) -> None:
        """Delete a list."""
        key = self._scope.key
        for epoch, _ in self._chunks(at):
            self._table.put(key, (at, epoch), None)

    def _chunks(self, at: int) -> list[tuple[int, list[Any]]]:
        """Return a list's chunks with their epochs, in order."""
        entries = self._table.entries(self._scope.key)
        # A search for each of thousands of lists would take the square of their number.
        few = len(entries) < _FEW_CHUNKS
        epochs = {epoch for of, epoch in entries if of == at} if few else self._indexed_epochs(at, entries)
        return [(epoch, chunk) for epoch in sorted(epochs) if (chunk := entries.get((at, epoch))) is not None]

    def _indexed_epochs(self, at: int, entries: Iterable[tuple[int, int]]) -> set[int]:
        key, epoch = self._scope.key, self._scope.epoch
        if self._indexed != epoch or len(self._index) > _MOST_INDEXED:
            self._index, self._indexed = {}, epoch
        if key not in self._index:
            index = self._index[key] = defaultdict(set)
            for of, each in entries:
                index[of].add(each)
        # Appends are not indexed: their chunks are of the present epoch.
        return self._index[key].get(at, set()) | {epoch}


class Chunks(Map):
    """Many lists a key, each named by a number: all that one epoch appends to a list is one entry, named by both.

    An append therefore reads nothing, however long the list is. The state is stored as a map.
    """

    handle = ChunksHandle
    """The class of the handle that replaces the declaration while the function runs."""

    def __init__(self, element_type: str) -> None:
        super().__init__("struct<at: bigint, epoch: bigint>", f"array<{element_type}>")


def check_value(value_type: str, value: Any, what: str) -> None:
    """Refuse a first value that does not fit its type."""
    try:
        if value is not None:
            ValueCodec(parse_type(value_type)).coerce(value)
    except StateTypeError as error:
        raise ConfigurationError(f"{what}: {error.message}", hint=error.hint) from None
