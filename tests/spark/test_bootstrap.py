"""State out of history: what a job makes of it at once is what it would have made of it as a stream."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import strandline as sl
from strandline.core import failpoints
from strandline.format.manifest import Manifest
from strandline.plan.history import HistoryProgress
from strandline.snapshot.opening.snapshot import METADATA, open_snapshot
from strandline.snapshot.savepoints import take as taking
from strandline.snapshot.savepoints.savepoint import WRITING
from strandline.spark.job import bootstrapping
from tests import jvm
from tests.soak import soaking
from tests.spark import bootstrapped, paying, pipeline, small
from tests.spark.harness import TIMEOUT_S, Case, keepers, settle

pytestmark = pytest.mark.spark
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
PAYMENTS = "id bigint, card string, amount bigint, at timestamp"
REFUNDS = "id bigint, reason string, at timestamp"
Rows = list[dict[str, Any]]


class World:
    """Payments and refunds, a part of them as history, and jobs that read them."""

    def __init__(self, spark: Any, root: Path, local_dir: Path) -> None:
        self.spark, self.root, self.local_dir = spark, root, local_dir
        chance = random.Random(7)
        self.payments: Rows = []
        self.refunds: Rows = []
        for n in range(240):
            at = BEGIN + dt.timedelta(seconds=30 * n + chance.randrange(30))
            self.payments.append(
                {"id": n, "card": f"c{chance.randrange(6)}", "amount": chance.randrange(100), "at": at}
            )
            if chance.random() < 0.4:
                after = at + dt.timedelta(seconds=chance.randrange(900))
                self.refunds.append({"id": n, "reason": f"r{n % 3}", "at": after})

    def rows(self, begin_min: int, end_min: int) -> tuple[Rows, Rows]:
        """What happened in these minutes."""
        begin, end = (BEGIN + dt.timedelta(minutes=minutes) for minutes in (begin_min, end_min))
        payments, refunds = (
            [row for row in rows if begin <= row["at"] < end] for rows in (self.payments, self.refunds)
        )
        return payments, refunds

    def add(self, number: int, begin_min: int, end_min: int) -> None:
        """Let a job read what happened in these minutes, in an epoch of its own."""
        for kind, rows in zip(("payments", "refunds"), self.rows(begin_min, end_min), strict=True):
            directory = self.root / "in" / kind
            directory.mkdir(parents=True, exist_ok=True)
            hidden = directory / f".{number:03}"
            hidden.write_text("\n".join(json.dumps(row, default=dt.datetime.isoformat) for row in rows))
            os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
            hidden.rename(directory / f"{number:03}.json")

    def history(self, begin_min: int, end_min: int) -> dict[str, Any]:
        """The same as bounded DataFrames, in no order, with a column more."""
        found = {}
        for name, schema, rows in zip(
            ("payments", "refunds"), (PAYMENTS, REFUNDS), self.rows(begin_min, end_min), strict=True
        ):
            shuffled = random.Random(1).sample(rows, len(rows))
            df = self.spark.createDataFrame([tuple(row.values()) for row in shuffled], schema)
            found[name] = df.withColumn("more", F.lit(1))
        return found

    def job(self, name: str, only: str = "") -> tuple[sl.Job, dict[str, Any]]:
        """Timers and a join, or one of them, and where their results go."""
        read = self.spark.readStream.option("maxFilesPerTrigger", 1)
        payments, refunds = (
            sl.stream(read.schema(schema).json(str(self.root / "in" / kind)), name=kind).watermark("at", "10s")
            for kind, schema in (("payments", PAYMENTS), ("refunds", REFUNDS))
        )
        by_card = payments.where("amount > 5").key_by("card")
        streams = {
            "minutes": by_card.process(
                paying.PerMinute(), "card string, minute timestamp, total bigint", uid="minutes"
            ),
            "refunded": payments.key_by("id").join(
                refunds.key_by("id"), ("0s", "10 min"), uid="refunded", how="left", prefixes=("", "refund_")
            ),
        }
        streams = {name: stream for name, stream in streams.items() if name == (only or name)}
        sinks: dict[str, Any] = {name: sl.sinks.memory(name=name) for name in streams}
        job = sl.Job(
            name,
            sinks=[stream.to(sinks[at]) for at, stream in streams.items()],
            checkpoints=sl.Checkpoints(self.root / "ck"),
            settings=sl.Settings(parallelism=1, local_dir=self.local_dir, state_memory="128MB"),
            restart=sl.Restart(attempts=3, delay="20ms"),
        )
        return job, sinks


def manifest(path: Path) -> Manifest:
    return open_snapshot(str(path)).manifest


def tables(path: Path) -> dict[str, Any]:
    """The names of the files of each state: equal state has equal files."""
    found = {operator.uid: dict(operator.tables or {}) for operator in manifest(path).operators}
    # When it is forgotten depends on the clock.
    found["minutes"].pop("seen", None)
    return found


def rows_of(path: Path, uid: str, state: str) -> int:
    """How many rows a state has."""
    (operator,) = (each for each in manifest(path).operators if each.uid == uid)
    return sum(file.rows for file in (operator.tables or {}).get(state, []))


def shown(sinks: dict[str, Any]) -> dict[str, Counter[Any]]:
    return {name: Counter(map(tuple, sink.rows)) for name, sink in sinks.items()}


@pytest.mark.long
def test_it_goes_on_as_if_all_had_been_streamed(
    spark: Any, tmp_path: Path, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(spark, tmp_path, local_dir)
    world.add(0, 0, 88)
    streaming, streamed = world.job("streaming")
    run = streaming.start(spark)
    settle(run)
    run.savepoint(tmp_path / "streamed")
    before = shown(streamed)
    assert all(before.values())
    # Meanwhile, beside it; and a keeper dies.
    monkeypatch.setattr(bootstrapping, "_EVERY", "1ms")
    job, sinks = world.job("begun")
    heard: list[HistoryProgress] = []
    of_streaming = set(keepers(local_dir))

    def hear(progress: HistoryProgress) -> None:
        heard.append(progress)
        if len(heard) == 1:
            os.kill(min(keepers(local_dir).keys() - of_streaming), signal.SIGKILL)

    made = job.bootstrap(
        spark, savepoint=tmp_path / "begun", history=world.history(0, 88), time_per_epoch="60 min",
        parallelism=2, starting_from=tmp_path / "streamed", progress=hear,
    )  # fmt: skip
    total, last = sum(map(len, world.rows(0, 88))), heard[-1]
    assert (last.rows, last.total_rows, last.epochs) == (total, total, last.total_epochs)
    assert 1 < last.total_epochs <= len(heard) <= last.total_epochs + 2
    assert made.form == "canonical"
    assert not any(shown(sinks).values())
    assert [path for path in (tmp_path / "ck").rglob("*") if path.is_file() and "streaming" not in path.parts] == []
    assert tables(tmp_path / "begun") == tables(tmp_path / "streamed")
    assert "back" not in tables(tmp_path / "begun")["minutes"], "rows of a card came in the order of their times"
    assert manifest(tmp_path / "begun").watermarks == manifest(tmp_path / "streamed").watermarks
    # Of a card that has paid within the hour before, by the clock of that time: which was long ago.
    assert rows_of(tmp_path / "streamed", "minutes", "seen") == 6
    assert rows_of(tmp_path / "begun", "minutes", "seen") == 0
    world.add(1, 88, 130)
    settle(run)
    run.stop()
    with job.start(spark, restore=made.url) as run:
        settle(run)
    # What was equal then is still: of each operator, timers from before have come.
    after = shown(streamed)
    assert all(after[name] - before[name] for name in after)
    assert shown(sinks) == {name: after[name] - before[name] for name in after}


def fail(name: str, failed: list[str]) -> None:
    failed.append(name)
    raise sl.errors.UnavailableError(f"failpoint '{name}'")


def die(spark: Any, root: Path, local_dir: Path, how: str) -> None:
    """Have a bootstrap die when all is written but what makes it a savepoint."""
    if how == "killed":
        (root / "home").mkdir()
        home = str(jvm.spark_home(root / "home"))
        environment = {**os.environ, "STRANDLINE_FAILPOINTS": "savepoint.written=kill", "SPARK_HOME": home}
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.bootstrapped", str(root), str(local_dir)],
            env=environment, capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL, done.stderr
        return

    def interrupt() -> None:
        for name in ("begun", "ck"):
            shutil.copytree(root / name, root / "left" / name)
        raise KeyboardInterrupt

    failpoints.arm("savepoint.written", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bootstrapped.bootstrap(spark, root, local_dir, rows_per_epoch=1 << 20, format="native")
    # It has tidied up. A killed one would not have.
    for name in ("begun", "ck"):
        assert not [path for path in (root / name).rglob("*") if path.is_file()]
        shutil.rmtree(root / name, ignore_errors=True)
        (root / "left" / name).rename(root / name)


@pytest.mark.parametrize("how", ["as if killed", *soaking(["killed"])])
@pytest.mark.long
def test_what_a_killed_one_left_is_taken_away(
    spark: Any, tmp_path: Path, local_dir: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    die(spark, tmp_path, local_dir, how)
    left = {path.name for path in (tmp_path / "begun").iterdir()}
    assert WRITING in left
    assert METADATA not in left
    assert [path for path in (tmp_path / "ck").rglob("*") if path.is_file()]
    # The next one fails as well, in one place after the other, and goes on from its checkpoints.
    failed: list[str] = []
    monkeypatch.setattr(bootstrapping, "_EVERY", "1ms")
    for at, name in ((3, "bootstrap.epoch"), (1, "bootstrap.checkpointed"), (1, "savepoint.written")):
        failpoints.arm(name, partial(fail, name, failed), at=at)
    # The storage does not answer then either: what the failed attempt has written stays.
    monkeypatch.setattr(taking, "discard", lambda folder: None)
    heard: list[HistoryProgress] = []
    bootstrapped.bootstrap(spark, tmp_path, local_dir, progress=heard.append)
    assert [each.epochs for each in heard].count(heard[-1].total_epochs) == 1
    assert failed == ["bootstrap.epoch", "bootstrap.checkpointed", "savepoint.written"]
    assert [path for path in (tmp_path / "ck").rglob("*") if path.is_file()] == []
    assert {path.name for path in (tmp_path / "begun").iterdir()} == {METADATA, "data"}
    # Rows of a key came in the order that was said.
    assert rows_of(tmp_path / "begun", "count", "back") == 0
    job, sink = bootstrapped.job(spark, tmp_path, local_dir)
    small.write_rows(tmp_path / "in", 0, [("u1", "a", 1), ("new", "a", 1)])
    with job.start(spark, restore=tmp_path / "begun") as run:
        settle(run)
    assert small.rows_of(sink) == Counter([("u1", bootstrapped.EACH + 1), ("new", 1)])
    # There is one now.
    with pytest.raises(sl.errors.ConflictError, match="begun: there is a snapshot already"):
        bootstrapped.bootstrap(spark, tmp_path, local_dir)


def test_a_function_that_fails_ends_it_with_its_own_error(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    """Once: it would fail again, however often the history is replayed."""
    tried: list[str] = []
    failpoints.arm("restore.keepers_opened", lambda: tried.append("again"), at=2)

    class Failing(sl.KeyedProcess):
        def on_event(self, event: Any, ctx: sl.Context) -> None:
            raise ValueError(f"no {event.kind}")

    stream, restart = sl.stream(small.source(spark, tmp_path / "in")), sl.Restart(attempts=1, delay="20ms")
    job = small.job(stream, tmp_path, local_dir, process=Failing(), restart=restart)
    history = spark.sql("select 1L as seq, 'u' as user, 'a' as kind, 1L as v")
    with pytest.raises(sl.errors.UserCodeError, match="ValueError: no a"):
        job.bootstrap(spark, savepoint=tmp_path / "to", history=history)
    assert not tried


# Which of both leaves what a snapshot covers: tests/ends/test_file_sink_existing.py.
@pytest.mark.parametrize("existing", ["refuse", *soaking(["replace"])])
@pytest.mark.long
def test_a_reprocessing_program_goes_on_where_the_older_one_has_shown_rows(
    spark: Any, tmp_path: Path, local_dir: Path, existing: Any
) -> None:
    """They do not come again: the start neither refuses them nor takes them away."""
    stream, out = sl.stream(small.source(spark, tmp_path / "in")), tmp_path / "out"
    small.write_rows(tmp_path / "in", 0, [("a", "x", 1)] * 3)
    sink = sl.sinks.files(str(out), format="json", existing=existing)
    with small.job(stream, tmp_path, local_dir, sink=sink).start(spark) as run:
        run.process_all_available(60)
        run.stop(savepoint=tmp_path / "v1")
    job = small.job(stream, tmp_path, local_dir, sink=sink)
    history = spark.read.schema(pipeline.EVENT_SCHEMA).json(str(tmp_path / "in"))
    job.bootstrap(spark, savepoint=tmp_path / "v2", history=history, starting_from=tmp_path / "v1")
    small.write_rows(tmp_path / "in", 1, [("a", "x", 1)])
    with job.start(spark, restore=tmp_path / "v2") as run:
        run.process_all_available(60)
        run.checkpoint(60)
    rows = Counter((row["user"], row["n"]) for row in pipeline.read_json(out))
    assert rows == small.counted("aaaa")


@pytest.mark.long
def test_files_of_the_history_are_not_read_again_and_others_are(spark: Any, case: Case) -> None:
    """In windows that begin in the history and end in the stream: each has each event once."""
    case.add(2, rows=20)
    at = "timestamp_seconds(seq div 1000000)"
    events = sl.stream(small.source(spark, case.root / "in")).select_expr("*", f"{at} as at").watermark("at", "0s")
    counts = events.key_by("user").window(sl.Tumbling("1 hour")).agg(n=sl.agg.count(), uid="counts")
    history = spark.read.schema(pipeline.EVENT_SCHEMA).json(str(case.root / "in"))
    # It comes when the history's files are known, and before anybody reads them.
    case.add(1, rows=20)
    sink = sl.sinks.memory()
    job = case.job_of("windows", counts.to(sink))
    given: dict[str, Any] = {"skip_files": True, "order_by": at}
    with pytest.raises(sl.errors.ConfigurationError, match="the history of the source is not read from files"):
        job.bootstrap(spark, savepoint=case.root / "to", history=history.limit(0).localCheckpoint(), **given)
    elsewhere = case.root / "elsewhere"
    small.write_rows(elsewhere, 0, [("u1", "a", 1)])
    others = spark.read.schema(pipeline.EVENT_SCHEMA).json(str(elsewhere))
    with pytest.raises(sl.errors.ConfigurationError, match=r"/elsewhere/.*, and the history does"):
        job.bootstrap(spark, savepoint=case.root / "to", history=others, **given)
    made = job.bootstrap(spark, savepoint=case.root / "to #1%", history=history, format="native", **given)
    with job.start(spark, restore=made.url) as run:
        case.add(1, rows=20)
        run.process_all_available(60)
        run.stop(drain=True)
    assert Counter((row["user"], row["n"]) for row in sink.rows) == Counter(
        Counter(event["user"] for event in case.events).items()
    )


@pytest.mark.long
def test_files_that_a_filter_leaves_out_of_the_history_are_the_stream_s(spark: Any, case: Case) -> None:
    schema = "user string, day string"
    for day, rows in (("2024-01-01", 3), ("2024-01-02", 4)):
        (case.root / f"in/day={day}").mkdir(parents=True)
        (case.root / f"in/day={day}/a b%.json").write_text('{"user": "u"}\n' * rows)
    days = sl.stream(spark.readStream.schema(schema).json(str(case.root / "in")))
    sink = sl.sinks.memory()
    job = case.job_of("days", days.key_by("user").agg(n=sl.agg.count(), uid="counts").to(sink))
    history = spark.read.schema(schema).json(str(case.root / "in")).where("day < '2024-01-02'")
    newest, older = case.root / "in/day=2024-01-01/a b%.json", case.root / "in/day=2024-01-02/a b%.json"
    os.utime(older, (0, newest.stat().st_mtime - 8 * 86_400))
    with pytest.raises(sl.errors.ConfigurationError, match=r"/a%20b%25\.json, and the source would never"):
        job.bootstrap(spark, savepoint=case.root / "to", history=history, skip_files=True)
    os.utime(older)
    limit = spark.range(1).select(F.lit("2024-01-02").alias("day"))
    asking = history.where(F.col("day") < limit.select(F.max("day")).scalar())
    with pytest.raises(sl.errors.ConfigurationError, match="depends on what another query or table holds"):
        job.bootstrap(spark, savepoint=case.root / "to", history=asking, skip_files=True)
    limit.createOrReplaceTempView("limits_of_history")
    history.createOrReplaceTempView("history_of_days")
    one_limit = "select max(day) from limits_of_history as other where other.day {} days.day"
    for where in (
        "day in (select day from limits_of_history)",
        "day not in (select day from limits_of_history)",
        f"day <= ({one_limit.format('>=')})",
        f"day >= coalesce(({one_limit.format('<=')}), '')",
        f"user = 'u' or exists ({one_limit.format('=')})",
    ):
        among = spark.sql(
            f"select user, d as day from (select user, day as d, day from history_of_days) days where {where}"
        )
        with pytest.raises(sl.errors.ConfigurationError, match="depends on what another query or table holds"):
            job.bootstrap(spark, savepoint=case.root / "to", history=among, skip_files=True)
    # Rows from elsewhere change nothing of which files are read.
    history = history.crossJoin(spark.range(1)).select("user", "day")
    # Nor do those that a join leaves out, though Spark asks first which partitions it needs.
    known = spark.createDataFrame([("u", "2024-01-01")], "user string, day string").where("user = 'u'")
    history = history.join(known, ["user", "day"])
    made = job.bootstrap(spark, savepoint=case.root / "to", history=history, skip_files=True)
    with job.start(spark, restore=made.url) as run:
        run.process_all_available(60)
        run.stop(checkpoint=True)
    assert sink.rows[-1]["n"] == 7


@pytest.mark.long
def test_history_that_does_not_fit_is_refused_before_anything_runs(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    world = World(spark, tmp_path, local_dir)
    world.add(0, 0, 1)
    job, _ = world.job("refused")
    good = world.history(0, 30)
    payments = good["payments"]

    def refused(why: str, **given: Any) -> None:
        with pytest.raises(sl.errors.ConfigurationError, match=why):
            job.bootstrap(spark, savepoint=tmp_path / "to", **{"history": good, **given})
        assert not (tmp_path / "to").exists()
        assert [path for path in (tmp_path / "ck").rglob("*") if path.is_file()] == []

    refused(
        "the history of source 'payments' does not look like what the job reads: has no column 'card' .string.; column "
        "'amount' is int, expected bigint; it has id, who, amount",
        history={"payments": payments.withColumnRenamed("card", "who").withColumn("amount", F.lit(1))},
    )
    refused("history has 'paid', and the job has no source of that name; it reads payments, refunds",
            history={"paid": payments})  # fmt: skip
    refused("history is one, and the job reads payments, refunds", history=payments)
    refused("is a stream, expected a bounded DataFrame", history={"payments": job._plan.sources.nodes[0].df})
    refused("is a list, expected a DataFrame", history={"payments": []})
    refused("cannot be ordered by elsewhere: .*UNRESOLVED_COLUMN", order_by={"payments": "elsewhere"})
    refused("ordered by string, expected times", order_by={"payments": "card"})
    refused("rows_per_epoch is 0", rows_per_epoch=0)
    refused("time_per_epoch is 'many', expected a duration", time_per_epoch="many")
    # What is found only while it runs leaves nothing either.
    job, _ = world.job("refused", only="minutes")
    refused(
        "rows of the history are older than the watermark, .* in the order of payments: timestamp_micros",
        history={"payments": payments},
        order_by={"payments": "timestamp_micros(-unix_micros(at))"},
        rows_per_epoch=20,
    )
