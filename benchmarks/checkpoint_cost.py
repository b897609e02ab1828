"""What checkpoints of 10,000,000 keys × 100 bytes cost, 1 % of the keys changed between two of them.

A real job on Spark, two partitions, RocksDB, a vectorised process function, checkpoints on the local file system. The
first checkpoints after the load are not counted: what a load leaves has to be merged once (see the design note 0001).
Between checkpoints, merging may come to rest, as it does where they are seconds apart. Then the same job processes
epochs of random keys as fast as it can, in turn without checkpoints and with one every five seconds. At the end a
sample of the keys is read back: each value must bear the stamp of the epoch that set it last.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from benchmarks._driver import Answer, Driver, driver
from benchmarks._harness import (
    EpochCost,
    add_mode,
    checkpoint_mode,
    emit,
    end_on_sigterm,
    progress,
    scratch,
    steady_rows_per_second,
)
from benchmarks._large_state import ENTRY_BYTES, PARTITIONS, STATE_MEMORY, Feed

BENCHMARK = "checkpoint_cost"
WITH, WITHOUT = "with-checkpoints", "without-checkpoints"
# Keepers look at RocksDB's figures at most this often.
_FIGURES_AGE_S = 2.1


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the state is, and how much is measured."""

    keys: int = 10_000_000
    load_rows: int = 500_000
    changed_keys: int = 100_000
    warm_up_checkpoints: int = 3
    checkpoints: int = 20
    rounds: int = 6
    epochs: int = 16
    epoch_rows: int = 250_000
    every_s: float = 5.0
    checked_keys: int = 200_000

    @property
    def state_bytes(self) -> int:
        """Keys and values as the user sees them."""
        return self.keys * ENTRY_BYTES


FULL = Scale()
MEDIUM = Scale(
    keys=1_000_000, load_rows=250_000, changed_keys=50_000, warm_up_checkpoints=2, checkpoints=8,
    rounds=2, epochs=8, epoch_rows=150_000, every_s=2.0, checked_keys=50_000,
)  # fmt: skip
QUICK = Scale(
    keys=100_000, load_rows=50_000, changed_keys=1_000, warm_up_checkpoints=1, checkpoints=3,
    rounds=1, epochs=5, epoch_rows=20_000, every_s=0.5, checked_keys=10_000,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Phase:
    """Epochs as fast as they go."""

    rows_per_second: float
    checkpoints: int


def load(job: Driver, feed: Feed, scale: Scale) -> Answer:
    """Set every key, and take the first checkpoint, which uploads everything."""
    started = time.monotonic()
    feed.load(scale.load_rows)
    job.wait_epoch(feed.epochs)
    progress(f"loaded {scale.keys:,} keys in {time.monotonic() - started:.0f} s")
    first = job.call("checkpoint")
    progress(f"first checkpoint: {first['uploaded_bytes']:,} bytes in {first['end_to_end_ms']:,} ms")
    return first


def rest(job: Driver, feed: Feed) -> dict[str, int]:
    """Wait until no partition merges; return RocksDB's figures summed over the partitions."""
    while True:
        time.sleep(_FIGURES_AGE_S)
        # The figures come with an epoch.
        feed.change(1)
        _, status = job.wait_epoch(feed.epochs)
        keepers = [keeper["metrics"] for keeper in status["keepers"]]
        if not any(metrics["running_merges_count"] for metrics in keepers):
            return {name: sum(metrics[name] for metrics in keepers) for name in keepers[0]}


def take_increments(job: Driver, feed: Feed, scale: Scale, number: int, what: str) -> list[Answer]:
    """Change some keys and take a checkpoint, so many times."""
    taken = []
    for at in range(number):
        feed.change(scale.changed_keys)
        job.wait_epoch(feed.epochs)
        taken.append(job.call("checkpoint"))
        rest(job, feed)
        sync = max(part["sync_ms"] for part in taken[-1]["partitions"])
        share = _percent(taken[-1]["uploaded_bytes"], scale)
        progress(f"{what} {at + 1}/{number}: {share:.1f} % uploaded, {sync:.1f} ms synchronous")
    return taken


def run_phase(job: Driver, feed: Feed, scale: Scale, every_s: float | None) -> Phase:
    """Process a phase's epochs, with a checkpoint every so many seconds or without."""
    feed.change(scale.epoch_rows, scale.epochs)
    triggered = time.monotonic()
    taken = 0
    while job.call("status")["epoch"] < feed.epochs:
        if every_s is not None and time.monotonic() - triggered >= every_s:
            triggered = time.monotonic()
            job.call("checkpoint")
            taken += 1
        time.sleep(0.02)
    costs = [EpochCost(**cost) for cost in job.call("progress")["progress"][-scale.epochs :]]
    return Phase(steady_rows_per_second(costs, 0), taken)


def compare_throughput(job: Driver, feed: Feed, scale: Scale) -> dict[str, list[Phase]]:
    """Run phases with and without checkpoints in turn, each first as often as the other: the state ages meanwhile."""
    phases: dict[str, list[Phase]] = {WITHOUT: [], WITH: []}
    for number in range(1, scale.rounds + 1):
        turn = [(WITHOUT, None), (WITH, scale.every_s)]
        for subject, every_s in turn if number % 2 else reversed(turn):
            # Neither pays for the merges, or the unsaved changes, that the one before it left.
            job.call("checkpoint")
            rest(job, feed)
            phase = run_phase(job, feed, scale, every_s)
            phases[subject].append(phase)
            rate = f"{phase.rows_per_second:,.0f} rows/s"
            progress(f"round {number}/{scale.rounds}  {subject:<22} {rate}, {phase.checkpoints} checkpoints")
    return phases


def report_increments(
    scale: Scale, first: Answer, warm_up: Sequence[Answer], taken: Sequence[Answer], changed_bytes: int, written: int
) -> None:
    """Print what the measured checkpoints cost."""
    pauses = [part["sync_ms"] for stats in taken for part in stats["partitions"]]
    durations = [part["async_ms"] for stats in taken for part in stats["partitions"]]
    shares = [_percent(stats["uploaded_bytes"], scale) for stats in taken]
    uploaded = sum(stats["uploaded_bytes"] for stats in taken)
    about: dict[str, Any] = {"checkpoints": len(taken), "keys": scale.keys, "state_memory": STATE_MEMORY}

    def say(metric: str, value: float, **extra: Any) -> None:
        emit(BENCHMARK, checkpoint_mode(), metric, round(value, 3), **extra)

    say("sync_pause_median_ms", median(pauses), wanted_at_most=100, partitions=PARTITIONS, **about)
    say("sync_pause_max_ms", max(pauses))
    say("uploaded_mean_percent", mean(shares), wanted_at_most=8, each=[round(share, 2) for share in shares])
    say("uploaded_median_percent", median(shares))
    say("uploaded_max_percent", max(shares))
    say("warm_up_uploaded_mean_percent", mean(_percent(stats["uploaded_bytes"], scale) for stats in warm_up))
    say("uploaded_per_byte_changed", uploaded / changed_bytes, changed_bytes=changed_bytes)
    say("write_amplification", written / changed_bytes, written_bytes=written)
    say("async_median_ms", median(durations))
    say("async_max_ms", max(durations))
    say("end_to_end_median_ms", median(stats["end_to_end_ms"] for stats in taken))
    say("stored_max_percent", max(_percent(stats["total_bytes"], scale) for stats in taken))
    say("first_checkpoint_ms", first["end_to_end_ms"], uploaded_bytes=first["uploaded_bytes"])


def report_throughput(scale: Scale, phases: dict[str, list[Phase]]) -> None:
    """Print both throughputs and their ratio."""
    rates = {subject: median(phase.rows_per_second for phase in done) for subject, done in phases.items()}
    for subject, done in phases.items():
        extra: dict[str, Any] = {
            "unit": "rows/s",
            "rounds": [round(phase.rows_per_second) for phase in done],
            "checkpoints": [phase.checkpoints for phase in done],
            "rows_per_epoch": scale.epoch_rows,
            "epochs": scale.epochs,
        }
        emit(BENCHMARK, subject, "throughput", round(rates[subject]), **extra)
    ratio = rates[WITH] / rates[WITHOUT]
    emit(BENCHMARK, WITH, "throughput_ratio", round(ratio, 3), peer=WITHOUT, wanted_at_least=0.9, every_s=scale.every_s)


def measure(job: Driver, feed: Feed, scale: Scale) -> None:
    """Do all of it and print the results."""
    job.call("start")
    first = load(job, feed, scale)
    rest(job, feed)
    warm_up = take_increments(job, feed, scale, scale.warm_up_checkpoints, "warm-up checkpoint")
    before, rows_before = rest(job, feed), feed.rows_set
    taken = take_increments(job, feed, scale, scale.checkpoints, "checkpoint")
    after, changed_bytes = rest(job, feed), (feed.rows_set - rows_before) * ENTRY_BYTES
    written = sum(after[name] - before[name] for name in ("flush_written_bytes", "compaction_written_bytes"))
    phases = compare_throughput(job, feed, scale)
    feed.check(scale.checked_keys)
    _, status = job.wait_epoch(feed.epochs)
    if status["restarts"]:
        raise SystemExit(f"the job failed and was restarted, so the figures are void: {status['last_failure']}")
    progress(f"{scale.checked_keys:,} keys checked")
    report_increments(scale, first, warm_up, taken, changed_bytes, written)
    report_throughput(scale, phases)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small state: shows that it works, measures nothing")
    parser.add_argument("--medium", action="store_true", help="a tenth of the state: to compare two versions")
    add_mode(parser)
    end_on_sigterm()
    given = parser.parse_args()
    scale = QUICK if given.quick else MEDIUM if given.medium else FULL
    progress(f"{BENCHMARK}: {scale.keys:,} keys, {scale.checkpoints} checkpoints")
    with scratch(BENCHMARK) as directory, driver(directory) as job:
        measure(job, Feed(directory, scale.keys), scale)


def _percent(size_bytes: int, scale: Scale) -> float:
    return size_bytes / scale.state_bytes * 100


if __name__ == "__main__":
    main()
