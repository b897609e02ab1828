"""How many rows a second a status says, by a clock that stands where the test puts it; and where an epoch's time went."""

from __future__ import annotations

import pytest

from strandline.control.recent import OperatorTime
from strandline.control.status import Totals
from strandline.core.ids import Epoch, Partition
from strandline.keeper.protocol import Ack
from strandline.spark.job.progress import JobProgress, Rate, Work


def test_rows_of_the_last_ten_seconds_count() -> None:
    now = 100.0
    rate = Rate(lambda: now)
    assert rate.per_s() == 0
    now = 102.0
    rate.note(50, 1000)
    # Since the beginning, while that is not long ago.
    assert rate.per_s() == 25
    now = 108.0
    rate.note(30, 1000)
    assert rate.per_s() == 10
    now = 113.0
    assert rate.per_s() == 3
    now = 118.1
    assert rate.per_s() == 0


def test_an_epoch_of_a_minute_counts_with_its_minute() -> None:
    now = 0.0
    rate = Rate(lambda: now)
    now = 200.0
    rate.note(6000, 60_000)
    assert rate.per_s() == 100
    now = 205.0
    assert rate.per_s() == pytest.approx(6000 / 65)


def test_the_times_of_an_epoch_are_those_of_the_slowest_partitions() -> None:
    progress = JobProgress(Epoch(7), last_rows=30, last_epoch_ms=900.0)
    acks = [
        ack("count", 0, process_ms=500.0, wait_ms=450.0, pause_ms=1.0),
        ack("count", 1, process_ms=300.0, wait_ms=100.0, pause_ms=9.0),
        ack("top", 0, process_ms=20.0),
    ]
    progress.note_times(acks, 1_000, 40.0, 3)
    (epoch,) = progress.recent
    assert (epoch.epoch, epoch.ended_ms, epoch.rows, epoch.took_ms) == (7, 1_000, 30, 900.0)
    assert (epoch.plan_ms, epoch.pause_ms, epoch.checkpoint) == (40.0, 9.0, 3)
    assert epoch.operators == [
        OperatorTime("count", 1, 200.0, 100.0, 125.0), OperatorTime("top", 0, 20.0, 0.0, 20.0),
    ]  # fmt: skip
    for _ in range(400):
        progress.note_times(acks, 2_000, 40.0, None)
    assert len(progress.recent) == 300


def test_work_adds_up_without_the_time_of_waiting() -> None:
    work = Work()
    for _ in range(2):
        work.add(ack("count", 0, rows_in=5, rows_out=4, process_ms=100.0, wait_ms=30.0, late_rows=2, failed_events=1))
    assert work == Work(10, 8, 200.0, 140.0, 4, 2)


def ack(uid: str, partition: int, **figures: float) -> Ack:
    return Ack(uid=uid, partition=Partition(partition), epoch=Epoch(7), pid=1, host="here", keeper="k", **figures)  # type: ignore[arg-type]


def test_an_attempt_counts_from_what_it_restored() -> None:
    progress = JobProgress.after(Epoch(7), {"rows_in": 100, "late_rows": 5, "failed_events": 2})
    assert progress.counted() == Totals()
    progress.epochs, progress.all_ms, progress.rows_in, progress.late_rows = 2, 800.0, 130, 6
    progress.failed_events, progress.replaced = 4, 1
    assert progress.counted() == Totals(2, 800.0, 30, 1, 2, 1)
    assert progress.counted().plus(Totals(rows=100, down_ms=7)) == Totals(2, 800.0, 130, 1, 2, 1, down_ms=7)
