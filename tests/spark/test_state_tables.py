"""State as DataFrames: of snapshots of every form, by keys, and beside a job that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.core.errors import NotFoundError
from strandline.snapshot.opening.snapshot import open_snapshot
from strandline.snapshot.tables.reader import StateReader
from strandline.snapshot.tables.table import find_table
from strandline.spark.tables.source import Options, TableReader
from tests.snapshot.stateful import checkpoint_of, savepoint_of
from tests.spark import small

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    checkpoint = checkpoint_of(tmp_path_factory.mktemp("job"))
    return [checkpoint, savepoint_of(checkpoint, "canonical")]


def arrow(frame: Any) -> pa.Table:
    found: pa.Table = frame.toArrow()
    return found.sort_by([(name, "ascending") for name in found.schema.names if name != "value"])


def test_tables_of_a_checkpoint_and_a_savepoint(spark: Any, folders: list[Path]) -> None:
    for folder, names in zip(folders, (("history", "pair"), ("tags", "short")), strict=True):
        snapshot = open_snapshot(str(folder))
        for name in names:
            frame = sl.state.read(spark, folder, f"op.{name}")
            with StateReader() as reader:
                wanted = pa.Table.from_batches(reader.rows(find_table(snapshot, name)))
            assert arrow(frame).to_pylist() == wanted.to_pylist()
    # A task for each partition.
    frame = sl.state.read(spark, folders[0], "top")
    assert frame.rdd.getNumPartitions() == 2
    operators = sl.state.read(spark, folders[0], metadata="operators").collect()
    assert [(row.operator, row.parallelism) for row in operators] == [("op", 2)]


def test_beside_a_running_job(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    source = tmp_path / "in"
    small.write_rows(source, 0, [("ann", "a", 1), ("ben", "b", 2), ("ann", "a", 3)])
    checkpoints = sl.Checkpoints(tmp_path / "ck", retain=1)
    job = small.job(sl.stream(small.source(spark, source)), tmp_path, local_dir, checkpoints=checkpoints)
    url = str(tmp_path / "ck" / "small")
    with job.start(spark) as run:
        run.process_all_available(60)
        run.checkpoint(60)
        (table, *_) = sl.state.tables(url)
        frame = sl.state.read(spark, url, table.table)
        small.write_rows(source, 1, [("ann", "a", 1), ("cid", "a", 1)])
        run.process_all_available(60)
        run.checkpoint(60)
        # What was read is the checkpoint that was the newest, which the job has deleted since; what is read by the job's
        # name is that one now.
        assert {(row.user, row.value) for row in frame.collect()} == {("ann", 2), ("ben", 1)}
        newest = spark.read.format("strandline").option("url", url).option("table", table.table).load()
        assert {(row.user, row.value) for row in newest.collect()} == {("ann", 3), ("ben", 1), ("cid", 1)}
        assert [row["value"] for row in sl.state.lookup(url, table.table, "ann")] == [3]
        assert sl.state.lookup(url, table.table, "dan") == []
        with sl.state.opened(url) as opened:
            found = [[row["value"] for row in opened.lookup(table.table, key)] for key in ("ann", "dan", "ann")]
            rows = [row for batch in opened.batches(table.table) for row in batch.to_pylist()]
            with pytest.raises(NotFoundError, match="no table 'absent'"):
                opened.batches("absent")
        assert found == [[3], [], [3]]
        assert {(row["user"], row["value"]) for row in rows} == {("ann", 3), ("ben", 1), ("cid", 1)}


def test_a_filter_leaves_other_uses_of_the_table_alone(spark: Any, folders: list[Path]) -> None:
    """Spark keeps the plan of what was filtered last, for all that read the same DataFrame."""
    frame = sl.state.read(spark, folders[0], "top")
    rows = frame.count()
    one, other = frame.where("k = 'k7' AND value < 100"), frame.where("k IN ('k8', 'absent', NULL)")
    assert [tuple(row) for row in one.collect()] == [(24, "k7", 7)]
    assert frame.count() == rows
    assert {row.k for row in one.union(other).collect()} == {"k7", "k8"}
    assert one.union(frame).count() == rows + 1
    assert frame.where("k = 'k7' AND k = 'k8'").count() == 0


def test_splits_have_no_files_of_others(folders: list[Path]) -> None:
    from pyspark.sql.datasource import InputPartition

    reader = TableReader(Options.of({"url": str(folders[0]), "table": "op.top"}))
    parts = reader.partitions()
    assert [len(part.operator.partitions) for part in parts] == [1, 1]  # type: ignore[attr-defined]
    read = [row["k"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert len(read) == len(set(read))
    assert "k7" in read
    # Where there are none, Spark has one of its own read.
    assert list(reader.read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "got none"),
        ({"url": "x"}, "either table or metadata; got url"),
        ({"url": "x", "table": "t", "metadata": "m"}, "got metadata, table, url"),
        ({"url": "x", "table": "t", "tabel": "secret"}, "unknown option tabel"),
    ],
)
def test_options(given: dict[str, str], said: str) -> None:
    with pytest.raises(sl.errors.ConfigurationError, match=said) as caught:
        Options.of(given)
    assert "secret" not in str(caught.value)


def test_options_of_the_storage() -> None:
    found = Options.of({"url": "s3://x", "metadata": "files", "storage.region": "eu"})
    assert found == Options("s3://x", "", "files", {"region": "eu"})
