"""Two machines: a standalone cluster, checkpoints in a bucket, results in a database; one of each goes away."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.seaweed import Seaweed
from tests.spark import machines, small
from tests.spark.harness import eventually

pytestmark = [
    pytest.mark.spark, pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of their own need namespaces, which root can make"),
]  # fmt: skip


class Work:
    """Input files, and what the job must have delivered of them."""

    def __init__(self, root: Path) -> None:
        self._root, self._files = root, 0
        self._users: list[str] = []
        self._rng = random.Random(7)

    def add(self) -> None:
        users = [f"u{self._rng.randrange(50)}" for _ in range(200)]
        small.write_rows(self._root / "in", self._files, [(user, "x", 1) for user in users])
        self._files += 1
        self._users += users

    def is_delivered(self) -> bool:
        return machines.counts(self._root) == small.counted(self._users)


@pytest.fixture
def cluster(tmp_path: Path, s3: Seaweed) -> Iterator[Any]:
    made = machines.Machines(tmp_path, s3.url(f"{uuid4()}/ck"), s3.options)
    try:
        yield made
    finally:
        made.close()
    eventually(lambda: not made.relatives(), "nothing is left", 30)


@pytest.mark.timeout(600)
def test_a_machine_and_the_driver_and_the_storage_go_away(cluster: Any, s3: Seaweed) -> None:
    work = Work(cluster.root)

    def delivered(what: str) -> dict[str, Any]:
        eventually(lambda: cluster.status() and work.is_delivered(), f"{what}: everything is delivered", 120)
        found: dict[str, Any] = cluster.status()
        return found

    work.add()
    cluster.start_driver()
    assert delivered("at first")["hosts"] == ["machine-2", "machine-3"]
    # A machine goes with all that is on it; another one comes in its place.
    work.add()
    cluster.lose(2)
    work.add()
    assert delivered("on one machine")["restarts"] >= 1
    cluster.start_worker(2)
    cluster.kill_driver()
    work.add()
    cluster.start_driver()
    assert delivered("with another driver")["restored"]
    # Nobody reaches the storage for a minute.
    s3.pause()
    work.add()
    time.sleep(60)
    assert not work.is_delivered()
    s3.resume()
    work.add()
    delivered("with the storage again")
    cluster.finish()
    assert work.is_delivered()
