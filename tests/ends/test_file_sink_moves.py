"""A file sink whose directory was moved, or which was given another one: no row is lost or shown twice."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.core import failpoints
from strandline.core.errors import CorruptionError, UnavailableError
from strandline.core.ids import Epoch
from strandline.spark.sinks.files import FileSink, sink_for_pending
from tests.ends.filesinks import (
    commit_crashing,
    context,
    records,
    rows,
    stage,
    staged,
    started,
    visible,
)


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


def test_what_was_being_shown_is_known_without_its_directory(tmp_path: Path) -> None:
    """Not every way to move a directory takes along those in it that are empty."""
    sink = started(tmp_path, 1)
    pending = staged(sink, 1)
    commit_crashing(sink, pending, "sink.file_shown", 2)
    shutil.rmtree(next(tmp_path.glob("_strandline/*/g1")))
    started(tmp_path, 2, pending, 1)
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


@pytest.mark.parametrize("when", ["runs", "starts"])
def test_a_disk_that_is_unmounted_and_mounted_again(tmp_path: Path, when: str) -> None:
    """Rows that were shown below the mount point would not be among the others later."""
    out, disk = tmp_path / "out", tmp_path / "disk"
    sink = started(out, 1)
    sink.commit(staged(sink, 1))
    out.rename(disk)
    out.mkdir()
    if when == "starts":
        sink = started(out, 2, [], 1)
        for epoch in (2, 3):
            sink.commit(staged(sink, epoch))
        out.rename(tmp_path / "below")
        disk.rename(out)
    pending = staged(sink, 4)
    with pytest.raises(UnavailableError, match="moved or deleted"):
        sink.commit(pending)
    with pytest.raises(CorruptionError, match="the record of the run that staged it"):
        started(out, 3, pending, 4)


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


def of(path: Path, generation: int, name: str, *beside: str) -> FileSink:
    """A sink of the job's under a name, opened for a run that has these sinks here."""
    sink = FileSink(f"file:{path}", format="json")
    sink.open(replace(context(generation), sink=name, beside=frozenset({name, *beside})))
    return sink


def test_a_sink_of_another_name_takes_back_what_the_one_before_has_shown(tmp_path: Path) -> None:
    old, beside = of(tmp_path, 1, "old", "beside"), of(tmp_path, 1, "beside", "old")
    for sink in (old, beside):
        sink.recover([], Epoch(0), fresh=True)
    old.commit(staged(old, 1, 2, 3))
    staged(old, 4)
    beside.commit([stage(beside, 3, [300])])
    assert visible(tmp_path) == rows(1, 2, 3) + Counter([300])
    # The job goes back to a checkpoint of epoch 2: what is beside does that by itself.
    new, beside = of(tmp_path, 2, "new", "beside"), of(tmp_path, 2, "beside", "new")
    for _ in range(2):
        new.recover([], Epoch(2), fresh=False)
        new.tidy(Epoch(2))
        assert visible(tmp_path) == rows(1, 2) + Counter([300])
    assert not list(tmp_path.glob("_strandline/*/g1/epoch-*4"))
    beside.recover([], Epoch(2), fresh=False)
    new.commit(staged(new, 3))
    assert visible(tmp_path) == rows(1, 2, 3)
    # And under the old name again.
    old = of(tmp_path, 3, "old", "beside")
    old.recover([], Epoch(3), fresh=False)
    old.tidy(Epoch(3))
    assert visible(tmp_path) == rows(1, 2, 3)


def test_what_a_sink_has_left_that_is_no_more_is_shown(tmp_path: Path) -> None:
    old = of(tmp_path, 1, "old")
    old.recover([], Epoch(0), fresh=True)
    old.commit(staged(old, 1))
    pending = staged(old, 2)
    old.commit(pending)
    listed = staged(old, 3)
    staged(old, 4)
    for generation, texts, epoch in ((2, listed, 3), (3, listed, 3), (4, pending, 2)):
        left = sink_for_pending("old", texts)
        left.open(replace(context(generation), sink="old", beside=frozenset()))
        left.recover(texts, Epoch(epoch), fresh=False)
        assert visible(tmp_path) == rows(*range(1, epoch + 1))
    assert sink_for_pending("old", []) is None
    assert sink_for_pending("old", ["another's"]) is None
