"""Rows of panes, one for each key and pane, even if several entries hold parts of its accumulator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa

from strandline.core.errors import CorruptionError
from strandline.format.keys import KeyCodec
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.format.schemas import Schemas
from strandline.runtime.operators.aggregates.accumulators import Accumulators, FieldSpec
from strandline.runtime.operators.aggregates.grouping import Groups
from strandline.runtime.state.panebytes import MARK_END, PaneCodec, key_of, pack_mark, parts_of, read_mark
from strandline.snapshot.rows.codec import RowCodec
from strandline.snapshot.rows.columns import VALUE, WINDOW_END, first_row, spread
from strandline.types.datatypes import Field, StructType, TimestampType, parse_schema, parse_type
from strandline.types.scalars import Numbers

_END_BYTES = 8
_TIMES = pa.timestamp("us", "UTC")


class PaneRows(RowCodec):
    """Codec of panes. A row has a key, the end of a pane, and the accumulator.

    A row without key and value is the mark of its key group: windows that end up to its time have fired.
    """

    whole_groups = True

    def __init__(self, operator: OperatorInfo, state: StateInfo, over_us: int | None) -> None:
        stored = parse_type(state.value_type)
        assert isinstance(stored, StructType)
        width = len(parse_schema(operator.key_schema).fields)
        self._panes = PaneCodec(state.name, stored, Schemas.of(state))
        self._value = StructType(stored.fields[width:])
        super().__init__(operator, state, [Field(WINDOW_END, TimestampType()), Field(VALUE, self._value)], over_us)
        self._codec = KeyCodec([*self._key_types, TimestampType()])

    def _nullable(self) -> list[str]:
        return [*(field.name for field in self._keys), VALUE]

    @cached_property
    def _accumulators(self) -> Accumulators:
        """Loaded only for a merge, since the library for sketches may be missing."""
        merges = self.state.merge or {}
        missing = [field.name for field in self._value.fields if field.name not in merges]
        if missing:
            raise CorruptionError(
                f"{self._columns.where}: the manifest does not say how two accumulators become one: "
                f"'merge' has nothing of {', '.join(missing)}"
            )
        return Accumulators([FieldSpec(f.name, f.type.ddl, merges[f.name]) for f in self._value.fields], [])

    # -- from entries

    def _decoded(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        marks: list[tuple[int, int]] = []
        batches: list[pa.RecordBatch] = []
        of_batch: list[tuple[int, int]] = []
        for key, value in zip(keys, values, strict=True):
            group, end_us, _ = parts_of(key)
            if end_us == MARK_END:
                marks.append((group, read_mark(value)))
            else:
                batches.append(self._panes.read(value))
                of_batch.append((group, end_us))
        return self._with_marks(marks, self._merged(of_batch, batches))

    def _merged(self, of_batch: list[tuple[int, int]], batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Return one row for each key of each pane, in the order of rows; batches are in the order of their epochs."""
        if not batches:
            return self._columns.batch([pa.nulls(0, field.type) for field in self.schema])
        rows = pa.concat_batches(batches)
        sizes = [batch.num_rows for batch in batches]
        groups, ends = (np.repeat(np.array(column, np.int64), sizes) for column in zip(*of_batch, strict=True))
        width = len(self._key_types)
        encoded = self._codec.encode_arrow(pa.array(groups, pa.int32()), [*rows.columns[:width], _times(ends)])
        coded = pa.array(encoded, pa.binary()).dictionary_encode()
        values = rows.columns[width:]
        of_row = coded.indices.to_numpy()
        if len(coded.dictionary) < len(rows):
            values = self._accumulators.merge(values, Groups(of_row, len(coded.dictionary)))
        # A dictionary has its values in the order of their first rows.
        keys = coded.dictionary.to_pylist()
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
        found_groups, columns = self._codec.decode_arrow([keys[row] for row in order.tolist()])
        struct = pa.StructArray.from_arrays(spread(values, order), fields=list(self.schema.field(VALUE).type))
        return self._columns.batch([pa.array(found_groups), *columns, struct])

    def _with_marks(self, marks: list[tuple[int, int]], rows: pa.RecordBatch) -> pa.RecordBatch:
        """Insert each key group's mark before its rows."""
        if not marks:
            return rows
        groups, times = (np.array(column, np.int64) for column in zip(*marks, strict=True))
        nothing = [pa.nulls(len(marks), field.type) for field in self.schema]
        nothing[0] = pa.array(groups, pa.int32())
        nothing[-2] = _times(times)
        both = pa.concat_batches([self._columns.batch(nothing), rows])
        order = np.argsort(both.column(0).to_numpy(), kind="stable")
        return both.take(pa.array(order))

    # -- to entries

    def _encoded(self, columns: list[pa.Array]) -> list[tuple[bytes, bytes]]:
        is_mark = self._marks(columns)
        at = np.flatnonzero(is_mark)
        marks = spread([columns[0], columns[-2].view(pa.int64())], at)
        entries = [
            (key_of(group, MARK_END, 0), pack_mark(mark_us))
            for group, mark_us in zip(*(column.to_pylist() for column in marks), strict=True)
        ]
        self._in_order([key for key, _ in entries])
        if len(at) < len(is_mark):
            entries += self._entries(spread(columns, np.flatnonzero(~is_mark)) if len(at) else columns)
        entries.sort()
        return entries

    def _entries(self, columns: Sequence[pa.Array]) -> list[tuple[bytes, bytes]]:
        keys = self._codec.encode_arrow(columns[0], columns[1:-1])
        self._in_order(keys)
        # Entries are ordered by pane, then by key, in a key group.
        moved = [key[:2] + key[-_END_BYTES:] + key[2:-_END_BYTES] for key in keys]
        order = np.array(sorted(range(len(keys)), key=moved.__getitem__), np.int64)
        groups, *stored, ends, values = spread(columns, order)
        batch = pa.RecordBatch.from_arrays([*stored, *values.flatten()], schema=self._panes.schema)
        group_numbers, end_numbers = groups.to_numpy(), ends.view(pa.int64()).to_numpy()
        changes = (np.diff(group_numbers) != 0) | (np.diff(end_numbers) != 0)
        bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(batch)]
        panes = list(zip(group_numbers.tolist(), end_numbers.tolist(), strict=True))
        return [
            (key_of(*panes[start], 0), self._panes.pack(batch.slice(start, stop - start)))
            for start, stop in pairwise(bounds)
        ]

    def _marks(self, columns: Sequence[pa.Array]) -> Numbers:
        """Return which rows are marks; refuse rows that are neither marks nor complete."""
        parts = [*columns[1:-2], columns[-1]]
        absent = np.column_stack([part.is_null().to_numpy(zero_copy_only=False) for part in parts])
        is_mark: Numbers = np.all(absent, axis=1)
        some = np.any(absent, axis=1) & ~is_mark
        if some.any():
            row = first_row(some)
            column = [*(field.name for field in self._keys), VALUE][first_row(absent[row])]
            why = "it is null, and other parts of the row are not: a mark has neither a key nor a value"
            raise self._columns.refused(column, row, why)
        return is_mark


def _times(numbers: Numbers) -> pa.Array:
    return pa.array(numbers, pa.int64()).view(_TIMES)
