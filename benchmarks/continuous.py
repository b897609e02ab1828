"""The log with all state of the mode `continuous`: its length and what it writes, for its limits; without Spark.

    python -m benchmarks.continuous [--quick] [--write docs]

One partition's backend has 100,000 keys with values of 200 bytes. 5 % of them change before each snapshot, evenly or by
a Zipf distribution, until ten times the state has changed. The log (q of CEC, the DSN paper of 2011) is the size of a
snapshot over that of the state; the time of a restore stands for its replay (u). A changelog is there for comparison:
its uploads come in bursts, as new bases.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import strandline as sl
from benchmarks._charts import line_chart
from benchmarks._harness import emit, progress, scratch
from benchmarks._papers import set_tables
from strandline.backends.base import LocalFile
from strandline.backends.options import MIB, MemoryBudget
from strandline.backends.rocksdb import RocksDBBackend

BENCHMARK = "continuous"
KEYS, KEY_BYTES, VALUE_BYTES = 100_000, 12, 200
CHANGES = KEYS // 20
STATE_BYTES = KEYS * (KEY_BYTES + VALUE_BYTES)
MEMORY = MemoryBudget(block_cache_bytes=64 * MIB, write_buffer_bytes=32 * MIB)
PLACE = "continuous"


@dataclass(frozen=True)
class Case:
    """The limits of a log, and how keys are drawn."""

    limits: sl.Continuous | sl.Changelog
    is_zipf: bool = False

    @property
    def name(self) -> str:
        if isinstance(self.limits, sl.Changelog):
            text = f"changelog share={self.limits.share}"
        else:
            text = f"log={self.limits.log} budget={self.limits.budget:.2g}"
        return text + " Zipf" * self.is_zipf


CASES = [Case(sl.Continuous(log=log, budget=4.0)) for log in (1.5, 2.0, 3.0, 4.0)]
CASES += [Case(sl.Continuous(log=2.0, budget=2.0))]
CASES += [Case(sl.Continuous(log=log), is_zipf=True) for log in (2.0, 3.0)]
CASES += [Case(sl.Changelog(share=share)) for share in (0.5, 2.0)]


def key_of(number: int) -> bytes:
    return b"\0\1%010d" % number


def run_case(case: Case, directory: Path, snapshots: int) -> dict[str, Any]:
    """Change keys and take snapshots; then restore the last one."""
    random = np.random.default_rng(1)
    backend = RocksDBBackend(directory / "db", ["s"], memory=MEMORY, changelog=case.limits)
    log = backend.changelog
    assert log is not None
    for start in range(0, KEYS, CHANGES):
        backend.write({"s": [(key_of(n), random.bytes(VALUE_BYTES)) for n in range(start, start + CHANGES)]})
    known = {file.name: file for file in log.append({}, directory / "0")}
    while log.clean():
        pass
    sizes, uploads, changed_bytes = [], [], 0
    clean_s = most = 0.0
    for number in range(1, snapshots + 1):
        if case.is_zipf:
            drawn = np.unique(KEYS ** random.random(CHANGES)).astype(int) % KEYS
        else:
            drawn = random.choice(KEYS, CHANGES, replace=False)
        keys = {key_of(n) for n in drawn.tolist()}
        changed = len(keys) * (KEY_BYTES + VALUE_BYTES)
        backend.write({"s": [(key, random.bytes(VALUE_BYTES)) for key in keys]})
        files = log.append({}, directory / str(number))
        began = time.thread_time()
        while log.clean():
            pass
        clean_s += time.thread_time() - began
        uploaded = sum(file.size_bytes for file in files if file.name not in known)
        known = {file.name: file for file in files}
        if log.is_long:
            # The product uploads it beside the checkpoints.
            base = log.rebase()
            uploaded += sum(file.size_bytes for file in base.files if file.name not in known)
            known |= {file.name: file for file in base.files}
            log.begin_at(base)
        changed_bytes += changed
        sizes.append(size_of(files) / STATE_BYTES)
        uploads.append(uploaded)
        most = max(most, uploaded / changed)
    backend.close()
    later = sizes[len(sizes) // 3 :]
    return {
        "log_mean": sum(later) / len(later),
        "log_longest": max(later),
        "uploaded_per_changed": sum(uploads) / changed_bytes,
        "most_of_one": most,
        "cleaning_us_per_change": clean_s / (changed_bytes / (KEY_BYTES + VALUE_BYTES)) * 1e6,
        "restore_s": restore(files, directory / "restored"),
        "sizes": [(number / 20, size) for number, size in enumerate(sizes, 1)],
        "uploads": [(number / 20, each / 1e6) for number, each in enumerate(uploads, 1)],
    }


def size_of(files: list[LocalFile]) -> int:
    return sum(file.size_bytes for file in files)


def restore(files: list[LocalFile], directory: Path) -> float:
    """Return how long it takes to open a snapshot whose files are there."""
    directory.mkdir()
    for file in files:
        os.link(file.path, directory / file.name)
    began = time.monotonic()
    RocksDBBackend(directory, ["s"], memory=MEMORY).close()
    return time.monotonic() - began


def table(results: dict[str, dict[str, Any]]) -> str:
    head = (
        "| limits | log over state, mean / longest | uploaded per byte changed | the most by one checkpoint "
        f"| cleaning, µs a change | opening a restore |\n|{'---|' * 6}"
    )
    lines = [
        f"| `{name}` | {case['log_mean']:.2f} / {case['log_longest']:.2f} | {case['uploaded_per_changed']:.2f} | "
        f"{case['most_of_one']:.1f} | {case['cleaning_us_per_change']:.1f} | {case['restore_s']:.2f} s |"
        for name, case in results.items()
    ]
    return "\n".join([head, *lines])


def write(results: dict[str, dict[str, Any]], docs: Path) -> None:
    """Write the table and the charts of docs/papers.md."""
    shown = [case for case in CASES if not case.is_zipf and case.limits != sl.Changelog(share=2.0)]
    budgets = [case.name for case in shown if isinstance(case.limits, sl.Continuous) and case.limits.log == 2.0]
    logs = [case.name for case in shown if case.name not in budgets or case.limits == sl.Continuous()]
    charts = {
        "papers-continuous-log.svg": line_chart(
            "size of a snapshot over the state's", "sizes of the state that have changed", "",
            {name: results[name]["sizes"] for name in logs},
        ),
        "papers-continuous-budget.svg": line_chart(
            "size of a snapshot over the state's, by budget", "sizes of the state that have changed", "",
            {name: results[name]["sizes"] for name in budgets},
        ),
        "papers-continuous-uploads.svg": line_chart(
            "what each checkpoint uploads", "sizes of the state that have changed", "MB",
            {name: results[name]["uploads"] for name in (Case(sl.Continuous()).name, shown[-1].name)},
        ),
    }  # fmt: skip
    for name, chart in charts.items():
        (docs / name).write_text(chart, encoding="utf-8")
    set_tables(docs / "papers.md", {PLACE: table(results)})


def main() -> None:
    """Measure each case in turn."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.continuous", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth: shows that it works, measures nothing")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="the folder with papers.md")
    given = parser.parse_args()
    results = {}
    for case in CASES:
        with scratch(BENCHMARK) as directory:
            results[case.name] = measured = run_case(case, directory, 10 if given.quick else 200)
        figures: dict[str, Any] = {n: round(value, 3) for n, value in measured.items() if isinstance(value, float)}
        emit(BENCHMARK, case.name, "uploaded_per_changed", figures.pop("uploaded_per_changed"), **figures)
        progress(case.name)
    if given.write:
        write(results, given.write)


if __name__ == "__main__":
    main()
