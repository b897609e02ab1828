"""Which files a start looks for: those planned when the snapshot was taken, and those that a later one has read."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import ConfigurationError
from strandline.core.ids import CheckpointId
from strandline.spark.sources import filechecks
from strandline.spark.sources.checks import Relation
from strandline.spark.sources.filechecks import ChangedFiles, FileSource, LaterLog, Move, check_files, moved_files
from strandline.spark.sources.files import Cleaning
from strandline.spark.sources.log import last_step, logged_paths, with_moved_files
from tests.spark.runs import run_of
from tests.spark.test_cleaning import NAMES, Source, progress

BATCH = 7


def check(
    files: dict[str, bytes], *later: LaterLog, name: str = "", archive: str | None = None, **options: str
) -> None:
    spark: Any = None
    source = FileSource(name, 0, Relation("json", "x", True, options), Cleaning("", archive))
    check_files(spark, [source], files, BATCH, later)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "in")


def test_files_that_a_snapshot_covers_may_be_gone(source: Source) -> None:
    source.read(*NAMES)
    files = progress(source)
    for name in NAMES:
        (source.root / name).unlink()
    check(files, LaterLog([], files))


@pytest.mark.parametrize("compacted", [(), (1,)])
def test_files_that_spark_had_planned_are_looked_for(source: Source, compacted: tuple[int, ...]) -> None:
    source.read("a.json")
    reached = progress(source)[f"offsets/{BATCH}"]
    source.read(NAMES[1], NAMES[2])
    files = {**progress(source, compacted=compacted), f"offsets/{BATCH}": reached}
    assert last_step(files, 0) == 1
    (source.root / "a.json").unlink()
    check(files)
    (source.root / NAMES[2]).unlink()
    with pytest.raises(
        ConfigurationError, match=r"the source: 1 file is missing .*: .*/in/day=1/ü%20.json\n"
    ) as caught:
        check(files)
    # A job that works goes on when they are back, as after a disk was not mounted.
    assert run_of()._supervisor._may_restart(caught.value)


def test_a_source_that_read_no_files_before_is_refused(source: Source) -> None:
    source.read("a.json")
    files = {**progress(source), f"offsets/{BATCH}": b"v1\n{}\n17"}
    with pytest.raises(ConfigurationError, match="reads json files, but was another kind of source"):
        check(files)


@pytest.mark.parametrize("count", [1, 40])
def test_files_that_a_later_checkpoint_has_read_are_looked_for(
    source: Source, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    source.read("a.json")
    files = progress(source)
    source.read(*(f"{n}.json" for n in range(count)))
    later = LaterLog(["other", "s"], progress(None, source))
    check(files, later, name="s")
    (source.root / "0.json").unlink()
    check(files, LaterLog(["other"], progress(source)), name="s")
    with pytest.raises(ConfigurationError, match=r"source 's': 1 file is missing .*/in/0.json\n") as caught:
        check(files, later, name="s", archive="/old")
    assert "has moved files that it had read to /old" in caught.value.hint
    with caplog.at_level(logging.WARNING):
        check(files, later, name="s", ignoremissingfiles="true")
    assert "continues without them" in caplog.text


def test_a_later_log_has_offsets_of_other_kinds_of_sources() -> None:
    lines = b'v1\n{}\n{"orders":{"0":7,"12":0}}\n{"shards":{"shard-0":5}}\n{"logOffset":3}\n17'
    assert LaterLog([], {"offsets/3": lines}, 3).partitions == {("orders", 0), ("orders", 12)}


def test_a_log_of_files_that_were_moved(source: Source) -> None:
    source.read(*NAMES)
    files = progress(source, compacted=[0])
    now = "file:///else%20where"
    moved = with_moved_files(files, 0, Move(source.root.as_uri(), now).path)
    before = logged_paths(files, 0)
    assert logged_paths(moved, 0) == {now + path.removeprefix(source.root.as_uri()) for path in before}
    assert moved.keys() == {"sources/0/0.compact"}
    assert logged_paths(with_moved_files(moved, 0, Move(now, source.root.as_uri()).path), 0) == before


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filechecks, "qualified", lambda _, path: Path(path).as_uri())


def test_of_files_that_were_moved_those_that_the_snapshot_covers_may_be_gone(
    source: Source, without_spark: None
) -> None:
    """Later checkpoints name the files where they were before the move, or where they are now."""
    before, moved = source.root, source.root.with_name("moved")
    source.read("a.json")
    files = progress(source)
    source.read("b.json")
    later = LaterLog([], progress(source))
    options = {"path": str(moved), filechecks.MOVED_FROM: str(before)}
    move = Move(before.as_uri(), moved.as_uri())
    files |= with_moved_files(files, 0, move.path)
    now = LaterLog([], with_moved_files(later.files, 0, move.path))
    before.rename(moved)
    (moved / "a.json").unlink()
    check(files, later, now, **options)
    (moved / "b.json").unlink()
    for each in (later, now):
        with pytest.raises(ConfigurationError, match=r"1 file is missing .*/moved/b.json\n"):
            check(files, each, **options)


@pytest.mark.parametrize(("before", "now"), [("in", "moved"), ("in/old", "in"), ("in", "in/new")])
def test_the_log_of_files_that_were_moved_is_changed_once(
    tmp_path: Path, without_spark: None, before: str, now: str
) -> None:
    (tmp_path / before).parent.mkdir(exist_ok=True)
    source = Source(tmp_path / before)
    source.read(*NAMES)
    options = {"path": str(tmp_path / now), filechecks.MOVED_FROM: str(tmp_path / before)}
    spark: Any = None
    sources = [FileSource("", 0, Relation("json", "x", True, options))]
    moved = moved_files(spark, sources, progress(source))
    move = Move((tmp_path / before).as_uri(), (tmp_path / now).as_uri())
    expected = with_moved_files(progress(source), 0, move.path)
    assert moved == progress(source) | expected
    assert moved_files(spark, sources, moved) == moved


@pytest.mark.parametrize(("now", "is_moved"), [("new", True), ("", False)])
def test_of_files_of_two_directories_those_of_one_were_moved(
    tmp_path: Path, without_spark: None, now: str, is_moved: bool
) -> None:
    """A job read {old,new}/, and reads new/. One that reads the directory above may read new files of old/."""
    source = Source(tmp_path / "in")
    source.read("old/a.json")
    source.read("new/b.json")
    options = {"path": str(source.root / now), filechecks.MOVED_FROM: str(source.root / "old")}
    spark: Any = None
    sources = [FileSource("", 0, Relation("json", "x", True, options))]
    moved = moved_files(spark, sources, progress(source))
    names = {path.removeprefix(source.root.as_uri()) for path in logged_paths(moved, 0)}
    assert names == {"/new/a.json" if is_moved else "/old/a.json", "/new/b.json"}
    assert moved_files(spark, sources, moved) == moved


def test_files_that_grow_are_told_of_once(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    def changed_at(batch: int) -> bool:
        caplog.clear()
        changes.captured(CheckpointId(1), batch, progress(source, other, batch=batch))
        return "was changed after it was read" in caplog.text

    other = Source(source.root.parent / "other")
    source.read("a.json")
    other.read("b.json")
    relation = Relation("json", "x", True)
    mine = FileSource("s", 0, relation), FileSource("cleaned", 1, relation, Cleaning(str(other.root)))
    changes = ChangedFiles(mine, progress(source, other), BATCH)
    # What was read before is not looked at again.
    (source.root / "a.json").write_text("more")
    source.read("c.json", "d.json")
    assert not changed_at(8)
    source.read("e.json", "f.json")
    other.read("g.json")
    (source.root / "f.json").write_text("more")
    (source.root / "e.json").unlink()
    (other.root / "g.json").write_text("more")
    assert changed_at(9)
    assert "source 's': " in caplog.text
    assert str(source.root / "f.json") in caplog.text
    source.read("h.json")
    (source.root / "h.json").write_text("more")
    assert not changed_at(10)
