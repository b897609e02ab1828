"""The packed layout: msgpack of a value's plain form, in which structs are arrays and maps alternate keys and values.

Each function returns None where there is nothing to convert, so that no pass over the values is made in vain.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from itertools import chain
from typing import Any

from strandline.core.errors import CorruptionError
from strandline.format.coercion import EXACT_DECIMALS
from strandline.format.records import record_type
from strandline.format.scalars import FIXED_SCALARS
from strandline.format.types import ArrayType, DataType, DecimalType, MapType, StructType

Convert = Callable[[Any], Any]


def unscaled(scale: int) -> Callable[[Decimal], int]:
    """Return the function from a decimal to the integer without its point; more digits than `scale` raise Inexact."""
    exact = EXACT_DECIMALS
    return lambda value: int(value.scaleb(scale, exact).to_integral_exact(context=exact))


def scaled(scale: int) -> Callable[[int | str], Decimal]:
    """Return the function that puts the point back into an unscaled integer."""
    return lambda value: Decimal(value).scaleb(-scale, EXACT_DECIMALS)


def to_plain(kind: DataType) -> Convert | None:
    """Return the conversion of one value (never null) to its plain form."""
    if isinstance(kind, DecimalType):
        digits = unscaled(kind.scale)
        return lambda value: str(digits(value))
    if isinstance(kind, ArrayType):
        return _each(to_plain(kind.element))
    if isinstance(kind, MapType):
        key, value = to_plain(kind.key), to_plain(kind.value)
        if key is None and value is None:
            return lambda entries: list(chain.from_iterable(entries.items()))
        one_key, one_value = key or _same, value or _same
        return lambda entries: [
            part for k, v in entries.items() for part in (one_key(k), None if v is None else one_value(v))
        ]
    if isinstance(kind, StructType):
        parts = [to_plain(field.type) for field in kind.fields]
        if not any(parts):
            return None
        each = [part or _same for part in parts]
        return lambda record: [None if v is None else one(v) for one, v in zip(each, record, strict=True)]
    scalar = FIXED_SCALARS.get(kind)
    return scalar.to_number if scalar else None


def from_plain(kind: DataType, *, hashable: bool = False) -> Convert | None:
    """Return the conversion of a plain form to the value; raises CorruptionError if it is not of this type."""
    if isinstance(kind, DecimalType):
        return scaled(kind.scale)
    if isinstance(kind, ArrayType):
        each = _each(from_plain(kind.element, hashable=hashable))
        if not hashable:
            return each
        return tuple if each is None else lambda elements: tuple(each(elements))
    if isinstance(kind, MapType):
        return _map_from_plain(kind)
    if isinstance(kind, StructType):
        return _struct_from_plain(kind, hashable)
    scalar = FIXED_SCALARS.get(kind)
    return scalar.from_number if scalar else None


def _map_from_plain(kind: MapType) -> Convert:
    one_key = from_plain(kind.key, hashable=True)
    value = from_plain(kind.value)
    one_value = None if value is None else _nullable(value)

    def convert(parts: Any) -> dict[Any, Any]:
        keys, values = parts[::2], parts[1::2]
        if len(keys) != len(values):
            raise CorruptionError(f"a stored {kind.ddl} has {len(keys)} keys and {len(values)} values")
        return dict(
            zip(
                keys if one_key is None else map(one_key, keys),
                values if one_value is None else map(one_value, values),
                strict=True,
            )
        )

    return convert


def _struct_from_plain(kind: StructType, hashable: bool) -> Convert:
    make = record_type(kind.names)._make
    parts = [from_plain(field.type, hashable=hashable) for field in kind.fields]
    each = [part or _same for part in parts] if any(parts) else None
    count = len(parts)

    def convert(values: Any) -> Any:
        if len(values) != count:
            raise CorruptionError(f"a stored {kind.ddl} has {len(values)} fields, expected {count}")
        if each is None:
            return make(values)
        return make([None if v is None else one(v) for one, v in zip(each, values, strict=True)])

    return convert


def copier(kind: DataType) -> Convert | None:
    """Return the deep copy of what is mutable in a value; None if nothing is."""
    if isinstance(kind, ArrayType):
        return _each(copier(kind.element)) or list
    if isinstance(kind, MapType):
        one_value = copier(kind.value)
        if one_value is None:
            return dict
        return lambda entries: {k: None if v is None else one_value(v) for k, v in entries.items()}
    if isinstance(kind, StructType):
        parts = [copier(field.type) for field in kind.fields]
        if not any(parts):
            return None
        each, make = [part or _same for part in parts], record_type(kind.names)._make
        return lambda record: make([None if v is None else one(v) for one, v in zip(each, record, strict=True)])
    return None


def _each(one: Convert | None) -> Convert | None:
    return None if one is None else lambda elements: [None if v is None else one(v) for v in elements]


def _nullable(one: Convert) -> Convert:
    return lambda value: None if value is None else one(value)


def _same(value: Any) -> Any:
    return value
