"""The columns of a state's table: names, types, and the check of rows from outside.

See docs/format.md, "State as tables".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from strandline.core.errors import StateTypeError, StrandlineError
from strandline.types.columns import arrow_schema, check_readable, conform
from strandline.types.datatypes import DataType, Field, IntegerType, StructType
from strandline.types.murmurcolumns import key_groups
from strandline.types.scalars import Numbers

KEY_GROUP, MAP_KEY, POSITION, TIME, WINDOW_END = "key_group", "map_key", "position", "time", "window_end"
VALUE, EXPIRES_AT = "value", "expires_at"
RESERVED_NAMES = (KEY_GROUP, MAP_KEY, POSITION, TIME, WINDOW_END, VALUE, EXPIRES_AT)
ANY_TIMES = (TIME, WINDOW_END, EXPIRES_AT)
"""Columns that may hold any time, also outside of the range of values."""

T = TypeVar("T")


def key_fields(schema: StructType) -> list[Field]:
    """Return the key columns of tables: the name of a reserved column gets the prefix `key_`.

    Names are compared without regard to case, as most readers of tables do.

    >>> from strandline.types.datatypes import parse_schema
    >>> [field.name for field in key_fields(parse_schema("id bigint, Value string, key_value string"))]
    ['id', 'key_key_Value', 'key_value']
    """
    names = {*RESERVED_NAMES, *(name.lower() for name in schema.names)}
    fields = []
    for field in schema.fields:
        name = field.name
        if name.lower() in RESERVED_NAMES:
            while name.lower() in names:
                name = f"key_{name}"
            names.add(name.lower())
        fields.append(Field(name, field.type))
    return fields


class TableColumns:
    """The columns of one state's table."""

    def __init__(
        self, where: str, keys: Sequence[Field], others: Sequence[Field], max_parallelism: int, nullable: Sequence[str]
    ) -> None:
        """`where` names operator and state in errors; `nullable` columns may hold nulls."""
        self.where = where
        fields = [Field(KEY_GROUP, IntegerType()), *keys, *others]
        self._keys, self._others = list(keys), fields[1:]
        self.schema = arrow_schema(StructType(tuple(fields)))
        self._max_parallelism = max_parallelism
        self._nullable = set(nullable)

    def batch(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return columns as rows, without checks."""
        return pa.RecordBatch.from_arrays(list(columns), schema=self.schema)

    def check(self, rows: pa.RecordBatch, *, verify: bool) -> list[pa.Array]:
        """Return the columns of rows in their exact types; key groups may be left out.

        Raises StateTypeError, with fields column and row, for the first value that does not fit; with `verify`, also
        for a key group that is not the key's.
        """
        names = rows.schema.names
        wanted = self.schema.names
        if sorted({*names, KEY_GROUP}) != sorted(wanted) or len(set(names)) < len(names):
            raise StateTypeError(
                f"{self.where}: its table has the columns {', '.join(wanted)}; the rows have {', '.join(names)}",
                hint="give exactly these columns, in any order",
                expected=wanted,
                actual=names,
            )
        columns = [self._checked(rows.column(field.name), field) for field in self._others]
        keys = columns[: len(self._keys)]
        if KEY_GROUP not in names:
            if keys and keys[0].null_count:
                why = "it is missing, and there is no key to compute it from"
                raise self.refused(KEY_GROUP, first_row(keys[0].is_null()), why, hint="give the column")
            return [self._groups_of(keys, rows.num_rows), *columns]
        groups = self._checked(rows.column(KEY_GROUP), Field(KEY_GROUP, IntegerType()))
        self._check_groups(groups)
        if verify:
            self._verify(groups, keys)
        return [groups, *columns]

    def _groups_of(self, keys: Sequence[pa.Array], count: int) -> pa.Array:
        if not keys:
            return pa.nulls(count, pa.int32())
        return pa.array(key_groups(keys, [field.type for field in self._keys], self._max_parallelism))

    def _verify(self, groups: pa.Array, keys: Sequence[pa.Array]) -> None:
        if not keys:
            return
        wanted = self._groups_of(keys, len(groups)).to_numpy()
        differs = groups.fill_null(0).to_numpy() != wanted
        # Marks have no key.
        differs &= keys[0].is_valid().to_numpy(zero_copy_only=False)
        if differs.any():
            row = first_row(differs)
            why = f"it is {groups[row]}, and the key's is {wanted[row]} of {self._max_parallelism}"
            raise self.refused(KEY_GROUP, row, why, hint="leave the column out: key groups follow from the keys")

    def _checked(self, array: pa.Array, field: Field) -> pa.Array:
        column = self.attempt(array, field.name, lambda some: conform(some, field.type))
        if field.name not in ANY_TIMES:
            self.attempt(column, field.name, lambda some: check_readable(some, field.type))
        if column.null_count and field.name not in self._nullable:
            raise self.refused(field.name, first_row(column.is_null()), "it is null, and must not be", field.type)
        return column

    def _check_groups(self, groups: pa.Array) -> None:
        numbers = groups.fill_null(0).to_numpy()
        outside = (numbers < 0) | (numbers >= self._max_parallelism)
        if outside.any():
            row = int(np.flatnonzero(outside)[0])
            raise self.refused(KEY_GROUP, row, f"it is {numbers[row]}, expected 0 to {self._max_parallelism - 1}")

    def attempt(self, array: pa.Array, column: str, of: Callable[[pa.Array], T]) -> T:
        """Call a function of a column; if it raises, find the first wrong row and raise an error with it."""
        try:
            return of(array)
        except StrandlineError as error:
            row, last = _first_misfit(array, of, error)
            raise self.refused(column, row, last.message, hint=last.hint) from None

    def refused(
        self, column: str, row: int, why: str, kind: DataType | None = None, *, hint: str = "", **fields: Any
    ) -> StateTypeError:
        """Return the error for a value that does not fit."""
        expected = "" if kind is None else f" (a {kind.ddl})"
        return StateTypeError(
            f"{self.where}: row {row}, column '{column}'{expected} does not fit: {why}",
            hint=hint or "make the row fit, or leave it out",
            column=column,
            row=row,
            why=why,
            **fields,
        )


def first_row(flags: pa.Array | Numbers) -> int:
    """Return the first row where a flag is set."""
    numbers = flags if isinstance(flags, np.ndarray) else flags.to_numpy(zero_copy_only=False)
    return int(np.flatnonzero(numbers)[0])


def _first_misfit(
    array: pa.Array, of: Callable[[pa.Array], object], error: StrandlineError
) -> tuple[int, StrandlineError]:
    """Return the first row that a function of a column refuses, and the error."""
    first, last = 0, len(array)
    while last - first > 1:
        middle = (first + last) // 2
        try:
            of(array.slice(first, middle - first))
            first = middle
        except StrandlineError as misfit:
            last, error = middle, misfit
    return first, error


def spread(columns: Iterable[pa.Array], rows: Numbers) -> list[pa.Array]:
    """Return columns with the rows of these numbers."""
    at = pa.array(rows)
    return [column.take(at) for column in columns]
