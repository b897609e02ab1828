"""How large rows are, by their values alone: what canonical files are cut by. Described in docs/format.md."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Sizes = npt.NDArray[np.int64]

_LENGTH_BYTES = 4
_PRESENCE_BYTES = 1


def row_sizes(batch: pa.RecordBatch) -> Sizes:
    """Return each row's size in bytes: the same for equal rows, whatever buffers they share and whatever lies unused.

    Raises ValueError for a type that no column of state has.
    """
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        sizes += _sizes(column)
    return sizes


def _sizes(array: pa.Array) -> Sizes:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _LENGTH_BYTES + _of_valid(array, pc.binary_length(array).fill_null(0).to_numpy().astype(np.int64))
    if pa.types.is_map(kind):
        return _LENGTH_BYTES + _of_valid(array, _of_parts(array.offsets, [array.keys, array.items]))
    if pa.types.is_list(kind):
        return _LENGTH_BYTES + _of_valid(array, _of_parts(array.offsets, [array.values]))
    if pa.types.is_struct(kind):
        inner = np.zeros(len(array), np.int64)
        for index in range(kind.num_fields):
            inner += _sizes(array.field(index))
        return _PRESENCE_BYTES + _of_valid(array, inner)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return np.full(len(array), -(-kind.bit_width // 8), np.int64)
    raise ValueError(f"a column of the Arrow type {kind}: state has none such")


def _of_parts(offsets: pa.Array, parts: list[pa.Array]) -> Sizes:
    """Return how large the elements of each list are, which lie between its offsets."""
    at = offsets.to_numpy().astype(np.int64)
    if not len(at):
        return np.zeros(0, np.int64)
    first, last = at[0], at[-1]
    ends = np.zeros(last - first + 1, np.int64)
    for part in parts:
        ends[1:] += np.cumsum(_sizes(part.slice(first, last - first)))
    ends_of: Sizes = np.diff(ends[at - first])
    return ends_of


def _of_valid(array: pa.Array, sizes: Sizes) -> Sizes:
    """Leave out what lies behind nulls: there may be anything."""
    return sizes if not array.null_count else np.where(array.is_valid().to_numpy(False), sizes, 0)
