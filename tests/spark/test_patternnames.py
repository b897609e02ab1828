"""Input files whose names Spark takes for patterns: it would read rows of their epochs more than once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.core.errors import ConfigurationError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.spark.sources import patternnames
from strandline.spark.sources.checks import Relation
from strandline.spark.sources.filechecks import FileSource
from strandline.spark.sources.patternnames import PatternNames
from tests.spark import small
from tests.spark.harness import Case
from tests.spark.test_cleaning import Source, progress

BATCH = 7


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr(patternnames, "qualified", lambda _, path: Path(path).as_uri())
    return Source(tmp_path / "in")


def names_of(source: Source, **options: str) -> tuple[PatternNames, Callable[..., dict[str, bytes]]]:
    """Return the check of a query that begins now, and what writes Spark's log once all steps are read or planned."""
    spark: Any = None
    directory = source.root.parent / "query"
    relation = Relation("json", "x", True, {"path": str(source.root), **options})
    before = progress(source) if source.steps else {}
    names = PatternNames(spark, directory, [FileSource("s", 0, relation)], before, BATCH if before else -1)

    def logged(compacted: tuple[int, ...] = ()) -> dict[str, bytes]:
        files = progress(source, compacted=compacted)
        for name, data in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(data)
        return files

    return names, logged


@pytest.mark.parametrize("name", ["a[1].json", "a{b}.json", "a*.json", "a?.json", "a\\b.json"])
def test_an_epoch_with_a_file_that_is_named_like_a_pattern_is_refused(source: Source, name: str) -> None:
    names, logged = names_of(source)
    source.read("b.json", name)
    logged()
    with pytest.raises(
        ConfigurationError, match=r"source 's': Spark takes the name of the input file .* for a pattern"
    ):
        names.begin(BATCH, lambda: False)


def test_an_epoch_with_a_file_that_hadoop_cannot_read_is_refused(source: Source) -> None:
    names, logged = names_of(source)
    source.read("b.json", "2026-11-29T13:50:00.json")
    logged()
    with pytest.raises(
        ConfigurationError, match=r"cannot read the input file .*50:00\.json: Hadoop reads no local file"
    ):
        names.begin(BATCH, lambda: False)


@pytest.mark.parametrize("compacted", [(), (1,)])
def test_all_steps_that_an_epoch_takes_together_are_looked_at(source: Source, compacted: tuple[int, ...]) -> None:
    source.read("a[0].json", "before.json")
    names, logged = names_of(source)
    source.read("a[1].json")
    source.read("b.json")
    logged(compacted)
    with pytest.raises(ConfigurationError, match=r"a\[1\]\.json"):
        names.begin(BATCH, lambda: False)


@pytest.mark.parametrize("count", [2, 40])
def test_an_epoch_whose_files_are_missing_is_not_read_without_them(source: Source, count: int) -> None:
    """As when a disk is not mounted for a while: Spark would skip them without an error."""
    names, logged = names_of(source)
    source.read(*(f"{at} a.json" for at in range(count)))
    logged()
    (source.root / "1 a.json").unlink()
    with pytest.raises(UnavailableError, match=rf"source 's': 1 of {count} files of the next epoch .*/in/1 a\.json\n"):
        names.begin(BATCH, lambda: False)


def test_an_epoch_is_read_without_files_that_may_be_missing(source: Source) -> None:
    names, logged = names_of(source, ignoremissingfiles="true")
    source.read("a.json", "b.json")
    logged()
    (source.root / "a.json").unlink()
    names.begin(BATCH, lambda: False)


def test_files_in_partitions_or_with_other_names_pass(source: Source) -> None:
    names, logged = names_of(source)
    for read in (["b(1).json", "c^!.json"], ["day=1/a[2].json", "day=1/d.json"]):
        source.read(*read)
        logged()
        names.begin(BATCH, lambda: False)


def test_files_that_spark_lists_by_path_may_have_any_name(source: Source) -> None:
    names, logged = names_of(source, recursivefilelookup="true")
    source.read("a[1].json", "b.json")
    logged()
    names.begin(BATCH, lambda: False)


def test_partitions_below_a_pattern_are_none_to_spark(source: Source) -> None:
    names, logged = names_of(source, path=f"{source.root}/*")
    source.read("day=1/a[2].json", "day=1/d.json")
    logged()
    with pytest.raises(ConfigurationError, match="takes the name"):
        names.begin(BATCH, lambda: False)


def test_a_checkpoint_before_a_planned_step_with_such_a_file_is_refused(source: Source) -> None:
    """The file could not be renamed any more: a start looks for what was planned."""
    names, logged = names_of(source)
    source.read("a.json")
    reached = logged()[f"offsets/{BATCH}"]
    source.read("b[1].json")
    files = {**logged(), f"offsets/{BATCH}": reached}
    with pytest.raises(ConfigurationError, match=r"b\[1\]\.json"):
        names.captured(CheckpointId(1), BATCH, files)


@pytest.mark.spark
def test_a_job_ends_before_rows_come_twice_and_goes_on_when_the_file_has_another_name(spark: Any, case: Case) -> None:
    directory, sink = case.root / "in", sl.sinks.memory()
    small.write_rows(directory, 0, [("ann", "x", 1)])
    small.write_rows(directory, 1, [("bob", "x", 1)])
    source = spark.readStream.schema("user string, v bigint").json(str(directory))
    job = small.job(sl.stream(source), case.root, case.local_dir, sink=sink)
    with job.start(spark) as run:
        run.process_all_available(60)
        run.stop(checkpoint=True)
    small.write_rows(directory, 2, [("ann", "x", 2)])
    moved = next(path for path in directory.iterdir() if "2" in path.name).rename(directory / "report[1].json")
    small.write_rows(directory, 3, [("bob", "x", 2)])
    run = job.start(spark)
    with pytest.raises(sl.errors.ConfigurationError, match=r"takes the name of the input file .*report\[1\]\.json"):
        run.process_all_available(60)
    moved.rename(directory / "report-1.json")
    with job.start(spark) as run:
        run.process_all_available(60)
        run.stop(checkpoint=True)
    assert small.rows_of(sink) == small.counted(["ann", "bob"] * 2)
