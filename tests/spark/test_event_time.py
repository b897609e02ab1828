"""Event time on real Spark: watermarks, chains of timers, side outputs, ticks, and all of it under kills."""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import threading
from typing import Any

import pytest

import strandline as sl
from tests.soak import soaking
from tests.spark import small, timed
from tests.spark.harness import Case, eventually, keepers, settle
from tests.spark.timers import SLOWLY, Reminder, Silent

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("seed", soaking(range(1, 8)))
def test_a_chain_of_timers_survives_kills(spark: Any, case: Case, seed: int) -> None:
    source, rng = timed.Input(case.root, seed), random.Random(seed)
    source.add()
    with timed.build(spark, case.root, case.local_dir).start(spark) as run:
        for _ in range(3):
            source.add(rng.choice([5, 60]))
            source.add()
            if rng.random() < 0.5:
                run.process_all_available(60)
            # One that dies before any epoch is started anew, and the job goes on.
            seen = eventually(
                lambda: (s := run.glance()).epoch > 0 and s.keepers, "keepers have answered after an epoch"
            )
            os.kill(rng.choice(seen).pid, signal.SIGKILL)
            source.add()
            run.process_all_available(120)
        assert run.status().restarts >= 1
        settle(run)
    # A run that begins from a checkpoint fires what the one before it had not.
    source.end()
    with timed.build(spark, case.root, case.local_dir).start(spark) as run:
        assert run.status().restored_from is not None
        settle(run)
        status = run.status()
        assert status.watermark == (source.events[-1][0] - dt.timedelta(minutes=10)).isoformat()
        assert status.late_rows == 0
    shown, expected = timed.shown(case.root), source.expected()
    for sink in expected:
        assert shown[sink] == expected[sink], sink
    assert sum(expected["hours"].values()) >= 2


def test_processing_time_timers_fire_while_the_source_is_idle(spark: Any, case: Case) -> None:
    # A harness keeps a loop for map_async for as long as its process lives: a test before this one may have had one.
    before = set(threading.enumerate())
    sink = sl.sinks.memory()
    stream = sl.stream(small.source(spark, case.root / "in"))
    given: dict[str, Any] = {"sink": sink, "process": Reminder(), "settings": {"parallelism": 1}}
    with small.job(stream, case.root, case.local_dir, **given).start(spark) as run:
        small.write_rows(case.root / "in", 0, [("a", "x", 1), ("b", "x", 1), ("a", "x", 2)])
        run.process_all_available(60)
        eventually(lambda: run.status().epoch >= 2, "a tick")
        # Ticks set what they need on a session of their own.
        assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
        # An epoch like any other: a checkpoint holds it, and the next run does not remind again.
        epoch = run.checkpoint(60).epoch
        assert small.rows_of(sink) == {("a", 1): 1, ("b", 1): 1}
    with small.job(stream, case.root, case.local_dir, **given).start(spark) as run:
        assert run.status().epoch == epoch
        small.write_rows(case.root / "in", 1, [("c", "x", 1)])
        run.process_all_available(60)
        eventually(lambda: run.status().epoch >= epoch + 2, "a tick")
        run.checkpoint(60)
    assert small.rows_of(sink) == {("a", 1): 1, ("b", 1): 1, ("c", 1): 1}
    assert not keepers(case.local_dir)
    assert not [t.name for t in set(threading.enumerate()) - before if t.name.startswith("strandline")]


def test_the_slowest_origin_holds_the_watermark_unless_idle(spark: Any, case: Case) -> None:
    (case.root / "in").mkdir()
    events = spark.readStream.schema(timed.SCHEMA).option("maxFilesPerTrigger", 1).json(str(case.root / "in"))
    sink = sl.sinks.memory()

    def start(idle: str | None) -> sl.Run:
        stream = sl.stream(events).watermark("ts", per="user", idle=idle)
        counted = stream.key_by("user").process(Silent(), output="user string", uid="silent")
        settings = sl.Settings(parallelism=1, local_dir=case.local_dir, state_memory="128MB")
        checkpoints = sl.Checkpoints(case.root / "ck", every=None)
        return sl.Job("slow", sinks=[counted.to(sink)], settings=settings, checkpoints=checkpoints).start(spark)

    source = timed.Input(case.root, 1)
    at = timed.BEGIN
    source._write([(at, "slow", 1), (at + timed.MINUTE, "gone", 1), (at + timed.HOUR, "fast", 1)])
    with start(None) as run:
        run.process_all_available(60)
        status = run.status()
        assert status.watermark == at.isoformat()
        found = [(mark.column, mark.time, mark.slowest, mark.origins, mark.idle) for mark in status.watermarks]
        assert found == [("ts", at.isoformat(), "slow", 3, 0)]
        run.checkpoint(60)
    # What an epoch takes is nobody's silence: at first, two speak in each of them.
    source._write([(at + timed.HOUR, "slow", 1), (at + 9 * timed.HOUR, "fast", SLOWLY)])
    source._write([(at + 2 * timed.HOUR, "slow", 1), (at + 9 * timed.HOUR, "fast", SLOWLY)])
    source._write([(at + 3 * timed.HOUR, "slow", 1), (at + 9 * timed.HOUR, "fast", 1)])
    with start("300ms") as run:
        run.process_all_available(60)
        assert run.glance().late_rows == 0
        source._write([(at + 10 * timed.HOUR, "fast", 1)])
        moved = (at + 10 * timed.HOUR).isoformat()
        eventually(lambda: run.glance().watermark == moved, "idle are the slow one, and who has not spoken in this run")


def test_an_epoch_without_rows_has_the_settings_of_those_with_rows(spark: Any, case: Case) -> None:
    """A program goes on with its session, while the job's timers fire."""
    from pyspark.sql import functions as F

    small.write_rows(case.root / "in", 0, [("ann", "a", 1)])
    stream = sl.stream(small.source(spark, case.root / "in"))
    silent = stream.key_by("user").process(Reminder(), "user string, n int", uid="s")
    sink = sl.sinks.memory(visibility="epoch")
    told = silent.with_column("hour", F.hour(F.expr("timestamp'2024-01-01 12:00:00Z'"))).to(sink)
    job = sl.Job("told", sinks=[told], settings=sl.Settings(parallelism=1, local_dir=case.local_dir),
                 checkpoints=sl.Checkpoints(case.root / "ck"))  # fmt: skip
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        with job.start(spark) as run:
            spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
            run.process_all_available(60)
            rows = eventually(lambda: sink.rows, "ann was silent")
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert [(row.user, row.hour) for row in rows] == [("ann", 12)]


def test_columns_as_spark_knows_them(spark: Any, case: Case) -> None:
    stream = sl.stream(small.source(spark, case.root / "in"))
    timed_stream = stream.with_column("ts", small_time()).watermark("ts")
    assert timed_stream.columns == ["seq", "user", "kind", "v", "ts"]
    with pytest.raises(sl.errors.ConfigurationError, match=r"watermark: column=.* is no column; the stream has seq"):
        stream.watermark(small_time())
    mapped = timed_stream.select("user", "v").map(lambda row: (row.user,), output="user string")
    assert mapped.columns == ["user"]
    assert mapped.key_by("user").process(Silent(), output="user string", uid="s").columns == ["user"]


def small_time() -> Any:
    from pyspark.sql import functions as F

    return F.timestamp_seconds("v")
