"""A file sink's records of what it has shown: what they tell, their bytes, and what becomes of damaged ones."""

from __future__ import annotations

import logging
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strandline.core.errors import CorruptionError, UnavailableError
from strandline.core.ids import Epoch
from strandline.spark.base import filesystem
from strandline.spark.sinks.visibility_log import RECORD_FORMAT, Committable, SinkOwner, VisibilityLog, VisibilityRecord
from tests.ends.filesinks import (
    Rows,
    commit_crashing,
    records,
    rows,
    sink_at,
    staged,
    started,
    visible,
)

GOLDEN = Path(__file__).parent / "golden"
RECORD = VisibilityRecord(
    generation=2,
    epoch=7,
    intent=[
        Committable("/out", 2, 8, "_strandline/0f/g2/epoch-0000000008", ["part-00000-a.json", "part-00001-a.json"])
    ],
    owner=SinkOwner("job", "0123456789abcdef0123456789abcdef", "out"),
)


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
    (record,) = (RECORD_FORMAT.decode(path.read_bytes(), "") for path in records(tmp_path))
    owner, begins = SinkOwner("job", "life", "out"), [(1, 0), (2, 2)]
    assert record == VisibilityRecord(generation=2, epoch=2, owner=owner, by=record.by, begins=begins)


def test_a_record_that_was_damaged_on_the_way_is_read_again(tmp_path: Path) -> None:
    class Damaging(filesystem.LocalFiles):
        """Damages each file that is read for the first time."""

        def read(self, path: str) -> bytes | None:
            data = super().read(path)
            if path in damaged:
                return data
            damaged.append(path)
            return data[:-1]

    damaged: list[str] = []
    VisibilityLog(filesystem.LocalFiles(tmp_path), "root", "home").write(RECORD)
    assert VisibilityLog(Damaging(tmp_path), "root", "home").newest.epoch == RECORD.epoch
    assert len(damaged) == 1


def test_a_full_disk_leaves_no_part_of_a_record(tmp_path: Path) -> None:
    """The same run takes it for another driver's, and each restart leaves one more."""
    written = VisibilityLog(filesystem.LocalFiles(tmp_path), "/out", "place")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(UnavailableError, match="cannot be written"):
            written.write(RECORD)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list((tmp_path / "place").iterdir())
    written.write(RECORD)


def test_another_drivers_record_stays_where_a_file_cannot_even_be_opened(tmp_path: Path) -> None:
    files, limits = filesystem.LocalFiles(tmp_path), resource.getrlimit(resource.RLIMIT_NOFILE)
    files.create("theirs", b"1")
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(UnavailableError, match="cannot be written"):
            files.create("theirs", b"2")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert files.read("theirs") == b"1"


def test_of_two_drivers_at_the_same_moment_one_writes_the_next_record(tmp_path: Path) -> None:
    class Stale(filesystem.LocalFiles):
        """Another driver's record comes right after the look at what is there."""

        def list(self, path: str) -> list[tuple[str, int]]:
            return []

    one, other = (VisibilityLog(kind(tmp_path), "root", "home") for kind in (filesystem.LocalFiles, Stale))
    one.write(VisibilityRecord(generation=2))
    with pytest.raises(UnavailableError, match="another driver"):
        other.write(VisibilityRecord(generation=1))
    assert VisibilityLog(filesystem.LocalFiles(tmp_path), "root", "home").newest.generation == 2


def test_of_two_drivers_that_show_the_same_one_does_not_take_the_others_record_for_its_own(tmp_path: Path) -> None:
    """Where an answer may be lost, what is there may be ones own.

    Both have the same generation, if one goes on in a copy of the checkpoint directory.
    """

    class Object(filesystem.LocalFiles):
        def create(self, path: str, data: bytes) -> bool:
            return super().create(path, data) or self.read(path) == data

    owner = SinkOwner("job", "life", "out")
    one, other = (VisibilityLog(Object(tmp_path), "root", "home", owner) for _ in range(2))
    other.check_sole_writer = lambda: None  # type: ignore[method-assign]
    one.write(RECORD)
    with pytest.raises(UnavailableError, match="another driver"):
        other.write(RECORD)


def test_a_job_that_has_lost_all_its_checkpoints_does_not_show_its_rows_again(tmp_path: Path) -> None:
    started(tmp_path, 1)
    sink = started(tmp_path, 2)
    sink.commit(staged(sink, 1, 2))
    with pytest.raises(CorruptionError, match=r"up to epoch 2 .* without any checkpoint"):
        started(tmp_path, 3)
    assert visible(tmp_path) == rows(1, 2)


def test_a_start_with_the_snapshot_of_another_job_may_come_again(tmp_path: Path) -> None:
    for generation in (1, 2):
        sink = sink_at(tmp_path, generation)
        sink.recover([], Epoch(7), fresh=True)
    sink.commit(staged(sink, 8))
    with pytest.raises(CorruptionError, match=r"up to epoch 8 .* without any checkpoint"):
        sink_at(tmp_path, 3).recover([], Epoch(7), fresh=True)


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


def test_a_golden_record() -> None:
    data = (GOLDEN / "shown").read_bytes()
    assert RECORD_FORMAT.decode(data, "golden") == RECORD
    assert RECORD_FORMAT.encode(RECORD) == data
    nameless = (GOLDEN / "shown-nameless").read_bytes()
    assert RECORD_FORMAT.decode(nameless, "golden") == msgspec.structs.replace(RECORD, owner=msgspec.UNSET)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:40] + b"x" + data[41:], lambda data: b""]
)
def test_a_damaged_record_is_recognised(damage: Any) -> None:
    with pytest.raises(CorruptionError, match="golden"):
        RECORD_FORMAT.decode(damage(RECORD_FORMAT.encode(RECORD)), "golden")
