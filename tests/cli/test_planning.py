"""`strandline plan`, of checkpoint directories and beside a driver whose run is a fake."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import strandline as sl
from strandline.checkpoint.costs import AMPLIFICATION
from strandline.checkpoint.history import Phases, SinkStats
from strandline.control import workload
from strandline.control.status import Status
from strandline.core.ids import CheckpointId
from strandline.format.manifest import MANIFEST
from tests.cli.conftest import Command
from tests.cli.fabricate import FabricatedJob
from tests.cli.snapshots import make
from tests.control.fake import STATS, FakeRun
from tests.control.serving import Serve


class Busy(FakeRun):
    """A run of 2,000 rows and a checkpoint of 1 MB for each status that is asked for."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.asked_for = 0

    def status(self) -> Status:
        self.asked_for += 1
        number = 100 + self.asked_for
        stats = replace(
            STATS, checkpoint=CheckpointId(number), status="completed", triggered_ms=1_000_000_000 + 500 * number,
            uploaded_bytes=1_000_000, phases=Phases(300.0, 100.0, 60.0, 20.0), sinks=(SinkStats("out", 80.0, 600.0),),
        )  # fmt: skip
        return replace(
            super().status(), rows_in=2_000 * self.asked_for, last_checkpoint=stats, last_epoch_ms=200.0,
            last_epoch_rows=400,
        )  # fmt: skip


@pytest.fixture
def job(tmp_path: Path) -> FabricatedJob:
    """A job with three retained checkpoints, some time apart."""
    job = FabricatedJob(tmp_path / "ck", retain=3)
    for _ in range(3):
        job.checkpoint()
        time.sleep(0.02)
    return job


def test_a_directory_of_checkpoints_tells_what_changes(job: FabricatedJob, strandline: Command) -> None:
    outcomes = [strandline("plan", place, "--json") for place in (job.directory, job.directory / "alerts/chk-3")]
    for outcome in outcomes:
        assert (outcome.code, outcome.stderr) == (0, "")
        (data,) = outcome.json
        assert (data["job"], data["is_met"], data["misses"]) == ("alerts", True, [])
        # 5,000 bytes in each partition with each of the three, and CURRENT.
        assert data["workload"]["state_bytes"] == 2 * (3 * 5_000 + 16)
        assert data["workload"]["largest_bytes"] == pytest.approx(3 * 5_000 + 16)
        assert data["uploaded_per_s"] == pytest.approx(data["workload"]["changed_per_s"] * AMPLIFICATION)
        assert data["now"]["setting"]["mode"] == "incremental"
        assert 0.02 <= data["now"]["setting"]["every_s"] < 60
        assert data["known"]["read_per_s"].startswith("assumed")
        assert data["known"]["changed_per_s"] == "measured: the uploads of 2 checkpoints, of which merges are 1.9"
        directory = job.directory.as_uri()
        checkpoints = eval(data["python"], {"sl": sl})
        assert (checkpoints.directory, checkpoints.mode) == (directory, data["best"]["setting"]["mode"])
    assert [path for path in (job.directory / "alerts").rglob("*") if "pins" in path.parts] == []


def test_people_read_the_advice_and_how_sure_it_is(job: FabricatedJob, strandline: Command) -> None:
    outcome = strandline("plan", job.directory, "--recover-within", "5s", "--latency", "1s")
    assert outcome.code == 0
    assert "job 'alerts': 29.3 KB of state in 2 partitions" in outcome.stdout
    rows = [line.split()[:2] for line in outcome.stdout.splitlines()]
    assert ["now", "incremental"] in rows
    assert any(row[:1] == ["best"] for row in rows)
    assert f'sl.Checkpoints("{job.directory.as_uri()}", mode=' in outcome.stdout
    assert outcome.stderr.startswith("how sure: within a factor of two")
    assert "  changes: measured: the uploads of 2 checkpoints" in outcome.stderr


def test_a_goal_that_cannot_be_met_is_exit_code_1(
    job: FabricatedJob, strandline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "_slowness", lambda: 1.0)
    outcome = strandline("plan", job.directory, "--recover-within", "1s", "--after", "program")
    assert outcome.code == 1
    assert "recovery within 1 s cannot be met: at best 10." in outcome.stdout
    assert "of which starting Spark and the program takes 9.8 s" in outcome.stdout
    assert "nearest: sl.Checkpoints(" in outcome.stdout


def test_a_single_snapshot_needs_what_it_does_not_tell(tmp_path: Path, strandline: Command) -> None:
    made = make(tmp_path)
    for place in (made.checkpoints[1], made.native, made.canonical):
        outcome = strandline("plan", place)
        assert (outcome.code, outcome.stdout) == (1, "")
        assert "how much of its state changes is not known" in outcome.stderr
        assert "--changes 5MB" in outcome.stderr
        (data,) = strandline("plan", place, "--json", "--changes", "5MB").json
        assert data["workload"]["changed_per_s"] == 5 * 1024 * 1024
        assert data["workload"]["state_bytes"] > 0
        assert data["workload"]["partitions"] == 3
        assert data["now"] is None


def test_a_running_job_is_watched(
    serve: Serve, job: FabricatedJob, local_dir: Path, strandline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "_LOOK_S", 0.01)
    run = Busy(job.directory)
    serve(run, job.directory.as_uri())
    asked: tuple[Any, ...] = ("plan", "alerts", "--local-dir", local_dir, "--watch", "200ms", "--restart-delay", "2s")
    (data,) = strandline(*asked, "--json").json
    work = data["workload"]
    assert run.asked_for >= 2
    assert work["capacity_per_s"] >= work["rows_per_s"] > 0
    # As the one keeper that knows it says: the checkpoint's files are fewer.
    assert (work["state_bytes"], work["largest_bytes"]) == (3 << 20, pytest.approx((3 << 20) / 2))
    assert (work["epoch_s"], work["shown_s"], work["published_s"]) == (0.2, 0.08, 0.02)
    assert (work["restart_delay_s"], work["hosts"]) == (2.0, 1)
    assert data["now"]["setting"]["every_s"] == 0.5
    assert data["known"]["rows_per_s"].startswith("measured: the running job")


def test_a_name_is_a_running_job_before_it_is_a_folder(
    serve: Serve, job: FabricatedJob, local_dir: Path, strandline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(job.directory)
    asked: tuple[Any, ...] = ("plan", "alerts", "--local-dir", local_dir, "--watch", "10ms", "--json")
    of_folder = strandline(*asked).json[0]["known"]
    serve(Busy(job.directory), job.directory.as_uri())
    of_job = strandline(*asked).json[0]["known"]
    assert (of_folder["durable_s"].partition(":")[0], of_job["durable_s"].partition(":")[0]) == ("assumed", "measured")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing"], "no driver of job 'nothing' runs on this machine"),
        (["nothing"], "; name a snapshot with a /, as ./nothing"),
        (["./nothing"], "nothing"),
        (["nothing", "--after", "fire"], "error: --after is 'fire', expected one of keeper, program"),
        (["nothing", "--latency", "0s"], "error: --latency is '0s', expected more than 0"),
        (["nothing", "--latency", "soon"], "error: --latency"),
        (["nothing", "--changes", "many"], "error: --changes"),
    ],
)
def test_wrong_input_is_named(args: list[str], message: str, local_dir: Path, strandline: Command) -> None:
    outcome = strandline("plan", *args, "--local-dir", local_dir)
    assert (outcome.code, outcome.stdout) == (1, "")
    assert message in outcome.stderr
    assert "next step" in outcome.stderr or "expected" in outcome.stderr


def test_a_job_without_state_has_nothing_to_plan(job: FabricatedJob, tmp_path: Path, strandline: Command) -> None:
    path = job.directory / "alerts/chk-3/_metadata"
    manifest = MANIFEST.decode(path.read_bytes(), str(path))
    copy = tmp_path / "copy/chk-3/_metadata"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(MANIFEST.encode(structs.replace(manifest, operators=[])))
    outcome = strandline("plan", copy.parent)
    assert (outcome.code, outcome.stdout) == (1, "")
    assert "it has no keyed operator, so no state" in outcome.stderr


def test_a_job_without_a_checkpoint_is_named(tmp_path: Path, strandline: Command) -> None:
    FabricatedJob(tmp_path / "ck")
    outcome = strandline("plan", tmp_path / "ck")
    assert (outcome.code, outcome.stdout) == (1, "")
    assert "this is a job's folder, and it has no checkpoint" in outcome.stderr
