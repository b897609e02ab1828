"""Tasks that fail in the JVM while rows flow to keepers and back, at each batch: Spark runs them again, and every event counts once.

`pytest tests/spark/test_faults_jvm.py -m "soak or not soak" -k seed017` repeats a seed.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

import strandline as sl
from tests.soak import seeds
from tests.spark.harness import Case, Reader, fired, keepers_armed, settle
from tests.spark.raising import Place, Raising
from tests.spark.wide import Wide

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


def fail_in_an_epoch(run: sl.Run, case: Case, raising: Raising, place: Place) -> Place:
    """Have a task fail in the next epoch, at this place or, where no such row came, at another one; return where."""
    while True:
        raising.arm(place)
        case.add(1, ROWS)
        run.process_all_available(120)
        if raising.disarm():
            return place
        # Every partition gets its last row; not every one gives any.
        assert place.row > 0 or place.side == "gives", f"seed {case.seed}, {place}: nothing failed"
        place = replace(place, row=place.row // 2) if place.row else replace(place, partition=1 - place.partition)


def fail_everywhere(spark: Any, case: Case, raising: Raising, places: list[Place]) -> None:
    """Run a job in which a task fails at each of these places, one an epoch; Spark deals with it, without a restart."""
    case.add(1, ROWS)
    with Reader(case), case.job(spark, checkpoints=case.checkpoints("2s")).start(spark) as run:
        settle(run)
        for place in places:
            hit = fail_in_an_epoch(run, case, raising, place)
            status = run.status()
            assert status.restarts == 0, f"seed {case.seed}, {hit}: {status.last_failure}"
        case.finish(run)


@pytest.mark.parametrize("seed", seeds([], soak=range(25)))
def test_tasks_that_fail_at_any_row(spark: Any, case: Case, monkeypatch: Any, seed: int) -> None:
    case.seed = seed
    places = random.Random(seed).sample(everywhere(), 3)
    fail_everywhere(spark, case, Raising(spark, monkeypatch, ROWS_A_BATCH), places)


@pytest.mark.soak
@pytest.mark.parametrize("uid", ["profile", "per-kind"])
@pytest.mark.parametrize("side", ["gets", "gives"])
@pytest.mark.parametrize("partition", [0, 1])
def test_tasks_that_fail_at_each_row_that_begins_a_batch_or_halves_it(
    spark: Any, case: Case, monkeypatch: Any, uid: str, side: str, partition: int
) -> None:
    places = [place for place in everywhere() if (place.uid, place.side, place.partition) == (uid, side, partition)]
    fail_everywhere(spark, case, Raising(spark, monkeypatch, ROWS_A_BATCH), places)


# Operators that give nothing, whose tasks Spark runs again: in test_faults_stream.py, too.
@pytest.mark.parametrize("seed", seeds([], soak=range(5)))
def test_tasks_that_fail_at_each_row_while_nothing_is_given(
    spark: Any, case: Case, monkeypatch: Any, seed: int
) -> None:
    """Spark finds out only when it reads from the worker: until then, what came looks like all there is."""
    raising, wide = Raising(spark, monkeypatch, ROWS_A_BATCH), Wide(case.root, seed, silent=True, rows=10)
    with wide.build(spark, case.local_dir).start(spark) as run:
        for row in range(0, 15, 1 if seed else ROWS_A_BATCH):
            failed = 0
            for partition in (0, 1) if seed else (row // ROWS_A_BATCH % 2,):
                raising.arm(Place("a", "gets", partition, row))
                wide.add()
                run.process_all_available(120)
                failed += raising.disarm()
            status = run.status()
            assert status.restarts == 0, f"seed {seed}, row {row}: {status.last_failure}"
            assert failed, f"seed {seed}, row {row}: nothing failed"
        wide.report()
        settle(run)
    wide.check()


@pytest.mark.parametrize("seed", seeds(range(1), soak=range(1, 15)))
@pytest.mark.long
def test_tasks_that_fail_in_the_first_epoch_after_a_restore(
    spark: Any, case: Case, monkeypatch: Any, seed: int
) -> None:
    """A keeper dies in it, too, and is started anew in its place, from the checkpoint. Before, they fail at any row."""
    case.seed, rng = seed, random.Random(seed)
    raising = Raising(spark, monkeypatch, ROWS_A_BATCH)
    dies = rng.choice(["keeper.epoch.middle", "keeper.applied"])
    fail_everywhere(spark, case, raising, random.Random(seed).sample(everywhere(), 0 if seed else 3))
    with Reader(case):
        directory, is_hit = case.root / "fired", False
        while not is_hit:
            raising.arm(rng.choice(everywhere()))
            at = rng.randint(1, 3) if dies == "keeper.epoch.middle" else 1
            case.add(1, ROWS)
            job = case.job(spark, checkpoints=case.checkpoints(None))
            with keepers_armed(spark, directory, f"{dies}=kill@{at}"), job.start(spark) as run:
                settle(run)
                assert run.status().restored_from is not None
                is_hit = raising.disarm() and fired(directory) == {dies}
                if is_hit:
                    # What the epoch has left in the state, the next one shows.
                    case.add(1, ROWS)
                    case.finish(run)
            (directory / dies).unlink(missing_ok=True)
