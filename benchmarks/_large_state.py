"""A state larger than its caches: one random value a key, set by epochs that a benchmark feeds one by one.

An epoch is a file with the keys to set and the stamp that each value shall begin with, or with the keys to check and
the stamp that must be found. So a benchmark decides exactly what changes between two checkpoints, and proves at the
end, or after a recovery, that the state is right: a wrong value ends the job with an error.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import strandline as sl
from benchmarks._harness import MODES, checkpoint_mode, durability
from strandline.checkpoint.jobdir import manifest_path
from strandline.core.ids import CheckpointId
from strandline.format.manifest import MANIFEST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOB = "large-state"
UID = "values"
PARTITIONS = 2
VALUE_BYTES = 100
ENTRY_BYTES = 8 + VALUE_BYTES
"""What the user stores for a key: the bigint and its value."""
STATE_MEMORY = "1GB"
"""Of which blocks and objects get 65 %: less than the state at full size."""
RESTART_DELAY = "100ms"
_STAMP_BYTES = 8
_SCHEMA = pa.schema([("key", pa.int64()), ("stamp", pa.int64()), ("check", pa.bool_())])

SPARK_SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    # Looking for files 100 times a second would cost part of a core while the benchmark rests.
    "spark.sql.streaming.pollingDelay": "50ms",
    # Lets an epoch's file be read by two tasks, one row group each.
    "spark.sql.files.openCostInBytes": "0",
    "spark.sql.files.minPartitionNum": str(PARTITIONS),
}

_CLUSTER = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m",
    "spark.executor.cores": "1", "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
}  # fmt: skip
"""Settings that count where the master is a cluster's."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the state is, and how often something is done to it."""

    keys: int = 10_000_000
    load_rows: int = 500_000
    changed_keys: int = 100_000
    epoch_rows: int = 1_000
    rounds: int = 3
    checked_keys: int = 100_000


@dataclass(frozen=True)
class Shape:
    """The job's values and checkpoints; a driver finds it in its directory."""

    value_bytes: int = VALUE_BYTES
    every: str | None = None
    mode: str = ""
    """Empty: the one of `add_mode`."""
    files: int = 1
    """The most that an epoch reads."""
    master: str = ""
    """Empty: a local one."""
    standbys: int = 0

    def write(self, directory: Path) -> None:
        (directory / "shape.json").write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(directory: Path) -> Shape:
        path = directory / "shape.json"
        return Shape(**json.loads(path.read_text())) if path.exists() else Shape()


class Stamped(sl.KeyedBatchProcess):
    """Sets each key's value, or checks whose stamp it bears."""

    value = sl.Value("binary")

    def __init__(self, value_bytes: int = VALUE_BYTES) -> None:
        self.value_bytes = value_bytes

    def on_batch(self, batch: pa.RecordBatch, ctx: sl.BatchContext) -> None:
        states: Any = self.value
        stamps = batch.column("stamp").to_numpy()
        # An epoch holds one or the other.
        if batch.column("check")[0].as_py():
            self._check(batch.column("key").to_numpy(), stamps, states.get_many(ctx.keys))
            return
        # From the rows, not from chance: a replayed epoch gives the same values.
        noise = np.random.default_rng([ctx.epoch, batch.column("key")[0].as_py()])
        width = self.value_bytes
        values = np.frombuffer(noise.bytes(len(stamps) * width), np.uint8).reshape(-1, width).copy()
        values[:, :_STAMP_BYTES] = stamps.view(np.uint8).reshape(-1, _STAMP_BYTES)
        fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(stamps), [None, pa.py_buffer(values)])
        states.put_many(ctx.keys, fixed.cast(pa.binary()), last=True)

    def _check(self, keys: Any, stamps: Any, values: pa.Array) -> None:
        for key, stamp, value in zip(keys.tolist(), stamps.tolist(), values.to_pylist(), strict=True):
            found = None if value is None else int.from_bytes(value[:_STAMP_BYTES], "little")
            if found != stamp:
                raise ValueError(f"key {key}: the value bears the stamp {found}, expected {stamp}")


class Feed:
    """Writes epochs, and remembers which stamp each key's value must bear."""

    def __init__(self, directory: Path, keys: int, seed: int = 1) -> None:
        self._incoming = directory / "in"
        self._incoming.mkdir()
        self._random = np.random.default_rng(seed)
        self._stamps = np.zeros(keys, dtype=np.int64)
        self._newest_ns = 0
        self.keys = keys
        self.epochs = 0
        """How many were fed: the job is through when its epoch is this."""
        self.rows_set = 0

    def load(self, rows: int, after_each: Callable[[], object] = lambda: None) -> None:
        """Set every key once, `rows` keys a file."""
        for first in range(0, self.keys, rows):
            self._show(self._set(np.arange(first, min(first + rows, self.keys))))
            after_each()

    def change(self, rows: int, epochs: int = 1) -> None:
        """Set so many keys, chosen at random, in each of some epochs, which become visible at the same time."""
        written = [self._set(self._choose(rows)) for _ in range(epochs)]
        for hidden in written:
            self._show(hidden)

    def check(self, rows: int) -> None:
        """Check so many keys, chosen at random, in one epoch."""
        chosen = self._choose(rows)
        self._show(self._write(chosen, self._stamps[chosen], check=True))

    def _choose(self, rows: int) -> Any:
        return self._random.choice(self.keys, min(rows, self.keys), replace=False)

    def _set(self, keys: Any) -> Path:
        self._stamps[keys] = self.epochs + 1
        self.rows_set += len(keys)
        return self._write(keys, self._stamps[keys], check=False)

    def _write(self, keys: Any, stamps: Any, *, check: bool) -> Path:
        table = pa.table([keys, stamps, np.full(len(keys), check)], schema=_SCHEMA)
        hidden = self._incoming / f"_{self.epochs:06}.parquet"
        pq.write_table(table, hidden, compression="none", row_group_size=-(-len(keys) // PARTITIONS))
        self.epochs += 1
        return hidden

    def _show(self, hidden: Path) -> None:
        # The source reads files in the order of their times, which a file system may round.
        self._newest_ns = max(time.time_ns(), self._newest_ns + 10_000_000)
        os.utime(hidden, ns=(self._newest_ns, self._newest_ns))
        hidden.rename(hidden.with_name(hidden.name[1:]))


def copy_newest(directory: Path, status: dict[str, Any]) -> tuple[float, int]:
    """Copy the newest checkpoint's files with `cp -r`; return how long that took, and their bytes."""
    job = directory / "checkpoints" / JOB
    path = job / manifest_path(CheckpointId(status["last_checkpoint"]["checkpoint"]))
    files = [file for file in MANIFEST.decode(path.read_bytes(), str(path)).files() if file.path]
    tree, copy = directory / "cp-from", directory / "cp-to"
    tree.mkdir()
    for at, file in enumerate(files):
        os.link(job / file.path, tree / str(at))
    started = time.perf_counter()
    subprocess.run(["cp", "-r", str(tree), str(copy)], check=True)
    seconds = time.perf_counter() - started
    shutil.rmtree(tree)
    shutil.rmtree(copy)
    return seconds, sum(file.size for file in files)


def make_session(directory: Path) -> SparkSession:
    """Return the session that the job runs in."""
    master = Shape.read(directory).master
    return sl.session("strandline-benchmark", master or f"local[{PARTITIONS}]", **SPARK_SETTINGS, **_CLUSTER)


def _read(spark: SparkSession, directory: Path) -> DataFrame:
    return (
        spark.readStream.schema("key bigint, stamp bigint, check boolean")
        .option("maxFilesPerTrigger", Shape.read(directory).files)
        .parquet(str(directory / "in"))
    )


def time_plain_query(spark: SparkSession, directory: Path) -> float:
    """Return the seconds from the start of a query without any state to the end of its first epoch.

    It reads the same files, shuffles, and passes the rows through Python: what of a start is Spark's own.
    """
    ended: list[float] = []

    def epoch(df: DataFrame, batch: int) -> None:
        df.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
        df.repartition(PARTITIONS, "key").mapInArrow(_same, df.schema).write.format("noop").mode("overwrite").save()
        ended.append(time.monotonic())

    location = directory / "plain"
    started = time.monotonic()
    query = _read(spark, directory).writeStream.foreachBatch(epoch).option("checkpointLocation", str(location)).start()
    while not ended and query.isActive:
        time.sleep(0.005)
    query.stop()
    shutil.rmtree(location)
    return ended[0] - started


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def make_job(spark: SparkSession, directory: Path) -> sl.Job:
    """Return the job that reads what a Feed of this directory writes; by default checkpoints are taken on demand."""
    shape = Shape.read(directory)
    mode: Any = shape.mode or checkpoint_mode()
    function = Stamped(shape.value_bytes)
    values = sl.stream(_read(spark, directory)).key_by("key").process(function, output="key bigint", uid=UID)
    return sl.Job(
        JOB,
        sinks=[values.to(sl.sinks.noop())],
        checkpoints=sl.Checkpoints(
            (directory / "checkpoints").as_uri(), every=shape.every, standbys=shape.standbys, **MODES[mode]
        ),
        restart=sl.Restart(delay=RESTART_DELAY),
        settings=sl.Settings(
            backend="rocksdb",
            parallelism=PARTITIONS,
            state_memory=STATE_MEMORY,
            local_dir=directory / "local",
            **durability(),
        ),
    )
