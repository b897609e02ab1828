"""The file sink by itself, without Spark: what is visible after crashes, moves and consumers, and what is an error."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.core import failpoints
from strandline.core.errors import CorruptionError, UnavailableError
from strandline.core.ids import Epoch
from strandline.spark.base import filesystem
from strandline.spark.sinks.shown import Committable, Shown, ShownRecords, decode_shown, encode_shown
from tests.spark.filesinks import Crash, Disk, Rows, context, records, shown_files, sink_at, stage, started, visible

GOLDEN = Path(__file__).parent / "golden"
RECORD = Shown(
    generation=2,
    epoch=7,
    intent=[
        Committable("/out", 2, 8, "_strandline/0f/g2/epoch-0000000008", ["part-00000-a.json", "part-00001-a.json"])
    ],
)


def rows(*epochs: int) -> Counter[int]:
    """The rows of `staged` epochs."""
    return Counter(row for epoch in epochs for row in (epoch * 10, epoch * 10 + 1))


def staged(sink: Any, *epochs: int) -> list[str]:
    """Stage epochs of two files each, with a row in each of them."""
    return [stage(sink, epoch, [epoch * 10], [epoch * 10 + 1]) for epoch in epochs]


def crash_at(failpoint: str, at: int = 1) -> None:
    def crash() -> None:
        raise Crash(failpoint)

    failpoints.arm(failpoint, crash, at=at)


def commit_crashing(sink: Any, pending: list[str], failpoint: str, at: int = 1) -> None:
    crash_at(failpoint, at)
    with pytest.raises(Crash):
        sink.commit(pending)


def test_rows_are_visible_with_the_commit_that_lists_them(tmp_path: Path) -> None:
    sink = started(tmp_path, 1)
    first, second = staged(sink, 1, 2)
    assert not visible(tmp_path)
    sink.commit([first])
    assert visible(tmp_path) == rows(1)
    # The next checkpoint was triggered while this one committed: it lists the epoch again.
    for file in shown_files(tmp_path):
        file.unlink()
    sink.commit([first, second])
    assert visible(tmp_path) == rows(2)
    assert not list(tmp_path.glob("_strandline/*/g*/*"))
    assert len(records(tmp_path)) == 1


@pytest.mark.parametrize(("failpoint", "at"), [("sink.staged", 2), ("sink.file_shown", 1), ("sink.shown_recorded", 1)])
def test_a_directory_that_was_moved_takes_its_staged_rows_along(tmp_path: Path, failpoint: str, at: int) -> None:
    out, moved = tmp_path / "out", tmp_path / "moved"
    sink = started(out, 1)
    pending = staged(sink, 1, 2)
    if failpoint != "sink.staged":
        commit_crashing(sink, pending, failpoint, at)
    out.rename(moved)
    started(moved, 2, pending, 2)
    assert visible(moved) == rows(1, 2)
    assert not out.exists()


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_consumer_may_take_files_in_the_middle_of_a_commit(tmp_path: Path, at: int) -> None:
    out = tmp_path / "out"
    sink = started(out, 1)
    pending = staged(sink, 1, 2)
    commit_crashing(sink, pending, "sink.file_shown", at)
    taken = visible(out)
    assert sum(taken.values()) == at
    for file in shown_files(out):
        file.unlink()
    started(out, 2, pending, 2)
    assert taken + visible(out) == rows(1, 2)
    # And once more, when there is nothing left of what was shown.
    for file in shown_files(out):
        file.unlink()
    started(out, 3, pending, 2)
    assert not visible(out)


def test_another_path_without_moving_shows_the_rows_where_they_were_staged(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    pending = staged(started(old, 1), 1, 2)
    sink = started(new, 2, pending, 2)
    assert visible(old) == rows(1, 2)
    assert not visible(new)
    sink.commit([*pending, *staged(sink, 3)])
    assert visible(new) == rows(3)
    # What is on record in the new directory is enough from now on.
    shutil.rmtree(old)
    started(new, 3, pending, 2)


def test_back_to_a_path_of_before_its_record_says_nothing_of_later_runs(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    sink = started(first, 1)
    sink.commit(staged(sink, 1, 2, 3, 4))
    # Elsewhere, from an older checkpoint: epochs 2 and 3 come again, and the driver dies before they are shown.
    pending = staged(started(second, 2, [], 1), 2, 3)
    started(first, 3, pending, 3)
    assert visible(second) == rows(2, 3)


def test_rows_that_are_nowhere_stop_the_job(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    pending = staged(started(old, 1), 1)
    old.rename(tmp_path / "elsewhere")
    for generation in (2, 3):
        with pytest.raises(CorruptionError, match="epoch 1") as caught:
            started(new, generation, pending, 1)
        assert str(old) in str(caught.value)
        assert str(new) in str(caught.value)
        assert "bring the directory back" in caught.value.hint
    (tmp_path / "elsewhere").rename(old)
    started(new, 4, pending, 1)
    assert visible(old) == rows(1)


@pytest.mark.parametrize("in_the_middle", [False, True], ids=["before it is shown", "among epochs that are shown"])
def test_a_staged_file_that_was_deleted_stops_the_job(tmp_path: Path, in_the_middle: bool) -> None:
    sink = started(tmp_path, 1)
    pending = staged(sink, 1)
    if in_the_middle:
        commit_crashing(sink, pending, "sink.file_shown")
        sink = sink_at(tmp_path, 2)
        pending += staged(sink, 2)
    victim = sorted(tmp_path.glob("_strandline/*/g*/epoch-*/part-*"))[-1]
    victim.unlink()
    for generation in (3, 4):
        with pytest.raises(CorruptionError, match=f"{victim.name} of epoch {len(pending)} is gone"):
            started(tmp_path, generation, pending, len(pending))


def test_a_staged_file_that_is_deleted_while_it_is_shown_is_an_error(tmp_path: Path) -> None:
    sink = started(tmp_path, 1)
    pending = staged(sink, 1)
    failpoints.arm("sink.intent_written", sorted(tmp_path.glob("_strandline/*/g*/epoch-*/part-*"))[-1].unlink)
    with pytest.raises(CorruptionError, match=r"part-00001-made\.json of epoch 1 is gone"):
        sink.commit(pending)


def test_what_was_being_shown_is_known_without_its_directory(tmp_path: Path) -> None:
    """Not every way to move a directory takes along those in it that are empty."""
    sink = started(tmp_path, 1)
    pending = staged(sink, 1)
    commit_crashing(sink, pending, "sink.file_shown", 2)
    shutil.rmtree(next(tmp_path.glob("_strandline/*/g1")))
    started(tmp_path, 2, pending, 1)
    assert visible(tmp_path) == rows(1)


def test_an_epoch_without_rows_leaves_nothing(tmp_path: Path) -> None:
    sink = started(tmp_path, 1)
    assert sink.write(Rows([]), Epoch(1)) is None  # type: ignore[arg-type]
    assert not list(tmp_path.glob("_strandline/*/g*/*"))
    assert stage(sink, 2, [], [1]).count("part-") == 1


@pytest.mark.parametrize("cut", ["in half", "empty"])
def test_a_record_that_was_cut_off_is_passed_over(tmp_path: Path, caplog: Any, cut: str) -> None:
    sink = started(tmp_path, 1)
    sink.commit(staged(sink, 1))
    pending = staged(sink, 2)
    last = records(tmp_path)[-1]
    data = last.read_bytes()
    torn = last.with_name(f"shown-{int(last.name[6:]) + 1:012d}")
    torn.write_bytes(data[: len(data) // 2 if cut == "in half" else 0])
    with caplog.at_level(logging.WARNING):
        started(tmp_path, 2, pending, 2)
    assert visible(tmp_path) == rows(1, 2)
    assert f"{torn.name}: " in caplog.text
    assert [decode_shown(path.read_bytes(), "") for path in records(tmp_path)] == [Shown(generation=2, epoch=2)]


def test_a_driver_that_was_replaced_shows_nothing_more(tmp_path: Path) -> None:
    """It was paused after it found itself the owner; its successor went back to an older checkpoint meanwhile."""
    old = started(tmp_path, 1)
    old.commit(staged(old, 1))
    pending = staged(old, 2)
    new = started(tmp_path, 2, [], 1)
    with pytest.raises(UnavailableError, match="another driver"):
        old.commit(pending)
    again = staged(new, 2)
    new.commit(again)
    assert visible(tmp_path) == rows(1, 2)
    with pytest.raises(UnavailableError, match="another driver"):
        old.commit(pending)


def test_a_driver_that_is_replaced_while_it_shows_does_not_stop_its_successor_for_good(tmp_path: Path) -> None:
    old = started(tmp_path, 1)
    pending = staged(old, 1)
    new = sink_at(tmp_path, 2)
    commit_crashing(old, pending, "sink.file_shown")
    with pytest.raises(UnavailableError, match="another driver"):
        new.recover(pending, Epoch(1), fresh=False)
    started(tmp_path, 3, pending, 1)
    assert visible(tmp_path) == rows(1)


@pytest.mark.parametrize("again", [False, True], ids=["gone", "begun anew by the next epoch"])
@pytest.mark.parametrize("failpoint", ["sink.staged", "sink.file_shown"])
def test_a_directory_that_is_moved_while_the_job_runs(tmp_path: Path, failpoint: str, again: bool) -> None:
    out, moved = tmp_path / "out", tmp_path / "moved"
    sink = started(out, 1)
    pending = staged(sink, 1)

    def move() -> None:
        out.rename(moved)
        if again:
            staged(sink, 2)

    if failpoint == "sink.staged":
        move()
    else:
        failpoints.arm(failpoint, move)
    with pytest.raises(UnavailableError, match="moved or deleted"):
        sink.commit(pending)
    with pytest.raises(CorruptionError, match="bring the directory back"):
        started(out, 2, pending, 1)
    started(moved, 3, pending, 1)
    assert visible(moved) == rows(1)


def test_a_directory_that_is_moved_while_a_commit_is_done_again(tmp_path: Path) -> None:
    """That a staged file is missing says, then, that it was shown: unless the record is missing as well."""
    out, moved = tmp_path / "out", tmp_path / "moved"
    sink = started(out, 1)
    pending = staged(sink, 1)
    commit_crashing(sink, pending, "sink.file_shown")
    home = records(out)[0].parent

    def move() -> None:
        out.rename(moved)
        home.mkdir(parents=True)

    failpoints.arm("sink.intent_written", move)
    with pytest.raises(UnavailableError, match="moved or deleted"):
        started(out, 2, pending, 1)
    with pytest.raises(CorruptionError, match="bring the directory back"):
        started(out, 3, pending, 1)
    started(moved, 4, pending, 1)
    assert visible(moved) == rows(1)


def test_of_two_drivers_at_the_same_moment_one_writes_the_next_record(tmp_path: Path) -> None:
    class Stale(filesystem.LocalFiles):
        """Another driver's record comes right after the look at what is there."""

        def list(self, path: str) -> list[tuple[str, int]]:
            return []

    one, other = (ShownRecords(kind(tmp_path), "root", "home") for kind in (filesystem.LocalFiles, Stale))
    one.write(Shown(generation=2))
    with pytest.raises(UnavailableError, match="another driver"):
        other.write(Shown(generation=1))
    assert ShownRecords(filesystem.LocalFiles(tmp_path), "root", "home").newest == Shown(generation=2)


def test_a_rename_into_nowhere_is_not_taken_for_one_that_was_done_before(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    files = filesystem.LocalFiles(tmp_path)
    assert not files.rename("none", "two")
    with pytest.raises(UnavailableError, match="two"):
        files.rename("one", "nowhere/two")


def test_an_older_checkpoint_takes_back_what_came_later(tmp_path: Path) -> None:
    sink = started(tmp_path, 1)
    pending = staged(sink, 1, 2)
    sink.commit(pending)
    sink.commit([*pending, *staged(sink, 3, 4)])
    staged(sink, 5)
    sink = started(tmp_path, 2, pending, 2)
    assert visible(tmp_path) == rows(1, 2)
    assert not list(tmp_path.glob("_strandline/*/g1"))
    # The same numbers, and of another run: what was on record of the old ones does not stand for them.
    sink.commit([*pending, *staged(sink, 3, 4, 5)])
    assert visible(tmp_path) == rows(1, 2, 3, 4, 5)


def test_a_consumer_may_take_files_while_others_are_taken_back(tmp_path: Path, monkeypatch: Any) -> None:
    """It takes each file of the first epoch just after that was found in the directory."""
    sink = started(tmp_path, 1)
    pending = staged(sink, 1)
    sink.commit(pending)
    sink.commit(staged(sink, 2))
    scan = os.scandir

    class Scan:
        def __init__(self, path: Path) -> None:
            self._entries = sorted(scan(path), key=lambda entry: entry.name)

        def __enter__(self) -> Scan:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def __iter__(self) -> Iterator[os.DirEntry[str]]:
            for entry in self._entries:
                if entry.name.startswith("part-0000000001-"):
                    Path(entry.path).unlink()
                yield entry

    monkeypatch.setattr(filesystem.os, "scandir", Scan)
    started(tmp_path, 2, pending, 1)
    assert not visible(tmp_path)


def test_a_job_that_has_lost_all_its_checkpoints_does_not_show_its_rows_again(tmp_path: Path) -> None:
    started(tmp_path, 1)
    sink = started(tmp_path, 2)
    sink.commit(staged(sink, 1, 2))
    with pytest.raises(CorruptionError, match=r"up to epoch 2 .* without any checkpoint"):
        started(tmp_path, 3)
    assert visible(tmp_path) == rows(1, 2)


@pytest.mark.parametrize(("failpoint", "at"), [("sink.intent_written", 1), ("sink.file_shown", 2)])
def test_rows_that_were_just_being_shown_are_not_shown_again_without_their_checkpoint(
    tmp_path: Path, failpoint: str, at: int
) -> None:
    """The very first checkpoint was published, its rows were half shown, and then it was deleted."""
    sink = started(tmp_path, 1)
    commit_crashing(sink, staged(sink, 1, 2), failpoint, at)
    before = visible(tmp_path)
    with pytest.raises(CorruptionError, match=r"up to epoch 2 .* without any checkpoint"):
        started(tmp_path, 2)
    assert visible(tmp_path) == before


def test_sinks_and_lives_share_a_directory(tmp_path: Path) -> None:
    sink = started(tmp_path, 1)
    sink.commit(staged(sink, 1))
    pending = staged(sink, 2)
    other = sink_at(tmp_path, 2)
    other.open(dataclasses.replace(context(1), life="another life"))
    other.recover([], Epoch(0), fresh=True)
    other.commit([stage(other, 1, ["other"])])
    sink.commit(pending)
    assert visible(tmp_path) == rows(1, 2) + Counter(["other"])
    assert len(records(tmp_path)) == 2


def test_with_its_epoch_rows_are_visible_at_once_and_need_no_record(tmp_path: Path) -> None:
    sink = sink_at(tmp_path, 1, visibility="epoch")
    sink.recover([], Epoch(0), fresh=True)
    before = records(tmp_path)
    assert sink.write(Rows([1], [2]), Epoch(1)) is None  # type: ignore[arg-type]
    assert visible(tmp_path) == Counter([1, 2])
    assert records(tmp_path) == before
    sink = sink_at(tmp_path, 2, visibility="epoch")
    sink.recover([], Epoch(0), fresh=False)
    assert visible(tmp_path) == Counter([1, 2])


def test_what_is_said_to_be_durable_was_synced_before(tmp_path: Path, monkeypatch: Any) -> None:
    """A power failure at any moment keeps what was synced; the record must never know more than that."""
    synced = watch_syncs(tmp_path, monkeypatch)
    sink = sink_at(tmp_path / "a" / "out", 1, fsync=True)
    assert synced == ["a", "."]
    sink.recover([], Epoch(0), fresh=True)
    home = next((tmp_path / "a/out/_strandline").iterdir()).relative_to(tmp_path)
    assert {str(home), str(home.parent), "a/out", f"{home}/shown-000000000001"} <= set(synced)

    synced.clear()
    pending = staged(sink, 1)
    epoch = home / "g1" / "epoch-0000000001"
    assert synced[:2] == [f"{epoch}/part-00000-made.json", f"{epoch}/part-00001-made.json"]
    assert synced[2:] == [str(path) for path in (epoch, *epoch.parents) if str(path).startswith("a/out")]

    # The record of the intent before any file is renamed; the names in the root before all is said to be shown.
    steps: dict[str, list[str]] = {}
    for failpoint in ("sink.intent_written", "sink.shown_recorded"):
        failpoints.arm(failpoint, lambda name=failpoint: steps.update({name: list(synced)}))
    synced.clear()
    sink.commit(pending)
    intent, shown = (home / f"shown-{number:012d}" for number in (2, 3))
    assert steps["sink.intent_written"] == [str(intent), str(home)]
    assert steps["sink.shown_recorded"][2:] == ["a/out", str(shown), str(home)]

    # What is taken back is gone for good before the run begins.
    started_again = sink_at(tmp_path / "a" / "out", 2, fsync=True)
    synced.clear()
    started_again.recover([], Epoch(0), fresh=False)
    assert synced == ["a/out", f"{home}/shown-000000000004", str(home)]


def watch_syncs(root: Path, monkeypatch: Any) -> list[str]:
    """Return what will be synced, files and directories, as far as it is below `root`."""
    synced: list[str] = []

    def note(path: Path) -> None:
        synced.extend([str(path.relative_to(root))] if path.is_relative_to(root) else [])

    for name in ("sync_file", "sync_directory"):
        monkeypatch.setattr(filesystem, name, note)
    return synced


def test_the_way_to_a_directory_that_is_there_is_made_durable(tmp_path: Path, monkeypatch: Any) -> None:
    """Whoever made it may have been killed before its name was durable: a power cut would take all that was shown."""
    synced = watch_syncs(tmp_path, monkeypatch)
    (tmp_path / "a" / "out").mkdir(parents=True)
    sink_at(tmp_path / "a" / "out", 1, fsync=True)
    assert synced == ["a", "."]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_directory_above_that_may_not_be_looked_at_is_left_alone(tmp_path: Path, monkeypatch: Any, code: int) -> None:
    def sync(path: Path) -> None:
        if path == tmp_path:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(filesystem, "sync_directory", sync)
    sink_at(tmp_path / "a" / "out", 1, fsync=True)


def test_a_way_that_cannot_be_made_durable_is_an_error(tmp_path: Path, monkeypatch: Any) -> None:
    def sync(path: Path) -> None:
        if path == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(filesystem, "sync_directory", sync)
    with pytest.raises(UnavailableError, match="cannot be made"):
        sink_at(tmp_path / "a" / "out", 1, fsync=True)


def test_without_fsync_nothing_is_synced(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(path: Path) -> None:
        raise AssertionError(path)

    for name in ("sync_file", "sync_directory"):
        monkeypatch.setattr(filesystem, name, refuse)
    sink = started(tmp_path / "out", 1)
    sink.commit(staged(sink, 1))
    assert visible(tmp_path / "out") == rows(1)


def life(path: Path, disk: Disk, seen: Counter[Any], take: bool) -> tuple[list[str], int]:
    """Run two epochs and a checkpoint, twice; return what the last published checkpoint lists when it ends or crashes."""
    published: tuple[list[str], int] = ([], 0)
    try:
        sink = started(path, 1)
        for last in (2, 4):
            published = staged(sink, last - 1, last), last
            sink.commit(published[0])
            if take:
                seen.update(visible(path))
                for file in shown_files(path):
                    file.unlink()
    except Crash:
        pass
    return published


@pytest.mark.parametrize("moved", [False, True], ids=["", "moved"])
@pytest.mark.parametrize("take", [False, True], ids=["", "taken"])
def test_a_crash_at_every_step_and_another_in_the_restart(
    tmp_path: Path, monkeypatch: Any, take: bool, moved: bool
) -> None:
    disk = Disk(monkeypatch)
    life(tmp_path / "whole", disk, Counter(), take)
    steps = len(disk.done)
    assert steps > 50
    for step in range(steps):
        path, seen = tmp_path / str(step), Counter[Any]()
        disk.forget(step)
        pending, epoch = life(path, disk, seen, take)
        # The lives after it crash in the restart, each somewhere else, until one gets through.
        for generation in range(2, 10):
            if moved and path.exists():
                path = path.rename(f"{path}-{generation}")
            if take:
                seen.update(visible(path))
                for file in shown_files(path):
                    file.unlink()
            disk.forget((step * 7 + generation * 5) % 40)
            try:
                started(path, generation, pending, epoch)
            except Crash:
                continue
            break
        disk.forget()
        started(path, 10, pending, epoch)
        assert seen + visible(path) == rows(*range(1, epoch + 1)), f"crash at step {step}"


def test_a_golden_record() -> None:
    data = (GOLDEN / "shown").read_bytes()
    assert decode_shown(data, "golden") == RECORD
    assert encode_shown(RECORD) == data


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:40] + b"x" + data[41:], lambda data: b""]
)
def test_a_damaged_record_is_recognised(damage: Any) -> None:
    with pytest.raises(CorruptionError, match="golden"):
        decode_shown(damage(encode_shown(RECORD)), "golden")
