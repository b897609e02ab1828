"""Canonical files as others see them: other programs, damage, and machines with little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.core.errors import CorruptionError
from strandline.format.manifest import FileRef
from strandline.snapshot.rows.parquet import Cut, LocalTable, named_schema, read_tables, table_of
from strandline.snapshot.savepoints.tablewriter import TableWriter, join
from tests.snapshot.rows import opener

COLUMNS = pa.schema({"key_group": pa.int32(), "user": pa.string(), "value": pa.struct({"n": pa.int64()})})
SCHEMA = named_schema(COLUMNS, "detect", "seen")
GROUPS = np.repeat(np.arange(16, dtype=np.int32), 100)
USERS = [f"user-{n:04d}" for n in range(len(GROUPS))]


def batch(groups: range) -> pa.RecordBatch:
    mine = np.flatnonzero((groups.start <= GROUPS) & (groups.stop > GROUPS))
    values = [{"n": int(n)} for n in mine]
    return pa.record_batch([GROUPS[mine], [USERS[n] for n in mine], pa.array(values, SCHEMA.field(2).type)], SCHEMA)


def parts(groups: range, directory: Path) -> tuple[list[LocalTable], list[LocalTable]]:
    writer = TableWriter(SCHEMA, groups, 16, directory, Cut(12_000, 200))
    writer.write(batch(groups))
    return writer.finish()


@pytest.fixture
def files(tmp_path: Path) -> list[LocalTable]:
    found, pieces = parts(range(16), tmp_path)
    assert len(found) > 2
    assert not pieces
    return found


def test_pandas_reads_the_files(files: list[LocalTable]) -> None:
    frame = pd.concat([pd.read_parquet(file.path) for file in files])
    assert frame["user"].tolist() == USERS
    assert frame["key_group"].tolist() == GROUPS.tolist()
    assert [value["n"] for value in frame["value"]] == list(range(len(USERS)))


def test_duckdb_reads_the_files(files: list[LocalTable]) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as database:
        table = database.read_parquet(str(files[0].path.parent / "*.parquet"))
        assert table.aggregate("count(*), sum(value.n)").fetchall() == [(1600, sum(range(1600)))]
        assert table.filter("key_group = 7 AND \"user\" = 'user-0742'").select("value.n").fetchall() == [(742,)]
        # Rows are passed over by the statistics of their key group and of their keys.
        ranges = database.sql(
            "SELECT path_in_schema, stats_min_value, stats_max_value "
            f"FROM parquet_metadata('{files[-1].path}') WHERE row_group_id = 0"
        ).fetchall()
    assert ranges[0][0] == "key_group"
    assert int(ranges[0][1]) == files[-1].table.first_key_group
    assert ranges[1] == ("user", USERS[100 * files[-1].table.first_key_group], ranges[1][2])


def test_a_file_that_is_no_table_or_not_the_one_is_named(files: list[LocalTable], tmp_path: Path) -> None:
    file = files[1].table

    def read() -> None:
        list(read_tables([file], range(16), opener(tmp_path)))

    read()
    data = files[1].path.read_bytes()
    for damaged in (b"", data[:-1], data[: len(data) // 2], files[-1].path.read_bytes()):
        files[1].path.write_bytes(damaged)
        with pytest.raises(CorruptionError, match=file.file.name):
            read()
    files[1].path.unlink()
    with pytest.raises(CorruptionError, match=file.file.name):
        read()


def test_pieces_of_one_range_twice_are_refused(tmp_path: Path) -> None:
    first, second, other = (parts(groups, tmp_path)[1][0].table for groups in (range(2), range(2), range(1, 3)))
    for twice in (second, other):
        with pytest.raises(ValueError, match="both have key group"):
            join([], [first, twice], 16, tmp_path)


def test_the_golden_file_is_read_and_written_again(tmp_path: Path) -> None:
    golden = Path(__file__).parent / "golden" / "table-v1.parquet"
    writer = TableWriter(SCHEMA, range(16), 16, tmp_path)
    writer.write(batch(range(16)))
    ((file,), _) = writer.finish()
    expected = table_of(0, 15, 1600, FileRef(name=golden.name, size=golden.stat().st_size, sha256=""))
    found = pa.Table.from_batches(read_tables([expected], range(16), opener(golden.parent)))
    assert found.equals(pa.Table.from_batches([batch(range(16))]))
    if pq.read_metadata(golden).created_by == pq.read_metadata(file.path).created_by:
        assert file.path.read_bytes() == golden.read_bytes()


MEMORY = """
import sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from strandline.snapshot.savepoints.tablewriter import TableWriter, join
from strandline.snapshot.rows.parquet import Cut, named_schema, read_tables
from tests.snapshot.rows import opener

schema = named_schema(pa.schema({"key_group": pa.int32(), "n": pa.int64(), "value": pa.binary()}), "op", "state")
value = pa.array([bytes(200)] * 10_000)
cut, directory, files, pieces = Cut(2 << 20), Path(sys.argv[1]), [], []
for groups in range(0, 3), range(3, 7):  # Group 2 is huge, the others are of several sizes.
    writer = TableWriter(schema, groups, 7, directory, cut)
    for group in groups:
        for _ in range(40 if group == 2 else group):
            writer.write(pa.record_batch([np.full(10_000, group, np.int32), np.arange(10_000), value], schema))
    for found, into in zip(writer.finish(), (files, pieces)):
        into += found
pieces = [p.table for p in pieces]
files += join([f.table for f in files], pieces, 7, directory, cut)
tables = [f.table for f in files]
assert sum(len(batch) for batch in read_tables(tables, range(7), opener(directory))) == 59 * 10_000
assert len(files) >= 59
print(pa.default_memory_pool().max_memory() / cut.file_bytes)
"""


def test_memory_is_bounded_by_a_few_files_not_by_the_state(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Arrow counts what it holds: a file's rows, the batch that comes, and the file as it is written.
    assert 1 < float(done.stdout) < 8
