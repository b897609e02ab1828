from __future__ import annotations

import os
from pathlib import Path

from strandline.checkpoint.restore import choose
from strandline.control import journal
from strandline.keeper.paths import Places
from tests.cli.conftest import Command
from tests.cli.fabricate import FabricatedJob
from tests.control.fake import FakeRun
from tests.control.serving import Serve


def test_a_stopped_job_is_set_back(strandline: Command, alerts: FabricatedJob, local_dir: Path) -> None:
    given = ("--directory", alerts.directory, "--local-dir", local_dir, "--json")
    assert strandline("rollback", "alerts", "1", *given).code == 1, "it is not retained"
    chosen = choose(alerts.jobdir).manifest
    assert chosen.checkpoint == 3
    assert strandline("rollback", "alerts", "chk-2", *given).json == [
        {"job": "alerts", "checkpoint": 2, "running": False}
    ]
    chosen = choose(alerts.jobdir).manifest
    assert chosen.checkpoint == 2
    states = {
        one["checkpoint"]: one["state"] for one in strandline("snapshots", "list", alerts.directory, "--json").json
    }
    assert states == {3: "void", 2: "complete"}


def test_a_job_that_does_not_run_here_needs_its_directory(
    strandline: Command, alerts: FabricatedJob, local_dir: Path
) -> None:
    refused = strandline("rollback", "alerts", "2", "--local-dir", local_dir)
    assert refused.code == 1
    assert "no driver of job 'alerts'" in refused.stderr
    assert "--directory" in refused.stderr
    wrong = strandline("rollback", "alert", "2", "--local-dir", local_dir, "--directory", alerts.directory)
    assert (wrong.code, "the jobs there are: alerts" in wrong.stderr) == (1, True)


def test_a_running_job_is_asked(strandline: Command, serve: Serve, local_dir: Path) -> None:
    run = FakeRun()
    serve(run)
    done = strandline("rollback", "alerts", "5", "--local-dir", local_dir)
    assert (done.code, done.stdout) == (0, "job 'alerts' goes on from checkpoint 5\n")
    assert [name for name, _ in run.asked] == ["rollback"]


def test_a_job_whose_driver_does_not_answer_is_not_set_back(
    strandline: Command, alerts: FabricatedJob, local_dir: Path
) -> None:
    """Else the driver would find itself replaced when it works on, and the job would end."""
    places, pid = Places(local_dir, alerts.jobdir.store.url, "alerts"), os.getpid()
    places.make()
    record = journal.JournalEntry(
        job="alerts", directory=places.store_url, pid=pid, born=journal.process_start(pid), since_ms=1, state="running",
        at_ms=1, failure="", failure_ms=None,
    )  # fmt: skip
    journal.write(places, record)
    refused = strandline("rollback", "alerts", "2", "--directory", alerts.directory, "--local-dir", local_dir)
    assert (refused.code, f"(process {pid}) runs on this machine and does not answer" in refused.stderr) == (1, True)
    chosen = choose(alerts.jobdir).manifest
    assert chosen.checkpoint == 3
