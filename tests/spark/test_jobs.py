"""Jobs of every shape: sources, triggers, keys, vectorised functions, and what is left when they stop."""

from __future__ import annotations

import datetime
import json
import os
import pkgutil
import shutil
import signal
import threading
import time
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import functions as F

import strandline as sl
from strandline.control.client import call, find_driver
from strandline.control.commands import LOOKUP, TABLES, LookUp, LookupValues, NoArguments
from strandline.core import failpoints
from strandline.core.errors import SparkError
from strandline.keeper.lookups import LookupResult
from strandline.spark.base.session import local_dirs
from strandline.spark.job.attempt import Attempt
from strandline.spark.keepers.exchange import Exchange
from strandline.spark.keepers.worker import RequestWorker
from strandline.spark.lower.frames import FrameBuilder
from strandline.types.datatypes import parse_type
from strandline.types.jsonforms import to_json
from strandline.types.murmur import key_group
from tests.spark import pipeline, small
from tests.spark.functions import LARGE, Count, CountAside, CountBatch, CountWide, Held
from tests.spark.harness import Case, eventually, keepers, settle

pytestmark = pytest.mark.spark


def users(case: Case) -> list[str]:
    return [event["user"] for event in case.events]


@pytest.mark.parametrize("ask", ["route", "partitions"])
def test_no_partition_is_used_before_it_has_its_place(spark: Any, ask: str) -> None:
    """Two jobs that both compute the anchor may place its partitions differently, and keepers would be lost."""
    placed = []

    class Slow(Exchange):
        def _warm(self) -> None:
            time.sleep(0.3)
            super()._warm()
            placed.append(True)

    exchange = Slow(spark, 2)
    if ask == "route":
        exchange.route(spark.range(1), ["id"], 128)
    else:
        assert exchange.partitions
    assert placed
    exchange.close()


def test_a_variable_as_state_is_warned_of_once(spark: Any, case: Case, caplog: pytest.LogCaptureFixture) -> None:
    """By both partitions, in each of the first epochs."""
    case.add(1)
    out = (
        sl.stream(small.source(spark, case.root / "in")).key_by("user").process(CountAside(), small.OUTPUT, uid="count")
    )
    with case.job_of("aside", out.to(sl.sinks.noop())).start(spark) as run:
        settle(run)
        case.add(1)
        settle(run)
        assert run.status().epoch == 2
    (said,) = [record.message for record in caplog.records if "CountAside" in record.message]
    assert "changes 'self.events' (" in said
    assert ": self.events += 1)" in said


def test_no_program_lies_in_files_of_spark(spark: Any, case: Case) -> None:
    """They stay where a driver is killed, and a program has the options of its storage, which may be secrets.

    A job begins, or begins again, also where the directory of these files was cleaned away.
    """
    case.add(1)
    shutil.rmtree(spark.sparkContext._temp_dir)
    out = (
        sl.stream(small.source(spark, case.root / "in")).key_by("user").process(CountAside(), small.OUTPUT, uid="count")
    )
    with case.job_of("secret", out.to(sl.sinks.noop())).start(spark) as run:
        settle(run)
        files = [path for path in Path(spark.sparkContext._temp_dir).rglob("*") if path.is_file()]
        assert files, "the broadcast is there"
        assert not [path for path in files if b"CountAside" in path.read_bytes() or b"store_url" in path.read_bytes()]


def test_a_program_that_a_late_task_stored_can_be_moved_to_disk(
    spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark moves it with its file when memory is short, also after the job: the file is there, and empty."""
    made: list[Any] = []
    broadcast = SparkContext.broadcast
    monkeypatch.setattr(SparkContext, "broadcast", lambda self, value: made.append(broadcast(self, value)) or made[-1])
    case.add(1)
    out = sl.stream(small.source(spark, case.root / "in")).key_by("user")
    counts = out.process(CountAside(), small.OUTPUT, uid="count")
    with case.job_of("moved", counts.to(sl.sinks.noop())).start(spark) as run:
        settle(run)
    assert [Path(each._path).read_bytes() for each in made] == [b""] * len(made)
    assert made


def test_a_job_goes_on_after_sparks_directories_were_cleaned_away(spark: Any, case: Case) -> None:
    """As clean-up of /tmp does while the job has nothing to do."""
    case.add(1)
    out = small.source(spark, case.root / "in")
    job = small.job(sl.stream(out), case.root, case.local_dir, restart=sl.Restart(attempts=2, delay=0))
    with job.start(spark) as run:
        settle(run)
        for directory in local_dirs(spark):
            shutil.rmtree(directory)
        case.add(1)
        eventually(lambda: run.glance().epoch == 2, "the next epoch, of a new attempt", 60)
        assert run.glance().restarts == 1


def test_a_session_without_sparks_cache_of_logs(spark: Any, case: Case) -> None:
    case.add(1)
    spark.conf.set("spark.sql.streaming.metadataCache.enabled", "false")
    try:
        out = sl.stream(small.source(spark, case.root / "in"))
        with small.job(out, case.root, case.local_dir, restart=sl.Restart.never()).start(spark) as run:
            settle(run)
            assert run.status().epoch == 1
    finally:
        spark.conf.unset("spark.sql.streaming.metadataCache.enabled")


def test_a_constant_key(spark: Any, case: Case) -> None:
    """All rows meet in one partition, and the others hear of every epoch all the same."""
    directory, sink = case.root / "in", sl.sinks.memory()
    stream = sl.stream(small.source(spark, directory)).where("v > 0").select_expr("'all' as user", "v")
    with small.job(stream, case.root, case.local_dir, sink=sink).start(spark) as run:
        small.write_rows(directory, 0, [("a", "x", 0)])
        run.process_all_available(60)
        small.write_rows(directory, 1, [("a", "x", 1), ("b", "x", 1)])
        settle(run)
        assert run.status().epoch == 2
    assert small.rows_of(sink) == small.counted(["all", "all"])


def test_a_source_without_files_is_rewound(spark: Any, case: Case) -> None:
    """The rate source: what was processed after the last checkpoint comes again, and the same."""
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).option("numPartitions", 2).load()
    sink = sl.sinks.memory()

    def start() -> sl.Run:
        stream = sl.stream(rate).select_expr("cast(value % 5 as string) user", "value v")
        return small.job(stream, case.root, case.local_dir, sink=sink, trigger="1s").start(spark)

    with start() as run:
        eventually(lambda: run.glance().epoch >= 1, "an epoch")
        done = run.checkpoint(60).epoch
        # Not in any checkpoint: to be forgotten.
        eventually(lambda: run.glance().epoch > done, "an epoch more")
    with start() as run:
        assert run.status().restored_from == 1
        eventually(lambda: run.glance().epoch > done, "an epoch more")
        last = run.checkpoint(60)
    assert small.rows_of(sink) == small.counted([str(value % 5) for value in range(20 * last.epoch)])


def test_a_union_of_two_sources_is_rewound(spark: Any, case: Case) -> None:
    sink = sl.sinks.memory()
    expected: list[str] = []

    def add(directory: str, number: int) -> None:
        events = pipeline.write_file(case.root / directory, int(directory == "two"), number, 20)
        expected.extend(event["user"] for event in events)

    def start() -> sl.Run:
        both = small.source(spark, case.root / "one").union(small.source(spark, case.root / "two"))
        return small.job(sl.stream(both), case.root, case.local_dir, sink=sink).start(spark)

    with start() as run:
        add("one", 0)
        add("two", 0)
        settle(run)
        assert small.rows_of(sink) == small.counted(expected)
        add("two", 1)
        run.process_all_available(60)
    add("one", 1)
    with start() as run:
        settle(run)
    assert small.rows_of(sink) == small.counted(expected)


def test_available_now_processes_everything_and_ends(spark: Any, case: Case) -> None:
    sink = sl.sinks.memory()
    for files in (2, 1):
        case.add(files)
        stream = sl.stream(small.source(spark, case.root / "in"))
        run = small.job(stream, case.root, case.local_dir, sink=sink, trigger="available-now").start(spark)
        assert run.await_termination(60)
        assert run.status().state == "finished"
        assert run.checkpoints()[-1].status == "completed"
        assert small.rows_of(sink) == small.counted(users(case))
    # Somebody stops Spark's query in the middle, which looks like its end: the job is not finished with that.
    case.add(2)
    failpoints.arm("epoch.sink.before", lambda: stop_queries(spark))
    stream, again = sl.stream(small.source(spark, case.root / "in")), sl.Restart(attempts=1, delay="10ms")
    run = small.job(stream, case.root, case.local_dir, sink=sink, trigger="available-now", restart=again).start(spark)
    assert run.await_termination(60)
    assert (run.status().state, run.status().restarts) == ("finished", 1)
    assert "query of the job was stopped" in run.status().last_failure
    assert small.rows_of(sink) == small.counted(users(case))


def test_a_query_that_is_stopped_in_an_epoch_is_the_reason_of_its_error(
    spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_finished = Attempt._query_finished

    def wait_for_error(attempt: Attempt) -> bool:
        # Spark interrupts the epoch: its error is there before the job sees that the query has ended.
        if not attempt.query.isActive:
            attempt.driver.failed.wait(2)
        return has_finished(attempt)

    monkeypatch.setattr(Attempt, "_query_finished", wait_for_error)
    case.add(2)
    failpoints.arm("epoch.sink.before", lambda: stop_queries(spark))
    run = small.job(sl.stream(small.source(spark, case.root / "in")), case.root, case.local_dir).start(spark)
    with pytest.raises(SparkError, match="query of the job was stopped"):
        run.await_termination(60)


def test_a_checkpoint_does_not_wait_for_the_epoch_after_it(
    spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy keeper says that its snapshot is stored, so that rows are shown, and the next checkpoint begins, sooner."""
    # Each keeper's second to fourth checkpoint, of which one is the second epoch's, is stored after the epoch.
    slow = ("persist.before", "upload.before", "upload.after")
    delays = [f"keeper.{name}=sleep:0.7@{number}" for number, name in enumerate(slow, 2)]
    monkeypatch.setenv("STRANDLINE_FAILPOINTS", ";".join(delays))
    sink, source = sl.sinks.memory(), small.source(spark, case.root / "in")
    checkpoints, process = sl.Checkpoints(case.root / "ck", every="1ms"), Held(case.root / "go")
    job = small.job(sl.stream(source), case.root, case.local_dir, sink=sink, process=process, checkpoints=checkpoints)
    small.write_rows(case.root / "in", 0, [("ann", "fast", 1), ("bob", "fast", 1)])
    with job.start(spark) as run:
        settle(run)
        for number, kind in ((1, "fast"), (2, "slow")):
            small.write_rows(case.root / "in", number, [("ann", kind, 1), ("bob", "fast", 1)])
        eventually(lambda: len(sink.rows) > 2, "the second epoch's rows", 60)
        assert (run.glance().epoch, small.rows_of(sink)) == (2, small.counted(["ann", "bob"] * 2))
        (case.root / "go").touch()
        settle(run)
        assert small.rows_of(sink) == small.counted(["ann", "bob"] * 3)


def stop_queries(spark: Any) -> None:
    """Have all streaming queries stopped, and return when Spark says that they are."""
    active = spark.streams.active
    # It waits for the epoch that this is called in.
    threading.Thread(target=lambda: [query.stop() for query in active], daemon=True).start()
    eventually(lambda: not any(query.isActive for query in active), "they stop")


def test_a_checkpoint_on_demand_before_the_first_event_and_while_nothing_comes(spark: Any, case: Case) -> None:
    sink = sl.sinks.memory()
    stream = sl.stream(small.source(spark, case.root / "in"))
    with small.job(stream, case.root, case.local_dir, sink=sink).start(spark) as run:
        assert run.checkpoint(60).epoch == 0
    case.add(1)
    with small.job(stream, case.root, case.local_dir, sink=sink).start(spark) as run:
        assert run.status().restored_from == 1
        run.process_all_available(60)
        assert not sink.rows
        first = run.checkpoint(60)
        assert (first.status, first.epoch, first.acknowledged) == ("completed", 1, 2)
        assert small.rows_of(sink) == small.counted(users(case))
        second = run.checkpoint(60)
        assert second.checkpoint == first.checkpoint + 1
        assert second.epoch == 1
    with small.job(stream, case.root, case.local_dir, sink=sink).start(spark) as run:
        case.add(1)
        settle(run)
    assert small.rows_of(sink) == small.counted(users(case))


def test_a_vectorised_function_gives_what_its_oracle_does(spark: Any, case: Case) -> None:
    sink, aside = sl.sinks.memory(name="counts"), sl.sinks.memory(name="large")
    for _ in range(2):
        case.add(1)
        keyed = sl.stream(small.source(spark, case.root / "in")).key_by("user")
        counts = keyed.process(
            CountBatch(),
            output="user string, n bigint, total bigint",
            sides={"large": "user string, v int"},
            uid="count",
        )
        with case.job_of("batch", counts.to(sink), counts.side("large").to(aside)).start(spark) as run:
            settle(run)
    # Each file was one epoch, and each of a key's epochs gave one row.
    wanted: Counter[tuple[Any, ...]] = Counter()
    large: Counter[tuple[Any, ...]] = Counter()
    so_far: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for file in range(case.files):
        events = pipeline.events_of(case.seed, file, 40)
        for e in events:
            n, total = so_far[e["user"]]
            so_far[e["user"]] = (n + 1, total + e["v"])
        wanted.update((user, *so_far[user]) for user in {e["user"] for e in events})
        large.update((e["user"], e["v"]) for e in events if e["v"] > LARGE)
    assert small.rows_of(sink) == wanted
    assert small.rows_of(aside) == large
    assert large


# A column of each type that a key can have; every value appears in two epochs.
KEY_TYPES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, 5],
    "smallint": [-300, 300],
    "int": [-70000, 70000],
    "bigint": [-(2**40), 2**40],
    "float": [1.5, -2.25],
    "double": [0.1, -1e300],
    "decimal(9,2)": [Decimal("-1.25"), Decimal("99.99")],
    "decimal(38,4)": [Decimal("-12345678901234567890.1234"), Decimal("3.0000")],
    "string": ["", "Zürich €"],
    "binary": [b"", b"\x00\xff"],
    "date": [datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)],
    "timestamp": [datetime.datetime(1999, 12, 31, 23, 59, 59, 999999), datetime.datetime(2024, 1, 1)],
    "timestamp_ntz": [datetime.datetime(1960, 1, 1, 0, 0, 0, 1), datetime.datetime(2024, 1, 1)],
}
KEY_NAMES = [f"k{i}" for i in range(len(KEY_TYPES))]
KEY_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in zip(KEY_NAMES, KEY_TYPES, strict=True))


def key_rows() -> list[tuple[Any, ...]]:
    return list(zip(*KEY_TYPES.values(), strict=True))


def test_keys_of_all_types_together_survive_a_restart(spark: Any, case: Case) -> None:
    sink = sl.sinks.memory()
    directory = case.root / "keys"
    hidden = case.root / "_one"

    def start() -> sl.Run:
        directory.mkdir(exist_ok=True)
        df = spark.readStream.schema(KEY_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(directory))
        job = small.job(
            sl.stream(df), case.root, case.local_dir, sink=sink, keys=KEY_NAMES, process=CountWide(),
            output=f"{KEY_SCHEMA}, n int",
        )  # fmt: skip
        return job.start(spark)

    at = list(KEY_TYPES).index("timestamp")
    spark.createDataFrame(key_rows(), KEY_SCHEMA).coalesce(1).write.parquet(str(hidden))
    file = next(hidden.glob("*.parquet"))
    for number in (1, 2):
        with start() as run:
            (directory / f"{number}.parquet").hardlink_to(file)
            settle(run)
            # Of the job's whole life, over the stop.
            assert run.status().rows_in == 2 * number
            # Found as the user has them, and as JSON says them.
            keys = [tuple(v.astimezone() if n == at else v for n, v in enumerate(row)) for row in key_rows()]
            assert run.lookup("count.seen", keys).value == [number, number]
            table = run.lookup_table("count.seen")
            texts = [json.dumps(to_json(key)) for key in keys]
            assert run.lookup("count.seen", [table.key_of(text) for text in texts]).value == [number, number]
    wanted = Counter((*row, n) for row in key_rows() for n in (1, 2))
    assert Counter((*(bytes(v) if isinstance(v, bytearray) else v for v in row),) for row in sink.rows) == wanted


def test_a_running_job_is_looked_into(spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = case.root / "in"
    run = small.job(sl.stream(small.source(spark, directory)), case.root, case.local_dir, restart=sl.Restart()).start(
        spark
    )
    with run:
        small.write_rows(directory, 0, [("ann", "x", 1), ("bob", "x", 1), ("ann", "x", 2)])
        run.process_all_available(60)
        wanted = LookupResult("count.seen", run.status().epoch, [2, 1, None])
        assert run.lookup("count.seen", ["ann", "bob", "nobody"]) == wanted
        assert run.lookup("count.seen", "bob") == LookupResult("count.seen", wanted.epoch, 1)
        listed = run.first_keys("count.seen")
        assert (dict(zip(listed.keys, listed.values, strict=True)), listed.epoch, listed.has_more) == (
            {("ann",): 2, ("bob",): 1}, wanted.epoch, False,
        )  # fmt: skip
        by_partition = [key for at in (0, 1) for key in run.first_keys("count.seen", 10, partition=at).keys]
        assert sorted(by_partition) == [("ann",), ("bob",)]
        assert "count.seen" in [
            each.table for each in call(find_driver(case.local_dir, "small"), TABLES, NoArguments()).tables
        ]
        with monkeypatch.context() as as_on_a_cluster:
            as_on_a_cluster.setattr(run._supervisor.attempt._fleet, "_only_executor", None)
            # Keepers of other machines are not found from here; tasks of Spark's have the real one.
            as_on_a_cluster.setattr(RequestWorker, "ask", lambda *_: {})
            assert run.lookup("count.seen", ["ann", "bob", "nobody"]) == wanted
            assert run.first_keys("count.seen") == listed
            profiles = [run.profile("300ms")]
        looked = call(find_driver(case.local_dir, "small"), LOOKUP, LookUp("count.seen", ["ann", "x"]))
        assert looked == LookupValues("count.seen", wanted.epoch, [2, None])
        with pytest.raises(sl.errors.NotFoundError, match=r"no table 'count\.sen' in this job(.|\n)*: count\.seen"):
            run.lookup("count.sen", "ann")
        profiles.append(run.profile("300ms"))
        for profile in profiles:
            assert [(each.uid, each.partition) for each in profile.partitions] == [("count", 0), ("count", 1)]
            assert all(each.samples.count for each in profile.partitions)
        with pytest.raises(
            sl.errors.ConfigurationError, match="a profile of 61 s was asked for, expected more than 0 and at"
        ):
            run.profile("61s")
        for keeper in keepers(case.local_dir):
            os.kill(keeper, signal.SIGKILL)
        with pytest.raises(sl.errors.UnavailableError):
            run.lookup("count.seen", ["ann", "bob"])
    with pytest.raises(sl.errors.UnavailableError, match="job 'small' is stopped: it cannot be looked into"):
        run.lookup("count.seen", "ann")


def test_key_groups_are_the_same_in_spark_and_here(spark: Any) -> None:
    df = spark.createDataFrame(key_rows(), KEY_SCHEMA)
    most = 32768
    groups = [F.pmod(F.hash(name), F.lit(most)).alias(name) for name in KEY_NAMES]
    found = df.select(*groups, F.pmod(F.hash(*KEY_NAMES), F.lit(most)).alias("all")).collect()
    types = [parse_type(kind) for kind in KEY_TYPES]
    for collected, row in zip(df.collect(), found, strict=True):
        # Spark gives instants in local time, without saying so.
        values = [v.astimezone() if t == parse_type("timestamp") else v for v, t in zip(collected, types, strict=True)]
        assert [key_group([v], [t], most) for v, t in zip(values, types, strict=True)] == list(row)[:-1]
        assert key_group(values, types, most) == row["all"]


def test_stop_leaves_nothing(spark: Any, case: Case) -> None:
    before = set(threading.enumerate())
    temporary = {path.name for path in Path(case.local_dir.parent).iterdir() if "strandline" in path.name}
    case.short = True
    case.add(1)
    run = case.job(spark).start(spark)
    settle(run)
    assert len(keepers(case.local_dir)) == 2
    assert run.query is not None
    run.stop()
    assert not keepers(case.local_dir)
    assert not [t.name for t in set(threading.enumerate()) - before if t.name.startswith("strandline")]
    assert [path.name for path in case.local_dir.iterdir()] == ["logs"]
    assert {p.name for p in Path(case.local_dir.parent).iterdir() if "strandline" in p.name} <= temporary
    assert run.status().state == "stopped"
    assert not spark.streams.active
    # Once more is no mistake.
    run.stop()
    with pytest.raises(sl.errors.CheckpointError, match="is stopped"):
        run.checkpoint(1)


@pytest.mark.parametrize(
    ("owner", "call"),
    [
        ("pyspark.sql.streaming.DataStreamWriter", "start"),
        ("strandline.spark.job.preparation.PreparedRun", "restore"),
        ("strandline.spark.job.supervision.Supervisor", "_report_begin"),
    ],
)
def test_a_start_that_is_interrupted_leaves_nothing(
    spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch, owner: str, call: str
) -> None:
    small.write_rows(case.root / "in", 0, [("a", "x", 1)])
    job = small.job(sl.stream(small.source(spark, case.root / "in")), case.root, case.local_dir)
    real = getattr(pkgutil.resolve_name(owner), call)

    def interrupted(*args: Any, **options: Any) -> Any:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return real(*args, **options)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(f"{owner}.{call}", interrupted)
            with pytest.raises(KeyboardInterrupt):
                job.start(spark)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not spark.streams.active
    assert not keepers(case.local_dir)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("strandline-small")]
    with job.start(spark) as run:
        run.process_all_available(60)


def test_a_start_without_a_thread_leaves_nothing(spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    job = small.job(sl.stream(small.source(spark, case.root / "in")), case.root, case.local_dir)
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "strandline-small":
            raise RuntimeError("can't start new thread")
        real(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            job.start(spark)
    assert not keepers(case.local_dir)
    with job.start(spark) as run:
        run.process_all_available(60)


def test_a_start_in_a_stopped_session_says_so(spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark says nothing: an assertion fails."""
    job = small.job(sl.stream(small.source(spark, case.root / "in")), case.root, case.local_dir)
    with monkeypatch.context() as patch:
        patch.setattr("strandline.spark.job.failure_reporter._AWAIT_END_S", 0.0)
        patch.setattr("strandline.spark.job.failure_reporter.is_alive", lambda context: False)
        patch.setattr(SparkContext, "_active_spark_context", None)
        with pytest.raises(sl.errors.SparkError, match="Spark's session has been stopped"):
            job.start(spark)
    with job.start(spark) as run:
        run.process_all_available(60)


def test_no_epoch_begins_after_a_keeper_has_died(spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its rows come before the next look at the keepers."""
    monkeypatch.setattr("strandline.spark.job.attempt._QUERY_CHECK_S", 1000.0)
    stream, built, real = sl.stream(small.source(spark, case.root / "in")), [], FrameBuilder.build

    def build(builder: FrameBuilder, *args: Any) -> Any:
        built.append(True)
        return real(builder, *args)

    monkeypatch.setattr(FrameBuilder, "build", build)
    case.add(1)
    job = small.job(stream, case.root, case.local_dir, restart=sl.Restart(attempts=2, delay=0))
    with job.start(spark) as run:
        settle(run)
        before = len(built)
        os.kill(min(keepers(case.local_dir)), signal.SIGKILL)
        case.add(1)
        eventually(lambda: run.glance().restarts == 1 and run.glance().epoch == 2, "an epoch of the next attempt", 60)
        assert len(built) == before + 1


def test_every_attempt_has_the_local_properties_of_its_start(spark: Any, case: Case) -> None:
    context, pools = spark.sparkContext, []
    sink = sl.sinks.foreach_batch(lambda *_: pools.append(context.getLocalProperty("spark.scheduler.pool")))
    case.add(1)
    stream = sl.stream(small.source(spark, case.root / "in"))
    job = small.job(
        stream, case.root, case.local_dir, sink=sink, process=Count(), restart=sl.Restart(attempts=2, delay=0)
    )
    context.setLocalProperty("spark.scheduler.pool", "streams")
    try:
        run = job.start(spark)
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)
    with run:
        settle(run)
        os.kill(min(keepers(case.local_dir)), signal.SIGKILL)
        case.add(1)
        eventually(lambda: run.glance().restarts == 1 and run.glance().epoch == 2, "an epoch of the next attempt", 60)
    assert set(pools) == {"streams"}


def test_a_run_is_a_context_that_stops_it(spark: Any, case: Case) -> None:
    sink = sl.sinks.memory()
    stream = sl.stream(small.source(spark, case.root / "in"))
    with pytest.raises(KeyError), small.job(stream, case.root, case.local_dir, sink=sink, process=Count()).start(spark):
        raise KeyError("the program around it fails")
    assert not keepers(case.local_dir)


def test_rows_of_numbers_leave_the_limit_of_batches_as_it_is(spark: Any, case: Case, tmp_path: Path) -> None:
    """It is the session's, and so that of the program's own steps, too, whose rows may be large."""
    sizes = tmp_path / "sizes"

    def measure(batches: Any) -> Any:
        for batch in batches:
            with sizes.open("a") as file:
                file.write(f"{batch.nbytes}\n")
            yield batch.select(["value"])

    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", "100000")
    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 500).option("numPartitions", 1).load()
    numbers = rows.selectExpr("value", "repeat('x', 1000) as text").mapInArrow(measure, "value bigint")
    sink = sl.sinks.memory()
    counts = sl.stream(numbers).key_by("value").agg(n=sl.agg.count(), uid="count")
    job = sl.Job(
        "numbers", sinks=[counts.to(sink)], checkpoints=sl.Checkpoints(case.root / "ck", every="1s"),
        settings=sl.Settings(parallelism=2, local_dir=case.local_dir),
    )  # fmt: skip
    with job.start(session):
        eventually(lambda: len(sink.rows) >= 500, "the first epoch is visible")
    assert 50_000 < max(map(int, sizes.read_text().split())) < 200_000
