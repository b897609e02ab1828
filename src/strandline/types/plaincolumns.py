"""Plain forms as Arrow columns, and back: a column at a time, without a Python object for each field in between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.core.errors import StateTypeError
from strandline.types.columns import check_readable, to_arrow_type
from strandline.types.datatypes import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from strandline.types.scalars import Numbers

_MOMENTS = (DateType, TimestampType, TimestampNTZType)


def plain_to_arrow(values: Sequence[Any], kind: DataType) -> pa.Array:
    """Return the column of plain forms, None for null; raise TypeError or ValueError if one is none of this type."""
    if isinstance(kind, StructType):
        return _structs(values, kind)
    if isinstance(kind, ArrayType | MapType):
        return _parted(values, kind)
    if isinstance(kind, DecimalType):
        return rescaled(pa.array(values, pa.string()).cast(pa.decimal128(kind.precision, 0)), kind)
    if isinstance(kind, _MOMENTS):
        return pa.array(values, _numbers_of(kind)).view(to_arrow_type(kind))
    return pa.array(values, to_arrow_type(kind))


def arrow_to_plain(array: pa.Array, kind: DataType) -> list[Any]:
    """Return the plain forms of a column that conforms to the type, structs and the keys of maps as tuples.

    Raises UserCodeError if it holds what Python has no value for, StateTypeError if a map has a key twice.
    """
    check_readable(array, kind)
    return _plain(array, kind, False)


def rescaled(unscaled: pa.Array, kind: DecimalType) -> pa.Array:
    """Return decimals without a point as those with one: the same bits under another type."""
    return pa.Array.from_buffers(
        to_arrow_type(kind), len(unscaled), unscaled.buffers(), unscaled.null_count, unscaled.offset
    )


def _numbers_of(kind: DataType) -> pa.DataType:
    return pa.int32() if isinstance(kind, DateType) else pa.int64()


def _absent(values: Sequence[Any]) -> Numbers | None:
    return np.fromiter((v is None for v in values), bool, len(values)) if None in values else None


def _structs(values: Sequence[Any], kind: StructType) -> pa.Array:
    absent, count = _absent(values), len(kind.fields)
    nothing = (None,) * count
    rows = values if absent is None else [nothing if v is None else v for v in values]
    columns: list[Any] = list(zip(*rows, strict=True)) if len(rows) else [()] * count
    if len(columns) != count:
        raise ValueError(f"it has {len(columns)} fields, expected {count}")
    return pa.StructArray.from_arrays(
        [plain_to_arrow(column, field.type) for column, field in zip(columns, kind.fields, strict=True)],
        fields=list(to_arrow_type(kind)),
        mask=None if absent is None else pa.array(absent),
    )


def _parted(values: Sequence[Any], kind: ArrayType | MapType) -> pa.Array:
    absent = _absent(values)
    bounds = np.zeros(len(values) + 1, np.int64)
    np.cumsum([0 if v is None else len(v) for v in values], out=bounds[1:])
    # A null offset makes the entry that begins there null.
    offsets = pa.array(bounds.astype(np.int32), mask=None if absent is None else np.append(absent, False))
    there = values if absent is None else [v for v in values if v is not None]
    if isinstance(kind, MapType):
        keys = plain_to_arrow(list(chain.from_iterable(there)), kind.key)
        items = plain_to_arrow([item for v in there for item in v.values()], kind.value)
        return pa.MapArray.from_arrays(offsets, keys, items)
    return pa.ListArray.from_arrays(offsets, plain_to_arrow(list(chain.from_iterable(there)), kind.element))


def _plain(array: pa.Array, kind: DataType, hashable: bool) -> list[Any]:
    found: list[Any]
    if isinstance(kind, StructType):
        found = list(zip(*[_plain(c, f.type, hashable) for c, f in zip(array.flatten(), kind.fields, strict=True)]))  # noqa: B905
    elif isinstance(kind, ArrayType | MapType):
        found = _parts(array, kind, hashable)
    elif isinstance(kind, DecimalType):
        digits = pa.Array.from_buffers(
            pa.decimal128(kind.precision, 0), len(array), array.buffers(), array.null_count, array.offset
        )
        return list(digits.cast(pa.string()).to_pylist())
    else:
        return list((array.view(_numbers_of(kind)) if isinstance(kind, _MOMENTS) else array).to_pylist())
    if array.null_count:
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            found[row] = None
    return found


def _parts(array: pa.Array, kind: ArrayType | MapType, hashable: bool) -> list[Any]:
    if not len(array):
        return []
    bounds = array.offsets.to_numpy()
    first, size = int(bounds[0]), int(bounds[-1] - bounds[0])
    spans = list(pairwise((bounds - first).tolist()))
    if isinstance(kind, ArrayType):
        elements = _plain(array.values.slice(first, size), kind.element, hashable)
        return [tuple(elements[a:b]) if hashable else elements[a:b] for a, b in spans]
    keys = _plain(array.keys.slice(first, size), kind.key, True)
    items = _plain(array.items.slice(first, size), kind.value, False)
    found = [dict(zip(keys[a:b], items[a:b], strict=True)) for a, b in spans]
    for row, (entries, (a, b)) in enumerate(zip(found, spans, strict=True)):
        if len(entries) != b - a:
            raise StateTypeError(f"a {kind.ddl} has the same key more than once", hint="keep one of them", index=row)
    return found
