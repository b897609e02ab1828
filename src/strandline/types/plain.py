"""Plain forms of values, which msgpack packs: structs are arrays, and maps keep their order.

Functions that return a conversion return None if there is nothing to convert, so that callers skip the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from strandline.core.errors import CorruptionError
from strandline.types.coercion import EXACT_DECIMALS
from strandline.types.datatypes import ArrayType, BinaryType, DataType, DecimalType, MapType, StructType
from strandline.types.records import record_type
from strandline.types.scalars import FIXED_SCALARS

Convert = Callable[[Any], Any]


def to_unscaled(scale: int) -> Callable[[Decimal], int]:
    """Return the function that converts a decimal to its unscaled integer; more digits than `scale` raise Inexact."""
    exact = EXACT_DECIMALS
    return lambda value: int(value.scaleb(scale, exact).to_integral_exact(context=exact))


def from_unscaled(scale: int) -> Callable[[int | str], Decimal]:
    """Return the function that converts an unscaled integer to its decimal."""
    return lambda value: Decimal(value).scaleb(-scale, EXACT_DECIMALS)


def to_plain(kind: DataType, *, hashable: bool = False) -> Convert | None:
    """Return the conversion of one value (never null) to its plain form; a key of a map is `hashable`."""
    if isinstance(kind, DecimalType):
        digits = to_unscaled(kind.scale)
        return lambda value: str(digits(value))
    if isinstance(kind, ArrayType):
        convert = each_element(to_plain(kind.element, hashable=hashable))
        return convert if convert is None or not hashable else lambda elements: tuple(convert(elements))
    if isinstance(kind, MapType):
        return entry_by_entry(to_plain(kind.key, hashable=True), to_plain(kind.value))
    if isinstance(kind, StructType):
        parts = [to_plain(field.type, hashable=hashable) for field in kind.fields]
        return part_by_part(parts, identity) if any(parts) else None
    scalar = FIXED_SCALARS.get(kind)
    return scalar.to_number if scalar else None


def from_plain(kind: DataType, *, hashable: bool = False) -> Convert | None:
    """Return the conversion of a plain form to the value; raises CorruptionError if it is not of this type."""
    if isinstance(kind, DecimalType):
        return from_unscaled(kind.scale)
    if isinstance(kind, ArrayType):
        convert = each_element(from_plain(kind.element, hashable=hashable))
        if not hashable:
            return convert
        return tuple if convert is None else lambda elements: tuple(convert(elements))
    if isinstance(kind, MapType):
        return entry_by_entry(from_plain(kind.key, hashable=True), from_plain(kind.value))
    if isinstance(kind, StructType):
        return _struct_from_plain(kind, hashable)
    scalar = FIXED_SCALARS.get(kind)
    return scalar.from_number if scalar else None


def _struct_from_plain(kind: StructType, hashable: bool) -> Convert:
    make = record_type(kind.names)._make
    parts = [from_plain(field.type, hashable=hashable) for field in kind.fields]
    count = len(parts)
    convert = part_by_part(parts, make) if any(parts) else make

    def checked(values: Any) -> Any:
        if len(values) != count:
            raise CorruptionError(f"a stored {kind.ddl} has {len(values)} fields, expected {count}")
        return convert(values)

    return checked


def plain_class(kind: DataType) -> type[Any]:
    """Return the class of a type's plain forms, for types that msgpack packs."""
    if isinstance(kind, ArrayType | StructType):
        return list
    if isinstance(kind, MapType):
        return dict
    return bytes if isinstance(kind, BinaryType) else str


def copier(kind: DataType, array: Convert = list, entries: Convert = dict) -> Convert | None:
    """Return the function that copies a value deeply, with `array` for arrays; None if values are immutable."""
    if isinstance(kind, ArrayType):
        return _compose(array, each_element(copier(kind.element, array, entries)))
    if isinstance(kind, MapType):
        return _compose(entries, entry_by_entry(None, copier(kind.value, array, entries)))
    if isinstance(kind, StructType):
        parts = [copier(field.type, array, entries) for field in kind.fields]
        return part_by_part(parts, record_type(kind.names)._make) if any(parts) else None
    return None


def _compose(make: Convert, convert: Convert | None) -> Convert:
    if convert is None:
        return make
    return convert if make is list or make is dict else lambda value: make(convert(value))


def part_by_part(converts: Sequence[Convert | None], make: Convert) -> Convert:
    """Return the function that converts each part of a tuple and calls `make` with the tuple of the results."""
    return rebuild_function(len(converts), list(enumerate(converts)), make)


def rebuild_function(count: int, parts: Sequence[tuple[int | None, Any]], make: Convert) -> Convert:
    """Return the function that calls `make` with new parts of a tuple with `count` parts.

    Each of `parts` makes a new part: a position in the tuple with the conversion of the value there (None for none), or
    None with a function without arguments (None for null).
    The function is generated code: a loop over the parts is twice as slow.
    """
    names: dict[str, Any] = {"make": make, **{f"c{i}": convert for i, (_, convert) in enumerate(parts)}}
    results = []
    for i, (position, convert) in enumerate(parts):
        if position is None:
            results.append("None" if convert is None else f"c{i}()")
        else:
            value = f"v{position}"
            results.append(value if convert is None else f"None if {value} is None else c{i}({value})")
    values = ", ".join(f"v{i}" for i in range(count))
    exec(f"def convert(value):\n    {values}, = value\n    return make(({', '.join(results)},))\n", names)
    convert_all: Convert = names["convert"]
    return convert_all


def each_element(convert: Convert | None) -> Convert | None:
    """Return the function that converts each element of an array but nulls; None if `convert` is None."""
    return None if convert is None else lambda elements: [None if v is None else convert(v) for v in elements]


def entry_by_entry(key: Convert | None, value: Convert | None) -> Convert | None:
    """Return the function that converts the keys and the values of a map; None if both are None."""
    if key is None and value is None:
        return None
    convert_key, convert_value = key or identity, value or identity
    return lambda entries: {convert_key(k): None if v is None else convert_value(v) for k, v in entries.items()}


def identity(value: Any) -> Any:
    """Return the value."""
    return value
