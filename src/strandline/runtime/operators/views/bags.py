"""Bags of rows by key, as Arrow columns: how changes are added up, and how a state holds the rows of a key.

A row is the same as another if its bits are: -0.0 is not 0.0, as an operator must take back exactly the row that it
gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.core.errors import CorruptionError
from strandline.format.values import ValueCodec
from strandline.types.columns import conform, to_arrow_type
from strandline.types.datatypes import StructType

Numbers = np.ndarray[Any, Any]

WEIGHT = "__strandline_weight"
"""The column that says how often a row is added, or taken back if it is negative. 0: only its key was touched."""


class RowType:
    """The columns of an operator's rows."""

    def __init__(self, columns: StructType) -> None:
        self.columns = columns
        self.arrow = to_arrow_type(columns)
        self.bag_ddl = f"array<struct<n: bigint, row: {columns.ddl}>>"
        """The type of a state: rows, and how often each is there."""

    @cached_property
    def _codecs(self) -> list[ValueCodec | None]:
        """For each column that Arrow cannot compare, its encoding. Made where it is used: processes cannot send it."""
        nested = (pa.types.is_nested(field.type) for field in self.arrow)
        return [
            ValueCodec(field.type) if is_nested else None
            for field, is_nested in zip(self.columns.fields, nested, strict=True)
        ]

    def rows_of(self, columns: Sequence[pa.Array]) -> pa.StructArray:
        """Return columns as rows."""
        parts = [conform(column, field.type) for column, field in zip(columns, self.columns.fields, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(self.arrow))

    def comparable(self, rows: pa.StructArray) -> list[pa.Array]:
        """Return columns that Arrow finds equal where those of the rows have the same bits."""
        return [_comparable(column, codec) for column, codec in zip(rows.flatten(), self._codecs, strict=True)]


@dataclass(frozen=True)
class Bag:
    """Rows, each with the number of its key, and how often it is there."""

    of_key: Numbers
    rows: pa.StructArray
    counts: Numbers

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, indices: Numbers) -> Bag:
        """Return some of the entries."""
        return Bag(self.of_key[indices], self.rows.take(pa.array(indices)), self.counts[indices])

    def of_keys(self, chosen: Numbers) -> Bag:
        """Return the entries of keys for which `chosen` is true."""
        mask = chosen[self.of_key]
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def there(self) -> Bag:
        """Return the entries that are there, without those that are only taken back."""
        return self if not len(self) or self.counts.min() > 0 else self.take(np.flatnonzero(self.counts > 0))

    def counted(self, counts: Numbers) -> Bag:
        """Return the entries with other counts."""
        return Bag(self.of_key, self.rows, counts)

    def negated(self) -> Bag:
        """Return the entries with the opposite sign."""
        return self.counted(-self.counts)

    def plus(self, other: Bag) -> Bag:
        """Return the entries of both; equal rows are not summed."""
        if not len(self) or not len(other):
            return other if not len(self) else self
        return Bag(
            np.concatenate([self.of_key, other.of_key]),
            pa.concat_arrays([self.rows, other.rows]),
            np.concatenate([self.counts, other.counts]),
        )

    def summed(self, kind: RowType) -> Bag:
        """Return the bag with equal rows of a key as one entry, and without those that cancel out."""
        if not len(self):
            return self
        keys = [pa.array(self.of_key), *kind.comparable(self.rows)]
        names = [f"c{at}" for at in range(len(keys))]
        table = pa.table([*keys, pa.array(self.counts), pa.array(np.arange(len(self)))], [*names, "n", "at"])
        entries = table.group_by(names, use_threads=False).aggregate([("n", "sum"), ("at", "min")])
        counts, first = (entries.column(name).to_numpy() for name in ("n_sum", "at_min"))
        # In the order of the first occurrence.
        kept = np.flatnonzero(counts)
        kept = kept[np.argsort(first[kept], kind="stable")]
        return self.take(first[kept]).counted(counts[kept])

    def totals(self, keys: int) -> Numbers:
        """Return the number of rows of each key."""
        sums = np.zeros(keys, np.int64)
        np.add.at(sums, self.of_key, self.counts)
        return sums

    def ones(self) -> Bag:
        """Return the bag with an entry for each time that a row counts."""
        if not len(self) or self.counts.max() <= 1:
            return self
        indices, signs = self.repeated()
        return self.take(indices).counted(signs)

    def repeated(self) -> tuple[Numbers, Numbers]:
        """Return the index of each entry as often as it counts, and for each the sign."""
        times = np.abs(self.counts)
        indices = np.repeat(np.arange(len(self)), times)
        return indices, np.sign(self.counts)[indices]


def _comparable(column: pa.Array, codec: ValueCodec | None) -> pa.Array:
    if codec is None:
        # To Arrow, no NaN is equal to another, and -0.0 is 0.0.
        bits = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(column.type)
        return column if bits is None else column.view(bits)
    encoded = codec.encode_arrow(column.drop_null())
    if not column.null_count:
        return pa.array(encoded, pa.binary())
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(encoded, pa.binary()).take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def from_state(values: pa.Array, kind: RowType) -> Bag:
    """Return the rows of some keys from their states, in the order of the keys; null is a key without rows."""
    lengths = values.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    entries = values.flatten()
    counts, rows = entries.flatten()
    return Bag(np.repeat(np.arange(len(values)), lengths), rows, counts.to_numpy(zero_copy_only=False))


def entries_of(bag: Bag) -> pa.StructArray:
    """Return the entries of a bag as a state has them."""
    return pa.StructArray.from_arrays([pa.array(bag.counts), bag.rows], names=["n", "row"])


def refuse_absent(bag: Bag, where: str) -> None:
    """Raise CorruptionError if a row was taken back that was not there."""
    if len(bag) and bag.counts.min() < 0:
        row = bag.rows[int(np.argmin(bag.counts))].as_py()
        raise CorruptionError(
            f"{where}: a row was taken back that it does not have: {row!r:.300}",
            hint="a source that gives the changes of a table gave one that does not fit the table; "
            "if there is none, this is an error of Strandline",
        )


def to_state(bag: Bag, keys: int, where: str) -> pa.Array:
    """Return the states of keys: null for one without rows. Raise CorruptionError for a row that was not there."""
    refuse_absent(bag, where)
    return lists_by_key(entries_of(bag), bag.of_key, keys)


def lists_by_key(entries: pa.StructArray, of_key: Numbers, keys: int) -> pa.ListArray:
    """Return the entries of each key as a list, in their order: null for a key without any."""
    order = np.argsort(of_key, kind="stable")
    sizes = np.bincount(of_key, minlength=keys)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    mask = pa.array(sizes == 0)
    return pa.ListArray.from_arrays(pa.array(offsets), entries.take(pa.array(order)), mask=mask)
