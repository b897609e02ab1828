"""Two executors: state stays where it is, and a dead executor takes nothing with it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.spark.harness import App, Case, Reader, eventually, processes

pytestmark = pytest.mark.spark


def executor_of(keeper: int) -> int:
    """Return the process that a keeper watches."""
    command = Path(f"/proc/{keeper}/cmdline").read_text().split("\0")
    return int(command[command.index("strandline.runtime.keeper") + 3])


def reached(app: App, case: Case) -> dict[str, Any]:
    """Wait until everything that is there was processed and shown; return what the driver says then."""
    eventually(lambda: app.status() and case.is_complete(), "complete")
    return eventually(lambda: (s := app.status())["state"] == "running" and len(s["keepers"]) == 4 and s, "running")


@pytest.mark.timeout(300)
def test_an_executor_of_two_is_killed(case: Case) -> None:
    with Reader(case):
        case.add(2)
        app = App(case, master="local-cluster[2,1,1024]", executors="wanted")
        first = reached(app, case)
        # Partitions stay on their executor, with data or without.
        found = json.loads((case.root / "executors.json").read_text())
        assert len(found) == 5
        assert all(places == found[0] for places in found), found
        assert found[0].keys() == {"0", "1"}
        assert len(set(found[0].values())) == 2
        executors = {name: executor_of(pid) for name, pid in first["keepers"].items()}
        assert executors.keys() == {f"{uid}/{i}" for uid in ("profile", "per-kind") for i in (0, 1)}
        assert len(set(executors.values())) == 2
        assert all("CoarseGrainedExecutorBackend" in processes()[pid] for pid in executors.values())
        case.add(2)
        later = reached(app, case)
        assert later["keepers"] == first["keepers"]
        assert later["restarts"] == 0

        dead = executors["profile/0"]
        os.kill(dead, signal.SIGKILL)
        case.add(2)
        after = reached(app, case)
        assert after["restarts"] > 0
        assert after["restored_from"] is not None
        assert dead not in {executor_of(pid) for pid in after["keepers"].values()}
        app.finish()
        eventually(lambda: not app.relatives(), "nothing left of the driver", 15)
    case.check()
