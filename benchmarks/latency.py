"""How old rows are when they can be seen, with a large state and checkpoints in short intervals, and why.

    python -m benchmarks.latency [--subjects incremental-kafka changelog-files …] [--interval 0.5] [--state-gb 1]

A subject is a mode of checkpoints and an end. The mode `kafkalog` is `changelog` with the log in a topic of the broker;
the end `epoch` is Kafka with `visibility="epoch"`, where rows do not wait for a checkpoint (Samza's order). A process
beside the job writes rows into a topic of Kafka, each with the time at which it was due. The job sets the value of each
row's key, which it reads first; it begins with a savepoint that has all keys, so many that `--rate` rows a second
change 1 % of the state a second (`--changed`). Another process sees the rows in the end, by the end's own client: a
row's age is how long that is after it was due.

The job's own figures say where the age comes from: for each checkpoint the phases from the begin of the oldest epoch
that it covers until the sink's rows are visible. Before, a row has waited in the topic until its epoch began, which is
told from Spark's reports of its batches.

At the end each row must have been seen once, and must bear the number of its key's changes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import strandline as sl
from benchmarks._clients import Client, Feeder, Reader, client
from benchmarks._ends import ENDS, End, KafkaAtOnce, PostgreSQLInAnyOrder, running_broker
from benchmarks._harness import (
    MODES,
    Result,
    add_subject_options,
    durability,
    emit,
    end_on_sigterm,
    measure_in_turn,
    median_of,
    progress,
    report_result,
    scratch,
)

BENCHMARK = "latency"
PLACES: dict[str, type[End]] = {
    "kafka": ENDS["kafka"], "postgresql": PostgreSQLInAnyOrder, "delta": ENDS["delta"], "files": ENDS["files"],
    "epoch": KafkaAtOnce,
}  # fmt: skip
IN_KAFKA = "kafkalog"
SUBJECTS = tuple(f"{mode}-{place}" for mode in (*MODES, IN_KAFKA) for place in PLACES)
OUTPUT = "id bigint, person string, amount double, at timestamp"
PARTITIONS = 2
STATE_MEMORY = "1GB"
_LOOK_S = 2.0
_SHOWN_WITHIN_S = 300.0
_STAMP_BYTES = 8
_PRIME = 2_147_483_647
"""Rows that follow each other have keys far apart, and each key comes once before any comes again."""
AGES = {"age_p50_s": 50, "age_p99_s": 99, "age_max_s": 100}
PHASES = ("waits", "epoch", "durable", "published", "shown")
_BEFORE_THE_EPOCH = ("latestOffset", "walCommit", "getBatch", "queryPlanning")
"""What Spark does in a batch before it calls us, in its own words."""
SPARK_SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}


class Counted(sl.KeyedBatchProcess):
    """Counts each key's changes in the first bytes of its value; the others are new with each change."""

    value = sl.Value("binary")

    def __init__(self, value_bytes: int) -> None:
        self.value_bytes = value_bytes

    def on_batch(self, batch: pa.RecordBatch, ctx: sl.BatchContext) -> pa.RecordBatch:
        states: Any = self.value
        width = self.value_bytes
        old = states.get_many(ctx.keys).cast(pa.binary(width))
        stored = np.frombuffer(old.buffers()[1], np.uint8)[old.offset * width :][: len(old) * width]
        counts = stored.reshape(-1, width)[:, :_STAMP_BYTES].copy().view(np.int64).ravel() + 1
        ids = batch.column("id")
        # From the rows, not from chance: a replayed epoch gives the same values.
        values = random_values(len(ids), width, ids[0].as_py())
        values[:, :_STAMP_BYTES] = counts.view(np.uint8).reshape(-1, _STAMP_BYTES)
        states.put_many(ctx.keys, as_binary(values), last=True)
        keys = pc.cast(batch.column("key"), pa.string())
        person = pc.binary_join_element_wise(pa.scalar("user-"), keys, "")
        columns = [ids, person, pa.array(counts.astype(np.float64)), batch.column("at")]
        return pa.RecordBatch.from_arrays(columns, ["id", "person", "amount", "at"])


def random_values(rows: int, width: int, seed: int) -> Any:
    """Return bytes that cannot be compressed, a line for each row."""
    return np.frombuffer(np.random.default_rng(seed).bytes(rows * width), np.uint8).reshape(-1, width).copy()


def as_binary(values: Any) -> pa.Array:
    """Return the lines as an array of binaries."""
    rows, width = values.shape
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(values)]).cast(pa.binary())


class Load:
    """How large the state is, and its values."""

    def __init__(self, state_gb: float, rate: int, changed: float) -> None:
        """`changed` is the part of the state that changes in a second."""
        self.rate = rate
        self.keys = round(rate / changed)
        self.value_bytes = max(_STAMP_BYTES, round(state_gb * 1e9 / self.keys))

    def make_job(self, spark: Any, servers: str, sink: sl.sinks.Sink, directory: Path, mode: Any, every: str) -> sl.Job:
        """Return the job."""
        rows = (
            spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", "in")
            .option("startingOffsets", "earliest").option("kafka.isolation.level", "read_committed").load()
            .selectExpr("cast(cast(value as string) as bigint) as id", "timestamp as at")
            .selectExpr("id", f"id * {_PRIME} % {self.keys} as key", "at")
        )  # fmt: skip
        counted = (
            sl.stream(rows).key_by("key")
            .process(Counted(self.value_bytes), output=OUTPUT, uid="values")
        )  # fmt: skip
        options = MODES["changelog" if mode == IN_KAFKA else mode]
        if mode == IN_KAFKA:
            options = {**options, "changelog": sl.Changelog(log=sl.KafkaLog(servers, "log"))}
        return sl.Job(
            BENCHMARK,
            sinks=[counted.to(sink)],
            checkpoints=sl.Checkpoints((directory / "checkpoints").as_uri(), every=every, **options),
            restart=sl.Restart.never(),
            settings=sl.Settings(
                backend="rocksdb", parallelism=PARTITIONS, state_memory=STATE_MEMORY, local_dir=directory / "local",
                **durability(),
            ),
        )  # fmt: skip

    def savepoint(self, spark: Any, job: sl.Job, directory: Path) -> str:
        """Return a savepoint with all keys, which the first subject makes for all."""
        path = directory / f"{self.keys}-{self.value_bytes}"
        if not path.exists():
            width = self.value_bytes

            def fill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                for batch in batches:
                    keys = batch.column(0)
                    values = random_values(len(keys), width, keys[0].as_py())
                    values[:, :_STAMP_BYTES] = 0
                    yield pa.RecordBatch.from_arrays([keys, as_binary(values)], ["key", "value"])

            keys = spark.range(0, self.keys, 1, PARTITIONS).selectExpr("id as key")
            sl.state.write(job, path.as_uri(), {"values.value": keys.mapInArrow(fill, "key bigint, value binary")})
        return path.as_uri()

    def check(self, seen: Any, rows: int, subject: str) -> None:
        """Check that each row was seen once, with the right number of changes."""
        ids, amounts = seen["ids"], seen["amounts"]
        if int(seen["count"]) != rows or not np.array_equal(np.sort(ids), np.arange(rows)):
            many = len(np.unique(ids))
            raise SystemExit(
                f"{subject}: {rows:,} rows, of which {many:,} were seen, and {int(seen['count']):,} in all"
            )
        if not np.array_equal(amounts, ids // self.keys + 1):
            raise SystemExit(f"{subject}: wrong numbers of changes: the state is not as it should be")


def run_subject(subject: str, options: argparse.Namespace, directory: Path) -> Result:
    """Measure a subject in this process."""
    mode, _, place = subject.rpartition("-")
    load = Load(options.state_gb, options.rate, options.changed)
    spark = sl.session("strandline-benchmark", f"local[{PARTITIONS}]", **SPARK_SETTINGS)
    every = f"{round(options.interval * 1000)}ms"
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker(spark))
        broker.create("in", PARTITIONS)
        broker.create("log", PARTITIONS, cleanup_policy="compact")
        end = PLACES[place](directory)
        stack.enter_context(end.running(spark, broker))
        job = load.make_job(spark, broker.servers, end.sink(), directory, mode, every)
        savepoint = load.savepoint(spark, job, options.state)
        with job.start(spark, restore=savepoint) as run:
            # Of its own: the first one uploads all state.
            run.checkpoint(timeout=600)
            with (
                client(Reader(end, directory / "seen.npz")) as reader,
                client(Feeder(broker.servers, "in", options.rate)) as feeder,
            ):
                found = watch(run, [reader, feeder], options.warm_up, options.seconds)
                feeder.tell(0)
                rows = int(feeder.answer(60))
                reader.tell(rows)
                until = time.monotonic() + _SHOWN_WITHIN_S
                while reader.is_running and time.monotonic() < until:
                    run.await_termination(0.2)
                reader.answer(0)
            batches = begins(run.query)
    spark.stop()
    seen = np.load(directory / "seen.npz")
    load.check(seen, rows, subject)
    return figures(seen, found, options.seconds) | source_figures(seen, found, options.seconds, batches)


def begins(query: Any) -> list[tuple[float, list[int]]]:
    """Return for each batch when its epoch began, and where it ends in each partition of the topic."""
    batches = []
    for report in query.recentProgress:
        if report["numInputRows"] > 0:
            (topics,) = (json.loads(source["endOffset"]) for source in report["sources"])
            before_ms = sum(report["durationMs"].get(name, 0) for name in _BEFORE_THE_EPOCH)
            began = datetime.fromisoformat(report["timestamp"]).timestamp() + before_ms / 1000
            batches.append((began, [topics["in"].get(str(number), 0) for number in range(PARTITIONS)]))
    return batches


def source_figures(seen: Any, found: Result, seconds: float, batches: list[tuple[float, list[int]]]) -> Result:
    """Return how long rows had waited when their epochs began."""
    ids = seen["ids"][(seen["at"] >= found["began"]) & (seen["at"] < found["began"] + seconds)]
    at = seen["at"][(seen["at"] >= found["began"]) & (seen["at"] < found["began"] + seconds)]
    began, ends = np.array([began for began, _ in batches]), np.array([ends for _, ends in batches])
    # The feeder puts them into the partitions in turn.
    waited = np.empty(len(ids))
    for number in range(PARTITIONS):
        here = ids % PARTITIONS == number
        waited[here] = began[np.searchsorted(ends[:, number], ids[here] // PARTITIONS, side="right")] - at[here]
    return {f"source_p{cut}_ms": float(np.percentile(waited, cut) * 1000) for cut in (50, 99)}


def watch(run: sl.Run, clients: list[Client], warm_up: float, seconds: float) -> Result:
    """Let the job run for some time; return when it began to count, the epochs since then, and all checkpoints."""
    run.await_termination(warm_up)
    began, epochs = time.time(), run.glance().epochs
    until = time.monotonic() + seconds
    taken: dict[int, Any] = {}
    while (left := until - time.monotonic()) > 0:
        # If the job fails, that raises its error.
        run.await_termination(min(_LOOK_S, left))
        for each in clients:
            each.check()
        # The newest one's rows may not be visible yet: it comes again.
        taken |= {stats.checkpoint: stats for stats in run.checkpoints() if stats.status == "completed"}
    epochs = run.glance().epochs - epochs
    run.await_termination(_LOOK_S)
    taken |= {stats.checkpoint: stats for stats in run.checkpoints() if stats.status == "completed"}
    began_ms = began * 1000
    return {
        "began": began, "epochs": epochs,
        "checkpoints": [s for s in taken.values() if began_ms <= s.triggered_ms < began_ms + seconds * 1000],
    }  # fmt: skip


def figures(seen: Any, found: Result, seconds: float) -> Result:
    """Return what was measured of the rows that were due meanwhile, and of the checkpoints."""
    began, taken = found["began"], found["checkpoints"]
    ages = (seen["seen"] - seen["at"])[(seen["at"] >= began) & (seen["at"] < began + seconds)]
    result: Result = {
        **{name: float(np.percentile(ages, cut)) for name, cut in AGES.items() if len(ages)},
        "rows_per_second": float(np.sum((seen["seen"] >= began) & (seen["seen"] < began + seconds)) / seconds),
        "uploaded_bytes_per_second": sum(stats.uploaded_bytes for stats in taken) / seconds,
        "checkpoints": len(taken),
        "epochs": found["epochs"],
    }
    phases: dict[str, list[float]] = {name: [] for name in (*PHASES, "age_of_oldest")}
    timed = [stats for stats in taken if stats.phases is not None]
    # No checkpoint shows the rows of an end that does not wait for it.
    for stats in [stats for stats in timed if stats.sinks] or timed:
        for name in PHASES[:-1]:
            phases[name].append(getattr(stats.phases, f"{name}_ms"))
        if stats.sinks:
            phases["shown"].append(stats.sinks[0].shown_ms)
            phases["age_of_oldest"].append(stats.sinks[0].age_ms)
    if not phases["durable"] or not len(ages):
        raise SystemExit(f"{len(taken)} checkpoints and {len(ages)} rows: nothing is left to measure")
    for name, values in ((name, values) for name, values in phases.items() if values):
        for cut in (50, 99):
            result[f"{name}_p{cut}_ms"] = float(np.percentile(values, cut))
    return result


def main() -> None:
    """Measure all, or run one of them (what the measuring process starts)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="seconds of work: shows that it works, measures nothing")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--subjects", nargs="+", default=list(SUBJECTS), choices=SUBJECTS, metavar="MODE-END")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between checkpoints")
    parser.add_argument("--state-gb", type=float, default=1.0, help="size of all keys' values")
    parser.add_argument("--rate", type=int, default=5_000, help="rows a second, each of which changes a key")
    parser.add_argument("--changed", type=float, default=0.01, help="the part of the state that changes in a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="of measuring, after some that are not counted")
    parser.add_argument("--warm-up", type=float, default=30.0, help="seconds before that: a JVM begins slowly")
    parser.add_argument("--state", type=Path, help=argparse.SUPPRESS)
    add_subject_options(parser)
    given = parser.parse_args()
    if given.subject:
        report_result(given.result, run_subject(given.subject, given, given.scratch))
        return
    end_on_sigterm()
    if given.quick:
        given.state_gb, given.rate, given.warm_up, given.seconds = 0.01, 500, 5.0, 5.0
    with scratch("latency-state") as state:
        options = [
            "--interval", str(given.interval), "--state-gb", str(given.state_gb), "--rate", str(given.rate),
            "--changed", str(given.changed), "--warm-up", str(given.warm_up), "--seconds", str(given.seconds),
            "--state", str(state),
        ]  # fmt: skip
        progress(
            f"{BENCHMARK}: {given.state_gb} GB, {given.rate:,} rows/s that change {given.changed:.1%} of it a second, "
            f"checkpoints every {given.interval} s"
        )
        results = measure_in_turn("benchmarks.latency", given.subjects, given.rounds, options)
    for subject, found in results.items():
        for metric in found[0]:
            value = median_of(found, metric)
            emit(
                BENCHMARK, subject, metric, round(value, 3 if metric.endswith("_s") else 1),
                interval=given.interval, state_gb=given.state_gb, rate=given.rate, changed=given.changed,
            )  # fmt: skip


if __name__ == "__main__":
    main()
