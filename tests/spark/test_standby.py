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


def test_a_lost_machine_goes_on_where_its_standby_is(cluster: machines.Machines) -> None:
    work = Work(cluster.root)

    def delivered() -> dict[str, Any]:
        eventually(lambda: cluster.status() and work.is_delivered(), "everything is delivered", every_s=0.2)
        return cluster.status()

    def are_warm(status: dict[str, Any]) -> bool:
        return bool(status) and all(each["checkpoint"] == status["newest"] for each in status["standbys"])

    for _ in range(3):
        work.add()
    cluster.start_driver()
    first = delivered()
    owners = first["keepers"]
    assert sorted(owners.values()) == ["machine-2", "machine-3"]
    status = eventually(lambda: (s := cluster.status()) and are_warm(s) and s, "standbys have the newest checkpoint")
    # Each on the other machine, on its disk.
    assert {f"{each['uid']}/{each['partition']}" for each in status["standbys"]} == owners.keys()
    for each in status["standbys"]:
        assert each["host"] != owners[f"{each['uid']}/{each['partition']}"]
        (files,) = cluster.disk(int(each["host"][-1])).glob(f"*/count-*-{each['partition']}/standby")
        assert sum(file.stat().st_size for file in files.iterdir()) == each["total_bytes"] > 0
        assert each["downloaded_bytes"] >= each["total_bytes"]
    cluster.lose(2)
    work.add()
    assert delivered()["restarts"] == 1
    assert set(cluster.status()["keepers"].values()) == {"machine-3"}
    (lost,) = (name for name, host in owners.items() if host == "machine-2")
    log = (cluster.disk(3) / "logs" / "small" / f"{lost.replace('/', '-')}.log").read_text()
    restores = re.findall(r"(\d+) bytes from the local copy, (\d+) from storage", log)
    assert len(restores) == 1
    assert int(restores[0][0]) > 0
    assert restores[0][1] == "0"
    # Nothing but the keepers' own files is left of the standby, and there is no second host.
    work.add()
    delivered()
    eventually(lambda: not list(cluster.disk(3).glob("*/count-*/standby")), "its files are dropped")
    assert {each["host"] for each in cluster.status()["standbys"]} == {""}
    cluster.finish()
    assert not list(cluster.disk(3).glob("*/count-*"))
