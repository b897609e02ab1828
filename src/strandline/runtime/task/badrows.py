"""Rows that no function can be called with: they have no key, or hold what Python has no value for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import NullKeyError, UserCodeError
from strandline.types.columns import check_moments, to_python
from strandline.types.datatypes import DataType, StructType


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row, and why it is bad."""

    at: int
    step: str
    error: UserCodeError


def bad_rows(columns: Sequence[pa.Array], schema: StructType, key_at: Sequence[int], uid: str) -> list[BadRow]:
    """Return the bad ones among some rows, in order."""
    found: dict[int, BadRow] = {}
    for at in key_at:
        if columns[at].null_count:
            for row in np.flatnonzero(columns[at].is_null().to_numpy(zero_copy_only=False)).tolist():
                error = NullKeyError(f"the key column '{schema.names[at]}' is null", operator=uid)
                found.setdefault(row, BadRow(row, "key_by", error))
    for column, field in zip(columns, schema.fields, strict=True):
        for row, why in _misread(column, field.type, 0):
            message = f"the column '{field.name}' cannot be read: {why.message}"
            found.setdefault(row, BadRow(row, "read", UserCodeError(message, hint=why.hint, operator=uid)))
    return [found[row] for row in sorted(found)]


def without(batch: pa.RecordBatch, bad: Sequence[BadRow]) -> pa.RecordBatch:
    """Return the other rows of a batch."""
    is_bad = np.zeros(batch.num_rows, dtype=bool)
    is_bad[[each.at for each in bad]] = True
    return batch.filter(pc.invert(pa.array(is_bad)))


def values_at(columns: Sequence[pa.Array], schema: StructType, row: int) -> list[Any]:
    """Return the values of a row, of a moment that Python has not the number that stands for it."""
    found = []
    for column, field in zip(columns, schema.fields, strict=True):
        one = column.slice(row, 1)
        try:
            found.append(to_python(one, field.type)[0])
        except UserCodeError:
            number = pa.int32() if pa.types.is_date(one.type) else pa.int64()
            found.append(one.view(number)[0].as_py() if pa.types.is_temporal(one.type) else None)
    return found


def _misread(column: pa.Array, kind: DataType, first: int) -> list[tuple[int, UserCodeError]]:
    """Return the rows that Python has no value for: few, so halves without any are passed over."""
    try:
        check_moments(column, kind)
    except UserCodeError as error:
        if len(column) == 1:
            return [(first, error)]
        half = len(column) // 2
        halves = (column.slice(0, half), first), (column.slice(half), first + half)
        return [found for part, begins in halves for found in _misread(part, kind, begins)]
    return []
