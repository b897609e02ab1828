"""The rows that a user's function gives: yielded, returned, or both; each as it is at that moment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import is_, itemgetter
from types import GeneratorType
from typing import Any

import numpy as np

from strandline.core.errors import OutputError
from strandline.types.coercion import short_repr
from strandline.types.datatypes import ArrayType, BinaryType, DataType, MapType, StructType

_TO_GIVE = "yield each row, or return a list of rows: dicts by column, or tuples in the order of the columns"
_NEVER: Any = type("Never", (), {})


def rows_of(out: Any) -> Iterator[Any]:
    """Give the rows of what a function returned, one by one; also those that a generator returns at its end."""
    while out is not None:
        kind = type(out)
        out = yield from out if kind is GeneratorType or kind is list else rows_in(out)


def rows_in(out: Any) -> Iterable[Any]:
    """Return the rows in what a function returned: several, or a single one that says its names."""
    if isinstance(out, Mapping) or names_of(out):
        return (out,)
    if inspect.iscoroutine(out) or inspect.isasyncgen(out):
        if inspect.iscoroutine(out):
            out.close()
        raise OutputError(
            "the function is an async one, and calls are not awaited",
            hint="write it with def; other systems are asked before, by map_async(), many calls at once",
        )
    if isinstance(out, str | bytes) or hasattr(out, "to_pydict") or hasattr(out, "iterrows"):
        raise OutputError(f"it returned {short_repr(out)}, a {type(out).__name__}, expected rows", hint=_TO_GIVE)
    if isinstance(out, tuple) and out and not any(isinstance(row, tuple | list | Mapping) for row in out):
        raise OutputError(
            f"it returned {short_repr(out)}, a tuple of values: that is one row, expected rows",
            hint="write return [row], or yield row",
        )
    if not isinstance(out, Iterable):
        raise OutputError(f"it returned {short_repr(out)}, a {type(out).__name__}, expected rows", hint=_TO_GIVE)
    return out


def names_of(row: Any) -> tuple[str, ...]:
    """Return the names that a tuple comes with: those of a record, of a namedtuple or of Spark's Row; else none."""
    if not isinstance(row, tuple):
        return ()
    return tuple(getattr(row, "_fields", ()) or getattr(row, "__fields__", ()))


def row_copier(names: Sequence[str], types: Sequence[DataType]) -> tuple[type, Callable[[Any], Any]]:
    """Return the class of rows that can be kept as they are, and what makes such of all others.

    The function goes on to work with what it gave: a dict that it changes for its next row, a list that grows.
    """
    width = len(names)
    pick: Callable[[Any], Any] = itemgetter(*names) if width > 1 else _first_of(*names)
    changing = [at for at, kind in enumerate(types) if isinstance(kind, ArrayType | MapType | StructType | BinaryType)]

    def copied(row: Any) -> Any:
        kind = type(row)
        if kind is dict:
            if len(row) == width:
                try:
                    return pick(row)
                except KeyError:
                    pass
            # It does not fit, which is for others to say.
            return row.copy()
        return tuple(row) if kind is list else row

    def frozen_too(row: Any) -> Any:
        row = copied(row)
        if type(row) is not tuple:
            names_given = names_of(row)
            values = map(_frozen_if_readable, row)
            return dict(zip(names_given, values, strict=True)) if len(set(names_given)) == len(row) else row
        for at in changing if len(row) == width else ():
            value = row[at]
            if value is not None and (safe := _frozen_if_readable(value)) is not value:
                row = (*row[:at], safe, *row[at + 1 :])
        return row

    return (_NEVER, frozen_too) if changing else (tuple, copied)


def _first_of(name: str) -> Callable[[Any], Any]:
    return lambda row: (row[name],)


def _frozen_if_readable(value: Any) -> Any:
    """Return a value as `frozen` does; one that holds itself, or raises where it is read, fits no type either."""
    try:
        return frozen(value)
    except Exception:
        return value


def frozen(value: Any) -> Any:
    """Return a value that its giver cannot change any more; of a state that is a map, the current key's entries."""
    kind = type(value)
    if kind is str or kind is int or kind is float or kind is bytes:
        return value
    if kind is dict or isinstance(value, Mapping):
        return {name: frozen(part) for name, part in value.items()}
    if kind is list:
        return [frozen(part) for part in value]
    if isinstance(value, tuple):
        parts = [frozen(part) for part in value]
        if all(map(is_, parts, value)):
            return value
        # A record keeps its names.
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    if isinstance(value, np.ndarray):
        return value.copy()
    return bytes(value) if isinstance(value, bytearray | memoryview) else value
