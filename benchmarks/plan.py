"""Whether `strandline plan` predicts recoveries: jobs of several sizes and modes are killed, and the times compared.

    python -m benchmarks.plan [--quick] [--workloads 20mb-incremental …]

Each job processes rows at a steady rate and takes checkpoints. The command watches it, as a user would have it do, and
predicts how long a recovery takes at the worst moment. Then, at that moment:

- keeper: a keeper is killed. From the kill until more rows are processed than before it, with another keeper.
- program: the driver is killed, and the machine's copies of the checkpoint are gone. From the start of the new process
  until as many rows are processed as before.

`kept_out` are the seconds of a measured recovery that are neither the keepers' restore nor rows: what the constants
`RESTART_S`, `REPLACE_S` and `START_S` of checkpoint/costs.py say.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks._driver import Answer, Driver, driver
from benchmarks._harness import emit, end_on_sigterm, progress, scratch
from benchmarks._large_state import JOB, RESTART_DELAY, Feed, Shape

BENCHMARK = "plan"
WITHIN = 0.3
_FEED_S = 0.2
_LOADED_BYTES = 40_000_000
"""In an epoch of the load."""
_FILES = 1_000
"""An epoch reads all that is there, as sources do by default: also what came during a recovery."""


@dataclass(frozen=True)
class Workload:
    """One job: its state, its checkpoints, and how fast its rows come."""

    keys: int
    value_bytes: int
    mode: str
    every_s: float
    rate: int
    seconds: float = 15.0
    """For which it runs before it is watched."""


FULL = {
    "20mb-incremental": Workload(200_000, 100, "incremental", 1.0, 2_000),
    "20mb-changelog": Workload(200_000, 100, "changelog", 0.5, 4_000),
    "20mb-many-rows": Workload(200_000, 100, "incremental", 5.0, 20_000),
    "250mb-incremental": Workload(125_000, 2_000, "incremental", 2.0, 2_500),
    "250mb-changelog": Workload(125_000, 2_000, "changelog", 1.0, 5_000),
    "430mb-changelog-small-values": Workload(4_000_000, 100, "changelog", 1.0, 25_000),
    "1gb-incremental": Workload(500_000, 2_000, "incremental", 5.0, 2_500),
}


class Job:
    """A job that is fed all the time."""

    def __init__(self, directory: Path, work: Workload, stack: ExitStack) -> None:
        self._directory, self._work, self._stack = directory, work, stack
        shape = Shape(work.value_bytes, f"{round(work.every_s * 1000)}ms", work.mode, _FILES)
        shape.write(directory)
        self._feed = Feed(directory, work.keys)
        self._driver: Driver = stack.enter_context(driver(directory))

    def load(self) -> None:
        """Set every key, and wait for a checkpoint with all of them."""
        self._driver.call("start")
        self._feed.load(max(1, _LOADED_BYTES // self._work.value_bytes), self._wait_rows)
        status = self._wait_rows()
        self._wait_checkpoints(status, 1)

    @contextmanager
    def feeding(self) -> Iterator[None]:
        """Change keys at the rate of the workload, in the background."""
        end = threading.Event()

        def feed() -> None:
            due = time.monotonic()
            while not end.is_set():
                self._feed.change(round(self._work.rate * _FEED_S))
                due += _FEED_S
                end.wait(max(0.0, due - time.monotonic()))

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()

    def plan(self) -> Any:
        """Return what the command says of the running job."""
        command = [
            sys.executable, "-m", "strandline.cli.main", "plan", JOB, "--json", "--restart-delay", RESTART_DELAY,
            "--local-dir", str(self._directory / "local"), "--watch", f"{max(4.0, 2.5 * self._work.every_s):g}s",
        ]  # fmt: skip
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"strandline plan failed with exit code {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)

    def kill_keeper(self) -> tuple[float, Answer]:
        """Kill a keeper at the worst moment; return how long the recovery took, and the status after it."""
        before = self._wait_worst_moment()
        victim = before["keepers"][-1]["pid"]
        rows = self._driver.call("status")["rows_in"]
        killed_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)

        def is_over(status: Answer) -> bool:
            keepers = [keeper["pid"] for keeper in status["keepers"]]
            return bool(keepers) and victim not in keepers and status["rows_in"] > rows

        done_s, status = self._driver.wait(is_over, 120.0)
        return done_s - killed_s, status

    def kill_driver(self) -> tuple[float, Answer]:
        """Kill the driver at the worst moment, delete the copies, and start it again."""
        rows = self._wait_worst_moment()["rows_in"]
        self._driver.kill()
        self._driver.wait_gone()
        shutil.rmtree(self._directory / "local")
        self._driver = self._stack.enter_context(driver(self._directory))
        self._driver.call("start")
        done_s, status = self._driver.wait(lambda status: bool(status["rows_in"] >= rows), 120.0)
        if status["restored_from"] is None:
            raise SystemExit("the driver started with an empty state")
        return done_s - self._driver.started_s, status

    def settle(self) -> None:
        """Wait for two checkpoints: the first one after a recovery may upload more."""
        self._wait_checkpoints(self._driver.call("status"), 2)

    def _wait_rows(self) -> Answer:
        return self._driver.wait(lambda status: bool(status["rows_in"] >= self._feed.rows_set))[1]

    def _wait_checkpoints(self, status: Answer, number: int) -> Answer:
        completed = status["checkpoints"]["completed"]
        return self._driver.wait(lambda status: bool(status["checkpoints"]["completed"] >= completed + number))[1]

    def _wait_worst_moment(self) -> Answer:
        """Wait until the next checkpoint is due."""
        status = self._wait_checkpoints(self._driver.call("status"), 1)
        due_s = status["last_checkpoint"]["triggered_ms"] / 1000 + self._work.every_s
        time.sleep(max(0.0, due_s - time.time()))
        return self._driver.call("status")


def measure(name: str, work: Workload) -> list[float]:
    """Run one workload; print, and return, how predictions compare with what was measured."""
    ratios = []
    with scratch(BENCHMARK) as directory, ExitStack() as stack:
        job = Job(directory, work, stack)
        job.load()
        with job.feeding():
            time.sleep(work.seconds)
            for failure, kill in (("keeper", job.kill_keeper), ("program", job.kill_driver)):
                plan = job.plan()
                seconds, status = kill()
                parts = plan["now"]["recovery"][failure]
                predicted = sum(parts.values())
                ratios.append(predicted / seconds)
                restore_s = max(keeper["restore_ms"] for keeper in status["keepers"]) / 1000
                own = parts.get("the restart's delay", 0.0) + parts["processing rows again"]
                about: dict[str, Any] = {
                    "predicted": round(predicted, 2), "measured": round(seconds, 2), "restore": round(restore_s, 2),
                    "kept_out": round(seconds - restore_s - own, 2),
                    "parts": {part: round(value, 2) for part, value in parts.items()},
                    "slowness": round(plan["workload"]["slowness"], 2),
                    "known": {n: round(v) for n, v in plan["workload"].items() if n.endswith(("_bytes", "per_s"))},
                }  # fmt: skip
                emit(BENCHMARK, f"{name}-{failure}", "predicted_by_measured", round(ratios[-1], 2), **about)
                progress(f"{name}: {failure}: predicted {predicted:.1f} s, measured {seconds:.1f} s")
                if failure == "keeper":
                    job.settle()
    return ratios


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small job: shows that it works, measures little")
    parser.add_argument("--workloads", nargs="+", default=list(FULL), choices=FULL)
    given = parser.parse_args()
    end_on_sigterm()
    workloads = {name: FULL[name] for name in given.workloads}
    if given.quick:
        name = given.workloads[0]
        workloads = {name: replace(FULL[name], keys=20_000, rate=500, seconds=3.0)}
    ratios = [ratio for name, work in workloads.items() for ratio in measure(name, work)]
    right = [ratio for ratio in ratios if 1 - WITHIN <= ratio <= 1 + WITHIN]
    share = len(right) / len(ratios)
    emit(BENCHMARK, "all", "share_within_30_percent", round(share, 2), wanted_at_least=1.0, predictions=len(ratios))


if __name__ == "__main__":
    main()
