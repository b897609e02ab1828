"""Draining on real Spark: what windows and timers hold is given once, through failures, and the job stays ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.core import failpoints
from strandline.core.errors import CheckpointError, ConfigurationError, UnavailableError
from strandline.core.times import FIRST_US, LAST_US
from strandline.snapshot.opening.snapshot import open_snapshot
from strandline.spark.job.checking import check_upgrade
from tests.soak import soaking
from tests.spark.harness import Case, settle
from tests.spark.test_windows import SCHEMA, seconds, write
from tests.spark.timers import Dated, Waiting

pytestmark = pytest.mark.spark

TOTALS = "user string, window_start timestamp, window_end timestamp, total bigint"
EVENTS = [(1, "a", 1), (12, "b", 2), (13, "a", 4), (31, "a", 8)]
WINDOWS = Counter([("a", -10, 1), ("a", 0, 5), ("a", 10, 4), ("a", 20, 8), ("a", 30, 8), ("b", 0, 2), ("b", 10, 2)])
WAITED = Counter([("a", 26), ("b", 4)])


def job(spark: Any, case: Case, dies: str = "", parallelism: int = 2, **given: Any) -> sl.Job:
    (case.root / "in").mkdir(exist_ok=True)
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(case.root / "in"))
    windows = sl.stream(source).watermark("ts", delay="5s").key_by("user").window(sl.Sliding("20s", every="10s"))
    totals = windows.agg(total=sl.agg.sum("v"), uid="totals")
    waited = totals.key_by("user").process(Waiting(dies), output="user string, total bigint", uid="waiting")
    return sl.Job(
        "drained",
        sinks=[
            totals.to(sl.sinks.files(str(case.root / "totals"), name="totals")),
            waited.to(sl.sinks.files(str(case.root / "waited"), name="waited")),
        ],
        checkpoints=sl.Checkpoints(case.root / "ck", retain=3),
        settings=sl.Settings(parallelism=parallelism, local_dir=case.local_dir, state_memory="128MB"),
        **{"restart": sl.Restart(attempts=3, delay="50ms"), **given},
    )


def shown(spark: Any, case: Case) -> tuple[Counter[Any], Counter[Any]]:
    totals = spark.read.schema(TOTALS).parquet(str(case.root / "totals")).collect()
    waited = spark.read.schema("user string, total bigint").parquet(str(case.root / "waited")).collect()
    windows = Counter((r["user"], seconds(r, "window_start"), r["total"]) for r in totals)
    return windows, Counter((r["user"], r["total"]) for r in waited)


@pytest.mark.parametrize("keeper_dies", [False, *soaking([True])])
@pytest.mark.long
def test_a_source_that_ends_is_drained_exactly_once(spark: Any, case: Case, keeper_dies: bool) -> None:
    """Though it fails before anything of it is durable, and once more, restarted, before what it gave is shown."""
    write(case.root / "in", 0, EVENTS)
    failpoints.arm("drain.epoch", _fail)
    run = job(spark, case, trigger="available-now", drain=True, restart=sl.Restart.never()).start(spark)
    with pytest.raises(UnavailableError, match="as armed"):
        run.await_termination(120)
    assert shown(spark, case) == (Counter(), Counter())
    # What it drained is in no checkpoint: it is drained again.
    dies = str(case.root / "died") if keeper_dies else ""
    failpoints.arm("checkpoint.commit_sinks.before", _fail)
    run = job(spark, case, dies, trigger="available-now", drain=True).start(spark)
    assert run.await_termination(120)
    assert run.status().state == "finished"
    assert run.status().restarts == (2 if keeper_dies else 1)
    assert shown(spark, case) == (WINDOWS, WAITED)
    with pytest.raises(ConfigurationError, match=r"was drained with checkpoint \d+: .*would be late") as caught:
        job(spark, case, trigger="available-now", drain=True).start(spark)
    assert "reopen=True" in caught.value.hint
    # Knowingly: a window that was cut short comes again, with its new events alone. It runs on until it is asked, and a
    # keeper dies as it is drained.
    write(case.root / "in", 2, [(39, "a", 16)])
    run = job(spark, case, str(case.root / "died again")).start(spark, reopen=True)
    settle(run)
    run.stop(drain=True, savepoint=case.root / "sp", format="native", timeout=120)
    assert (run.status().state, run.status().restarts) == ("finished", 1)
    assert open_snapshot(str(case.root / "sp")).manifest.epoch == run.status().epoch
    more = Counter([("a", 20, 16), ("a", 30, 16)])
    assert shown(spark, case) == (WINDOWS + more, WAITED + Counter([("a", 32)]))
    run.stop(drain=True)
    # What a start would say of it is said before.
    (why,) = check_upgrade(job(spark, case), str(case.root / "sp")).refusals
    assert "was drained with checkpoint" in why
    assert check_upgrade(job(spark, case), str(case.root / "sp"), reopen=True).refusals == ()


def _fail() -> None:
    raise UnavailableError("as armed")


def test_a_drain_of_a_job_with_nothing_in_it(spark: Any, case: Case) -> None:
    run = job(spark, case, parallelism=1).start(spark)
    run.stop(drain=True, timeout=120)
    assert run.status().state == "finished"
    assert run.status().watermark == "9999-12-31T23:59:59.999999+00:00"
    run.stop(drain=True)
    with pytest.raises(CheckpointError, match=r"had ended before its savepoint .*/late was begun"):
        run.stop(drain=True, savepoint=case.root / "late")
    assert not (case.root / "late").exists()
    with pytest.raises(ConfigurationError, match="was drained"):
        job(spark, case, parallelism=1).start(spark)


@pytest.mark.long
def test_a_drain_that_is_asked_for_while_the_job_restarts(spark: Any, case: Case) -> None:
    write(case.root / "in", 0, EVENTS[:3])
    run = job(spark, case).start(spark)
    settle(run)
    assert not shown(spark, case)[1]
    restarting, asked = threading.Event(), threading.Event()

    def wait() -> None:
        restarting.set()
        asked.wait(60)

    failpoints.arm("restore.claimed", wait)
    os.kill(run.status().keepers[0].pid, signal.SIGKILL)
    write(case.root / "in", 1, EVENTS[3:])
    assert restarting.wait(60)
    # It is asked before the restart goes on: `stop` cannot be told so, it waits for the end.
    threading.Timer(0.5, asked.set).start()
    run.stop(drain=True, timeout=120)
    assert (run.status().state, run.status().restarts) == ("finished", 1)
    # No event is read any more: the epoch that failed is not done again, and its event waits in the source.
    windows = Counter([("a", -10, 1), ("a", 0, 5), ("a", 10, 4), ("b", 0, 2), ("b", 10, 2)])
    assert shown(spark, case) == (windows, Counter([("a", 10), ("b", 4)]))


def be_killed(root: str, local_dir: str) -> None:
    """Be a driver that drains the job, and dies at a failpoint on the way."""
    case, spark = (
        Case(Path(root), Path(local_dir)),
        sl.session("drained", "local[2,4]", **{"spark.driver.memory": "1g"}),
    )
    job(spark, case, trigger="available-now", drain=True).start(spark).await_termination()


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("killed", ["drain.epoch", "checkpoint.commit_sinks.before"])
def test_a_driver_that_is_killed_in_the_middle_of_a_drain(spark: Any, case: Case, killed: str) -> None:
    write(case.root / "in", 0, EVENTS)
    be = f"from tests.spark.test_drain import be_killed; be_killed({str(case.root)!r}, {str(case.local_dir)!r})"
    environment = {**os.environ, "STRANDLINE_FAILPOINTS": f"{killed}=kill"}
    done = subprocess.run([sys.executable, "-c", be], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    again = job(spark, case, trigger="available-now", drain=True)
    if killed == "drain.epoch":
        # What it drained is in no checkpoint: it is drained again.
        assert again.start(spark).await_termination(120)
    else:
        # It had published what it did not show any more.
        with pytest.raises(ConfigurationError, match="was drained"):
            again.start(spark)
    assert shown(spark, case) == (WINDOWS, WAITED)


def test_times_that_python_does_not_have(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    """Spark's timestamps go far beyond the years 1 and 9999; whoever only counts them need not mind."""
    times = {"before": FIRST_US - 1, "first": FIRST_US, "now": 0, "last": LAST_US, "after": LAST_US + 1}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text("\n".join(json.dumps({"user": u, "us": us}) for u, us in times.items()))
    read = spark.readStream.schema("user string, us bigint").json(str(tmp_path / "in"))
    events = sl.stream(read).select_expr("user", "timestamp_micros(us) AS at").watermark("at", delay="5s")
    dated = events.key_by("user").process(Dated(), "user string, year int", uid="dated", on_error="dead-letter")
    windows = events.key_by("user").window(sl.Tumbling("7s")).agg(n=sl.agg.count(), uid="windows")
    streams = {"dated": dated, "bad": dated.dead_letters, "windows": windows}
    run = sl.Job(
        "dated",
        sinks=[stream.to(sl.sinks.files(str(tmp_path / name), format="json")) for name, stream in streams.items()],
        checkpoints=sl.Checkpoints(tmp_path / "ck"),
        settings=sl.Settings(parallelism=1, local_dir=local_dir, state_memory="128MB"),
        drain=True,
        trigger="available-now",
    ).start(spark)
    assert run.await_termination(120)
    found = {
        name: [json.loads(line) for path in (tmp_path / name).glob("part-*") for line in path.read_text().splitlines()]
        for name in streams
    }
    assert sorted((row["user"], row["year"]) for row in found["dated"]) == [("first", 1), ("last", 9999), ("now", 1970)]
    ends = [("after", "9999-12-31T23:59:59.999Z"), ("before", "0001-01-01T00:00:00.000Z")]
    assert sorted((json.loads(row["key"]), row["event_time"]) for row in found["bad"]) == ends
    assert all(
        "outside the years 1 to 9999, which is all that Python can hold" in row["reason"] for row in found["bad"]
    )
    first, last = ("0001-01-01T00:00:00.000Z", "0001-01-01T00:00:04.000Z"), ("9999-12-31T23:59:55.000Z", ends[0][1])
    windows = {row["user"]: (row["window_start"], row["window_end"]) for row in found["windows"] if row["n"] == 1}
    now = ("1970-01-01T00:00:00.000Z", "1970-01-01T00:00:07.000Z")
    assert windows == {"before": first, "first": first, "now": now, "last": last, "after": last}
