"""Tasks that fail in the JVM while rows flow to keepers and back, at each batch: Spark runs them again, and every event counts once.

`pytest tests/spark/test_faults_jvm.py -m "soak or not soak" -k seed017` repeats a seed.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from tests.soak import seeds
from tests.spark.harness import Case, Reader, eventually, fired, keepers, keepers_armed, settle
from tests.spark.raising import Place, Raising

pytestmark = pytest.mark.spark

ROWS_A_BATCH = 5
ROWS = 40
"""About twenty come to each of two partitions, in an epoch."""


def everywhere() -> list[Place]:
    """Return each boundary of batches, the middle of each, on both sides of both operators, and the very end."""
    rows = [row for n in range(4) for row in (n * ROWS_A_BATCH, n * ROWS_A_BATCH + 3)]
    return [
        Place(uid, side, partition, row)  # type: ignore[arg-type]
        for uid in ("profile", "per-kind")
        for side in ("gets", "gives")
        for partition in (0, 1)
        for row in rows
    ]


def fail_in_an_epoch(run: sl.Run, case: Case, raising: Raising, place: Place, settled: Callable[[], Any]) -> Place:
    """Have a task fail in the next epoch, at this place or, where no such row came, at an earlier one."""
    while True:
        raising.arm(place)
        case.add(1, ROWS)
        settled()
        if raising.disarm():
            return place
        assert place.row > 0 or place.side == "gives", f"{place}: nothing failed"
        place = Place(place.uid, place.side, 1 - place.partition if place.row == 0 else place.partition, place.row // 2)


def fail_everywhere(spark: Any, case: Case, raising: Raising, places: list[Place]) -> None:
    """Run a job in which a task fails at each of these places, one an epoch; Spark deals with it, without a restart."""
    case.add(1, ROWS)
    with Reader(case), case.job(spark, checkpoints=case.checkpoints("1s")).start(spark) as run:
        settle(run)
        for place in places:
            fail_in_an_epoch(run, case, raising, place, lambda: run.process_all_available(120))
            status = run.status()
            assert status.restarts == 0, f"seed {case.seed}, {place}: {status.last_failure}"
        case.finish(run)


@pytest.mark.parametrize("seed", seeds(range(2), soak=range(2, 30)))
def test_tasks_that_fail_at_any_row(spark: Any, case: Case, monkeypatch: Any, seed: int) -> None:
    case.seed = seed
    places = random.Random(seed).sample(everywhere(), 6)
    fail_everywhere(spark, case, Raising(spark, monkeypatch, ROWS_A_BATCH), places)
