"""Where the processor time of a job goes, by layer: a bar for each job, in seconds a million rows.

    python -m benchmarks.layers [--subjects per-event …] [--seconds 20] [--svg docs/where-the-time-goes.svg]

Each job runs in a process of its own, and is measured after a warm-up, between the ends of two epochs. Time in the JVM
is that of its threads; Java Flight Recorder's samples say what tasks and the others do. Time in Python is sampled by
`_layers`; what its threads without frames use is RocksDB's and other libraries'. Measuring costs some of what is
measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks._harness import (
    MODES,
    Result,
    add_interval,
    add_mode,
    add_subject_options,
    checkpoint_interval,
    checkpoint_mode,
    emit,
    measure_in_turn,
    progress,
    report_result,
)

BENCHMARK = "layers"
_WARM_UP_S = 25.0
_TICKS = os.sysconf("SC_CLK_TCK")
_COLORS = {
    "source": "#4e79a7", "expressions": "#76b7b2", "shuffle": "#59a14f", "planning": "#9c755f", "arrow": "#edc948",
    "transfer": "#f28e2b", "function": "#e15759", "operator": "#b07aa1", "state": "#ff9da7", "task": "#d37295",
    "checkpoint": "#a0cbe8", "end": "#8cd17d", "server": "#499894", "compiler": "#bab0ac", "gc": "#d4cfcb",
    "native": "#d7b5a6", "other": "#e8e8e8",
}  # fmt: skip
"""The layers, in the order of the bars."""
_JAVA = (
    (r"org\.apache\.arrow|sql\.execution\.arrow|ArrowColumn", "arrow"),
    (r"api\.python|sql\.execution\.python", "transfer"),
    (r"org\.apache\.spark\.shuffle|util\.collection|ShuffleExchange|spark\.storage|lz4|zstd", "shuffle"),
    (r"catalyst\.(analysis|optimizer|planning|rules|trees)|QueryExecution|janino|codegen\.Code|py4j", "planning"),
    (r"execution\.(datasources|streaming\.sources)|sql\.connector|parquet|JacksonParser", "source"),
    (r"GeneratedClass|catalyst\.expressions|sql\.execution|unsafe", "expressions"),
)
"""By the innermost frame that matches one of them."""


@contextmanager
def counting(kind: str, spark: Any, directory: Path) -> Iterator[Any]:
    """Run the counting job of `keyed_counter`, or that of `windows`."""
    import strandline as sl
    from benchmarks import keyed_counter, windows
    from benchmarks._counting import keyed_rows
    from benchmarks._peers import OUTPUT

    if kind == "windows":
        case = windows.CASES["10000-keys"]
        rows = sl.stream(windows.windowed_rows(spark, case)).watermark("ts").key_by("key")
        results = rows.window(sl.Tumbling(f"{windows.WINDOW_S}s")).agg(
            n=sl.agg.count(), total=sl.agg.sum("value"), mean=sl.agg.avg("value"), uid="windows"
        )
    else:
        process = keyed_counter.Counter() if kind == "per-event" else keyed_counter.BatchCounter()
        rows = sl.stream(keyed_rows(spark, keyed_counter.LOADS[keyed_counter.PER_EVENT])).key_by("key")
        results = rows.process(process, output=OUTPUT, uid="counter")
    job = sl.Job(
        BENCHMARK,
        sinks=[results.to(sl.sinks.noop())],
        checkpoints=sl.Checkpoints(
            (directory / "checkpoints").as_uri(), every=checkpoint_interval(), **MODES[checkpoint_mode()]
        ),
        settings=sl.Settings(backend="rocksdb", local_dir=directory / "local"),
    )
    with job.start(spark) as run:
        yield lambda: run.status().rows_in


@contextmanager
def writing(subject: str, spark: Any, directory: Path) -> Iterator[Any]:
    """Run a job of `ends`."""
    from benchmarks import ends
    from benchmarks._ends import ENDS

    end = ENDS[subject](directory)
    with end.running(spark), ends.writing(spark, subject, end, 1, directory, fast=True):
        yield end.count


@contextmanager
def querying(query: str, spark: Any, directory: Path) -> Iterator[Any]:
    """Run a query of `nexmark`, whose rows are all events, or of `nexmark_sql`."""
    import strandline as sl
    from benchmarks import nexmark_sql
    from benchmarks._nexmark.queries import QUERIES
    from benchmarks._nexmark.sources import SPARK_SETTINGS, Size, read_events, write_events

    for name, value in SPARK_SETTINGS.items():
        spark.conf.set(name, value)
    size = Size(events_per_epoch=200_000, epochs=80, warm_up=0)
    write_events(directory / "events", size)
    events = read_events(spark, directory / "events")
    name = query.removesuffix(".sql")
    rows = QUERIES[name](events) if name == query else nexmark_sql.view_of(name, events).changes()
    job = sl.Job(
        BENCHMARK,
        sinks=[rows.to(sl.sinks.files(str(directory / "results"), visibility="epoch"))],
        checkpoints=sl.Checkpoints((directory / "checkpoints").as_uri(), every="10s"),
        settings=sl.Settings(backend="rocksdb", local_dir=directory / "local"),
    )
    with job.start(spark) as run:
        yield lambda: run.status().epoch * size.events_per_epoch


SUBJECTS = {
    "per-event": counting, "vectorised": counting, "windows": counting, "kafka": writing, "postgresql": writing,
    "delta": writing, "q4": querying, "q5": querying, "q9": querying, "q18": querying, "q20": querying,
    "q5.sql": querying, "q18.sql": querying, "q20.sql": querying,
}  # fmt: skip


def run_subject(subject: str, directory: Path, seconds: float) -> Result:
    """Run one job in this process, and return its rows and the seconds of each layer."""
    import strandline as sl
    from benchmarks._counting import MASTER, SPARK_SETTINGS

    marks = Path(os.environ["STRANDLINE_LAYERS"])
    spark: Any = sl.session("strandline-benchmark", MASTER, **SPARK_SETTINGS)
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    with SUBJECTS[subject](subject, spark, directory) as rows:
        _after(0.0, rows)
        _after(_WARM_UP_S, rows)
        flight = directory / "flight.jfr"
        _jcmd(jvm, "JFR.start", "name=layers", "settings=profile")
        (marks / "begin").touch()
        before, rows_before = _threads(), rows()
        _after(seconds, rows)
        after, rows_after = _threads(), rows()
        (marks / "end").touch()
        _jcmd(jvm, "JFR.dump", "name=layers", f"filename={flight}")
    spark.stop()
    used = {thread: ticks - before.get(thread, 0) for thread, ticks in after.items()}
    return {"rows": rows_after - rows_before, "layers": _layers(used, jvm, marks, flight)}


def _after(seconds: float, rows: Any) -> None:
    """Wait for so long, and then for more rows."""
    time.sleep(seconds)
    before = rows()
    while rows() == before:
        time.sleep(0.05)


def _jcmd(pid: int, *command: str) -> None:
    subprocess.run(["jcmd", str(pid), *command], check=True, stdout=subprocess.DEVNULL)


def _threads() -> dict[tuple[int, int, str], int]:
    """Return the processor ticks of each thread of this process' JVM and servers."""
    found: dict[tuple[int, int, str], int] = {}
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    for pid in parents:
        ancestor = pid
        while ancestor not in (0, os.getpid()):
            ancestor = parents.get(ancestor, 0)
        with suppress(OSError):
            program = Path(f"/proc/{pid}/exe").resolve().name
            for task in Path(f"/proc/{pid}/task").iterdir() if ancestor and not program.startswith("python") else ():
                head, _, tail = (task / "stat").read_text().rpartition(")")
                ticks = tail.split()
                found[pid, int(task.name), head.partition("(")[2]] = int(ticks[11]) + int(ticks[12])
    return found


def _layers(used: dict[tuple[int, int, str], int], jvm: int, marks: Path, flight: Path) -> dict[str, float]:
    layers: defaultdict[str, float] = defaultdict(float)
    shares = _java_shares(flight)
    for (pid, _, name), ticks in used.items():
        seconds = ticks / _TICKS
        if pid != jvm:
            layers["server"] += seconds
        elif name.startswith(("C1 Comp", "C2 Comp")):
            layers["compiler"] += seconds
        elif name.startswith(("GC ", "G1 ", "VM ")):
            layers["gc"] += seconds
        else:
            kind = "task" if name.startswith("Executor task") else "rest"
            for layer, share in shares[kind].items():
                layers[layer] += seconds * share
    for path in marks.glob("python-*.json"):
        for layer, seconds in json.loads(path.read_text())["layers"].items():
            layers[layer] += seconds
    return dict(layers)


def _java_shares(flight: Path) -> dict[str, dict[str, float]]:
    """Return, for tasks' threads and for all others, the share of samples of each layer."""
    text = subprocess.run(
        ["jfr", "print", "--events", "jdk.ExecutionSample", "--stack-depth", "64", str(flight)],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    samples: dict[str, Counter[str]] = {"task": Counter(), "rest": Counter()}
    for event in text.split("jdk.ExecutionSample {")[1:]:
        kind = "task" if "Executor task" in event.partition("stackTrace")[0] else "rest"
        frames = event.partition("stackTrace")[2].splitlines()
        match = (layer for frame in frames for pattern, layer in _JAVA if re.search(pattern, frame))
        samples[kind][next(match, "other")] += 1
    shares = {}
    for kind, counts in samples.items():
        total = counts.total()
        shares[kind] = {layer: count / total for layer, count in counts.items()} or {"other": 1.0}
    return shares


def draw(results: dict[str, Result]) -> str:
    """Return the bars as an SVG."""
    per_row = {
        subject: {layer: result["layers"].get(layer, 0.0) / result["rows"] * 1e6 for layer in _COLORS}
        for subject, result in results.items()
    }
    longest = max(sum(layers.values()) for layers in per_row.values())
    shown = [layer for layer in _COLORS if any(layers[layer] > longest / 200 for layers in per_row.values())]
    width, left, bar = 640, 110, 26
    height = 60 + len(per_row) * (bar + 12) + 20 * -(-len(shown) // 5)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 90} {height}" font-family="sans-serif" '
        'font-size="13"><rect width="100%" height="100%" fill="white"/>'
        '<text x="10" y="20">processor seconds a million rows, by layer</text>'
    ]
    for row, (subject, layers) in enumerate(per_row.items()):
        x, y = float(left), 36 + row * (bar + 12)
        parts.append(f'<text x="10" y="{y + 18}">{subject}</text>')
        for layer in shown:
            size = layers[layer] / longest * width
            title = f"<title>{layer}: {layers[layer]:.2f} s</title>"
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{size:.1f}" height="{bar}" fill="{_COLORS[layer]}">{title}</rect>'
            )
            x += size
        parts.append(f'<text x="{x + 6:.1f}" y="{y + 18}">{sum(layers.values()):.1f} s</text>')
    top = 36 + len(per_row) * (bar + 12) + 14
    for number, layer in enumerate(shown):
        x, y = 10 + number % 5 * 150, top + number // 5 * 20
        parts.append(f'<rect x="{x}" y="{y - 11}" width="12" height="12" fill="{_COLORS[layer]}"/>')
        parts.append(f'<text x="{x + 18}" y="{y}">{layer}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Measure all, or run one of them (what the measuring process starts)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layers", description=__doc__)
    parser.add_argument("--subjects", nargs="+", default=list(SUBJECTS), choices=SUBJECTS)
    parser.add_argument("--seconds", type=float, default=20.0)
    add_mode(parser)
    add_interval(parser)
    parser.add_argument("--svg", type=Path, help="the file for the picture")
    add_subject_options(parser, SUBJECTS)
    options = parser.parse_args()
    if options.subject:
        report_result(options.result, run_subject(options.subject, options.scratch, options.seconds))
        return
    hooks = str(Path(__file__).with_name("_layers"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [hooks, os.environ.get("PYTHONPATH")]))
    results: dict[str, Result] = {}
    for subject in options.subjects:
        with _marks():
            results |= {
                name: found[0]
                for name, found in measure_in_turn(
                    "benchmarks.layers", [subject], 1, ["--seconds", str(options.seconds)]
                ).items()
            }
    for subject, result in results.items():
        for layer in _COLORS:
            seconds = result["layers"].get(layer, 0.0) / result["rows"] * 1e6
            emit(BENCHMARK, subject, "processor_seconds_a_million_rows", round(seconds, 3), layer=layer)
    if options.svg:
        options.svg.write_text(draw(results), encoding="utf-8")
        progress(f"drawn: {options.svg}")


@contextmanager
def _marks() -> Iterator[None]:
    from benchmarks._harness import scratch

    with scratch("layers-marks") as directory:
        os.environ["STRANDLINE_LAYERS"] = str(directory)
        yield


if __name__ == "__main__":
    main()
