"""The file sink by itself, without Spark: what is visible after crashes and with consumers, and what is an error.

What every sink does is in test_sink_conformance.py.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.core import failpoints
from strandline.core.errors import CorruptionError, UnavailableError
from strandline.core.ids import Epoch
from strandline.spark.base import filesystem
from tests.crashing import Crash
from tests.ends.filesinks import (
    Disk,
    Rows,
    commit_crashing,
    records,
    rows,
    shown_files,
    sink_at,
    stage,
    staged,
    started,
    visible,
)


def test_a_commit_that_lists_rows_again_shows_only_those_that_are_new(tmp_path: Path) -> None:
    sink = started(tmp_path, 1)
    first, second = staged(sink, 1, 2)
    sink.commit([first])
    for file in shown_files(tmp_path):
        file.unlink()
    sink.commit([first, second])
    assert visible(tmp_path) == rows(2)
    assert not list(tmp_path.glob("_strandline/*/g*/*"))
    assert len(records(tmp_path)) == 1


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


@pytest.mark.parametrize("in_the_middle", [False, True], ids=["before it is shown", "among epochs that are shown"])
def test_a_staged_file_that_was_deleted_stops_the_job(tmp_path: Path, in_the_middle: bool) -> None:
    sink = started(tmp_path, 1)
    pending = staged(sink, 1)
    if in_the_middle:
        more = staged(sink, 2)
        commit_crashing(sink, pending, "sink.file_shown")
        pending += more
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


def test_a_file_without_rows_is_not_shown(tmp_path: Path) -> None:
    sink = started(tmp_path, 1)
    assert sink.write(Rows([]), Epoch(1)) is None  # type: ignore[arg-type]
    assert stage(sink, 2, [], [1]).count("part-") == 1


def test_a_driver_that_is_replaced_while_it_shows_does_not_stop_its_successor_for_good(tmp_path: Path) -> None:
    old = started(tmp_path, 1)
    pending = staged(old, 1)
    new = sink_at(tmp_path, 2)
    commit_crashing(old, pending, "sink.file_shown")
    with pytest.raises(UnavailableError, match="another driver"):
        new.recover(pending, Epoch(1), fresh=False)
    started(tmp_path, 3, pending, 1)
    assert visible(tmp_path) == rows(1)


def test_a_rename_into_nowhere_is_not_taken_for_one_that_was_done_before(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    files = filesystem.LocalFiles(tmp_path)
    assert not files.rename("none", "two")
    with pytest.raises(UnavailableError, match="two"):
        files.rename("one", "nowhere/two")


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
