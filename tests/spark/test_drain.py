"""Draining on real Spark: what windows and timers hold is given once, through failures, and the job stays ended."""

from __future__ import annotations

import datetime as dt
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.core import failpoints
from strandline.core.errors import ConfigurationError, UnavailableError
from tests.soak import soaking
from tests.spark.harness import Case, settle
from tests.spark.test_windows import SCHEMA, seconds, write

pytestmark = pytest.mark.spark

DAY = dt.timedelta(days=1)
TOTALS = "user string, window_start timestamp, window_end timestamp, total bigint"
EVENTS = [(1, "a", 1), (12, "b", 2), (13, "a", 4), (31, "a", 8)]
WINDOWS = Counter([("a", -10, 1), ("a", 0, 5), ("a", 10, 4), ("a", 20, 8), ("a", 30, 8), ("b", 0, 2), ("b", 10, 2)])
WAITED = Counter([("a", 26), ("b", 4)])


class Waiting(sl.KeyedProcess):
    """Behind windows: gives a key's sum a day later, and sets timers for ever. Its keeper dies at a drain, if asked to."""

    total = sl.Value("bigint", default=0)

    def __init__(self, dies: str = "") -> None:
        self.dies = dies

    def on_event(self, event: Any, ctx: Any) -> Any:
        assert not ctx.is_late
        self.total.value += event.total
        ctx.timers.set(ctx.timestamp + DAY)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        assert ctx.is_draining
        if self.dies and not Path(self.dies).exists():
            Path(self.dies).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.total.value:
            yield ctx.key, self.total.value
            self.total.clear()
        # On and on.
        ctx.timers.set(timer.timestamp + DAY)


def job(spark: Any, case: Case, dies: str = "", **given: Any) -> sl.Job:
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
        restart=sl.Restart(attempts=3, delay="50ms"),
        settings=sl.Settings(parallelism=2, local_dir=case.local_dir, state_memory="128MB"),
        **given,
    )


def shown(spark: Any, case: Case) -> tuple[Counter[Any], Counter[Any]]:
    totals = spark.read.schema(TOTALS).parquet(str(case.root / "totals")).collect()
    waited = spark.read.schema("user string, total bigint").parquet(str(case.root / "waited")).collect()
    windows = Counter((r["user"], seconds(r, "window_start"), r["total"]) for r in totals)
    return windows, Counter((r["user"], r["total"]) for r in waited)


@pytest.mark.parametrize("broken", ["", "drain.epoch", "checkpoint.commit_sinks.before", *soaking(["keeper"])])
def test_a_source_that_ends_is_drained_exactly_once(spark: Any, case: Case, broken: str) -> None:
    write(case.root / "in", 0, EVENTS)
    dies = str(case.root / "died") if broken == "keeper" else ""
    if "." in broken:
        failpoints.arm(broken, _fail)
    try:
        run = job(spark, case, dies, trigger="available-now", drain=True).start(spark)
        assert run.await_termination(120)
    finally:
        failpoints.disarm_all()
    assert run.status().state == "finished"
    assert run.status().restarts == (1 if broken else 0)
    assert shown(spark, case) == (WINDOWS, WAITED)
    if broken:
        return
    with pytest.raises(ConfigurationError, match=r"was drained with checkpoint \d+: .*would be late") as caught:
        job(spark, case, trigger="available-now", drain=True).start(spark)
    assert "reopen=True" in caught.value.hint
    # Knowingly: a window that was cut short comes again, with its new events alone.
    write(case.root / "in", 2, [(39, "a", 16)])
    run = job(spark, case, trigger="available-now", drain=True).start(spark, reopen=True)
    assert run.await_termination(120)
    more = Counter([("a", 20, 16), ("a", 30, 16)])
    assert shown(spark, case) == (WINDOWS + more, WAITED + Counter([("a", 32)]))


def _fail() -> None:
    raise UnavailableError("as armed")


def test_a_job_that_runs_on_is_drained_when_asked(spark: Any, case: Case) -> None:
    write(case.root / "in", 0, EVENTS)
    dies = str(case.root / "died")
    run = job(spark, case, dies).start(spark)
    settle(run)
    assert not shown(spark, case)[1]
    run.stop(drain=True, savepoint=case.root / "sp", timeout=120)
    assert run.status().state == "finished"
    assert run.status().restarts == 1
    assert shown(spark, case) == (WINDOWS, WAITED)
    run.stop(drain=True)
    with pytest.raises(ConfigurationError, match="was drained"):
        job(spark, case).start(spark)


def test_a_drain_of_a_job_with_nothing_in_it(spark: Any, case: Case) -> None:
    run = job(spark, case).start(spark)
    run.stop(drain=True, timeout=120)
    assert run.status().state == "finished"
    assert run.status().watermark == "9999-12-31T23:59:59.999999+00:00"
    with pytest.raises(ConfigurationError, match="was drained"):
        job(spark, case).start(spark)
