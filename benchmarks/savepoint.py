"""How fast a savepoint of 10,000,000 keys × 100 bytes is written, and restored, beside `cp` of the same bytes.

A real job on Spark, two partitions, RocksDB. A canonical savepoint of the idle job, and a native one; then epochs of
random keys as fast as they go, in turn without anything beside them and while a canonical savepoint is written; then
the job's own checkpoints and local copies are removed, and it begins with the savepoint. At the end a sample of the
keys is read back. Nothing is forced to disk by `cp`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._driver import Answer, Driver, driver
from benchmarks._harness import EpochCost, emit, end_on_sigterm, progress, scratch, steady_rows_per_second
from benchmarks._large_state import Feed

BENCHMARK = "savepoint"
CANONICAL, NATIVE = "canonical", "native"
_SETTLE_S = 3.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the state is, and how much is measured."""

    keys: int = 10_000_000
    load_rows: int = 500_000
    rounds: int = 3
    epochs: int = 40
    epoch_rows: int = 250_000
    checked_keys: int = 100_000


FULL = Scale()
QUICK = Scale(keys=100_000, load_rows=50_000, rounds=1, epochs=4, epoch_rows=20_000, checked_keys=10_000)


def copy(savepoint: Path) -> float:
    """Return how long `cp -r` takes for a savepoint."""
    target = savepoint.with_name("cp-to")
    started = time.perf_counter()
    subprocess.run(["cp", "-r", str(savepoint), str(target)], check=True)
    seconds = time.perf_counter() - started
    shutil.rmtree(target)
    return seconds


def write(job: Driver, directory: Path, form: str, scale: Scale) -> tuple[list[Answer], list[float]]:
    """Take savepoints of the idle job, and copy each; the last one stays."""
    taken, copied = [], []
    for number in range(1, scale.rounds + 1):
        savepoint = directory / form
        shutil.rmtree(savepoint, ignore_errors=True)
        taken.append(job.call(f"savepoint {form} {savepoint}"))
        copied.append(copy(savepoint))
        seconds = taken[-1]["duration_ms"] / 1000
        progress(f"round {number}/{scale.rounds}  {form}: {seconds:.2f} s, cp took {copied[-1]:.2f} s")
    return taken, copied


def throughput(job: Driver, feed: Feed, scale: Scale) -> float:
    """Return the rows a second of epochs as fast as they go."""
    feed.change(scale.epoch_rows, scale.epochs)
    job.wait_epoch(feed.epochs)
    costs = [EpochCost(**cost) for cost in job.call("progress")["progress"][-scale.epochs :]]
    return steady_rows_per_second(costs, 0)


def throughput_meanwhile(job: Driver, feed: Feed, scale: Scale, directory: Path) -> float:
    """Return the same while a savepoint is written, by a `strandline savepoint` beside it."""
    savepoint = directory / "meanwhile"
    feed.change(scale.epoch_rows, scale.epochs)
    command = [
        "strandline", "savepoint", "large-state", str(savepoint), "--local-dir", str(directory / "local"),
    ]  # fmt: skip
    asked = threading.Thread(target=subprocess.run, args=(command,), kwargs={"stdout": subprocess.DEVNULL})
    asked.start()
    job.wait_epoch(feed.epochs)
    costs = [EpochCost(**cost) for cost in job.call("progress")["progress"][-scale.epochs :]]
    asked.join()
    if not (savepoint / "_metadata").exists():
        raise SystemExit("the savepoint was not taken")
    shutil.rmtree(savepoint)
    return steady_rows_per_second(costs, 0)


def restore(directory: Path, feed: Feed, scale: Scale) -> tuple[float, float]:
    """Begin with the savepoint in an emptied place; return seconds of the keepers, and until the first new epoch."""
    shutil.rmtree(directory / "checkpoints")
    shutil.rmtree(directory / "local")
    with driver(directory) as job:
        started_s = job.call(f"start {directory / CANONICAL}")["started_s"]
        # Its sources go on where the savepoint's were.
        feed.check(scale.checked_keys)
        done_s, status = job.wait_epoch(feed.epochs)
        keepers_s = max(keeper["restore_ms"] for keeper in status["keepers"]) / 1000
        return keepers_s, done_s - started_s


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.savepoint", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small state: shows that it works, measures nothing")
    end_on_sigterm()
    parser.add_argument("--rounds", type=int, help="how often each is measured; by default 3 times")
    given = parser.parse_args()
    scale = QUICK if given.quick else FULL
    scale = replace(scale, rounds=given.rounds or scale.rounds)
    progress(f"{BENCHMARK}: {scale.keys:,} keys, {scale.rounds} rounds")
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    with scratch(BENCHMARK) as directory:
        feed = Feed(directory, scale.keys)
        with driver(directory) as job:
            job.call("start")
            feed.load(scale.load_rows)
            job.wait_epoch(feed.epochs)
            job.call("checkpoint")
            time.sleep(_SETTLE_S)
            native, native_cp = write(job, directory, NATIVE, scale)
            alone, beside = [], []
            for _ in range(scale.rounds):
                alone.append(throughput(job, feed, scale))
                beside.append(throughput_meanwhile(job, feed, scale, directory))
                progress(f"{alone[-1]:,.0f} rows/s alone, {beside[-1]:,.0f} while a savepoint is written")
            time.sleep(_SETTLE_S)
            taken, copied = write(job, directory, CANONICAL, scale)
        restored_s, first_epoch_s = restore(directory, feed, scale)
    written_s = median(one["duration_ms"] for one in taken) / 1000
    about: dict[str, Any] = {"keys": scale.keys, "savepoint_bytes": taken[-1]["total_bytes"]}
    emit(
        BENCHMARK, CANONICAL, "written_keys_per_second", round(scale.keys / written_s), wanted_at_least=500_000, **about
    )
    emit(BENCHMARK, CANONICAL, "restored_keys_per_second", round(scale.keys / restored_s), wanted_at_least=400_000)
    emit(BENCHMARK, CANONICAL, "seconds_to_first_epoch", round(first_epoch_s, 3))
    emit(BENCHMARK, CANONICAL, "written_over_cp", round(written_s / median(copied), 2), peer="cp")
    emit(BENCHMARK, CANONICAL, "throughput_meanwhile", round(median(beside) / median(alone), 3), wanted_at_least=0.8)
    native_s = median(one["duration_ms"] for one in native) / 1000
    emit(BENCHMARK, NATIVE, "seconds", round(native_s, 3), savepoint_bytes=native[-1]["total_bytes"])
    emit(BENCHMARK, NATIVE, "written_over_cp", round(native_s / median(native_cp), 2), peer="cp")


if __name__ == "__main__":
    main()
