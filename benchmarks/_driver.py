"""A job's driver as a process of its own, that a benchmark commands over pipes, measures, and may kill.

The parent writes one JSON object a line, the driver answers each with one. When the parent goes away, the driver
stops its job and ends. Times are of CLOCK_MONOTONIC, which all processes of a machine share.

    python -m benchmarks._driver DIRECTORY
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from benchmarks._harness import progress
from benchmarks._large_state import UID, make_job, make_session, time_plain_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Answer = dict[str, Any]

_END_TIMEOUT_S = 60.0
_LOOK_S = 0.005
_LOOK_UP_PAUSE_S = 0.01
_LOG_TAIL_LINES = 40


class Driver:
    """The parent's side."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log_path = directory / "driver.log"
        self._log = self._log_path.open("ab")
        self.started_s = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks._driver", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(directory / "spark")},
        )

    def call(self, command: str) -> Answer:
        """Have the driver do something and return its answer; a driver that failed ends the benchmark."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": command}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        answer: Answer = json.loads(line) if line else {"error": "the driver died"}
        if "error" in answer:
            progress("\n".join(self._log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]))
            raise SystemExit(f"{command}: {answer['error']}; the end of the driver's log is above")
        return answer

    def wait(self, condition: Callable[[Answer], bool], timeout_s: float = 900.0) -> tuple[float, Answer]:
        """Ask for the status until it is as wanted; return when that was, and the status."""
        deadline = time.monotonic() + timeout_s
        while True:
            status = self.call("status")
            now = time.monotonic()
            if condition(status):
                return now, status
            if now > deadline:
                raise SystemExit(f"the job did not get there within {timeout_s} s; its status is {status}")
            time.sleep(_LOOK_S)

    def wait_epoch(self, epoch: int) -> tuple[float, Answer]:
        """Wait until the job has completed this epoch; return when that was, and the status."""
        return self.wait(lambda status: bool(status["epoch"] == epoch))

    def kill(self) -> None:
        """Kill -9."""
        self._process.kill()
        self._close()

    def end(self) -> None:
        """Have the driver stop its job and end."""
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._close()
        self.wait_gone()

    def wait_gone(self) -> None:
        """Wait until its JVM, workers and keepers are gone; they end by themselves."""
        deadline = time.monotonic() + _END_TIMEOUT_S
        while left := _processes_of(self._directory):
            if time.monotonic() > deadline:
                raise SystemExit(f"processes were left behind: {left}")
            time.sleep(0.05)

    def _close(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


@contextmanager
def driver(directory: Path) -> Iterator[Driver]:
    """Give a driver that is gone at the end, whatever happens."""
    process = Driver(directory)
    try:
        yield process
    finally:
        process.end()


def _processes_of(directory: Path) -> list[int]:
    """Return the processes that were started by drivers of this directory: their environment names it."""
    mark = f"SPARK_LOCAL_DIRS={directory}/spark".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # Gone meanwhile, or another user's.
    return found


# -- the driver's own side


def main() -> None:
    """Do what the parent says until it goes away."""
    # Ctrl-C reaches the whole group: the parent ends, and this process with it, in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # Nothing that Spark or its JVM prints may come between the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    spark = make_session(Path(sys.argv[1]))
    try:
        _serve(spark, Path(sys.argv[1]), sys.stdin, answers)
    finally:
        spark.stop()


def _serve(spark: SparkSession, directory: Path, commands: IO[str], answers: IO[str]) -> None:
    run: Any = None
    try:
        for line in commands:
            command = json.loads(line)["do"]
            try:
                if command.partition(" ")[0] == "start":
                    started_s = time.monotonic()
                    run = make_job(spark, directory).start(spark, restore=command.partition(" ")[2] or None)
                    answer: Answer = {"started_s": started_s}
                elif command == "plain":
                    answer = {"seconds": time_plain_query(spark, directory)}
                elif command == "checkpoint":
                    answer = asdict(run.checkpoint())
                elif command.startswith("savepoint "):
                    _, form, url = command.split(" ")
                    answer = asdict(run.savepoint(url, format=form))
                elif command.startswith("rescale "):
                    started_s = time.monotonic()
                    run.rescale(int(command.partition(" ")[2]))
                    answer = {"started_s": started_s, "ended_s": time.monotonic()}
                elif command.startswith("lookup "):
                    answer = {"ms": _look_up(run, *map(int, command.split()[1:]))}
                elif command == "checkpoints":
                    answer = {"checkpoints": [asdict(stats) for stats in run.checkpoints()]}
                elif command == "progress":
                    answer = {"progress": [_epoch_cost(p) for p in run.query.recentProgress if p["numInputRows"]]}
                else:
                    run.await_termination(0)
                    answer = asdict(run.status())
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        if run is not None:
            run.stop()


def _look_up(run: Any, count: int, keys: int) -> list[float]:
    """Look up keys, one after the other with pauses; return how long each took."""
    took = []
    for _ in range(count):
        started = time.perf_counter()
        found = run.lookup(f"{UID}.value", random.randrange(keys))
        took.append((time.perf_counter() - started) * 1000)
        # A value bears the number of the epoch that set it.
        if not 0 < int.from_bytes(found.value[:8], "little") <= found.epoch + 1:
            raise ValueError(f"{found} is of an epoch that has not been")
        time.sleep(_LOOK_UP_PAUSE_S)
    return took


def _epoch_cost(report: Any) -> dict[str, int]:
    return {"rows": int(report["numInputRows"]), "duration_ms": int(report["durationMs"]["triggerExecution"])}


if __name__ == "__main__":
    main()
