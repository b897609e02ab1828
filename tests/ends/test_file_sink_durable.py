"""What a file sink calls durable was synced: a power failure takes nothing of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from strandline.core import failpoints
from strandline.core.errors import UnavailableError
from strandline.core.ids import Epoch
from strandline.spark.base import filesystem
from tests.ends.filesinks import (
    rows,
    sink_at,
    staged,
    started,
    visible,
)


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
    with pytest.raises(UnavailableError, match="cannot be created"):
        sink_at(tmp_path / "a" / "out", 1, fsync=True)


def test_without_fsync_nothing_is_synced(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(path: Path) -> None:
        raise AssertionError(path)

    for name in ("sync_file", "sync_directory"):
        monkeypatch.setattr(filesystem, name, refuse)
    sink = started(tmp_path / "out", 1)
    sink.commit(staged(sink, 1))
    assert visible(tmp_path / "out") == rows(1)
