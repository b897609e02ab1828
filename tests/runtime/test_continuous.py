"""Checkpoints of the mode `continuous`: a log that has the whole state, cleaned from its oldest end."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from strandline.api import config
from strandline.api.config import Changelog, Continuous
from strandline.backends import rockscontinuous
from strandline.core import failpoints
from strandline.core.errors import StrandlineError
from strandline.core.settings import Mode
from strandline.format.manifest import PartitionInfo
from tests.runtime.keeping import Keeping

KEYS = "abcdefghij"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of some hundred bytes."""
    monkeypatch.setattr(config, "_LEAST_CONTINUOUS_BYTES", 2_000)
    monkeypatch.setattr(rockscontinuous, "_LEAST_LOG_BYTES", 500)
    monkeypatch.setattr(rockscontinuous, "_LEAST_BUDGET_BYTES", 300)


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Keeping]:
    kept = Keeping(tmp_path, "continuous", continuous=Continuous(log=1.5), changelog=Changelog(parts=3))
    yield kept
    failpoints.disarm_all()
    kept.close()


def logs_of(info: PartitionInfo) -> set[str]:
    return {file.name.split("-")[0] for file in info.files if file.name.endswith(".log")}


def test_checkpoints_have_the_changes_and_old_logs_go(keeping: Keeping) -> None:
    keeping.run(*KEYS)
    first = keeping.take()
    assert first is not None
    for _ in range(200):
        keeping.run("a", "b")
        info = keeping.take()
        assert info.uploaded_bytes < 5_000
    assert not logs_of(first) & logs_of(info)
    assert len(logs_of(info)) < 20
    keeping.go_back()
    keeping.run(*KEYS)


@pytest.mark.parametrize("seed", range(6))
def test_any_sequence_of_changes_checkpoints_restores_and_modes(keeping: Keeping, seed: int) -> None:
    """Some checkpoints fail elsewhere; each restore may be in another mode, or from storage alone."""
    rng = random.Random(seed)
    for _ in range(150):
        keeping.run(*rng.sample(KEYS, rng.randint(1, 3)))
        keeping.take(published=rng.random() < 0.8)
        if keeping.restored is not None and rng.random() < 0.05:
            if rng.random() < 0.5:
                shutil.rmtree(keeping.root / "local", ignore_errors=True)
            keeping.mode = rng.choice(["continuous", "continuous", *get_args(Mode)])
            keeping.go_back()
    keeping.run(*KEYS)


def test_a_failure_while_the_log_is_cleaned_ends_the_keeper(keeping: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written again may be incomplete, and the log of before is there."""
    for _ in range(40):
        keeping.run(*KEYS)
        keeping.take()
    write_again = rockscontinuous.ContinuousLog._write_again

    def fail(log: rockscontinuous.ContinuousLog, state: str, entries: list[tuple[bytes, bytes]]) -> None:
        write_again(log, state, entries[: len(entries) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rockscontinuous.ContinuousLog, "_write_again", fail)
    while keeping.take() is not None:
        keeping.run(*KEYS)
    with pytest.raises(StrandlineError, match="No space left"):
        keeping.partition.snapshots.raise_error()
    monkeypatch.undo()
    keeping.go_back()
    keeping.run(*KEYS)
