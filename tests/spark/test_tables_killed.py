"""A driver killed with -9 in the middle of a commit to its tables, and in that of the next one: every row is there once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.spark import counting
from tests.spark.harness import App, Case, eventually

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]


def add(root: Path, number: int, rng: random.Random) -> list[str]:
    """Add an input file; return its users."""
    users = [f"u{rng.randint(0, 30)}" for _ in range(60)]
    counting.add(root, number, users)
    return users


@pytest.mark.parametrize(
    "kills",
    [
        # In a run: before a transaction, and when it is done and nobody knows. Then as the next run begins.
        ["sink.table_before=kill@2", "sink.table_committed=kill@1", "restore.sinks_recovered=kill@1"],
        # The claims of two runs, one of them in the middle: the second table has not seen it yet.
        ["sink.table_committed=kill@2", "sink.table_claimed=kill@1", "sink.table_claimed=kill@2"],
    ],
    ids=["transactions", "claims"],
)
def test_the_driver_is_killed_in_the_middle_of_a_commit(case: Case, kills: list[str]) -> None:
    rng = random.Random(1)
    users: list[str] = []
    for life, failpoint in enumerate(kills):
        for number in range(3):
            users += add(case.root, 3 * life + number, rng)
        App(case, failpoint, job="tabled").wait_killed()
    App(case, job="tabled").finish()
    counting.check_tables(case.root, users)


@pytest.mark.parametrize("seed", range(1, 4))
def test_the_driver_is_killed_at_any_time(case: Case, seed: int) -> None:
    """In the library's own commit, too."""
    rng = random.Random(seed)
    users: list[str] = []
    for life in range(3):
        for number in range(3):
            users += add(case.root, 3 * life + number, rng)
        wanted = versions(case.root) + rng.randint(1, 4)
        app = App(case, job="tabled")
        eventually(lambda: versions(case.root) >= wanted, "the tables have new versions", 300)  # noqa: B023
        time.sleep(rng.uniform(0, 0.1))
        app.kill()
    App(case, job="tabled").finish()
    counting.check_tables(case.root, users)


def versions(root: Path) -> int:
    """Return how many versions both tables have."""
    return len(list(root.glob("*/_delta_log/*.json")))
