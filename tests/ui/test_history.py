"""The history of a job from the log of events: its epochs in steps of time, failed checkpoints, interruptions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.checkpoint.history import CheckpointStats
from strandline.control.events import AttemptBegin, CheckpointEnd, EpochsEnd, EventLog, InterruptionEnd
from strandline.control.recent import EpochStats, OperatorTime
from strandline.core.clock import SystemClock
from strandline.keeper.paths import Places
from strandline.ui.history import read_history
from tests.cli.fabricate import FabricatedJob
from tests.control.fake import RECENT, STATS
from tests.ui.conftest import Open, only_job

BEGIN_MS = 1_800_000_000_000
"""A whole number of steps of every length up to an hour."""
FAILED: CheckpointStats = replace(
    STATS, status="failed", failure="operator 'detect' partition 1: the disk is full", end_to_end_ms=700, phases=None
)


def epochs(count: int, every_ms: int, took_ms: float = 100.0, rows: int = 10) -> list[EpochStats]:
    return [
        EpochStats(n, BEGIN_MS + every_ms * n, rows, took_ms, 20.0, 1.0, None, [
            OperatorTime("detect", n % 2, 60.0, 0.0, 50.0),
        ])
        for n in range(1, count + 1)
    ]  # fmt: skip


class Log:
    def __init__(self, path: Path, directory: str = "file:///ck") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.log = EventLog(path, "alerts", directory, SystemClock())

    def record(self, of: list[EpochStats], at_once: int) -> None:
        for at in range(0, len(of), at_once):
            self.log.write(EpochsEnd.of(of[at : at + at_once]))

    def read(self, hours: float = 0.0) -> dict[str, Any]:
        return read_history(self.path, lambda directory: directory == self.log.directory, hours)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "events.jsonl")


def test_epochs_are_summed_up_in_steps_and_nothing_is_lost(log: Log) -> None:
    # Two hours with ten epochs a second.
    log.record(epochs(72_000, 100, took_ms=50.0), at_once=100)
    history = log.read()
    assert history["step_ms"] == 60_000
    assert [each["at_ms"] for each in history["steps"]] == [BEGIN_MS + 60_000 * n for n in range(120)]
    assert sum(each["epochs"] for each in history["steps"]) == 72_000
    assert sum(each["rows"] for each in history["steps"]) == 720_000
    step = history["steps"][50]
    assert step["epochs"] == 600
    assert step["took_ms"] == pytest.approx(30_000, abs=1)
    assert step["operators"][0]["busy_ms"] == pytest.approx(600 * 60, abs=60)
    newest = log.read(hours=1)
    assert newest["step_ms"] == 30_000
    assert newest["steps"][-1]["last"] == 72_000
    assert (newest["steps"][0]["at_ms"], len(newest["steps"])) == (BEGIN_MS + 3_600_000, 120)


def test_the_last_hours_are_those_before_the_last_epoch_also_if_the_clock_was_set_back(log: Log) -> None:
    day_ms = 24 * 3_600_000
    log.record([replace(each, ended_ms=each.ended_ms + day_ms) for each in epochs(30, 1000)], at_once=10)
    log.record(epochs(20, 1000), at_once=10)
    history = log.read(hours=6)
    assert [(each["at_ms"] - BEGIN_MS, each["epochs"]) for each in history["steps"]] == [(0, 10), (10_000, 10)]


def test_a_short_life_has_short_steps(log: Log) -> None:
    log.record(epochs(30, 1000), at_once=10)
    history = log.read(hours=6)
    assert history["step_ms"] == 10_000
    assert [each["at_ms"] - BEGIN_MS for each in history["steps"]] == [0, 10_000, 20_000]


def test_an_epoch_that_is_longer_than_a_step_is_in_each_of_them(log: Log) -> None:
    log.record(epochs(2, 25_000, took_ms=25_000.0, rows=7), at_once=1)
    steps = log.read()["steps"]
    assert [each["took_ms"] for each in steps] == [10_000.0] * 5
    assert [each["epochs"] for each in steps] == [0, 0, 1, 0, 1]
    assert sum(each["rows"] for each in steps) == 14
    assert sum(each["operators"][0]["busy_ms"] for each in steps) == pytest.approx(120)


def test_failed_checkpoints_stay_when_many_others_have_ended_since(log: Log) -> None:
    log.log.write(CheckpointEnd.of(FAILED))
    for number in range(200):
        log.log.write(CheckpointEnd.of(replace(STATS, checkpoint=20 + number, status="completed", end_to_end_ms=9)))
    failed, *others = log.read()["checkpoints"]
    assert (failed["status"], failed["failure"], failed["acknowledged"], failed["total_partitions"]) == (
        "failed", FAILED.failure, FAILED.acknowledged, FAILED.total_partitions,
    )  # fmt: skip
    assert [each["checkpoint"] for each in others] == list(range(120, 220))


def test_of_a_job_that_left_nothing_there_is_nothing(log: Log) -> None:
    assert log.read() == {"step_ms": 0, "steps": [], "checkpoints": [], "interruptions": []}
    log.log.write(AttemptBegin(generation=1, checkpoint=None, epoch=0, parallelism={}))
    assert log.read(hours=6)["steps"] == []


def test_the_page_has_the_history_of_the_job_with_that_directory(
    page_of: Open, alerts: FabricatedJob, local_dir: Path
) -> None:
    path = Places(local_dir, "", "alerts").event_log
    Log(path, "file:///elsewhere").record(epochs(7, 1000), at_once=7)
    log = Log(path, alerts.directory.as_uri())
    log.record(epochs(30, 1000), at_once=10)
    log.log.write(CheckpointEnd.of(FAILED))
    log.log.write(InterruptionEnd.of(RECENT.interruptions[0]))
    client = page_of(alerts.directory)
    at = f"/api/jobs/{only_job(client)['id']}/history"
    history = client.get(f"{at}?hours=6").json()
    assert sum(each["epochs"] for each in history["steps"]) == 30
    assert [each["failure"] for each in history["checkpoints"]] == [FAILED.failure]
    assert [(each["cause"], each["at_ms"], each["repeated_rows"]) for each in history["interruptions"]] == [
        ("it broke\nbadly", 1_700_000_000_000, 250)
    ]
    refused = client.get(f"{at}?hours=-1")
    assert (refused.status_code, refused.json()["error"]) == (400, "'-1' is no number of hours")
