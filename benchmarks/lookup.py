"""How long looking up one key of a running job takes, and what it costs the job: 1,000,000 keys, 100 bytes each.

A real job on Spark and RocksDB, whose epochs set keys chosen at random. In turn they run undisturbed, and while one key
after the other is looked up with `run.lookup`, with 10 ms between them. Each value found is checked to be of an epoch
that has been.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks._driver import Driver, driver
from benchmarks._harness import emit, end_on_sigterm, progress, scratch
from benchmarks._large_state import Feed

BENCHMARK, SUBJECT = "lookup", "run.lookup"
_WANTED_MS = 20
_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the state is, and how much each epoch sets."""

    keys: int = 1_000_000
    load_rows: int = 250_000
    rows: int = 200_000
    epochs: int = 10
    rounds: int = 3


FULL = Scale()
QUICK = Scale(keys=50_000, load_rows=25_000, rows=20_000, epochs=4, rounds=1)


@dataclass(frozen=True, slots=True)
class Measured:
    """What all rounds gave."""

    with_rows_per_second: list[float]
    without_rows_per_second: list[float]
    look_ups_ms: list[float]


def run_epochs(job: Driver, feed: Feed, scale: Scale, look_ups_ms: list[float] | None) -> float:
    """Run a round's epochs, with look-ups if they are wanted; return the rows set in a second."""
    started = time.monotonic()
    feed.change(scale.rows, scale.epochs)
    while look_ups_ms is not None and job.call("status")["epoch"] < feed.epochs:
        look_ups_ms += job.call(f"lookup {_AT_ONCE} {scale.keys}")["ms"]
    ended, _ = job.wait_epoch(feed.epochs)
    return scale.rows * scale.epochs / (ended - started)


def measure(directory: Path, scale: Scale) -> Measured:
    """Run epochs with look-ups and without, in turn."""
    found = Measured([], [], [])
    feed = Feed(directory, scale.keys)
    with driver(directory) as job:
        job.call("start")
        feed.load(scale.load_rows)
        job.wait_epoch(feed.epochs)
        run_epochs(job, feed, scale, None)
        progress(f"{scale.keys:,} keys loaded")
        for number in range(1, scale.rounds + 1):
            found.without_rows_per_second.append(run_epochs(job, feed, scale, None))
            found.with_rows_per_second.append(run_epochs(job, feed, scale, found.look_ups_ms))
            progress(
                f"round {number}/{scale.rounds}  {found.without_rows_per_second[-1]:,.0f} rows/s, with look-ups "
                f"{found.with_rows_per_second[-1]:,.0f}; {len(found.look_ups_ms)} look-ups so far"
            )
    return found


def report(found: Measured) -> None:
    """Print how long look-ups took, and the throughput with them beside that without."""
    took = sorted(found.look_ups_ms)
    emit(BENCHMARK, SUBJECT, "p50_ms", round(median(took), 3), wanted_at_most=_WANTED_MS, look_ups=len(took))
    emit(BENCHMARK, SUBJECT, "p99_ms", round(took[int(len(took) * 0.99)], 3))
    rates = {"with": found.with_rows_per_second, "without": found.without_rows_per_second}
    for subject, rounds in rates.items():
        emit(BENCHMARK, subject, "rows_per_second", round(median(rounds)), rounds=[round(rate) for rate in rounds])
    ratio = median(found.with_rows_per_second) / median(found.without_rows_per_second)
    emit(BENCHMARK, "with", "ratio", round(ratio, 3), peer="without")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lookup", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small state: shows that it works, measures nothing")
    end_on_sigterm()
    scale = QUICK if parser.parse_args().quick else FULL
    progress(f"{BENCHMARK}: {scale.keys:,} keys, {scale.rounds} rounds")
    with scratch(BENCHMARK) as directory:
        found = measure(directory, scale)
    report(found)


if __name__ == "__main__":
    main()
