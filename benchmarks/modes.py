"""What the modes of checkpoints cost, as the papers about them measured it; docs/papers.md has the results.

    python -m benchmarks.modes [--quick] [--subjects values …] [--seconds 6] [--write docs]
    python -m benchmarks.modes --from docs/papers.json --write docs

A subject is an application. It runs in a process of its own, and there each mode and interval, with uniform or Zipf
keys, is a job, after one that warms the JVM up. Rows come as fast as the job takes them:

- values: a value of 100 bytes for each of 100,000 keys, overwritten; and of 1,000 and 3,000 bytes;
- fold: sliding windows of 10 s every 2 s in event time of 1,000 keys, with a count and a sum; 2,500 rows are a second;
- all: the same windows, with all their elements.

Changelogs are `tight` (a new base after 2 MB of a partition's log) or `loose` (after twice the state): they stand for
what papers vary as dirty ratio, compaction or materialization interval. `continuous` has its default limits;
benchmarks.continuous varies them. At the end of each job a keeper is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import strandline as sl
from benchmarks._counting import MASTER, MULTIPLIER, PARTITIONS, SPARK_SETTINGS
from benchmarks._driver import _processes_of
from benchmarks._harness import (
    Result,
    add_subject_options,
    durability,
    emit,
    measure_in_turn,
    progress,
    report_result,
)
from benchmarks._large_state import UID, Stamped
from benchmarks._papers import write
from strandline.checkpoint.jobdir import manifest_path
from strandline.core.ids import CheckpointId
from strandline.format.manifest import MANIFEST

BENCHMARK = "modes"
KEYS, WINDOWS_KEYS = 100_000, 1_000
KEY_BYTES = 8
ROWS_PER_SECOND = 2_500
"""Of event time."""
WINDOW_S = 10
START_US = 1_700_000_000_000_000
_LOOK_S = 0.2
_RECOVERY_S = 60.0
_LEAST_CHECKPOINTS = 3
_TICKS = os.sysconf("SC_CLK_TCK")
_LOG = ".log"
TIGHT, LOOSE = sl.Changelog(limit="2MB"), sl.Changelog(share=2.0)
MODES: dict[str, dict[str, Any]] = {
    "full": {"mode": "full"}, "incremental": {"mode": "incremental"},
    "changelog tight": {"mode": "changelog", "changelog": TIGHT},
    "changelog loose": {"mode": "changelog", "changelog": LOOSE}, "continuous": {"mode": "continuous"},
}  # fmt: skip
INTERVALS = ("100ms", "1s")


@dataclass(frozen=True)
class Case:
    """One job."""

    mode: str
    every: str
    value_bytes: int = 100
    is_zipf: bool = False

    @property
    def name(self) -> str:
        size = "" if self.value_bytes == 100 else f" {self.value_bytes} bytes"
        return f"{self.mode} {self.every}{size}{' Zipf' * self.is_zipf}"


_CASES = [Case(mode, every) for every in INTERVALS for mode in MODES]
_CASES += [Case(mode, "1s", is_zipf=True) for mode in ("incremental", "changelog loose", "continuous")]
_SIZES = [Case(m, "1s", size) for size in (1_000, 3_000) for m in MODES if m != "changelog tight"]
SUBJECTS: dict[str, list[Case]] = {"values": _CASES + _SIZES, "fold": _CASES, "all": _CASES}


def all_rows(key: Any, window: Any, events: list[Any]) -> Iterator[Any]:
    """Give the number of a window's elements and their sum."""
    yield len(events), sum(event.value for event in events)


def make_job(spark: Any, subject: str, case: Case, directory: Path) -> sl.Job:
    """Return the job of a case."""
    keys, rows = (KEYS, 5_000) if subject == "values" else (WINDOWS_KEYS, ROWS_PER_SECOND)
    if case.value_bytes > 100:
        rows = 2_000
    uniform = f"value * {MULTIPLIER}L % {keys}"
    # Of key k about one row in k: the exponent is evenly spread.
    zipf = f"cast(pow({keys}d, (hash(value) + 2147483648L) / 4294967296d) as bigint) - 1"
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option(
        "numPartitions", PARTITIONS
    ).load().selectExpr(
        f"{zipf if case.is_zipf else uniform} as key", "value", "value as stamp", "false as check",
        f"timestamp_micros({START_US}L + value * 1000000L div {ROWS_PER_SECOND}) as ts",
    )  # fmt: skip
    keyed = sl.stream(source)
    if subject == "values":
        results = keyed.key_by("key").process(Stamped(case.value_bytes), output="key bigint", uid=UID)
    else:
        windows = keyed.watermark("ts").key_by("key").window(sl.Sliding(f"{WINDOW_S}s", every="2s"))
        output = "n bigint, total bigint"
        if subject == "fold":
            results = windows.fold(output, (0, 0), lambda acc, row: (acc[0] + 1, acc[1] + row.value), uid=UID)
        else:
            results = windows.process(all_rows, output, uid=UID)
    checkpoints = sl.Checkpoints((directory / "checkpoints").as_uri(), every=case.every, retain=2, **MODES[case.mode])
    return sl.Job(
        BENCHMARK,
        sinks=[results.to(sl.sinks.noop())],
        checkpoints=checkpoints,
        restart=sl.Restart(delay="100ms"),
        settings=sl.Settings(
            backend="rocksdb", parallelism=PARTITIONS, state_memory="512MB", local_dir=directory / "local",
            **durability(),
        ),
    )  # fmt: skip


def run_subject(subject: str, directory: Path, seconds: float) -> Result:
    """Measure each case of a subject in this process."""
    os.environ["SPARK_LOCAL_DIRS"] = str(directory / "spark")
    spark = sl.session("strandline-benchmark", MASTER, **SPARK_SETTINGS)
    cases = SUBJECTS[subject]
    measure(spark, subject, cases[0], directory, directory / "warm", 1.0)
    results = {}
    for number, case in enumerate(cases):
        results[case.name] = measure(spark, subject, case, directory, directory / f"case-{number}", seconds)
    spark.stop()
    return {"cases": results}


def measure(spark: Any, subject: str, case: Case, root: Path, directory: Path, seconds: float) -> Result:
    """Run one job: until it has all keys or a whole window, then for some seconds, then kill a keeper."""
    loaded = KEYS if subject == "values" else ROWS_PER_SECOND * WINDOW_S
    with make_job(spark, subject, case, directory).start(spark) as run:
        while run.status().rows_in < loaded or not run.status().checkpoints["completed"]:
            run.await_termination(_LOOK_S)
        began, cpu_s, rows = time.time(), cpu_seconds(root), run.status().rows_in
        checkpoints: dict[int, Any] = {}
        sizes: list[tuple[float, int, int]] = []
        while time.time() < began + seconds or len(counted := since(checkpoints, began)) < _LEAST_CHECKPOINTS:
            run.await_termination(_LOOK_S)
            checkpoints |= {each.checkpoint: each for each in run.checkpoints() if each.status == "completed"}
            if (size := stored(directory, max(checkpoints, default=0))) is not None:
                sizes.append((round(time.time() - began, 2), *size))
        ended = time.time()
        rows, cpu_s = run.status().rows_in - rows, cpu_seconds(root) - cpu_s
        epochs = epochs_of(run.query, began, ended)
        recovery_s = kill_keeper(run)
        if run.status().failed_events:
            raise SystemExit(f"{subject} {case.name}: {run.status().last_failure}")
    if not counted or not epochs or not sizes:
        raise SystemExit(f"{subject} {case.name}: {len(counted)} checkpoints and {len(epochs)} epochs: nothing is left")
    spans = [(each.triggered_ms / 1000, (each.completed_ms or 0) / 1000) for each in counted]
    during = [took for at, took in epochs if any(at <= until and at + took / 1000 >= since for since, until in spans)]
    uploaded = sum(each.uploaded_bytes for each in counted)
    totals = [each.total_bytes for each in counted]
    changed = rows * (KEY_BYTES + case.value_bytes) if subject == "values" else None
    return {
        "rows_per_s": rows / (ended - began),
        "epoch_ms": percentiles(during or [took for _, took in epochs]),
        "checkpoints": len(counted),
        "duration_ms": percentiles([each.end_to_end_ms or 0 for each in counted]),
        "uploaded_each": percentiles([each.uploaded_bytes for each in counted]),
        "total_bytes": percentiles(totals),
        "uploaded_per_row": uploaded / rows,
        "uploaded_per_changed": uploaded / changed if changed else None,
        "largest_log_bytes": max(log for _, log, _ in sizes),
        "recovery_s": recovery_s,
        "cpu_s_per_million_rows": cpu_s / rows * 1e6,
        "sizes": sizes,
        "epochs": [(round(at - began, 2), took) for at, took in epochs],
    }  # fmt: skip


def since(checkpoints: dict[int, Any], began: float) -> list[Any]:
    """Return the checkpoints that were triggered since then."""
    return [each for each in checkpoints.values() if began * 1000 <= each.triggered_ms]


def percentiles(values: list[float]) -> dict[str, float]:
    """Return p50, p90, p99 and the maximum."""
    return {
        name: float(np.percentile(values, cut)) for name, cut in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100))
    }


def stored(directory: Path, checkpoint: int) -> tuple[int, int] | None:
    """Return the bytes of the logs of a checkpoint, and of all its files; None if it is gone."""
    path = directory / "checkpoints" / BENCHMARK / manifest_path(CheckpointId(checkpoint))
    try:
        manifest = MANIFEST.decode(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    files = [file for operator in manifest.operators for part in operator.partitions for file in part.files]
    return sum(file.size for file in files if file.name.endswith(_LOG)), sum(file.size for file in files)


def epochs_of(query: Any, began: float, ended: float) -> list[tuple[float, float]]:
    """Return when each epoch with rows began, and how many ms it took."""
    epochs = [
        (datetime.fromisoformat(p["timestamp"]).timestamp(), float(p["durationMs"]["triggerExecution"]))
        for p in query.recentProgress
        if p["numInputRows"]
    ]
    return [(at, took) for at, took in epochs if began <= at < ended]


def cpu_seconds(root: Path) -> float:
    """Return the processor time of this process and of all that it has started, by their environment."""
    ticks = 0
    for pid in (os.getpid(), *_processes_of(root)):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def kill_keeper(run: sl.Run) -> float:
    """Kill a keeper; return the seconds until more rows are processed than before, with another keeper."""
    victim, rows = run.status().keepers[-1].pid, run.status().rows_in
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    while time.monotonic() < killed + _RECOVERY_S:
        status = run.status()
        if status.keepers and victim not in [keeper.pid for keeper in status.keepers] and status.rows_in > rows:
            return time.monotonic() - killed
        run.await_termination(0.01)
    raise SystemExit(f"the job did not recover within {_RECOVERY_S} s: {run.status()}")


def main() -> None:
    """Measure all subjects, or run one of them (what the measuring process starts), or draw again."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modes", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one second each: shows that it works, measures nothing")
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), metavar="SUBJECT")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each job, after all keys are there")
    parser.add_argument("--from", dest="data", type=Path, help="the data of an earlier run, in place of a run")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="the folder with papers.md")
    add_subject_options(parser, SUBJECTS)
    given = parser.parse_args()
    seconds = 1.5 if given.quick else given.seconds
    if given.subject:
        report_result(given.result, run_subject(given.subject, given.scratch, seconds))
        return
    if given.data:
        data = json.loads(given.data.read_text(encoding="utf-8"))
    else:
        results = measure_in_turn("benchmarks.modes", given.subjects, 1, ["--seconds", str(seconds)])
        data = {subject: found[0]["cases"] for subject, found in results.items()}
        for subject, cases in data.items():
            for name, case in cases.items():
                figures = {n: v for n, v in case.items() if n not in ("sizes", "epochs", "rows_per_s")}
                emit(BENCHMARK, f"{subject} {name}", "rows_per_s", round(case["rows_per_s"]), **figures)
        rates = [case["rows_per_s"] for cases in data.values() for case in cases.values()]
        progress(f"{len(rates)} jobs, median {median(rates):,.0f} rows/s")
    if given.write:
        write(data, given.write)


if __name__ == "__main__":
    main()
