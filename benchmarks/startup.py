"""What it takes from a driver's start to its first epoch and checkpoint, with and without archived classes.

For each round a driver, `python -m benchmarks.startup --subject …`, is started, and everything in it is cold: Python,
the JVM, the keepers. Two jobs: one operator with a sink of files, and four, each with one. Both read one file. Seconds
are from the process' start; processor seconds are of the driver, its JVM and its keepers by then.

The peer is a foreachBatch of Spark without state: it shuffles the rows of the same file, passes them through a function
in Python, and writes files. That is the least that any stateful program on Spark has to start.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import strandline as sl
from benchmarks._harness import (
    Result,
    add_subject_options,
    emit,
    end_on_sigterm,
    measure_in_turn,
    progress,
    report_result,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = "startup"
SUBJECTS = ("one-plain", "one-archived", "spark-plain", "spark-archived", "four-plain", "four-archived")
FIGURES = ("imported_s", "session_s", "first_epoch_s", "first_checkpoint_s", "first_checkpoint_cpu_s")
_TICKS = os.sysconf("SC_CLK_TCK")


class Count(sl.KeyedProcess):
    """Counts each key's events."""

    seen = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Any]:
        self.seen.value += 1
        yield {"key": ctx.key, "n": self.seen.value}


def run_subject(name: str, directory: Path) -> Result:
    """Be the driver of one round."""
    found = {"imported_s": _age_s()}
    spark = sl.session("strandline-benchmark", "local[2]", **{"spark.driver.memory": "2g"})
    found["session_s"] = _age_s()
    (directory / "in").mkdir()
    rows = [json.dumps({"key": row % 100, "n": row}) for row in range(1000)]
    (directory / "in" / "0.json").write_text("\n".join(rows))
    source = spark.readStream.schema("key bigint, n bigint").json(str(directory / "in"))
    if name.startswith("spark"):
        return _run_spark(spark, source, directory, found)
    stream, sinks = sl.stream(source), []
    for number in range(4 if name.startswith("four") else 1):
        stream = stream.key_by("key").process(Count(), output="key bigint, n bigint", uid=f"count-{number}")
        sinks.append(stream.to(sl.sinks.files(str(directory / f"out-{number}"))))
    job = sl.Job(
        BENCHMARK,
        sinks=sinks,
        checkpoints=sl.Checkpoints(directory / "checkpoints"),
        settings=sl.Settings(parallelism=2, local_dir=directory / "local"),
    )
    with job.start(spark) as run:
        run.process_all_available(600)
        found["first_epoch_s"] = _age_s()
        run.checkpoint(600)
        found["first_checkpoint_s"] = _age_s()
        found["first_checkpoint_cpu_s"] = _cpu_s(str(directory))
    spark.stop()
    return found


def _run_spark(spark: SparkSession, source: DataFrame, directory: Path, found: Result) -> Result:
    def hand_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def epoch(df: DataFrame, _: int) -> None:
        rows = df.repartition(2, "key").mapInArrow(hand_on, "key bigint, n bigint")
        rows.write.mode("append").parquet(str(directory / "out"))

    query = source.writeStream.foreachBatch(epoch).option("checkpointLocation", str(directory / "spark")).start()
    query.processAllAvailable()
    found["first_epoch_s"] = found["first_checkpoint_s"] = _age_s()
    found["first_checkpoint_cpu_s"] = _cpu_s(str(directory))
    query.stop()
    spark.stop()
    return found


def _age_s() -> float:
    """Return how long ago this process was started."""
    since_boot = float(Path("/proc/uptime").read_text().split()[0])
    return since_boot - int(_stat("self")[19]) / _TICKS


def _cpu_s(directory: str) -> float:
    """Return the processor time of this process and its children, and of keepers and what forks them."""
    mine, ticks = {os.getpid()}, 0
    processes = sorted(int(path.name) for path in Path("/proc").glob("[0-9]*"))
    for pid in processes:
        try:
            stat, command = _stat(pid), Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        of_mine = directory.encode() in command or str(os.getpid()).encode() in command.split(b"\0")
        if pid in mine or int(stat[1]) in mine or (b"strandline.keeper" in command and of_mine):
            mine.add(pid)
            ticks += sum(map(int, stat[11:15]))
    return ticks / _TICKS


def _stat(pid: int | str) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def measure(rounds: int, cache: Path) -> dict[str, list[Result]]:
    """Run the subjects in turn: those that are archived find an archive, the others an empty directory."""
    results: dict[str, list[Result]] = {subject: [] for subject in SUBJECTS}
    for _ in range(rounds):
        for subject in SUBJECTS:
            os.environ["XDG_CACHE_HOME"] = str(cache if subject.endswith("archived") else cache / "empty")
            for name, found in measure_in_turn("benchmarks.startup", [subject], 1, []).items():
                results[name] += found
    return results


def main() -> None:
    """Make an archive, measure, and print the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round: shows that it works, measures nothing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cache", type=Path, help="a directory for the archive, which is kept there")
    add_subject_options(parser, SUBJECTS)
    given = parser.parse_args()
    end_on_sigterm()
    if given.subject:
        report_result(given.result, run_subject(given.subject, given.scratch))
        return
    with tempfile.TemporaryDirectory(prefix="strandline-bench-startup-") as made:
        cache = given.cache or Path(made)
        begun = time.monotonic()
        progress(f"{BENCHMARK}: making the archive")
        command = [sys.executable, "-m", "strandline.cli.main", "warm-up"]
        subprocess.run(command, env={**os.environ, "XDG_CACHE_HOME": str(cache)}, check=True)
        emit(BENCHMARK, "warm-up", "seconds", round(time.monotonic() - begun, 1))
        results = measure(1 if given.quick else given.rounds, cache)
    report(results)


def report(results: dict[str, list[Result]]) -> None:
    """Print the medians: those with an archive beside those without, and those of a job beside Spark's."""
    for subject, rounds in results.items():
        peers = [subject.replace("archived", "plain"), subject.replace("one", "spark")]
        for figure in FIGURES:
            value = median(found[figure] for found in rounds)
            emit(BENCHMARK, subject, figure, round(value, 2), rounds=[round(found[figure], 2) for found in rounds])
            for peer in peers:
                if peer != subject:
                    ratio = value / median(found[figure] for found in results[peer])
                    emit(BENCHMARK, subject, f"{figure.removesuffix('_s')}_ratio", round(ratio, 3), peer=peer)


if __name__ == "__main__":
    main()
