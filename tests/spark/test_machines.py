"""Two machines: a standalone cluster, from Kafka to Kafka, checkpoints in a bucket; one of each goes away."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.kafkaserver import Kafka
from tests.seaweed import Seaweed
from tests.spark import machines, small
from tests.spark.harness import eventually

pytestmark = [
    pytest.mark.spark, pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of their own need namespaces, which root can make"),
]  # fmt: skip


class Work:
    """What goes into Kafka, and what must come out of it."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka, self._rng = kafka, random.Random(7)
        self._users: list[str] = []
        self.topics = [kafka.create(f"machines-{name}", 2) for name in ("in", "out")]

    def add(self) -> None:
        users = [f"u{self._rng.randrange(50)}" for _ in range(200)]
        self._kafka.put(self.topics[0], [(user, json.dumps({"user": user, "kind": "x", "v": 1})) for user in users])
        self._users += users

    def is_delivered(self) -> bool:
        """Whether each is there once, as a reader sees it that reads what is committed."""
        said = [json.loads(message.value()) for message in self._kafka.messages(self.topics[1])]
        seen = Counter((each["user"], each["n"]) for each in said)
        assert not [row for row, times in seen.items() if times > 1], "rows came more than once"
        return seen == small.counted(self._users)


@pytest.fixture
def work(kafka: Kafka) -> Work:
    return Work(kafka)


@pytest.fixture
def cluster(local_dir: Path, s3: Seaweed, kafka: Kafka, work: Work) -> Iterator[Any]:
    made = machines.Machines(
        local_dir, url=s3.url(f"{uuid4()}/ck"), options=s3.options, kafka=kafka.servers, topics=work.topics
    )
    try:
        yield made
    finally:
        made.close()
    eventually(lambda: not made.relatives(), "nothing is left", 30)


@pytest.mark.timeout(600)
def test_a_machine_the_driver_the_broker_and_the_storage_go_away(
    cluster: Any, s3: Seaweed, kafka: Kafka, work: Work
) -> None:
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
    # The broker ends as in a power failure, and comes back.
    kafka.kill()
    time.sleep(20)
    kafka.run()
    work.add()
    delivered("with another broker")
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
