"""What every benchmark needs: JSON lines, subjects measured in turn in processes of their own, medians.

A subject runs in a fresh process, so that no JVM or Python heap of one subject influences another. Rounds are
interleaved (A B C, A B C, …), so that a machine that is slow for a minute is slow for everybody.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

Result = dict[str, Any]
"""What one run of a subject reports; it went through JSON."""

FSYNC = "STRANDLINE_BENCHMARK_FSYNC"
"""In the environment: whether jobs sync to disk, "on" or "off"; else as they do by default."""

_LOG_TAIL_LINES = 40
# Reading a query's reports costs a call into its JVM for each: often enough, it would be part of what is measured.
_LOOK_S = 0.25
_CLEAN_UP_S = 10.0


@dataclass(frozen=True, slots=True)
class EpochCost:
    """The rows of one epoch, and how long the whole trigger took."""

    rows: int
    duration_ms: int


def emit(benchmark: str, subject: str, metric: str, value: float, *, peer: str | None = None, **extra: Any) -> None:
    """Print one result as a JSON line on standard output."""
    line: dict[str, Any] = {"benchmark": benchmark, "subject": subject}
    if peer is not None:
        line["peer"] = peer
    line |= {"metric": metric, "value": value, **extra}
    print(json.dumps(line), flush=True)


def progress(message: str) -> None:
    """Tell the person who waits; on standard error."""
    print(message, file=sys.stderr, flush=True)


MODES: dict[str, dict[str, Any]] = {
    "incremental": {"mode": "incremental"},
    "incremental-logged": {"mode": "incremental", "local_log": True},
    "changelog": {"mode": "changelog"},
    "changelog-unlogged": {"mode": "changelog", "local_log": False},
    "continuous": {"mode": "continuous"},
    "continuous-unlogged": {"mode": "continuous", "local_log": False},
    "full": {"mode": "full"},
}
"""By name, options of checkpoints: their mode, and whether keepers have a log, which "changelog" has by default."""
_MODE, _DEFAULT_MODE = "STRANDLINE_BENCHMARK_MODE", "incremental"
_EVERY, _DEFAULT_EVERY = "STRANDLINE_BENCHMARK_EVERY", "10s"


def add_mode(parser: argparse.ArgumentParser) -> None:
    """Let the user choose the mode of checkpoints; `checkpoint_mode` has it, also in processes that are started."""
    parser.add_argument("--mode", choices=MODES, default=_DEFAULT_MODE, action=_Set, help="of the checkpoints")


def add_interval(parser: argparse.ArgumentParser) -> None:
    """Let the user choose the time between checkpoints, as `add_mode` does their mode."""
    parser.add_argument("--every", default=_DEFAULT_EVERY, action=_Set, help="the time between checkpoints")


class _Set(argparse.Action):
    def __call__(self, parser: object, given: object, value: Any, option: object = None) -> None:
        os.environ[{"mode": _MODE, "every": _EVERY}[self.dest]] = value
        setattr(given, self.dest, value)


def checkpoint_mode() -> str:
    """Return the name of the mode that the user chose."""
    return os.environ.get(_MODE, _DEFAULT_MODE)


def checkpoint_interval() -> str:
    """Return the time between checkpoints that the user chose."""
    return os.environ.get(_EVERY, _DEFAULT_EVERY)


def durability() -> dict[str, Any]:
    """Return the settings that say whether a job syncs to disk."""
    wanted = os.environ.get(FSYNC)
    return {} if wanted is None else {"fsync": wanted == "on"}


def end_on_sigterm() -> None:
    """Let SIGTERM end this process in order, as Ctrl-C does, so that directories and processes are cleaned up."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Give a directory that is gone at the end, whatever happens."""
    directory = Path(tempfile.mkdtemp(prefix=f"strandline-bench-{name}-"))
    try:
        yield directory
    finally:
        # A process that was killed with its parent may write for a moment yet.
        deadline = time.monotonic() + _CLEAN_UP_S
        while directory.exists() and time.monotonic() < deadline:
            shutil.rmtree(directory, ignore_errors=True)
            time.sleep(0.05)


def steady_rows_per_second(epochs: Sequence[EpochCost], warm_up: int) -> float:
    """Return the throughput after the first `warm_up` epochs."""
    steady = epochs[warm_up:]
    if not steady:
        raise ValueError(f"{len(epochs)} epochs ran, but the first {warm_up} are warm-up: nothing is left to measure")
    return sum(epoch.rows for epoch in steady) / max(1, sum(epoch.duration_ms for epoch in steady)) * 1000


def spark_epochs(query: Any) -> list[EpochCost]:
    """Return what Spark itself reports of each epoch that a streaming query finished."""
    return [
        EpochCost(int(p["numInputRows"]), int(p["durationMs"]["triggerExecution"]))
        for p in query.recentProgress
        if p["numInputRows"] > 0
    ]


def run_epochs(query: Any, epochs: int) -> list[EpochCost]:
    """Wait until the query finished this many epochs and return their costs; raise what it failed with."""
    while len(done := spark_epochs(query)) < epochs:
        if not query.isActive:
            raise RuntimeError(f"the query ended after {len(done)} of {epochs} epochs") from query.exception()
        time.sleep(_LOOK_S)
    return done[:epochs]


def measure_in_turn(
    module: str, subjects: Sequence[str], rounds: int, options: Sequence[str] = ()
) -> dict[str, list[Result]]:
    """Run each subject once a round, each in its own process, and return every subject's results."""
    end_on_sigterm()
    results: dict[str, list[Result]] = {subject: [] for subject in subjects}
    for number in range(1, rounds + 1):
        for subject in subjects:
            started = time.monotonic()
            result = _run_subject(module, subject, options)
            results[subject].append(result)
            seconds = time.monotonic() - started
            progress(f"round {number}/{rounds}  {subject:<28} {_summary(result)}  ({seconds:.0f} s in all)")
    return results


def add_subject_options(parser: argparse.ArgumentParser, subjects: Collection[str] | None = None) -> None:
    """Add the options with which `measure_in_turn` starts a subject's process."""
    parser.add_argument("--subject", choices=subjects, help=argparse.SUPPRESS)
    for place in ("--scratch", "--result"):
        parser.add_argument(place, type=Path, help=argparse.SUPPRESS)


def report_result(path: Path, result: Result) -> None:
    """Hand a subject's result from its process to the one that asked for it."""
    path.write_text(json.dumps(result), encoding="utf-8")


def median_of(results: Sequence[Result], field: str) -> float:
    """Return the median of one figure over a subject's rounds."""
    return float(median(result[field] for result in results))


def _run_subject(module: str, subject: str, options: Sequence[str]) -> Result:
    with scratch(subject) as directory:
        answer, log = directory / "result.json", directory / "log"
        command = [sys.executable, "-m", module, "--subject", subject, "--scratch", str(directory), *options]
        # Whatever Spark, a JVM or a subject prints is no result: it must not reach our standard output.
        with log.open("wb") as sink:
            code = subprocess.run(
                [*command, "--result", str(answer)],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                # Spark's Python workers must be this Python, not whichever python3 comes first in PATH.
                env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
                check=False,
            ).returncode
        if code == 0 and answer.exists():
            result: Result = json.loads(answer.read_text(encoding="utf-8"))
            return result
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        progress("\n".join(lines[-_LOG_TAIL_LINES:]))
        raise SystemExit(f"subject '{subject}' failed with exit code {code}; the end of its log is above")


def _summary(result: Result) -> str:
    figures = {name: value for name, value in result.items() if isinstance(value, int | float)}
    return "  ".join(f"{name}={value:,.{2 if abs(value) < 10 else 0}f}" for name, value in figures.items())
