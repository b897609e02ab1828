"""How long one key takes in a snapshot of 10 GB, and how soon a fork of it and a restart of its job begin.

100,000,000 keys × 100 random bytes. `sl.state.write` makes a canonical savepoint; a job restores it and takes a native
one, of RocksDB's files. In each, random keys are looked up, through the API and by `strandline state show`. Then the
job is started again, and a fork of the native savepoint beside it; each counts until it has processed a row.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import strandline as sl
from benchmarks._harness import emit, end_on_sigterm, progress, scratch
from benchmarks.bootstrap import Keep, make_rows

BENCHMARK = "snapshot_lookup"
FULL, QUICK = 100_000_000, 1_000_000
_LOOK_UPS = 200
_COMMANDS = 5
_STATE = "keep.held"


def job_of(spark: Any, name: str, directory: Path) -> sl.Job:
    """Return a job that keeps what comes for a key, with a place of its own."""
    (directory / "in").mkdir(exist_ok=True)
    rows = spark.readStream.schema("id bigint, text string").json(str(directory / "in"))
    stream = sl.stream(rows.selectExpr("id", "cast(text as binary) as data"), name="rows")
    out = stream.key_by("id").process(Keep(), output="id bigint", uid="keep")
    return sl.Job(
        name, sinks=[out.to(sl.sinks.memory())], checkpoints=sl.Checkpoints(directory / "ck" / name),
        settings=sl.Settings(parallelism=2, local_dir=directory / "local" / name),
    )  # fmt: skip


def seconds_until_a_row(job: sl.Job, spark: Any, rows: Path, **given: Any) -> tuple[float, sl.Run]:
    """Start a job and give it a row; return how long that took, and the run."""
    started = time.perf_counter()
    run = job.start(spark, **given)
    hidden = rows / f".{time.time_ns()}"
    hidden.write_text(json.dumps({"id": 1, "text": "x"}))
    hidden.rename(rows / f"{hidden.name[1:]}.json")
    run.process_all_available(600)
    return time.perf_counter() - started, run


def look_up(url: Path, keys: int, subject: str) -> None:
    """Measure look-ups of a snapshot."""
    rng = np.random.default_rng(3)
    took = []
    with sl.state.opened(str(url)) as snapshot:
        for key in rng.integers(2, keys, _LOOK_UPS).tolist():
            started = time.perf_counter()
            (row,) = snapshot.lookup(_STATE, key)
            took.append((time.perf_counter() - started) * 1000)
            if len(row["value"]) != 100:
                raise SystemExit(f"key {key} has {row['value']!r}")
    commands = []
    for key in rng.integers(2, keys, _COMMANDS).tolist():
        started = time.perf_counter()
        subprocess.run(
            ["strandline", "state", "show", str(url), _STATE, "--key", str(key)], check=True, stdout=subprocess.DEVNULL
        )
        commands.append(time.perf_counter() - started)
    emit(BENCHMARK, subject, "p50_ms", round(median(took), 2), wanted_at_most=50, keys=keys)
    emit(BENCHMARK, subject, "p99_ms", round(sorted(took)[-len(took) // 100 - 1], 2))
    emit(BENCHMARK, subject, "command_seconds", round(median(commands), 2), wanted_at_most=1)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.snapshot_lookup", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 MB: shows that it works, measures nothing")
    parser.add_argument("--keys", type=int, help="so many keys")
    end_on_sigterm()
    given = parser.parse_args()
    keys = given.keys or (QUICK if given.quick else FULL)
    progress(f"{BENCHMARK}: {keys:,} keys")
    with scratch(BENCHMARK) as directory:
        make_rows(directory / "rows", keys)
        progress("rows written")
        spark = sl.session("snapshot-lookup", spark_driver_memory="2g", spark_sql_shuffle_partitions="16")
        main_job = job_of(spark, "main", directory)
        canonical, native = directory / "canonical", directory / "native"
        rows = spark.read.parquet(str(directory / "rows"))
        made = sl.state.write(main_job, canonical, {_STATE: rows})
        shutil.rmtree(directory / "rows")
        progress(f"canonical savepoint: {made.total_bytes / 1e9:.1f} GB in {made.duration_ms / 1000:.0f} s")
        look_up(canonical, keys, "canonical")
        seconds, run = seconds_until_a_row(main_job, spark, directory / "in", restore=canonical)
        progress(f"restored in {seconds:.0f} s")
        size_bytes = run.savepoint(native, format="native").total_bytes
        run.stop()
        shutil.rmtree(canonical)
        progress(f"native savepoint: {size_bytes / 1e9:.1f} GB")
        look_up(native, keys, "native")
        restart_s, run = seconds_until_a_row(job_of(spark, "main", directory), spark, directory / "in")
        fork = job_of(spark, "fork", directory)
        fork_s, forked = seconds_until_a_row(fork, spark, directory / "in", restore=native)
        forked.stop()
        run.stop()
        spark.stop()
    emit(BENCHMARK, "fork", "seconds_to_first_row", round(fork_s, 1), peer="restart", peer_value=round(restart_s, 1))


if __name__ == "__main__":
    main()
