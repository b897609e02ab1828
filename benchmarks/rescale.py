"""How long a running job with 1 GB of state takes to go on with twice or half as many partitions, beside `cp`.

A real job on Spark, RocksDB, 10,000,000 keys × 100 bytes. `run.rescale(n)`, from the call to the end of the first new
epoch: a checkpoint, the restore of it so divided, and the epoch, which sets keys as those of `recovery` do. Then an
epoch that reads 100,000 random keys of the cold files, and compares them. Before each rescale, the newest checkpoint's
files are copied with `cp -r`. Nothing is forced to disk on either side.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks._driver import Driver, driver
from benchmarks._harness import emit, end_on_sigterm, progress, scratch
from benchmarks._large_state import PARTITIONS, Feed, Scale, copy_newest

BENCHMARK = "rescale"
UP, DOWN = f"{PARTITIONS}-to-{2 * PARTITIONS}", f"{2 * PARTITIONS}-to-{PARTITIONS}"
TIMES_CP = {UP: 2, DOWN: 6}
_WANTED_S = 5
_WANTED_IN_ALL_S = 3
_SETTLE_S = 3.0


FULL = Scale()
QUICK = Scale(keys=100_000, load_rows=50_000, changed_keys=1_000, rounds=1, checked_keys=10_000)


@dataclass(frozen=True, slots=True)
class Round:
    """One rescaling."""

    rescale_s: float
    """Until the job runs again."""
    epoch_s: float
    """Until its first new epoch has ended."""
    check_s: float
    """Until keys were read and compared."""
    cp_s: float
    size_bytes: int


def settle(job: Driver, feed: Feed, scale: Scale) -> None:
    """Check a sample of the state, change some of it, and let merges come to rest."""
    feed.check(scale.checked_keys)
    job.wait_epoch(feed.epochs)
    feed.change(scale.changed_keys)
    job.wait_epoch(feed.epochs)
    job.call("checkpoint")
    time.sleep(_SETTLE_S)


def rescale(job: Driver, feed: Feed, scale: Scale, directory: Path, parallelism: int) -> Round:
    """Rescale once."""
    settle(job, feed, scale)
    cp_s, size_bytes = copy_newest(directory, job.call("status"))
    done = job.call(f"rescale {parallelism}")
    feed.change(scale.epoch_rows)
    ended_s, _ = job.wait_epoch(feed.epochs)
    feed.check(scale.checked_keys)
    checked_s, status = job.wait_epoch(feed.epochs)
    if len(status["keepers"]) != parallelism or status["restarts"]:
        raise SystemExit(f"{len(status['keepers'])} keepers, {status['restarts']} restarts, expected {parallelism}, 0")
    started_s = done["started_s"]
    return Round(done["ended_s"] - started_s, ended_s - started_s, checked_s - started_s, cp_s, size_bytes)


def measure(directory: Path, scale: Scale) -> dict[str, list[Round]]:
    """Go up and down in turn."""
    results: dict[str, list[Round]] = {UP: [], DOWN: []}
    feed = Feed(directory, scale.keys)
    with driver(directory) as job:
        job.call("start")
        feed.load(scale.load_rows)
        job.wait_epoch(feed.epochs)
        job.call("checkpoint")
        progress(f"{scale.keys:,} keys loaded")
        for number in range(1, scale.rounds + 1):
            for subject, parallelism in ((UP, 2 * PARTITIONS), (DOWN, PARTITIONS)):
                done = rescale(job, feed, scale, directory, parallelism)
                results[subject].append(done)
                progress(
                    f"round {number}/{scale.rounds}  {subject}  runs after {done.rescale_s:.2f} s, first epoch after "
                    f"{done.epoch_s:.2f} s, keys checked after {done.check_s:.2f} s, cp took {done.cp_s:.2f} s"
                )
        settle(job, feed, scale)
    return results


def report(results: dict[str, list[Round]]) -> None:
    """Print each way beside `cp`."""
    for subject, rounds in results.items():
        times = TIMES_CP[subject]
        emit(
            BENCHMARK, subject, "rescale_seconds", round(median(r.epoch_s for r in rounds), 3),
            state_bytes=rounds[-1].size_bytes, rounds=[round(r.epoch_s, 3) for r in rounds],
            wanted_at_most=_WANTED_IN_ALL_S,
        )  # fmt: skip
        emit(BENCHMARK, subject, "cp_seconds", round(median(r.cp_s for r in rounds), 3))
        over_s = median(r.epoch_s - times * r.cp_s for r in rounds)
        emit(BENCHMARK, subject, f"seconds_over_{times}_cp", round(over_s, 3), peer="cp", wanted_at_most=_WANTED_S)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rescale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small state: shows that it works, measures nothing")
    end_on_sigterm()
    scale = QUICK if parser.parse_args().quick else FULL
    progress(f"{BENCHMARK}: {scale.keys:,} keys, {scale.rounds} rounds")
    with scratch(BENCHMARK) as directory:
        results = measure(directory, scale)
    report(results)


if __name__ == "__main__":
    main()
