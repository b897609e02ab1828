"""`strandline metrics`: which jobs it has, and how it serves them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from strandline.cli.metrics import Machine
from strandline.control import journal
from strandline.control.journal import JournalEntry
from strandline.control.status import State
from strandline.keeper.paths import Places
from strandline.telemetry.metrics import as_markdown
from strandline.ui import jobs
from strandline.ui.jobs import Jobs
from tests.cli.conftest import Command, environment
from tests.control.fake import FakeRun
from tests.control.serving import Serve
from tests.telemetry.asking import Scrape
from tests.telemetry.collecting import collecting


def record(local_dir: Path, job: str, state: State, *, ago_ms: int = 1000, is_alive: bool = False) -> None:
    """Leave what a driver of a job leaves."""
    places = Places(local_dir, "file:///ck", job)
    places.make()
    now_ms, pid = int(time.time() * 1000), os.getpid()
    journal.write(places, JournalEntry(
        job=job, directory="file:///ck", pid=pid, born=journal.process_start(pid) if is_alive else "1",
        since_ms=now_ms - ago_ms, state=state, at_ms=now_ms - ago_ms,
    ))  # fmt: skip


def test_it_has_the_jobs_that_run_and_those_that_do_not(strandline: Command, serve: Serve, local_dir: Path) -> None:
    serve(FakeRun("alerts"))
    record(local_dir, "killed", "running")
    record(local_dir, "failed", "failed")
    record(local_dir, "hangs", "running", is_alive=True)
    record(local_dir, "stopped", "stopped")
    record(local_dir, "old", "stopped", ago_ms=25 * 3_600_000)
    record(local_dir, "old-failure", "failed", ago_ms=25 * 3_600_000)
    scrape = Scrape(strandline("metrics", "--once", "--local-dir", local_dir).stdout)
    states = {
        labels["job"]: labels["state"]
        for name, labels in scrape.series
        if name == "strandline_job_state" and scrape.values[name, tuple(sorted(labels.items()))]
    }
    # What was stopped long ago is nobody's concern; what has failed is, until somebody has started it again.
    assert states == {
        "alerts": "running", "killed": "killed", "failed": "failed", "hangs": "no answer", "stopped": "stopped",
        "old-failure": "failed",
    }  # fmt: skip
    assert scrape("strandline_up", job="alerts") == 1
    assert sum(scrape.all("strandline_up")) == 1
    assert scrape("strandline_partition_rows_in_total", job="alerts", partition="0") == 900
    assert scrape("strandline_start_time_seconds", job="alerts") == 1
    named = Scrape(strandline("metrics", "old", "alerts", "--once", "--local-dir", local_dir).stdout)
    assert {labels["job"] for _, labels in named.series} == {"alerts", "old"}


def test_a_driver_of_another_version_is_told_apart_from_one_that_hangs(
    strandline: Command, serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(FakeRun())
    monkeypatch.setattr("strandline.cli.metrics.VERSION", "0.0.0-other")
    scrape = Scrape(strandline("metrics", "--once", "--local-dir", local_dir).stdout)
    assert scrape("strandline_job_state", state="other version") == 1
    assert scrape("strandline_up") == 0


def test_storage_that_is_away_hides_no_job_that_is_known(
    serve: Serve, local_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs, "_LIST_S", 0.0)
    monkeypatch.setattr(jobs, "_FIND_S", 0.0)
    serve(FakeRun())
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    machine = Machine(Jobs(local_dir, (str(directory), "alerts")))
    assert len(machine.read()) == 1
    assert capsys.readouterr().err == ""
    directory.rmdir()
    (figures,) = machine.read(spans=True)
    assert (figures.state, figures.recent is not None) == ("running", True)
    assert "jobs may be missing: " in capsys.readouterr().err


def test_the_partitions_of_large_jobs_are_summed_up(strandline: Command, serve: Serve, local_dir: Path) -> None:
    serve(FakeRun())
    scrape = Scrape(strandline("metrics", "--once", "--partitions", "1", "--local-dir", local_dir).stdout)
    assert scrape("strandline_partition_rows_in_total", operator="detect", partition="all") == 1000


def test_it_prints_the_table_of_the_documentation(strandline: Command) -> None:
    assert strandline("metrics", "--names").stdout == as_markdown()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--every", "0s"), "expected more than 0"),
        (("--otlp", "localhost:4318"), "expected the address of a server"),
        (("--host", "127.0.0.1", "--port", "{port}"), "give another port"),
    ],
)
def test_mistakes_are_told(strandline: Command, local_dir: Path, arguments: tuple[str, ...], told: str) -> None:
    with collecting() as other:
        port = other.url.rpartition(":")[2]
        outcome = strandline("metrics", *(each.format(port=port) for each in arguments), "--local-dir", local_dir)
    assert outcome.code == 1
    assert told in outcome.stderr


def test_without_its_packages_it_says_what_to_install(
    strandline: Command, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "strandline.telemetry.prometheus", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    outcome = strandline("metrics", "--once", "--local-dir", local_dir)
    assert outcome.code == 1
    assert "pip install 'strandline[metrics]'" in outcome.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_it_serves_and_sends_until_a_signal(serve: Serve, local_dir: Path, number: signal.Signals, code: int) -> None:
    serve(FakeRun())
    with collecting() as kept:
        command = [
            sys.executable, "-m", "strandline.cli.main", "metrics", "alerts", "later", "--port", "0",
            "--local-dir", str(local_dir), "--otlp", kept.url, "--every", "100ms",
        ]  # fmt: skip
        with subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(address, timeout=20) as answer:
                assert Scrape(answer.read().decode())("strandline_up", job="alerts") == 1
            deadline = time.monotonic() + 30
            while len(kept.bodies("/v1/metrics")) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(number)
            assert process.wait(20) == code
            _, said = process.communicate()
    assert "Traceback" not in said
    assert "until Ctrl-C" in said
    # A service of the machine may start before the job's first start.
    assert "WARNING: later: there is no such job" in said
    assert kept.resource["service.name"] == "alerts"
