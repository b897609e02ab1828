"""Entries of states, their rows, and entries again."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from strandline.snapshot.rows import rows_of
from tests.snapshot.strategies import Entries, Stored, list_states, timer_states, value_states


def whole(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    return pa.concat_batches(batches) if batches else schema.empty_table().combine_chunks().to_batches()


def shuffled(rows: pa.RecordBatch, draw: st.DataObject) -> pa.RecordBatch:
    return rows.take(pa.array(draw.draw(st.permutations(range(rows.num_rows))), pa.int64()))


def check_round_trip(stored: Stored, wanted: Entries, draw: st.DataObject) -> pa.RecordBatch:
    codec = rows_of(stored.operator, stored.state)
    rows = codec.decode(stored.entries)
    rows.validate(full=True)
    assert rows.schema == codec.schema
    assert codec.encode(rows) == wanted
    assert codec.encode(shuffled(rows, draw)) == wanted
    return rows


@given(value_states(), st.data())
def test_values_maps_and_broadcast_state(stored: Stored, draw: st.DataObject) -> None:
    rows = check_round_trip(stored, stored.entries, draw)
    assert rows.num_rows == len(stored.entries)


@given(timer_states(), st.data())
def test_timers(stored: Stored, draw: st.DataObject) -> None:
    rows = check_round_trip(stored, stored.entries, draw)
    # In the order of keys, which their own entries are not in.
    moved = [key[:2] + key[10:] + key[2:10] for key, _ in stored.entries]
    assert rows == rows_of(stored.operator, stored.state).decode(stored.entries).take(
        pa.array(range(len(moved)), pa.int64())
    )


@given(list_states(), st.data())
def test_lists(lists: tuple[Stored, Entries], draw: st.DataObject) -> None:
    stored, joined = lists
    rows = check_round_trip(stored, joined, draw)
    assert rows.equals(rows_of(stored.operator, stored.state).decode(joined)) or "nan" in str(rows.to_pylist())
