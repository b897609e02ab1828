"""The page docs/papers.md: charts and tables of what `modes` has measured, beside what the papers say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._charts import line_chart
from benchmarks._harness import progress

MODES = ("full", "incremental", "changelog tight", "changelog loose", "continuous")
_SIZES = {100: 10.8, 1_000: 100.8, 3_000: 300.8}
"""The bytes of a value, and the MB of all keys and values."""

FLINK = {
    "values": {
        "changelog": ("311 ms", "664 ms", "1 s", "14.8 MB", "24.2 GB", "35-65 s"),
        "incremental": ("5 s", "6 s", "7 s", "3.05 GB", "18.5 GB", "20-21 s"),
    },
    "all": {
        "changelog": ("791 ms", "1 s", "1 s", "269 MB", "85.5 GB", "not given"),
        "incremental": ("1 s", "1 s", "6 s", "1.18 GB", "1.99 GB", "not given"),
    },
}  # fmt: skip
"""Of Flink's own page of 2022-05-30 on log-based incremental checkpoints: durations p50, p90, p99, the p50 of what
one uploads and of its full size, and recovery without local copies."""
_WORKLOADS = {"values": "value state", "all": "sliding windows"}


def charts(data: dict[str, Any]) -> dict[str, str]:
    """Return the charts, by the name of their file."""
    drawn = {}
    for subject, what in _WORKLOADS.items():
        cases = data.get(subject, {})
        second = {mode: cases[f"{mode} 1s"] for mode in MODES if f"{mode} 1s" in cases}
        if not second:
            continue
        drawn[f"papers-size-{subject}.svg"] = line_chart(
            f"{what}: size of the newest checkpoint, every 1 s", "seconds", "MB",
            {mode: [(at, total / 1e6) for at, _, total in case["sizes"]] for mode, case in second.items()},
        )  # fmt: skip
        drawn[f"papers-log-{subject}.svg"] = line_chart(
            f"{what}: size of the log", "seconds", "MB",
            {
                name: [(at, log / 1e6) for at, log, _ in case["sizes"]]
                for name, case in _plain(cases)
                if name.startswith(("changelog", "continuous"))
            },
        )  # fmt: skip
        drawn[f"papers-durations-{subject}.svg"] = line_chart(
            f"{what}: duration of checkpoints", "percentile", "ms",
            {name: list(enumerate(case["duration_ms"].values())) for name, case in _plain(cases)},
            ("p50", "p90", "p99", "max"),
        )  # fmt: skip
        # Only a large state shows what a checkpoint does to epochs.
        large = {mode: cases.get(f"{mode} 1s 3000 bytes", case) for mode, case in second.items() if "tight" not in mode}
        drawn[f"papers-epochs-{subject}.svg"] = line_chart(
            f"{what}: time of each epoch, checkpoints every 1 s", "seconds", "ms",
            {mode: [tuple(each) for each in case["epochs"]] for mode, case in large.items()},
        )  # fmt: skip
    for figure, y in (("duration_ms", "p50 of durations in ms"), ("recovery_s", "seconds of a recovery")):
        series = {mode: sorted(_by_size(data, mode, figure)) for mode in MODES if mode != "changelog tight"}
        if all(len(points) > 1 for points in series.values()):
            drawn[f"papers-sizes-{figure.partition('_')[0]}.svg"] = line_chart(
                "value state of 100,000 keys, checkpoints every 1 s", "MB of state", y, series
            )
    return drawn


def _plain(cases: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the cases of uniform keys and small values."""
    return ((name, case) for name, case in cases.items() if not re.search("Zipf|bytes", name))


def _by_size(data: dict[str, Any], mode: str, figure: str) -> Iterator[tuple[float, float]]:
    for value_bytes, size_mb in _SIZES.items():
        name = f"{mode} 1s" if value_bytes == 100 else f"{mode} 1s {value_bytes} bytes"
        if name in data.get("values", {}):
            value = data["values"][name][figure]
            yield size_mb, value["p50"] if isinstance(value, dict) else value


def tables(data: dict[str, Any]) -> dict[str, str]:
    """Return the tables of the page, by the name of their place."""
    head = (
        "| application | mode, interval | rows/s | epochs during checkpoints, p50 / p99 / max ms "
        "| checkpoints, p50 / p90 / p99 ms | uploaded bytes a row (per byte changed) | largest log | size p50 / max "
        "| recovery | processor s a million rows |\n"
        f"|{'---|' * 10}"
    )
    lines = [
        f"| {subject} | {name} | {case['rows_per_s']:,.0f} | {_three(case['epoch_ms'], 'p50', 'p99', 'max')} | "
        f"{_three(case['duration_ms'], 'p50', 'p90', 'p99')} | {case['uploaded_per_row']:,.0f}"
        + (f" ({case['uploaded_per_changed']:.1f})" if case["uploaded_per_changed"] else "")
        + f" | {_mb(case['largest_log_bytes'])} | {_mb(case['total_bytes']['p50'])} / "
        f"{_mb(case['total_bytes']['max'])} | {case['recovery_s']:.1f} s | {case['cpu_s_per_million_rows']:.0f} |"
        for subject, cases in data.items()
        for name, case in cases.items()
    ]
    return {"figures": "\n".join([head, *lines])} | {
        subject: _beside_flink(subject, data[subject]) for subject in _WORKLOADS if subject in data
    }


def _beside_flink(subject: str, cases: dict[str, Any]) -> str:
    head = f"| | checkpoint p50 | p90 | p99 | uploads of one, p50 | full size, p50 | recovery |\n|{'---|' * 7}"
    lines = [f"| Flink 1.15, {mode} | {' | '.join(figures)} |" for mode, figures in FLINK[subject].items()]
    for name, case in _plain(cases):
        sizes = f"{_mb(case['uploaded_each']['p50'])} | {_mb(case['total_bytes']['p50'])}"
        durations = _durations(case["duration_ms"])
        lines.append(f"| repeated here, {name} | {durations} | {sizes} | {case['recovery_s']:.1f} s |")
    return "\n".join([head, *lines])


def _durations(values: dict[str, float]) -> str:
    return " | ".join(f"{values[cut]:.0f} ms" for cut in ("p50", "p90", "p99"))


def _three(values: dict[str, float], *names: str) -> str:
    return " / ".join(f"{values[name]:.0f}" for name in names)


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


def write(data: dict[str, Any], directory: Path) -> None:
    """Write the data, the charts, and the tables between their marks in the page."""
    # Some hundred points draw a line.
    (directory / "papers.json").write_text(
        json.dumps(data, indent=None, separators=(",", ":")) + "\n", encoding="utf-8"
    )
    for name, chart in charts(data).items():
        (directory / name).write_text(chart, encoding="utf-8")
    set_tables(directory / "papers.md", tables(data))
    progress(f"written: {directory / 'papers.md'}, {directory / 'papers.json'}, and the charts")


def set_tables(page: Path, tables: dict[str, str]) -> None:
    """Write tables between their marks in the page."""
    text = page.read_text(encoding="utf-8")
    for place, table in tables.items():
        begin, end = f"<!-- {place} -->", f"<!-- end of {place} -->"
        if (times := len(re.findall(f"{begin}.*?{end}", text, re.DOTALL))) != 1:
            raise SystemExit(f"{page}: {begin} is there {times} times, expected once")
        before, after = text.partition(begin)[0], text.partition(end)[2]
        text = f"{before}{begin}\n{table}\n{end}{after}"
    page.write_text(text, encoding="utf-8")
