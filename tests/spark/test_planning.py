"""`strandline plan` beside a job that runs."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import strandline as sl
from strandline.cli.main import app
from tests.spark import small

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_a_running_job_is_watched_and_planned_for(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    checkpoints = sl.Checkpoints(tmp_path / "ck", every="200ms", mode="changelog", retain=2)
    stream = sl.stream(small.source(spark, tmp_path / "in"))
    job = small.job(stream, tmp_path, local_dir, checkpoints=checkpoints, settings={"backend": "rocksdb"})
    end = threading.Event()

    def feed() -> None:
        number = 0
        while not end.wait(0.1):
            small.write_rows(tmp_path / "in", number, [(f"user-{number * 20 + row}", "click", 1) for row in range(20)])
            number += 1

    feeder = threading.Thread(target=feed)
    with job.start(spark) as run:
        feeder.start()
        run.await_termination(5)
        asked = ["plan", "small", "--local-dir", str(local_dir), "--watch", "3s", "--latency", "1h", "--json"]
        outcome = CliRunner().invoke(app, asked, prog_name="strandline")
        end.set()
        feeder.join()
    assert outcome.exit_code == 0, outcome.stderr
    data = json.loads(outcome.stdout)
    assert (data["job"], data["is_met"], data["now"]["setting"]["mode"]) == ("small", True, "changelog")
    work = data["workload"]
    assert work["partitions"] == 2
    assert min(work[name] for name in ("state_bytes", "changed_per_s", "rows_per_s", "capacity_per_s", "epoch_s")) > 0
    measured = {name for name, origin in data["known"].items() if origin.startswith("measured")}
    assert measured >= {"rows_per_s", "changed_per_s", "durable_s", "epoch_s", "state_bytes", "slowness"}
    assert all(each["recovery_s"]["keeper"] < each["recovery_s"]["program"] for each in data["estimates"])
    assert run.status().restarts == 0
