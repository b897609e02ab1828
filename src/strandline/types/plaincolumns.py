"""Conversion between plain forms (`plain.py`) and Arrow columns, a column at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.core.errors import StateTypeError
from strandline.types.columns import TEMPORAL, assemble, check_readable, parts_to_python, set_nulls, to_arrow_type
from strandline.types.datatypes import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    StructType,
)


def plain_to_arrow(values: Sequence[Any], kind: DataType) -> pa.Array:
    """Return the column of plain forms, None for null; raise TypeError or ValueError if one is not of this type."""
    return assemble(values, kind, _build_scalars)


def _build_scalars(values: Sequence[Any], kind: DataType) -> pa.Array:
    if isinstance(kind, DecimalType):
        return rescaled(pa.array(values, pa.string()).cast(pa.decimal128(kind.precision, 0)), kind)
    if isinstance(kind, TEMPORAL):
        return pa.array(values, _number_type(kind)).view(to_arrow_type(kind))
    return pa.array(values, to_arrow_type(kind))


def arrow_to_plain(array: pa.Array, kind: DataType) -> list[Any]:
    """Return the plain forms of a column that conforms to the type, structs and the keys of maps as tuples.

    Raises UserCodeError if it holds a value that Python cannot represent, StateTypeError if a map has a key twice.
    """
    check_readable(array, kind)
    return _to_plain(array, kind, False)


def rescaled(integers: pa.Array, kind: DecimalType) -> pa.Array:
    """Return a column of decimals with scale 0 under the type with their scale: the bits are the same."""
    return pa.Array.from_buffers(
        to_arrow_type(kind), len(integers), integers.buffers(), integers.null_count, integers.offset
    )


def _number_type(kind: DataType) -> pa.DataType:
    return pa.int32() if isinstance(kind, DateType) else pa.int64()


def _to_plain(array: pa.Array, kind: DataType, hashable: bool) -> list[Any]:
    if isinstance(kind, StructType):
        children = [_to_plain(c, f.type, hashable) for c, f in zip(array.flatten(), kind.fields, strict=True)]
        return set_nulls(list(zip(*children, strict=True)), array)
    if isinstance(kind, ArrayType | MapType):
        rows = parts_to_python(array, kind, hashable, _to_plain)
        if isinstance(kind, MapType):
            for entries, size in zip(rows, np.diff(array.offsets), strict=False):
                if entries is not None and len(entries) != size:
                    raise StateTypeError(f"a {kind.ddl} has the same key more than once", hint="keep one of them")
        return rows
    if isinstance(kind, DecimalType):
        digits = pa.Array.from_buffers(
            pa.decimal128(kind.precision, 0), len(array), array.buffers(), array.null_count, array.offset
        )
        return list(digits.cast(pa.string()).to_pylist())
    return list((array.view(_number_type(kind)) if isinstance(kind, TEMPORAL) else array).to_pylist())
