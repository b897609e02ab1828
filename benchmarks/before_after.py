"""What a change costs: the same benchmarks with an earlier checkout's source and with this one's, in turn.

    git worktree add ../before COMMIT
    python -m benchmarks.before_after ../before

The benchmarks are this checkout's in both cases. Syncing to disk is off, so that what is compared is the engine;
`--synced` adds a third subject with it on (`benchmarks/durability.py` measures it by itself). Ratios are of medians:
of throughput, above 1 is faster than before; of times, below 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks._harness import FSYNC, emit, end_on_sigterm, progress, scratch

BENCHMARK = "before_after"
_ROOT = Path(__file__).parent.parent
BEFORE, AFTER, SYNCED = "before", "after", "after-synced"


@dataclass(frozen=True, slots=True)
class Case:
    """A benchmark's subject, and the figures of it that are compared."""

    module: str
    options: tuple[str, ...]
    metrics: tuple[str, ...]
    has_result: bool = True
    """Whether it is a subject of its own, that writes a result; else what it prints is read."""


CASES = {
    "keyed_counter-per-event": Case("keyed_counter", ("--subject", "per-event"), ("rows_per_second",)),
    "keyed_counter-vectorised": Case("keyed_counter", ("--subject", "vectorised"), ("rows_per_second",)),
    "windows-1000000-keys": Case("windows", ("--long", "--subject", "1000000-keys.strandline"), ("rows_per_second",)),
    "windows-10000-keys": Case("windows", ("--long", "--subject", "10000-keys.strandline"), ("rows_per_second",)),
    "epoch_floor": Case("epoch_floor", ("--subject", "strandline"), ("epoch_ms",)),
    "checkpoint_cost": Case(
        "checkpoint_cost", ("--medium",), ("throughput", "sync_pause_median_ms", "end_to_end_median_ms"), False
    ),
    **{
        f"nexmark-{query}": Case("nexmark", ("--subjects", f"{query}.strandline"), ("throughput",), False)
        for query in ("q3", "q5", "q7", "q8", "q18")
    },
    **{
        f"ends-{system}": Case("ends", ("--interval", "1", "--subject", system), ("rows_per_second", "latency_p50_ms"))
        for system in ("kafka", "postgresql", "delta", "files")
    },
}


def run(case: Case, source: Path, *, synced: bool) -> dict[str, float]:
    """Run a case with the source of a checkout; return its figures."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(source / "src"), str(_ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    # A checkout from before there was such a setting does not sync.
    if "fsync" in (source / "src" / "strandline" / "core" / "settings.py").read_text(encoding="utf-8"):
        environment[FSYNC] = "on" if synced else "off"
    with scratch(case.module) as directory:
        command = [sys.executable, "-m", f"benchmarks.{case.module}", *case.options]
        answer = directory / "result.json"
        if case.has_result:
            command += ["--scratch", str(directory), "--result", str(answer)]
        done = subprocess.run(
            command, cwd=_ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
        if case.has_result:
            figures = json.loads(answer.read_text(encoding="utf-8"))
        else:
            lines = map(json.loads, done.stdout.splitlines())
            figures = {line["metric"]: line["value"] for line in lines}
    return {metric: float(figures[metric]) for metric in case.metrics}


def compare(name: str, subjects: dict[str, Path], rounds: int) -> None:
    """Run a case with every source in turn, and print the ratios to the first."""
    found: dict[str, list[dict[str, float]]] = {subject: [] for subject in subjects}
    for number in range(1, rounds + 1):
        # In turn forwards and backwards: a machine that gets slower favours nobody.
        order = list(subjects) if number % 2 else list(reversed(subjects))
        for subject in order:
            found[subject].append(run(CASES[name], subjects[subject], synced=subject == SYNCED))
            progress(f"{name} {number}/{rounds}  {subject:<14} {found[subject][-1]}")
    for metric in CASES[name].metrics:
        values = {subject: [figures[metric] for figures in done] for subject, done in found.items()}
        for subject in list(subjects)[1:]:
            ratio = median(values[subject]) / median(values[BEFORE])
            rounded = {who: [round(value, 2) for value in values[who]] for who in (BEFORE, subject)}
            emit(BENCHMARK, f"{name}.{subject}", f"{metric}_ratio", round(ratio, 3), peer=BEFORE, rounds=rounded)


def main() -> None:
    """Compare this checkout with an earlier one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before_after", description=__doc__)
    parser.add_argument("before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE")
    parser.add_argument("--synced", action="store_true", help="also with fsync, as it is by default")
    given = parser.parse_args()
    end_on_sigterm()
    subjects = {BEFORE: given.before.resolve(), AFTER: _ROOT}
    if given.synced:
        subjects[SYNCED] = _ROOT
    for name in given.cases:
        compare(name, subjects, given.rounds)


if __name__ == "__main__":
    main()
