"""What breaks while an epoch's rows flow: shuffle files that go, Python workers and their daemon that are killed.

Each case strikes in several epochs, at an event of its seed's choice; one that nobody noticed is struck again elsewhere.
`pytest tests/spark/test_faults_stream.py -m "soak or not soak" -k seed017` repeats a seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.spark.keepers import exchange
from tests.soak import seeds
from tests.spark import strikes
from tests.spark.harness import Case, settle
from tests.spark.wide import ROWS, SESSION_CONF, Wide, use_small_batches

pytestmark = pytest.mark.spark


@pytest.fixture
def wide_spark(spark: Any, monkeypatch: Any) -> Iterator[Any]:
    """The session, with tasks of one file each, and batches that are far smaller than an epoch."""
    use_small_batches(lambda name, value: monkeypatch.setitem(exchange.SESSION_CONF, name, value))
    for name, value in SESSION_CONF.items():
        spark.conf.set(name, value)
    yield spark
    for name in SESSION_CONF:
        spark.conf.unset(name)


TRIES = ((200, 1), (40, 1), (10, 1), (0, 1), (0, 3), (0, 9))
"""Within how many events to strike, and how many times more rows there are: the later, the more surely it is noticed."""


def strike_in_an_epoch(
    run: sl.Run, wide: Wide, local_dir: Path, rng: random.Random, tries: Sequence[tuple[int, int]], what: str,
    **given: Any,
) -> None:  # fmt: skip
    """Strike in the next epoch; where rows were too far for anybody to notice, in the one after that, then with more."""
    for within, times in tries:
        wide.rows = times * ROWS
        before, uid = wide.given_up(local_dir), rng.choice(wide.uids if within else wide.sources)
        after = rng.randint(0, within)
        hit = strikes.plan(wide.strikes, uid, after, what, **given)
        wide.add()
        run.process_all_available(120)
        if hit.exists() and json.loads(hit.read_text()) and wide.given_up(local_dir) > before:
            return
    raise AssertionError(f"seed {wide.seed}: '{what}' struck again and again, and nobody noticed")


def strike_again_and_again(
    spark: Any, case: Case, seed: int, sources: list[str], kinds: list[tuple[str, dict[str, Any]]],
    tries: Sequence[tuple[int, int]] = TRIES,
) -> None:  # fmt: skip
    """Strike in several epochs of a job; of two seeds, one's operators are silent."""
    rng, wide = random.Random(seed), Wide(case.root, seed, sources, silent=seed % 2 == 0)
    with wide.build(spark, case.local_dir).start(spark) as run:
        for what, given in kinds:
            strike_in_an_epoch(run, wide, case.local_dir, rng, tries, what, **given)
        wide.report()
        settle(run)
        # Spark runs tasks again, and keepers are where they were.
        assert run.status().restarts == 0, f"seed {seed}: {run.status().last_failure}"
    wide.check()


# Of the two that follow: what costs is that a job begins and ends. With the daemon, workers are killed.
@pytest.mark.parametrize("seed", seeds(range(1), soak=[]))
@pytest.mark.long
def test_shuffle_files_that_go_and_workers_that_are_killed(wide_spark: Any, case: Case, seed: int) -> None:
    kinds: list[tuple[str, dict[str, Any]]] = [("delete", {"ending": "*"}), ("daemon", {})]
    strike_again_and_again(wide_spark, case, seed, ["a"], kinds, TRIES[2:])


@pytest.mark.parametrize("seed", seeds([], soak=range(31)))
def test_shuffle_files_that_go_while_they_are_read(wide_spark: Any, case: Case, seed: int) -> None:
    ending = random.Random(seed).choice(["data", "*"])
    kinds: list[tuple[str, dict[str, Any]]] = [("delete", {"ending": ending}), ("garble", {})]
    strike_again_and_again(wide_spark, case, seed, ["a", "b"] if seed % 4 > 1 else ["a"], kinds)


@pytest.mark.parametrize("seed", seeds([], soak=range(21)))
def test_python_workers_killed_in_the_middle_of_an_epoch(wide_spark: Any, case: Case, seed: int) -> None:
    strike_again_and_again(
        wide_spark, case, seed, ["a", "b"] if seed % 4 > 1 else ["a"], [("workers", {}), ("daemon", {})]
    )
