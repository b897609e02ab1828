"""A machine of two is lost, and the other one has a standby of its partition: it goes on there, and downloads nothing."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.soak import MODE
from tests.spark import machines, pipeline, small
from tests.spark.harness import eventually

pytestmark = [
    pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of their own need namespaces, which root can make"),
]  # fmt: skip

USERS = [f"u{n}" for n in range(40)]


class Work:
    """What goes into files, and what must come out of it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._users: list[str] = []
        self._files = 0

    def add(self) -> None:
        small.write_rows(self._root / "in", self._files, [(user, "x", 1) for user in USERS])
        self._files += 1
        self._users += USERS

    def is_delivered(self) -> bool:
        """Whether each row is there once."""
        seen = Counter((row["user"], row["n"]) for row in pipeline.read_json(self._root / "out"))
        assert not [row for row, times in seen.items() if times > 1], "rows came more than once"
        return seen == small.counted(self._users)


@pytest.fixture
def cluster(local_dir: Path) -> Iterator[machines.Machines]:
    made = machines.Machines(local_dir, checkpoints={"standbys": 1, "mode": MODE})
    try:
        yield made
    finally:
        made.close()
    eventually(lambda: not made.relatives(), "nothing is left", 30)


class Case:
    """A cluster with a job that has standbys, and its work."""

    def __init__(self, cluster: machines.Machines) -> None:
        self.cluster, self.work = cluster, Work(cluster.root)

    def delivered(self) -> dict[str, Any]:
        """Wait until all rows are there once; return the status."""
        is_delivered = lambda: self.cluster.status() and self.work.is_delivered()  # noqa: E731
        eventually(is_delivered, "everything is delivered", every_s=0.2)
        return self.cluster.status()

    def warmed(self) -> dict[str, Any]:
        """Wait until each partition has a standby with the newest checkpoint, and none follows; return the status."""

        def are_warm() -> dict[str, Any] | None:
            status = self.cluster.status()
            standbys = status.get("standbys", [])
            is_warm = standbys and all(each["host"] and each["checkpoint"] == status["newest"] for each in standbys)
            return status if is_warm and status["is_covered"] else None

        found: dict[str, Any] = eventually(are_warm, "standbys have the newest checkpoint")
        return found

    def restores(self, number: int, keeper: str) -> list[tuple[str, str]]:
        """Return what a keeper's restores took from copies and from storage, as its log on a machine says."""
        log = self.cluster.disk(number) / "logs" / "small" / f"{keeper.replace('/', '-')}.log"
        return re.findall(r"(\d+) bytes from the local copy, (\d+) from storage", log.read_text())


@pytest.fixture
def case(cluster: machines.Machines) -> Case:
    made = Case(cluster)
    for _ in range(3):
        made.work.add()
    cluster.start_driver()
    made.delivered()
    return made


def test_a_lost_machine_goes_on_where_its_standby_is(case: Case, cluster: machines.Machines) -> None:
    status = case.warmed()
    owners = status["keepers"]
    assert sorted(owners.values()) == ["machine-2", "machine-3"]
    # Each on the other machine, on its disk.
    assert {f"{each['uid']}/{each['partition']}" for each in status["standbys"]} == owners.keys()
    for each in status["standbys"]:
        assert each["host"] != owners[f"{each['uid']}/{each['partition']}"]
        (files,) = cluster.disk(int(each["host"][-1])).glob(f"*/count-*-{each['partition']}/standby")
        assert sum(file.stat().st_size for file in files.iterdir()) == each["total_bytes"] > 0
        assert each["downloaded_bytes"] >= each["total_bytes"]
    cluster.lose(2)
    case.work.add()
    assert case.delivered()["restarts"] == 1
    assert set(cluster.status()["keepers"].values()) == {"machine-3"}
    eventually(lambda: len(cluster.keepers(3)) == 2, "the keepers of the attempt before have ended")
    (lost,) = (name for name, host in owners.items() if host == "machine-2")
    ((from_copies, from_storage),) = case.restores(3, lost)
    assert int(from_copies) > 0
    assert from_storage == "0"
    # Nothing but the keepers' own files is left of the standby, and there is no second host.
    case.work.add()
    case.delivered()
    eventually(lambda: not list(cluster.disk(3).glob("*/count-*/standby")), "its files are dropped")
    assert {each["host"] for each in cluster.status()["standbys"]} == {""}
    cluster.finish()
    assert not list(cluster.disk(3).glob("*/count-*"))


def test_a_machine_that_hangs_is_given_up_and_changes_nothing_when_it_goes_on(
    case: Case, cluster: machines.Machines
) -> None:
    """Spark takes it for alive for a minute or more: no connection has ended."""
    owners = case.warmed()["keepers"]
    cluster.hang(2)
    case.work.add()
    status = case.delivered()
    assert "no heartbeats come from 127.0.0.2" in status["failure"]
    assert (status["restarts"], set(status["keepers"].values())) == (1, {"machine-3"})
    (lost,) = (name for name, host in owners.items() if host == "machine-2")
    assert [from_storage for _, from_storage in case.restores(3, lost)] == ["0"]
    cluster.resume(2)
    eventually(lambda: not cluster.keepers(2), "its keepers end")
    case.work.add()
    assert case.delivered()["restarts"] == 1
    cluster.finish()
    assert case.work.is_delivered()
