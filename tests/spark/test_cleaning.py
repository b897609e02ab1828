"""Which source files are taken away, and when: those that no checkpoint can need. Without Spark."""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.core.errors import FencedError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.spark.sources.cleaning import SourceCleaner
from strandline.spark.sources.files import LocalSourceFiles, relative_path
from strandline.spark.sources.log import (
    UnreadableLogError,
    damage_in_logs,
    files_read,
    logged_paths,
    only_files,
    reached_steps,
)
from tests.spark.harness import eventually

NAMES = ["a.json", "day=1/b c.json", "day=1/ü%20.json", "day=2/x#y;z.json"]


def owner() -> None:
    """Nobody has taken the job over."""


def numbered(*numbers: int) -> list[CheckpointId]:
    return [CheckpointId(number) for number in numbers]


class Source:
    """A directory of files, and Spark's log of having read them in steps."""

    def __init__(self, root: Path, archive: Path | None = None) -> None:
        self.root = root
        root.mkdir()
        self.steps: list[list[Path]] = []
        self.files = LocalSourceFiles(root, archive)

    def read(self, *names: str) -> None:
        """Have the next step read these new files."""
        self.steps.append([self.root / name for name in names])
        for number, path in enumerate(self.steps[-1]):
            path.parent.mkdir(exist_ok=True)
            path.write_text(path.name)
            os.utime(path, (1_700_000_000, 1_700_000_000.25 + number))

    def left(self) -> list[str]:
        return sorted(p.relative_to(self.root).as_posix() for p in self.root.rglob("*") if p.is_file())


def entry(path: Path, step: int, at: int) -> str:
    timestamp = 1_700_000_000_250 + 1000 * at
    return json.dumps({"path": f"file://{quote(str(path), safe='/;=')}", "timestamp": timestamp, "batchId": step})


def progress(
    *sources: Source | None, batch: int = 7, compacted: Iterable[int] = (), at: int | None = None
) -> dict[str, bytes]:
    """Return Spark's files once the sources have read all of their steps, some log files compacted and gone."""
    files = {}
    offsets = ["v1", "{}"]
    for index, source in enumerate(sources):
        steps = source.steps if source is not None else []
        offsets.append(json.dumps({"logOffset": len(steps) - 1}) if steps else "-")
        lines = [[entry(p, n, i if at is None else at) for i, p in enumerate(step)] for n, step in enumerate(steps)]
        for number, step in enumerate(lines):
            files[f"sources/{index}/{number}"] = step
        for number in sorted(compacted):
            if number < len(lines):
                files[f"sources/{index}/{number}.compact"] = [line for step in lines[: number + 1] for line in step]
                for before in range(number + 1):
                    files.pop(f"sources/{index}/{before}", None)
    logged = {name: "\n".join(["v1", *lines]).encode() for name, lines in files.items()}
    return {**logged, f"offsets/{batch}": "\n".join(offsets).encode(), "metadata": b"{}"}


def test_files_are_taken_away_once_the_oldest_checkpoint_covers_them(tmp_path: Path) -> None:
    source = Source(tmp_path / "in")
    cleaner = SourceCleaner({0: source.files})
    one, two, three = numbered(1, 2, 3)
    source.read(*NAMES)
    cleaner.captured(one, 0, progress(source, batch=0))
    source.read("c.json")
    cleaner.captured(two, 1, progress(source, batch=1))
    # Retained: both. The older one has still to be gone on from.
    cleaner.completed(one, owner)
    eventually(lambda: source.left() == ["c.json"], "what checkpoint 1 covers is gone")
    source.read("d.json")
    # What was read after the capture is not in any checkpoint, whatever is completed.
    cleaner.completed(two, owner)
    eventually(lambda: source.left() == ["d.json"], "what checkpoint 2 covers is gone")
    cleaner.captured(three, 2, progress(source, batch=2))
    cleaner.completed(two, owner)
    cleaner.completed(None, owner)
    cleaner.close()
    assert source.left() == ["d.json"]


def test_nothing_goes_for_a_checkpoint_of_another_run(tmp_path: Path) -> None:
    source = Source(tmp_path / "in")
    cleaner = SourceCleaner({0: source.files})
    source.read("a.json")
    cleaner.captured(CheckpointId(9), 0, progress(source, batch=0))
    cleaner.completed(CheckpointId(8), owner)
    cleaner.close()
    assert source.left() == ["a.json"]


@pytest.mark.parametrize("compacted", [(), (9,), (9, 19), (24,)])
def test_a_new_run_takes_away_what_the_one_before_has_left(tmp_path: Path, compacted: tuple[int, ...]) -> None:
    """The crash came between the publication and the cleaning; most of the log is history that is long gone."""
    source = Source(tmp_path / "in")
    for step in range(25):
        source.read(*(f"{step}-{n}.json" for n in range(3)), f"{step}/only.json")
    for step in range(20):
        for path in source.steps[step]:
            path.unlink()
    cleaner = SourceCleaner({0: source.files})
    spark_dir = tmp_path / "spark"
    for name, data in progress(source, batch=0, compacted=compacted).items():
        (spark_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (spark_dir / name).write_bytes(data)
    (spark_dir / "commits").mkdir()
    (spark_dir / "commits" / "0").touch()
    cleaner.restored(CheckpointId(4), 0, spark_dir)
    source.read("new.json")
    cleaner.captured(CheckpointId(5), 1, progress(source, batch=1, compacted=compacted))
    cleaner.completed(CheckpointId(4), owner)
    cleaner.close()
    assert source.left() == ["new.json"]


def test_several_sources_go_each_by_its_own_steps(tmp_path: Path) -> None:
    sources = [Source(tmp_path / name) for name in ("one", "kept", "three")]
    cleaner = SourceCleaner({0: sources[0].files, 2: sources[2].files})
    for source in sources:
        source.read("a.json", "b.json")
    sources[2].read("c.json")
    cleaner.captured(CheckpointId(1), 3, progress(*sources, batch=3))
    cleaner.completed(CheckpointId(1), owner)
    cleaner.close()
    assert [source.left() for source in sources] == [[], ["a.json", "b.json"], []]
    nothing = Source(tmp_path / "silent")
    # The first source stands in the plan twice: the lines of the others are behind both.
    twice = progress(sources[2], sources[2], sources[0])
    assert reached_steps(twice, 7, [0, 1], [0, 0, 1]) == {0: 1, 1: 0}
    with pytest.raises(UnreadableLogError, match="has 3 sources, expected 2"):
        reached_steps(twice, 7, [0, 1], [0, 1])
    assert reached_steps(progress(sources[0], None, nothing), 7, [0, 1, 2]) == {0: 0, 1: -1, 2: -1}


def test_archived_files_keep_their_paths_and_overwrite_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = tmp_path / "old"
    source = Source(tmp_path / "in", archive)
    source.read(*NAMES)
    (archive / "day=1").mkdir(parents=True)
    (archive / "day=1" / "b c.json").write_text("somebody else's")
    cleaner = SourceCleaner({0: source.files})
    cleaner.captured(CheckpointId(1), 0, progress(source, batch=0))
    with caplog.at_level(logging.WARNING):
        cleaner.completed(CheckpointId(1), owner)
        cleaner.close()
    assert source.left() == ["day=1/b c.json"]
    assert sorted(p.relative_to(archive).as_posix() for p in archive.rglob("*.json")) == sorted(NAMES)
    assert (archive / "day=1" / "b c.json").read_text() == "somebody else's"
    assert (archive / "day=1" / "ü%20.json").read_text() == "ü%20.json"
    (said,) = [record.message for record in caplog.records]
    assert "b c.json is not removed: the archive has another file of its name" in said


def test_a_file_that_was_changed_after_it_was_read_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = Source(tmp_path / "in")
    source.read("a.json", "b.json", "c.json")
    cleaner = SourceCleaner({0: source.files})
    cleaner.captured(CheckpointId(1), 0, progress(source, batch=0))
    (tmp_path / "in" / "b.json").write_text("replaced")
    (tmp_path / "in" / "c.json").unlink()
    with caplog.at_level(logging.WARNING):
        cleaner.completed(CheckpointId(1), owner)
        eventually(lambda: "a.json" not in source.left(), "the others are gone")
        cleaner.completed(CheckpointId(1), owner)
        cleaner.close()
    assert source.left() == ["b.json"]
    (said,) = [record.message for record in caplog.records]
    assert "b.json is not removed: it was changed after it was read" in said


def test_a_driver_that_was_replaced_takes_nothing_away(tmp_path: Path) -> None:
    source = Source(tmp_path / "in")
    source.read("a.json")
    cleaner = SourceCleaner({0: source.files})
    cleaner.captured(CheckpointId(1), 0, progress(source, batch=0))

    def fenced() -> None:
        raise FencedError("generation 1 was replaced by a newer driver")

    cleaner.completed(CheckpointId(1), fenced)
    cleaner.close()
    assert source.left() == ["a.json"]


def test_storage_that_refuses_is_asked_again_after_the_next_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(tmp_path / "in", tmp_path / "old" / "file")
    (tmp_path / "old").write_text("no directory")
    source.read("a.json", "b.json")
    cleaner = SourceCleaner({0: source.files})
    cleaner.captured(CheckpointId(1), 0, progress(source, batch=0))
    asked = []

    def silent() -> None:
        asked.append(1)
        raise UnavailableError("storage does not answer")

    with caplog.at_level(logging.WARNING):
        cleaner.completed(CheckpointId(1), silent)
        eventually(lambda: asked and cleaner._due, "whose job it is was not known")
        cleaner.completed(CheckpointId(1), owner)
        eventually(lambda: "is not removed before the next checkpoint" in caplog.text, "it was said")
    (tmp_path / "old").unlink()

    def gone() -> bool:
        cleaner.completed(CheckpointId(1), owner)
        return source.left() == []

    eventually(gone, "they are moved once that works")
    cleaner.close()
    assert (tmp_path / "old" / "file" / "b.json").exists()


def test_a_log_that_cannot_be_read_ends_the_cleaning_and_not_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(tmp_path / "in")
    source.read("a.json")
    known = progress(source, batch=0)
    for broken in (
        {**known, "offsets/0": known["offsets/0"].replace(b"v1", b"v2")},
        {**known, "offsets/0": b"v1\n{}"},
        {**known, "sources/0/0": b"v2\n"},
        {**known, "sources/0/0": b"v1\n{nothing"},
        {name: data for name, data in known.items() if name != "sources/0/0"},
    ):
        cleaner = SourceCleaner({0: source.files})
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            cleaner.captured(CheckpointId(1), 0, broken)
        assert "Spark's log cannot be read" in caplog.text
        cleaner.completed(CheckpointId(1), owner)
        cleaner.close()
    assert source.left() == ["a.json"]


def test_files_outside_of_the_directory_are_never_touched(tmp_path: Path) -> None:
    assert relative_path("/data/in", "file:///data/in/day=1/a%20b.json") == "day=1/a b.json"
    assert relative_path("/data/in", "hdfs://host:8020/data/in/a:b.json") == "a:b.json"
    for uri in ("file:///data/other/a.json", "file:///data/in2/a.json", "file:///data/in/../a.json", "a.json"):
        assert relative_path("/data/in", uri) is None
    other = Source(tmp_path / "other")
    other.read("a.json")
    cleaner = SourceCleaner({0: Source(tmp_path / "in").files})
    cleaner.captured(CheckpointId(1), 0, progress(other, batch=0))
    cleaner.completed(CheckpointId(1), owner)
    cleaner.close()
    assert other.left() == ["a.json"]


@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    compacted=st.sets(st.integers(0, 29)),
    cuts=st.tuples(st.integers(-1, 29), st.integers(-1, 29)),
)
def test_every_range_of_steps_is_read_from_any_mixture_of_log_files(
    sizes: list[int], compacted: set[int], cuts: tuple[int, int]
) -> None:
    steps = [[Path(f"/in/{n}-{at}") for at in range(size)] for n, size in enumerate(sizes)]
    source = object.__new__(Source)
    source.steps = steps
    above, up_to = min(cuts), min(max(cuts), len(sizes) - 1)
    log = progress(source, compacted=compacted)
    found = [Path(file.path.removeprefix("file://")) for file in files_read(log, 0, above, up_to)]
    assert found == [path for step in steps[above + 1 : up_to + 1] for path in step]
    with pytest.raises(UnreadableLogError):
        list(files_read(log, 0, len(sizes) - 1, len(sizes)))


class Storage(LocalSourceFiles):
    """Files in memory; it knows which ones a restore could need, and sometimes does not answer."""

    root = "/in"

    def __init__(self) -> None:
        self.there: dict[str, int] = {}
        """By name, the step that has read the file."""
        self.needed_from = 0
        self.refusals = 0

    def names(self, directory: str) -> set[str]:
        assert directory == "."
        return set(self.there)

    def modified_ms(self, path: str) -> int | None:
        return 1_700_000_000_250 if path in self.there else None

    def remove(self, path: str) -> bool:
        if self.refusals:
            self.refusals -= 1
            raise UnavailableError("storage does not answer")
        assert self.there[path] < self.needed_from, "a checkpoint that is still there needs it"
        del self.there[path]
        return True


@settings(max_examples=100, deadline=None)
@given(data=st.data(), retain=st.integers(1, 3))
def test_no_checkpoint_ever_misses_a_file_and_none_is_left_for_good(data: st.DataObject, retain: int) -> None:
    """Runs of a few checkpoints, some of which fail; storage that refuses; crashes that lose everything in memory."""
    storage, source, number = Storage(), object.__new__(Source), 0
    source.steps = []
    live: list[tuple[CheckpointId, int]] = []
    fresh = itertools.count()
    for _ in range(data.draw(st.integers(1, 4), label="runs")):
        cleaner = SourceCleaner({0: storage})
        # A restart goes back to the newest checkpoint; what was read after it is read again, in other steps perhaps.
        covered = live[-1][1] if live else 0
        again = [name for name, step in storage.there.items() if step >= covered]
        del source.steps[covered:]
        if live:
            cleaner.captured(live[-1][0], number, progress(source, batch=number, at=0))
        taken = data.draw(st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.integers(0, 12))), label="taken")
        for steps, fails, refusals in taken:
            for _ in range(steps):
                names, again = [*again, f"{next(fresh)}.json"], []
                storage.there |= dict.fromkeys(names, len(source.steps))
                source.steps.append([Path("/in") / name for name in names])
            number += 1
            compacted = range(9, len(source.steps), 10)
            cleaner.captured(CheckpointId(number), number, progress(source, batch=number, compacted=compacted, at=0))
            if fails:
                continue
            live = [*live, (CheckpointId(number), len(source.steps))][-retain:]
            storage.needed_from, storage.refusals = live[0][1], refusals
            cleaner.completed(live[0][0], owner)
        cleaner.close()
    if live:
        storage.needed_from, storage.refusals = live[-1][1], 0
        del source.steps[storage.needed_from :]
        cleaner = SourceCleaner({0: storage})
        cleaner.captured(live[-1][0], number, progress(source, batch=number, at=0))
        cleaner.completed(live[-1][0], owner)
        cleaner.close()
        assert all(step >= storage.needed_from for step in storage.there.values())


def test_a_log_of_some_files_only_is_as_whole_as_before(tmp_path: Path) -> None:
    source, other = Source(tmp_path / "in"), Source(tmp_path / "other")
    for step in (["a.json", "day=1/b c.json"], ["day=2/x#y;z.json"], ["day=1/ü%20.json"]):
        source.read(*step)
        other.read(*step)
    whole = progress(source, other, compacted=[1])
    paths = logged_paths(whole, 0)
    assert len(paths) == 4
    kept = {path for path in paths if "day=1" in path}
    some = only_files(whole, 0, kept)
    assert [Path(file.path).name for file in files_read(some, 0, -1, 2)] == ["b%20c.json", "%C3%BC%2520.json"]
    assert logged_paths(some, 0) == kept
    assert (some.keys(), damage_in_logs(some, 7)) == (whole.keys(), "")
    assert {name for name in whole if some[name] != whole[name]} == {"sources/0/1.compact"}
    assert some["sources/0/1.compact"].startswith(b"v1\n{")
    assert only_files(whole, 0, ())["sources/0/2"] == b"v1"
    with pytest.raises(UnreadableLogError, match="sources/0/2 has version b'v2', expected v1"):
        only_files({**whole, "sources/0/2": b"v2"}, 0, kept)
