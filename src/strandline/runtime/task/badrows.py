"""Finds rows that no function can be called with: rows without a key, or with values that Python cannot represent."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import NullKeyError, UserCodeError
from strandline.types.columns import check_readable, conform, to_readable
from strandline.types.datatypes import DataType, StructType

_HIDDEN_PREFIX = "__strandline_"
_NULL_KEY_HINT = 'drop such events before key_by, as with where("key is not null"), or give them a key'


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that no function can be called with: its index, the step that found it, and the error."""

    at: int
    step: str
    error: UserCodeError


def bad_rows(
    columns: Sequence[pa.Array],
    schema: StructType,
    key_at: Sequence[int],
    uid: str,
    read: Collection[int] | None = None,
) -> list[BadRow]:
    """Return the bad rows, in order: those without a key, or unreadable in a column of `read`, by default in any."""
    by_row: dict[int, BadRow] = {}
    error: UserCodeError
    for at in key_at:
        if columns[at].null_count:
            message = f"the key column '{schema.names[at]}' is null"
            error = NullKeyError(message, hint=_NULL_KEY_HINT, discreet=message, operator=uid)
            for row in np.flatnonzero(columns[at].is_null().to_numpy(zero_copy_only=False)).tolist():
                by_row.setdefault(row, BadRow(row, "key_by", error))
    for at, (column, field) in enumerate(zip(columns, schema.fields, strict=True)):
        if read is None or at in read:
            name = field.name.removeprefix(_HIDDEN_PREFIX)
            what = f"the {'column' if name == field.name else 'accumulator'} '{name}' cannot be read"
            for row, why in _unreadable(conform(column, field.type), field.type, 0):
                error = UserCodeError(f"{what}: {why.message}", hint=why.hint, discreet=what, operator=uid)
                by_row.setdefault(row, BadRow(row, "read", error))
    return [by_row[row] for row in sorted(by_row)]


def without_bad(batch: pa.RecordBatch, bad: Sequence[BadRow]) -> pa.RecordBatch:
    """Return a batch without its bad rows."""
    is_bad = np.zeros(batch.num_rows, dtype=bool)
    is_bad[[each.at for each in bad]] = True
    return batch.filter(pc.invert(pa.array(is_bad)))


def values_at(columns: Sequence[pa.Array], schema: StructType, row: int) -> list[Any]:
    """Return the values of a row: bytes for strings that are not UTF-8, numbers for times out of Python's range."""
    return [
        to_readable(column.slice(row, 1), field.type)[0] for column, field in zip(columns, schema.fields, strict=True)
    ]


def _unreadable(column: pa.Array, kind: DataType, first: int) -> list[tuple[int, UserCodeError]]:
    """Return the rows that Python cannot represent. They are few: bisection finds them."""
    try:
        check_readable(column, kind)
    except UserCodeError as error:
        if len(column) == 1:
            return [(first, error)]
        half = len(column) // 2
        halves = (column.slice(0, half), first), (column.slice(half), first + half)
        return [row for part, begins in halves for row in _unreadable(part, kind, begins)]
    return []
