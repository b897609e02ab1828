"""How long a job takes to go on after one of its two machines is lost, with and without standbys.

A standalone cluster with two workers, whose hosts and disks are of their own (namespaces, so it needs root), one core
each; two partitions, RocksDB; 5,000,000 keys × 100 bytes. A machine is killed: its worker, executor and keepers, and
its disk is gone. Measured is from the kill to the end of the first new epoch, which needs both partitions on the other
machine. Checkpoints lie on a disk that both machines see, so that a download is a copy of files: from a bucket it takes
longer, which only the subject without standbys has to wait for. Between rounds the machine comes back, and the job is
spread over both again.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks._driver import Answer, driver
from benchmarks._harness import add_mode, emit, end_on_sigterm, progress, scratch
from benchmarks._large_state import PARTITIONS, RESTART_DELAY, Feed, Scale, Shape
from tests.spark.machines import Machines

BENCHMARK = "machine_lost"
SUBJECTS = {"without-standbys": 0, "standbys": 1}
_LOST = 2


FULL = Scale(keys=5_000_000)
QUICK = Scale(keys=100_000, load_rows=50_000, changed_keys=1_000, rounds=1, checked_keys=10_000)


@dataclass(frozen=True, slots=True)
class Round:
    """One loss."""

    first_epoch_s: float
    keeper_restore_ms: float


def _are_warm(status: Answer) -> bool:
    newest = status["last_checkpoint"]["checkpoint"]
    return all(each["host"] and each["checkpoint"] == newest for each in status["standbys"])


def measure(directory: Path, scale: Scale, subject: str, stack: ExitStack) -> tuple[list[Round], Answer]:
    """Lose a machine, wait, and bring it back, several times; return the times, and the last status before a loss."""
    machines = Machines(directory, disk="local")
    stack.callback(machines.close)
    Shape(every="1s", master=machines.master, standbys=SUBJECTS[subject]).write(directory)
    feed, rounds = Feed(directory, scale.keys), list[Round]()
    job = stack.enter_context(driver(directory))
    job.call("start")
    feed.load(scale.load_rows)
    job.wait_epoch(feed.epochs)
    while True:
        feed.change(scale.changed_keys)
        job.wait_epoch(feed.epochs)
        job.call("checkpoint")
        before = job.wait(_are_warm)[1]
        lost_s = time.monotonic()
        machines.lose(_LOST)
        feed.change(scale.epoch_rows)
        done_s, status = job.wait_epoch(feed.epochs)
        rounds.append(Round(done_s - lost_s, max(keeper["restore_ms"] for keeper in status["keepers"])))
        progress(f"{subject:<18} round {len(rounds)}/{scale.rounds}: new epoch after {rounds[-1].first_epoch_s:.2f} s")
        feed.check(scale.checked_keys)
        job.wait_epoch(feed.epochs)
        if len(rounds) == scale.rounds:
            return rounds, before
        machines.start_worker(_LOST)
        hosts = 0
        while hosts < PARTITIONS:
            # As soon as its executor is there, both machines get a partition again.
            job.call(f"rescale {PARTITIONS}")
            hosts = len({keeper["host"] for keeper in job.call("status")["keepers"]})


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.machine_lost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small state: shows that it works, measures nothing")
    parser.add_argument("--subjects", nargs="+", default=[*SUBJECTS], choices=SUBJECTS)
    add_mode(parser)
    end_on_sigterm()
    given = parser.parse_args()
    scale = QUICK if given.quick else FULL
    for subject in given.subjects:
        with scratch(BENCHMARK) as directory, ExitStack() as stack:
            rounds, status = measure(directory, scale, subject, stack)
        emit(
            BENCHMARK, subject, "first_epoch_seconds", round(median(r.first_epoch_s for r in rounds), 3),
            rounds=[round(r.first_epoch_s, 3) for r in rounds], restart_delay=RESTART_DELAY,
            state_bytes=status["last_checkpoint"]["total_bytes"],
            wanted_at_most=1 if SUBJECTS[subject] else None,
        )  # fmt: skip
        emit(BENCHMARK, subject, "keeper_restore_seconds", round(median(r.keeper_restore_ms for r in rounds) / 1000, 3))
        if SUBJECTS[subject]:
            emit(
                BENCHMARK, subject, "standby_bytes", sum(each["total_bytes"] for each in status["standbys"]),
                downloaded=sum(each["downloaded_bytes"] for each in status["standbys"]),
            )  # fmt: skip


if __name__ == "__main__":
    main()
