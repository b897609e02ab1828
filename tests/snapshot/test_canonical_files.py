"""Canonical files: equal state gives equal files, by name and byte, whoever has written them."""

from __future__ import annotations

import hashlib
import json
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.keygroups import BROADCAST_GROUP, BROADCAST_GROUPS
from strandline.snapshot.rows.parquet import Cut, named_schema, read_tables, row_group_range
from strandline.snapshot.savepoints.tablewriter import TableWriter, row_sizes
from tests.snapshot.rows import SCHEMA, Row, batches_of, files_of, opener, plain, same, size_of, states, written
from tests.soak import examples

CUTS = st.builds(Cut, st.sampled_from([1, 150, 400, 1500, 1 << 20]), st.sampled_from([1, 4, 50]))
BATCHES = st.lists(st.sampled_from([0, 1, 5, 1000]), min_size=1, max_size=3).filter(any)


@pytest.mark.timeout(1200)
@examples(60)
@given(states(), CUTS, BATCHES, BATCHES, st.data())
def test_equal_state_gives_equal_files(
    state: tuple[int, list[Row]], cut: Cut, sizes: list[int], other_sizes: list[int], data: st.DataObject
) -> None:
    max_parallelism, rows = state
    one, two = (data.draw(st.integers(1, max_parallelism)) for _ in range(2))
    with tempfile.TemporaryDirectory() as tmp:
        first = written(rows, max_parallelism, one, Path(tmp, "first"), cut, sizes)
        second = written(rows, max_parallelism, two, Path(tmp, "second"), cut, other_sizes)
        assert [f.path.name for f in first] == [f.path.name for f in second]
        for a, b in zip(first, second, strict=True):
            assert a.path.read_bytes() == b.path.read_bytes()
            assert (
                a.path.stem.removeprefix("detect.seen-")
                == a.table.file.sha256
                == hashlib.sha256(a.path.read_bytes()).hexdigest()
            )
            assert a.table == b.table
            assert a.table.file.size == a.path.stat().st_size
        # Nothing is left over that was not finished, and each row is in its file.
        assert {p.name for p in Path(tmp, "first").glob("*.parquet")} == {f.path.name for f in first}
        assert not list(Path(tmp).glob("*/*.writing"))
        expected = files_of(rows, max_parallelism, cut)
        tables = [f.table for f in first]
        found = [plain(list(read_tables([t], range(max_parallelism), opener(first[0].path.parent)))) for t in tables]
        assert [same(file) for file in found] == [same(file) for file in expected]


@examples(60)
@given(states(), CUTS, st.data())
def test_a_range_of_key_groups_is_read_without_the_rest(
    state: tuple[int, list[Row]], cut: Cut, data: st.DataObject
) -> None:
    max_parallelism, rows = state
    start = data.draw(st.integers(0, max_parallelism - 1))
    groups = range(start, data.draw(st.integers(start + 1, max_parallelism)))
    with tempfile.TemporaryDirectory() as tmp:
        files = [f.table for f in written(rows, max_parallelism, 1, Path(tmp), cut)]
        opened: list[str] = []
        found = plain(list(read_tables(files, groups, opener(Path(tmp), opened))))
        assert same(found) == same([row for row in rows if row["key_group"] in groups])
        assert opened == [f.file.name for f in files if f.last_key_group >= start and f.first_key_group < groups.stop]


@examples(80)
@given(states(), BATCHES)
def test_a_row_is_as_large_as_its_values(state: tuple[int, list[Row]], sizes: list[int]) -> None:
    _, rows = state
    found = [int(size) for batch in batches_of(rows, sizes) for size in row_sizes(batch)]
    assert found == [size_of(row) for row in rows]


def test_what_lies_behind_nulls_is_no_part_of_the_state(tmp_path: Path) -> None:
    # Arrow lets a null have any bytes, and a list of nulls any elements.
    hidden = pa.array(["seen", "hidden"], pa.string())
    mask = pa.array([False, True])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), hidden, mask=mask)
    structs = pa.StructArray.from_arrays([hidden], ["s"], mask=mask)
    strings = pa.Array.from_buffers(
        pa.string(), 2, [structs.buffers()[0], *hidden.buffers()[1:]]
    )  # fmt: skip
    for dirty in (lists, structs, strings):
        clean = pa.array(dirty.to_pylist(), dirty.type)
        batches = [pa.record_batch([pa.array([0, 0], pa.int32()), a], ["key_group", "c"]) for a in (dirty, clean)]
        assert batches[0].to_pylist() == batches[1].to_pylist()
        assert row_sizes(batches[0]).tolist() == row_sizes(batches[1]).tolist()
        names = set()
        for batch in batches:
            writer = TableWriter(named_schema(batch.schema, "op", "state"), range(4), 4, tmp_path)
            writer.write(batch)
            names |= {file.path.name for file in writer.finish()[0]}
        assert len(names) == 1


def test_row_groups_end_where_key_groups_do(tmp_path: Path) -> None:
    groups = [0] * 30 + [1] * 30 + [2] * 250 + [3] * 5 + [4] * 60
    rows = [{**dict.fromkeys(SCHEMA.names), "key_group": g, "user": str(n)} for n, g in enumerate(groups)]
    (file,) = written(rows, 8, 1, tmp_path, Cut(1 << 20, 100))
    with pq.ParquetFile(file.path) as parquet:
        counts = [parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups)]
        assert counts == [60, 100, 100, 50, 65]
        ranges = [row_group_range(parquet, n) for n in range(parquet.num_row_groups)]
    assert ranges == [(0, 1), (2, 2), (2, 2), (2, 2), (3, 4)]


def test_bytes_do_not_depend_on_how_a_batch_was_made(tmp_path: Path) -> None:
    # More rows than a page holds: where pages end must not show what they came in.
    count = 50_000
    schema = pa.schema({"key_group": pa.int32(), "user": pa.string(), "value": pa.int64()})
    users = pa.array([f"{n:0100d}" for n in range(count)])
    rows = pa.record_batch([np.arange(count, dtype=np.int32) // 40_000, users, np.arange(count)], schema)
    names = set()
    for size in (count, 777, 4096):
        writer = TableWriter(named_schema(schema, "op", "state"), range(4), 4, tmp_path)
        for first in range(0, count, size):
            writer.write(rows.slice(first, size))
        ((file,), _) = writer.finish()
        names.add(file.path.name)
    assert len(names) == 1
    metadata = pq.read_metadata(file.path)
    assert metadata.metadata == {b"strandline.table": b'{"operator": "op", "state": "state"}'}
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [40_000, 10_000]


def test_broadcast_rows_have_files_of_their_own(tmp_path: Path) -> None:
    writer = TableWriter(SCHEMA, BROADCAST_GROUPS, 128, tmp_path, Cut(1000, 100))
    rows = [{**dict.fromkeys(SCHEMA.names), "user": f"{n:03d}"} for n in range(30)]
    for batch in batches_of(rows, [7]):
        writer.write(batch)
    files, pieces = writer.finish()
    assert not pieces
    assert len(files) > 1
    assert {(f.table.first_key_group, f.table.last_key_group) for f in files} == {(BROADCAST_GROUP, BROADCAST_GROUP)}
    for groups in (range(3), range(100, 128), BROADCAST_GROUPS):
        assert plain(list(read_tables([f.table for f in files], groups, opener(tmp_path)))) == rows


@pytest.mark.parametrize(
    ("uid", "state", "name"),
    [
        ("detect", "seen", "detect.seen"),
        ("late-orders", "timers.event", "late-orders.timers.event"),
        ("a.b", "c-d", "a_b.c_d"),
        ("_hidden", "_v", "hidden._v"),
        ("ü x/../y?#%*[a]", "größe", "x____y_____a_.gr__e"),
        ("'", "v", "operator.v"),
        ("x" * 300, "y" * 300, f"{'x' * 80}.{'y' * 80}"),
    ],
)
def test_names_of_files_begin_with_those_of_operator_and_state(tmp_path: Path, uid: str, state: str, name: str) -> None:
    schema = named_schema(pa.schema({"key_group": pa.int32()}), uid, state)
    writer = TableWriter(schema, range(4), 4, tmp_path)
    writer.write(pa.record_batch([pa.array([0], pa.int32())], schema))
    ((file,), _) = writer.finish()
    assert file.table.file.path == f"data/{name}-{file.table.file.sha256}.parquet"
    found = pq.read_metadata(file.path).metadata[b"strandline.table"]
    assert json.loads(found) == {"operator": uid, "state": state}


def test_a_state_without_rows_has_no_files(tmp_path: Path) -> None:
    assert written([], 128, 3, tmp_path, Cut(), [1, 0]) == []


def test_rows_are_taken_in_order_only(tmp_path: Path) -> None:
    def batch(*groups: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"key_group": g} for g in groups], SCHEMA)

    for wrong in (batch(4), batch(6, 5), batch(8), pa.RecordBatch.from_pylist([{"key_group": 6}])):
        writer = TableWriter(SCHEMA, range(4, 8), 128, tmp_path)
        writer.write(batch(5))
        with pytest.raises(ValueError, match="expected"):
            writer.write(wrong)


def test_pairs_of_parallelisms_over_many_key_groups(tmp_path: Path) -> None:
    rows = [{**dict.fromkeys(SCHEMA.names), "key_group": n * n % 300, "user": f"{n}"} for n in range(900)]
    rows.sort(key=lambda row: row["key_group"])
    found = [
        [f.path.name for f in written(rows, 300, parallelism, tmp_path, Cut(800, 8))] for parallelism in (1, 7, 300)
    ]
    assert all(a == b for a, b in pairwise(found))
    assert len(found[0]) > 50
