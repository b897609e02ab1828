"""How long a job with 1 GB of state takes to process again after kill -9, beside copying the same bytes with `cp`.

A real job on Spark, two partitions, RocksDB; 10,000,000 keys × 100 bytes, a checkpoint, and then, several times each:

- a keeper is killed: from the kill to the end of the first new epoch; with a local log it is replaced alone, else the
  job is restarted;
- the driver is killed and started again: from `job.start()` in the new process to the end of the first new epoch,
  beside what a query without state needs for its first epoch in such a process: a cold JVM's own seconds;
- the same, and the machine's local copies of the checkpoint are gone too: every file comes from the storage.

Before each, the newest checkpoint's files are copied with `cp -r`, and the copy is removed. Nothing is forced to disk
on either side; files are in the page cache as far as memory allows. After each, a sample of the keys is read back.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._driver import Answer, driver
from benchmarks._harness import add_mode, checkpoint_mode, emit, end_on_sigterm, progress, scratch
from benchmarks._large_state import RESTART_DELAY, Feed, copy_newest

BENCHMARK = "recovery"
KEEPER, DRIVER, STORAGE = "keeper-killed", "driver-killed", "driver-killed-copies-lost"
SUBJECTS = (KEEPER, DRIVER, STORAGE)
_SETTLE_S = 3.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the state is, and how often each kill is measured."""

    keys: int = 10_000_000
    load_rows: int = 500_000
    changed_keys: int = 100_000
    increments: int = 3
    epoch_rows: int = 1_000
    rounds: int = 3
    checked_keys: int = 100_000


FULL = Scale()
QUICK = Scale(keys=100_000, load_rows=50_000, changed_keys=1_000, increments=1, rounds=1, checked_keys=10_000)


@dataclass(frozen=True, slots=True)
class Round:
    """One kill: how long until the first new epoch was complete, and how long `cp` took for the same bytes."""

    restore_s: float
    cp_s: float
    size_bytes: int
    keeper_restore_ms: float
    process_s: float | None = None
    """From the start of the driver's process, its JVM included."""
    restarts: int = 1
    plain_s: float = 0.0
    """What a query without state takes to its first epoch in a new process: what of the time is Spark's own."""

    @property
    def over_s(self) -> float:
        """What is above one and a half times `cp`, and above a start of Spark."""
        return self.restore_s - 1.5 * self.cp_s - self.plain_s


class Bench:
    """The job, its input and its checkpoints."""

    def __init__(self, directory: Path, scale: Scale, stack: ExitStack) -> None:
        self._directory = directory
        self._scale = scale
        self._stack = stack
        self._feed = Feed(directory, scale.keys)
        self._job = stack.enter_context(driver(directory))

    def prepare(self) -> None:
        """Load the state, change some of it, and take the checkpoints that are restored from."""
        scale, feed = self._scale, self._feed
        self._job.call("start")
        started = time.monotonic()
        feed.load(scale.load_rows)
        self._job.wait_epoch(feed.epochs)
        self._job.call("checkpoint")
        for _ in range(scale.increments):
            feed.change(scale.changed_keys)
            self._job.wait_epoch(feed.epochs)
            self._job.call("checkpoint")
        progress(f"{scale.keys:,} keys loaded and checkpointed in {time.monotonic() - started:.0f} s")

    def kill_keeper(self) -> Round:
        """Kill one keeper; the driver finds out with the next epoch."""
        cp_s, size_bytes = copy_newest(self._directory, self._job.call("status"))
        restarts = self._job.call("status")["restarts"]
        victim = self._job.call("status")["keepers"][-1]["pid"]
        killed_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        self._feed.change(self._scale.epoch_rows)
        done_s, status = self._job.wait_epoch(self._feed.epochs)
        if victim in {keeper["pid"] for keeper in status["keepers"]}:
            raise SystemExit(f"the keeper was not replaced, process {victim}")
        return Round(done_s - killed_s, cp_s, size_bytes, _restore_ms(status), restarts=status["restarts"] - restarts)

    def kill_driver(self, *, lose_copies: bool) -> Round:
        """Kill the driver and start it again."""
        cp_s, size_bytes = copy_newest(self._directory, self._job.call("status"))
        self._job.kill()
        self._job.wait_gone()
        if lose_copies:
            shutil.rmtree(self._directory / "local")
        self._feed.change(self._scale.epoch_rows)
        with driver(self._directory) as plain:
            plain_s = plain.call("plain")["seconds"]
        self._job = self._stack.enter_context(driver(self._directory))
        started_s = self._job.call("start")["started_s"]
        done_s, status = self._job.wait_epoch(self._feed.epochs)
        if status["restored_from"] is None:
            raise SystemExit("the driver started with an empty state")
        return Round(done_s - started_s, cp_s, size_bytes, _restore_ms(status), done_s - self._job.started_s, plain_s)

    def settle(self) -> None:
        """Check a sample of the state, and take the checkpoint that the next round restores."""
        self._feed.check(self._scale.checked_keys)
        self._job.wait_epoch(self._feed.epochs)
        self._job.call("checkpoint")
        # Merges that the recovery or the load set off are not part of what comes next.
        time.sleep(_SETTLE_S)


def _restore_ms(status: Answer) -> float:
    return float(max(keeper["restore_ms"] for keeper in status["keepers"]))


def report(results: dict[str, list[Round]]) -> None:
    """Print each kind of kill beside `cp`."""
    for subject, rounds in results.items():
        if checkpoint_mode() != "incremental":
            subject = f"{subject}-{checkpoint_mode()}"

        def say(metric: str, value: float, subject: str = subject, **extra: Any) -> None:
            emit(BENCHMARK, subject, metric, round(value, 3), **extra)

        about: dict[str, Any] = {
            "state_bytes": rounds[-1].size_bytes,
            "rounds": [round(r.restore_s, 3) for r in rounds],
        }
        if subject.startswith(KEEPER):
            about |= {"restart_delay": RESTART_DELAY, "restarts": [r.restarts for r in rounds]}
        say("restore_seconds", median(r.restore_s for r in rounds), **about)
        say("cp_seconds", median(r.cp_s for r in rounds), rounds=[round(r.cp_s, 3) for r in rounds])
        say("keeper_restore_seconds", median(r.keeper_restore_ms for r in rounds) / 1000)
        processes = [r.process_s for r in rounds if r.process_s is not None]
        if processes:
            say("restore_seconds_from_process_start", median(processes))
            say("plain_query_seconds", median(r.plain_s for r in rounds), rounds=[round(r.plain_s, 3) for r in rounds])
        wanted: dict[str, Any] = {} if subject == STORAGE else {"wanted_at_most": 3}
        peer = "cp" if subject == KEEPER else "cp-and-plain-query"
        say("seconds_over_1_5_cp", median(r.over_s for r in rounds), peer=peer, **wanted)


def measure(bench: Bench, scale: Scale, subjects: Sequence[str]) -> dict[str, list[Round]]:
    """Kill, and wait, in turn."""
    bench.prepare()
    bench.settle()
    results: dict[str, list[Round]] = {subject: [] for subject in subjects}
    for number in range(1, scale.rounds + 1):
        for subject in results:
            done = bench.kill_keeper() if subject == KEEPER else bench.kill_driver(lose_copies=subject == STORAGE)
            results[subject].append(done)
            progress(
                f"round {number}/{scale.rounds}  {subject:<26} first new epoch after {done.restore_s:.2f} s, "
                f"cp took {done.cp_s:.2f} s"
            )
            bench.settle()
    return results


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small state: shows that it works, measures nothing")
    parser.add_argument("--subjects", nargs="+", default=SUBJECTS, choices=SUBJECTS)
    add_mode(parser)
    end_on_sigterm()
    given = parser.parse_args()
    scale = QUICK if given.quick else FULL
    progress(f"{BENCHMARK}: {scale.keys:,} keys, {scale.rounds} rounds")
    with scratch(BENCHMARK) as directory, ExitStack() as stack:
        results = measure(Bench(directory, scale, stack), scale, given.subjects)
    report(results)


if __name__ == "__main__":
    main()
