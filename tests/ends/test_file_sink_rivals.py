"""Two drivers of one job and its file sink: one is stopped anywhere, and goes on when the other has taken over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import CorruptionError, UnavailableError
from tests.ends.filesinks import Disk, sink_at, staged, started, visible

Checkpoint = tuple[list[str], int]


def rows(last: int) -> dict[int, int]:
    """The rows of all epochs up to this one, each once."""
    return {epoch * 10 + row: 1 for epoch in range(1, last + 1) for row in (0, 1)}


def live(path: Path, generation: int, since: Checkpoint) -> Checkpoint:
    """Start from a checkpoint, run an epoch and show it; return the next checkpoint."""
    pending, epoch = since
    sink = started(path, generation, pending, epoch)
    published = staged(sink, epoch + 1), epoch + 1
    sink.commit(published[0])
    return published


@pytest.mark.parametrize("back", [False, True], ids=["from the newest checkpoint", "from an older one"])
@pytest.mark.parametrize("is_shown", [False, True], ids=["pending", "shown"])
def test_a_driver_that_is_stopped_anywhere_and_goes_on_as_its_successor_runs(
    tmp_path: Path, monkeypatch: Any, is_shown: bool, back: bool
) -> None:
    disk, at = Disk(monkeypatch), -1
    while True:
        at += 1
        path, published = tmp_path / str(at), []
        older = live(path, 1, ([], 0))
        sink = started(path, 2, *older)
        newest = staged(sink, 2), 2
        if is_shown:
            sink.commit(newest[0])

        def take_over(
            path: Path = path, published: list[Any] = published, since: Any = older if back else newest
        ) -> None:
            # One that finds the other at work is started again.
            for generation in (4, 5):
                try:
                    published.append(live(path, generation, since))
                    break
                except UnavailableError:
                    pass

        disk.pause(at, take_over)
        try:
            live(path, 3, older if back else newest)
        except UnavailableError:
            pass
        except CorruptionError as error:
            # It was replaced by one that has deleted what it had staged.
            raise AssertionError(f"step {at}: {error}") from error
        if disk.others is not None:
            break
        disk.forget()
        ((pending, epoch),) = published
        started(path, 6, pending, epoch)
        assert visible(path) == rows(epoch), at
    assert at > 30


def test_a_driver_that_was_stopped_while_it_started_does_not_undo_what_is_on_record(tmp_path: Path) -> None:
    since = live(tmp_path, 1, ([], 0))
    published = live(tmp_path, 3, since)
    with pytest.raises(UnavailableError, match=r"generation 3 .* generation 2 begins"):
        started(tmp_path, 2, *since)
    started(tmp_path, 4, *published)
    assert visible(tmp_path) == rows(2)


def test_a_job_whose_checkpoint_directory_was_set_back_takes_back_what_came_since(tmp_path: Path) -> None:
    """Its generations count again from an older one, and the sink knows of later ones."""
    since = live(tmp_path, 1, ([], 0))
    live(tmp_path, 3, live(tmp_path, 2, since))
    for generation in (2, 3):
        with pytest.raises(UnavailableError, match="set back"):
            sink_at(tmp_path, generation)
    live(tmp_path, 4, since)
    assert visible(tmp_path) == rows(2)
