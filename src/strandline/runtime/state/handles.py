"""Handles: the objects that replace a function's state declarations while it runs, for the state of the current key.

The value handle is the hottest code of the engine: it is called several times an event. It relies on the store, which
has loaded the current key, and does nothing that is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any

from strandline.api.states import Aggregating, Reducing
from strandline.core.errors import StateTypeError
from strandline.format.keys import KeyCodec
from strandline.format.values import ValueCodec
from strandline.runtime.state.maps import MapTable
from strandline.runtime.state.misuse import ALL, COMPARED, COMPUTED, Handle, refusing
from strandline.runtime.state.readout import copy_for
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.values import ValueTable
from strandline.types.datatypes import ArrayType, IntegralType, StringType

_NEVER: Any = type("_Never", (), {})
COMPACT_CHUNKS = 32


@refusing(*ALL)
class ValueHandle(Handle):
    """One value of the current key."""

    what = "Value"
    to_read = "self.{0}.value"
    has = ".value, exists() and clear(); in a KeyedBatchProcess get_many() and put_many() instead"

    __slots__ = ("_coerce", "_default", "_exact", "_live", "_name", "_scope", "_undo")

    def __init__(self, scope: Scope, table: ValueTable, codec: ValueCodec, name: str, default: Any) -> None:
        self._scope = scope
        self._live = table.live
        self._undo = table.undo
        self._name = name
        self._coerce = codec.coerce
        self._exact = codec.exact or _NEVER
        self._default = None if default is None else self._coerce(default)

    @property
    def value(self) -> Any:
        value = self._live[self._scope.key]
        return self._default if value is None else value

    @value.setter
    def value(self, value: Any) -> None:
        if type(value) is not self._exact and value is not None:
            try:
                value = self._coerce(value)
            except StateTypeError as error:
                raise with_state_name(error, self._scope.uid, self._name) from None
        key = self._scope.key
        if key not in self._undo:
            self._undo[key] = self._live[key]
        self._live[key] = value

    def exists(self) -> bool:
        return self._live[self._scope.key] is not None

    def clear(self) -> None:
        self.value = None


class CopyingValueHandle(ValueHandle):
    """A value that holds arrays or maps: each read returns a copy, so state changes only by assignment."""

    __slots__ = ("_copy",)

    def __init__(self, scope: Scope, table: ValueTable, codec: ValueCodec, name: str, default: Any) -> None:
        super().__init__(scope, table, codec, name, default)
        how = f"write x = self.{name}.value, change x, and then self.{name}.value = x"
        self._copy = copy_for(codec.type, scope, table, name, how) or codec.copy

    @ValueHandle.value.getter  # type: ignore[attr-defined, untyped-decorator]
    def value(self) -> Any:
        value = self._live[self._scope.key]
        if value is None:
            value = self._default
        return None if value is None else self._copy(value)


def _write_journaled(handle: Any, value: Any) -> None:
    """Write a value and record it in the journal. It is checked in full, so this very call fails if it is too large."""
    if value is not None:
        try:
            value = handle._coerce(value)
        except StateTypeError as error:
            raise with_state_name(error, handle._scope.uid, handle._name) from None
    key, live, undo = handle._scope.key, handle._live, handle._undo
    before, is_first = live[key], key not in undo
    if is_first:
        undo[key] = before
    handle._note((handle._take_back, key, before, is_first))
    live[key] = value


class JournaledValueHandle(ValueHandle):
    """One value of the current key. Each write can be undone."""

    __slots__ = ("_note", "_take_back")

    def __init__(self, scope: Scope, table: ValueTable, codec: ValueCodec, name: str, default: Any) -> None:
        super().__init__(scope, table, codec, name, default)
        assert table.journal is not None
        self._note, self._take_back = table.journal.note, table.take_back

    value = ValueHandle.value.setter(_write_journaled)  # type: ignore[attr-defined]


class JournaledCopyingValueHandle(CopyingValueHandle):
    """A value that holds arrays or maps. Each write can be undone."""

    __slots__ = ("_note", "_take_back")

    def __init__(self, scope: Scope, table: ValueTable, codec: ValueCodec, name: str, default: Any) -> None:
        super().__init__(scope, table, codec, name, default)
        assert table.journal is not None
        self._note, self._take_back = table.journal.note, table.take_back

    value = CopyingValueHandle.value.setter(_write_journaled)


@refusing(*ALL)
class ReducingHandle(Handle):
    """One value of the current key, reduced from the elements that were added."""

    what = "Reducing"
    to_read = "self.{0}.value"
    has = ".value, add() and clear()"

    __slots__ = ("_cell", "_reduce")

    def __init__(self, cell: Any, declared: Reducing) -> None:
        self._cell = cell
        self._reduce = declared.reduce

    @property
    def state_name(self) -> str:
        return self._cell.state_name  # type: ignore[no-any-return]

    @property
    def value(self) -> Any:
        return self._cell.value

    @value.setter
    def value(self, value: Any) -> None:
        self._cell.value = value

    def add(self, element: Any) -> None:
        current = self._cell.value
        if current is not None:
            element = self._reduce(current, element)
            if element is None:
                # Stored, None would make the next element the first one.
                raise none_returned(f"state '{self.state_name}': its reduce function", "the new value")
        self._cell.value = element

    def clear(self) -> None:
        self._cell.clear()


@refusing(*ALL)
class AggregatingHandle(Handle):
    """An accumulator of the current key."""

    what = "Aggregating"
    to_read = "self.{0}.result()"
    has = "add(), result() and clear()"

    __slots__ = ("_cell", "_declared")

    def __init__(self, cell: Any, declared: Aggregating) -> None:
        self._cell = cell
        self._declared = declared

    @property
    def state_name(self) -> str:
        return self._cell.state_name  # type: ignore[no-any-return]

    def add(self, element: Any) -> None:
        if self._cell.value is None:
            # Stored first, so that `add` always sees the accumulator as it is read from state.
            self._cell.value = self._declared.create()
        value = self._declared.add(self._cell.value, element)
        if value is None and self._declared.create() is not None:
            raise none_returned(f"state '{self.state_name}': its add function", "the new accumulator")
        self._cell.value = value

    def result(self) -> Any:
        current = self._cell.value
        return None if current is None else self._declared.result(current)

    def clear(self) -> None:
        self._cell.clear()


@refusing("__call__", "__lt__", "__le__", "__gt__", "__ge__", *COMPUTED)
class MapHandle(Handle, MutableMapping[Any, Any]):
    """The entries of the current key."""

    what = "Map"
    to_read = "self.{0}[key], or dict(self.{0})"
    has = "what a dict has, but copy() and |"

    __slots__ = ("_coerce_key", "_coerce_value", "_copy", "_name", "_scope", "table")

    def __init__(self, scope: Scope, table: MapTable, keys: KeyCodec, values: ValueCodec, name: str) -> None:
        self._scope = scope
        self._name = name
        self.table = table
        """For built-in operators, whose values need neither checks nor copies."""
        self._coerce_key = key_coercion(scope, name, keys)
        self._coerce_value = coercion(scope, name, values)
        how = f"write x = self.{name}[key], change x, and then self.{name}[key] = x"
        self._copy = copy_for(values.type, scope, table, name, how)

    def __getitem__(self, sub: Any) -> Any:
        value = self.table.get(self._scope.key, self._coerce_key(sub))
        if value is None:
            raise KeyError(sub)
        return self._copy(value) if self._copy else value

    def get(self, sub: Any, default: Any = None) -> Any:
        value = self.table.get(self._scope.key, self._coerce_key(sub))
        if value is None:
            return default
        return self._copy(value) if self._copy else value

    def setdefault(self, sub: Any, default: Any = None) -> Any:
        if sub not in self:
            self[sub] = default
        return self.get(sub)

    def __setitem__(self, sub: Any, value: Any) -> None:
        self.table.put(self._scope.key, self._coerce_key(sub), self._coerce_value(value))

    def __delitem__(self, sub: Any) -> None:
        sub = self._coerce_key(sub)
        if self.table.get(self._scope.key, sub) is None:
            raise KeyError(sub)
        self.table.put(self._scope.key, sub, None)

    def __contains__(self, sub: object) -> bool:
        return self.table.get(self._scope.key, self._coerce_key(sub)) is not None

    def __iter__(self) -> Iterator[Any]:
        cell = self.table.entries(self._scope.key)
        return iter([sub for sub, value in cell.items() if value is not None])

    def __repr__(self) -> str:
        return repr(dict(self))

    def __len__(self) -> int:
        return sum(value is not None for value in self.table.entries(self._scope.key).values())

    def clear(self) -> None:
        for sub in self:
            self.table.put(self._scope.key, sub, None)


@refusing(*COMPARED, "__setitem__", "__delitem__", "__call__", *COMPUTED)
class ListHandle(Handle):
    """The list of the current key, stored in chunks: all that one epoch appends is one chunk, numbered by the epoch.

    An append therefore reads nothing. A read of many chunks rewrites them as one.
    """

    what = "List"
    to_read = "self.{0}.get(), a list of which self.{0}.set(…) makes the state again"
    has = "append(), extend(), get(), set(), clear(), len(), iteration and [i]"

    __slots__ = ("_coerce", "_name", "_scope", "_table", "_whole")

    def __init__(self, scope: Scope, table: MapTable, element: ValueCodec, name: str) -> None:
        self._scope = scope
        self._name = name
        self._table = table
        self._coerce = coercion(scope, name, element, "an element")
        how = f"write self.{name}.append(…), or x = self.{name}.get(), change x, and then self.{name}.set(x)"
        self._whole = copy_for(ArrayType(element.type), scope, table, name, how) or list

    def append(self, element: Any) -> None:
        self._table.append(self._scope.key, first_chunk(self._scope.epoch), self._coerce(element))

    def extend(self, elements: Iterable[Any]) -> None:
        for element in elements:
            self.append(element)

    def get(self) -> list[Any]:
        elements = self._elements()
        return self._whole(elements)

    def set(self, elements: Iterable[Any]) -> None:
        self._replace([self._coerce(element) for element in elements])

    def clear(self) -> None:
        self._replace([])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __len__(self) -> int:
        return sum(len(chunk) for chunk in self._table.entries(self._scope.key).values() if chunk)

    def __getitem__(self, index: int | slice) -> Any:
        return self.get()[index]

    def __repr__(self) -> str:
        return repr(self.get())

    def __bool__(self) -> bool:
        return any(self._table.entries(self._scope.key).values())

    def _elements(self) -> list[Any]:
        chunks = [(n, chunk) for n, chunk in sorted(self._table.entries(self._scope.key).items()) if chunk]
        elements = [element for _, chunk in chunks for element in chunk]
        if len(chunks) >= COMPACT_CHUNKS:
            self._replace(elements)
            elements = list(elements)
        return elements

    def _replace(self, elements: list[Any]) -> None:
        key, number = self._scope.key, first_chunk(self._scope.epoch)
        self._drop(key, number)
        self._table.put(key, number, elements or None)

    def _drop(self, key: Any, *but: int) -> None:
        """Delete all chunks except some."""
        for number, chunk in list(self._table.entries(key).items()):
            if chunk is not None and number not in but:
                self._table.put(key, number, None)


def first_chunk(epoch: int) -> int:
    """Return the number of the first chunk that an epoch appends to a list. It may append several: see ttl/lists.py."""
    return epoch << 28


def coercion(scope: Scope, name: str, codec: ValueCodec, what: str = "") -> Callable[[Any], Any]:
    """Return the codec's check, with the operator and the state in its errors."""
    exact, coerce = codec.exact, codec.coerce

    def check(value: Any) -> Any:
        if type(value) is exact:
            return value
        try:
            return coerce(value)
        except StateTypeError as error:
            raise with_state_name(error, scope.uid, name, what) from None

    return check


def check_in_full(codec: ValueCodec) -> None:
    """Make a codec check values in full when they are written, so that encoding them cannot fail."""
    kind, coerce, exact = codec.type, codec.coerce, codec.exact or _NEVER
    check: Callable[[Any], Any] = lambda value: value if type(value) is exact else coerce(value)  # noqa: E731
    if isinstance(kind, StringType):
        check = lambda value: value if type(value) is str and value.isascii() else coerce(value)  # noqa: E731
    if isinstance(kind, IntegralType):
        limit = 1 << (8 * kind.width - 1)
        check = lambda value: value if type(value) is int and -limit <= value < limit else coerce(value)  # noqa: E731
    codec.exact = None
    vars(codec)["coerce"] = check


def key_coercion(scope: Scope, name: str, codec: KeyCodec) -> Callable[[Any], Any]:
    """Return the check of a map's keys: unlike values, they are checked in full, since equal keys are one entry."""
    (kind,) = codec.types

    def check(key: Any) -> Any:
        try:
            return codec.coerce(key)
        except StateTypeError as error:
            raise with_state_name(error, scope.uid, name) from None

    if isinstance(kind, StringType):
        return lambda key: key if type(key) is str and key.isascii() else check(key)
    if isinstance(kind, IntegralType):
        limit = 1 << (8 * kind.width - 1)
        return lambda key: key if type(key) is int and -limit <= key < limit else check(key)
    return check


def with_state_name(error: StateTypeError, uid: str, name: str, what: str = "") -> StateTypeError:
    """Return the error with the operator and the state in its message."""
    text = error.message.replace("the value", what, 1) if what else error.message
    message = f"operator '{uid}', state '{name}': {text}"
    discreet = f"operator '{uid}', state '{name}': {what or 'a value'} does not fit its type (it is not shown here)"
    return StateTypeError(message, hint=error.hint, discreet=discreet, **error.fields)


def none_returned(what: str, expected: str) -> StateTypeError:
    """Return the error of a function that returned None: most likely it changed its argument in place."""
    message = f"{what} gave None, expected {expected}"
    hint = "return it: acc.append(x) changes a list and gives None, where [*acc, x] is a new one"
    return StateTypeError(message, hint=hint, discreet=message)


def wrap_cell(cell: Any, declared: Any) -> Any:
    """Return a handle of the declared kind over a value handle."""
    if isinstance(declared, Reducing):
        return ReducingHandle(cell, declared)
    if isinstance(declared, Aggregating):
        return AggregatingHandle(cell, declared)
    return cell
