"""Grouping of Arrow columns: numbers equal rows, and reduces a column's values in each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import StateTypeError
from strandline.format.keycolumns import FixedColumn
from strandline.format.keys import KeyCodec
from strandline.format.values import ValueCodec
from strandline.types.columns import from_arrow_type

Numbers = np.ndarray[Any, Any]
_LONGEST = 1 << 63
_HALF_BITS, _HALF_MASK = 32, (1 << 32) - 1
_WIDEST_DECIMAL = 10**38
_MOST_DIGITS = 76


class Groups:
    """The group of each row: groups are numbered from 0."""

    def __init__(self, of_row: Numbers, count: int) -> None:
        self.of_row = of_row
        self.count = count

    @property
    def first(self) -> Numbers:
        """The first row of each group; -1 for a group without rows."""
        rows = np.full(self.count, -1, np.int64)
        # Written back to front: each group's first row overwrites later ones.
        rows[self.of_row[::-1]] = np.arange(len(self.of_row) - 1, -1, -1)
        return rows

    @property
    def last(self) -> Numbers:
        """The last row of each group; -1 for a group without rows."""
        rows = np.full(self.count, -1, np.int64)
        rows[self.of_row] = np.arange(len(self.of_row))
        return rows

    def only(self, rows: Numbers) -> Groups:
        """Return the groups of some of the rows."""
        return Groups(self.of_row[rows], self.count)


def group_by(columns: Sequence[pa.Array]) -> Groups:
    """Number the distinct rows of some columns without nulls, in the order of their first occurrence.

    Rows are equal if Spark groups them together: all NaNs are one, and so are 0.0 and -0.0.
    """
    of_row, count = _coded(_comparable(columns[0]))
    for column in columns[1:]:
        of_this, more = _coded(_comparable(column))
        of_row, count = _coded(pa.array(of_row.astype(np.int64) * more + of_this))
    return Groups(of_row, count)


def overlapping(of_key: Numbers, start: Numbers, end: Numbers) -> tuple[Numbers, Numbers]:
    """Cluster the spans of time of each key that overlap: spans that only touch do not.

    Return the rows in the order of keys and starts, and the index in that order at which each cluster begins.
    """
    order = np.lexsort((start, of_key))
    key, begin, count = of_key[order].astype(np.int64), start[order], len(order)
    by_end = np.argsort(end[order], kind="stable")
    rank = np.empty(count, np.int64)
    rank[by_end] = np.arange(count)
    # The greatest end so far, of each key: a key's numbers are greater than those of all keys before it.
    reach = np.maximum.accumulate(key * count + rank) - key * count
    furthest = end[order][by_end][reach]
    is_first = np.ones(count, bool)
    is_first[1:] = (key[1:] != key[:-1]) | (begin[1:] >= furthest[:-1])
    return order, np.flatnonzero(is_first)


def value_codes(values: pa.Array) -> tuple[Numbers, int]:
    """Number the distinct values of a column without nulls, of whatever type."""
    if pa.types.is_nested(values.type):
        values = pa.array(ValueCodec(from_arrow_type(values.type)).encode_arrow(values), pa.binary())
        return _coded(values)
    return _coded(_comparable(values))


def _coded(column: pa.Array) -> tuple[Numbers, int]:
    coded = column.dictionary_encode()
    return coded.indices.to_numpy(zero_copy_only=False), len(coded.dictionary)


def _comparable(column: pa.Array) -> pa.Array:
    """Convert a column so that Arrow can compare it: it cannot compare structs, and takes 0.0 and -0.0 as different."""
    if pa.types.is_floating(column.type):
        return pa.array(FixedColumn(from_arrow_type(column.type)).arrow_order(column))
    if pa.types.is_nested(column.type):
        codec = KeyCodec([from_arrow_type(column.type)])
        return pa.array(codec.encode_arrow(pa.array(np.zeros(len(column), np.int32)), [column]), pa.binary())
    return column


def ranks(column: pa.Array) -> Numbers:
    """Return numbers in the order of a column without nulls, which is Spark's."""
    kind = column.type
    variable = pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_nested(kind)
    if not variable and not pa.types.is_decimal(kind):
        return FixedColumn(from_arrow_type(kind)).arrow_order(column)
    coded = _comparable(column).dictionary_encode()
    order = pc.sort_indices(coded.dictionary.cast(pa.binary()) if pa.types.is_string(kind) else coded.dictionary)
    ranks = np.empty(len(order), np.int64)
    ranks[order.to_numpy()] = np.arange(len(order))
    of_row: Numbers = ranks[coded.indices.to_numpy()]
    return of_row


# -- columns of groups


def valid_rows(column: pa.Array) -> Numbers:
    """Return the rows in which a column is not null."""
    return np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))


def summed(column: pa.Array, groups: Groups) -> pa.Array:
    """Add each group's values up; null where there are none. Raises StateTypeError if one does not fit the type."""
    kind = column.type
    if pa.types.is_floating(kind):
        return _reduced(column, groups, "sum")
    if not pa.types.is_decimal(kind):
        _refuse_overflow(column, groups)
        return _reduced(column, groups, "sum")
    if 10**kind.precision * len(column) > _WIDEST_DECIMAL:
        # Arrow's own sums wrap around if 128 bits are not enough.
        column = column.cast(pa.decimal256(_MOST_DIGITS, kind.scale))
    try:
        return _reduced(column, groups, "sum").cast(kind)
    except pa.ArrowInvalid as error:
        raise _too_large(kind) from error


def extreme(column: pa.Array, groups: Groups, which: str) -> pa.Array:
    """Return each group's least or greatest value ("min", "max") in Spark's order; null if there are none."""
    kind = column.type
    if pa.types.is_floating(kind):
        ordered = FixedColumn(from_arrow_type(kind))
        bits = pa.array(ordered.arrow_order(column), mask=column.is_null().to_numpy(zero_copy_only=False))
        reduced = _reduced(bits, groups, which)
        values = ordered.restore(reduced.fill_null(0).to_numpy())
        return pa.array(values, kind, mask=reduced.is_null().to_numpy(zero_copy_only=False))
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_boolean(kind) or pa.types.is_nested(kind):
        # Not every release of Arrow compares these in a group.
        return best(column, column, groups, which)[0]
    return _reduced(column, groups, which)


def best(column: pa.Array, by: pa.Array, groups: Groups, which: str) -> tuple[pa.Array, pa.Array]:
    """Return the value and `by` of each group's row with the least or greatest `by`; of several, the first row's."""
    rows = valid_rows(by)
    order = ranks(by.take(pa.array(rows)))
    there = groups.only(rows)
    top = _reduced(pa.array(order), there, which).fill_null(0).to_numpy()
    rows = rows[order == top[there.of_row]]
    chosen = _at(rows, groups.only(rows).first)
    return column.take(chosen), by.take(chosen)


def edge(column: pa.Array, groups: Groups, which: str, *, ignore_nulls: bool) -> pa.Array:
    """Return each group's first or last value ("first", "last")."""
    rows = np.arange(len(column))
    if ignore_nulls:
        rows = valid_rows(column)
        groups = groups.only(rows)
    return column.take(_at(rows, groups.first if which == "first" else groups.last))


def edge_there(column: pa.Array, there: pa.Array, groups: Groups, which: str) -> tuple[pa.Array, pa.Array]:
    """Return the value, which may be null, in each group's first or last row with `there`, and whether one has it."""
    rows = np.flatnonzero(there.fill_null(False).to_numpy(zero_copy_only=False))
    some = groups.only(rows)
    at = _at(rows, some.first if which == "first" else some.last)
    return column.take(at), at.is_valid()


def joined(column: pa.Array, groups: Groups) -> pa.Array:
    """Concatenate each group's lists, in the order of the rows."""
    values, of_value = _elements(column, groups)
    return _lists_of(values, of_value, groups.count)


def united(column: pa.Array, groups: Groups) -> pa.Array:
    """Concatenate each group's lists, each value once: with 0.0 for -0.0, also inside a value, as Spark does."""
    values, of_value = _elements(column, groups)
    values = _without_signed_zeros(values)
    if len(values):
        of_code, count = value_codes(values)
        pairs = Groups(*_coded(pa.array(of_value.astype(np.int64) * count + of_code)))
        kept = np.sort(pairs.first)
        values, of_value = values.take(pa.array(kept)), of_value[kept]
    return _lists_of(values, of_value, groups.count)


def moments(n: pa.Array, mean: pa.Array, m2: pa.Array, groups: Groups) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Merge counts, means and sums of squared differences from the mean."""
    counts, means = n.to_numpy(), mean.fill_null(0.0).to_numpy()
    of_row, width = groups.of_row, groups.count
    total = np.bincount(of_row, counts, width)
    with np.errstate(invalid="ignore"):
        merged = np.bincount(of_row, counts * means, width) / np.maximum(total, 1.0)
        off = np.where(counts > 0, means - merged[of_row], 0.0)
        squares = np.bincount(of_row, m2.fill_null(0.0).to_numpy() + counts * off * off, width)
    return pa.array(total.astype(np.int64)), pa.array(merged), pa.array(squares)


def _reduced(column: pa.Array, groups: Groups, how: str) -> pa.Array:
    options = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
    table = pa.table({"group": groups.of_row, "value": column})
    reduced = table.group_by("group", use_threads=False).aggregate([("value", how, options)])
    values, at = reduced.column(f"value_{how}").combine_chunks(), reduced["group"].to_numpy()
    if len(at) == groups.count and np.array_equal(at, np.arange(groups.count)):
        return values
    row = np.full(groups.count, -1)
    row[at] = np.arange(len(at))
    return values.take(pa.array(row, mask=row < 0))


def _at(rows: Numbers, places: Numbers) -> pa.Array:
    """Return the rows at some places; null for -1."""
    there = places >= 0
    chosen = np.zeros(len(places), np.int64)
    chosen[there] = rows[places[there]]
    return pa.array(chosen, mask=~there)


def _refuse_overflow(column: pa.Array, groups: Groups) -> None:
    if column.null_count == len(column):
        return
    ends = pc.min_max(column).as_py()
    if max(abs(ends["min"]), abs(ends["max"])) * len(column) < _LONGEST:
        return
    # Rarely needed: the sums of the halves cannot overflow, and show whether the whole sum does.
    numbers = column.fill_null(0).to_numpy().astype(np.int64)
    upper, lower = np.zeros((2, groups.count), np.int64)
    np.add.at(upper, groups.of_row, numbers >> _HALF_BITS)
    np.add.at(lower, groups.of_row, numbers & _HALF_MASK)
    upper += lower >> _HALF_BITS
    if np.any(upper != upper.astype(np.int32)):
        raise _too_large(column.type)


def _too_large(kind: pa.DataType) -> StateTypeError:
    return StateTypeError(
        f"a sum does not fit into {from_arrow_type(kind).ddl}", hint="cast the column to a wider decimal or to double"
    )


def _elements(column: pa.Array, groups: Groups) -> tuple[pa.Array, Numbers]:
    """Return the elements of all lists, group after group, and the group of each."""
    order = np.argsort(groups.of_row, kind="stable")
    ordered = column.take(pa.array(order))
    return ordered.flatten(), np.repeat(groups.of_row[order], lengths(ordered))


def _without_signed_zeros(values: pa.Array) -> pa.Array:
    """Return values with 0.0 for -0.0 and one NaN for all of them: equal values then have equal bytes."""
    kind = values.type
    if pa.types.is_floating(kind):
        nan, zero = pa.scalar(np.nan, kind), pa.scalar(0.0, kind)
        return pc.if_else(pc.is_nan(values), nan, pc.add(values, zero))
    if pa.types.is_struct(kind):
        fields = [_without_signed_zeros(field) for field in values.flatten()]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=values.is_null()) if fields else values
    if pa.types.is_list(kind):
        elements = _without_signed_zeros(values.flatten())
        return pa.ListArray.from_arrays(offsets(lengths(values)), elements, type=kind, mask=values.is_null())
    return values


def _lists_of(values: pa.Array, of_value: Numbers, count: int) -> pa.Array:
    # Values are in the order of their groups.
    return pa.ListArray.from_arrays(offsets(np.bincount(of_value, minlength=count)), values)


def lengths(lists: pa.Array) -> Numbers:
    """Return the lengths of lists; a null one has 0."""
    counts: Numbers = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    return counts


def offsets(counts: Numbers) -> pa.Array:
    """Return the offsets of lists of these lengths."""
    return pa.array(np.append(0, np.cumsum(counts)), pa.int32())
