"""What metrics and profiles cost a job: the same run with and without being asked for them, in turn.

    python -m benchmarks.telemetry

A counter of 1,000,000 keys runs with `Telemetry(prometheus=…, otlp=…)`. In every third block of epochs, another process
asks its driver for metrics each second over HTTP, as Prometheus does every 15 s, and over its socket with its recent
past, as `strandline metrics --otlp` does; in every third one, the keepers take samples of their stacks. `ratio` is the
throughput of such blocks over that of the others, in the same run; on a machine that does other work meanwhile, it says
nothing. `processor_time` is what one answer to Prometheus takes of the driver's Python, and `share` is that of a
processor, asked each 15 s.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from statistics import median

import strandline as sl
from benchmarks._counting import MASTER, SPARK_SETTINGS, Load, keyed_rows
from benchmarks._harness import (
    Result,
    add_subject_options,
    durability,
    emit,
    measure_in_turn,
    median_of,
    progress,
    report_result,
    run_epochs,
    spark_epochs,
)
from benchmarks._peers import OUTPUT
from benchmarks.keyed_counter import BatchCounter
from strandline.cli.metrics import Machine
from strandline.telemetry.prometheus import exposition
from strandline.ui.jobs import Jobs

BENCHMARK = "telemetry"
SUBJECT = "asked-each-second"
KINDS = ("asked-for-nothing", SUBJECT, "profiled")
_EVERY_S = 1.0
_WARM_UP = 10
_ANSWERS = 20
_USUAL_S = 15.0
"""How often Prometheus asks."""


class _Taker(BaseHTTPRequestHandler):
    """A collector that takes everything and keeps nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def ask(address: str, local_dir: Path, switch: Path) -> None:
    """While `switch` is there, ask for metrics each second; end when its directory is gone."""
    machine, asked = Machine(Jobs(local_dir)), 0
    while switch.parent.exists():
        if switch.exists():
            with urllib.request.urlopen(address, timeout=30) as answer:
                answer.read()
            machine.read(spans=True)
            asked += 1
            (switch.parent / "asked").write_text(str(asked))
        time.sleep(_EVERY_S)


@contextmanager
def profiling(run: sl.Run, *, on: bool) -> Iterator[None]:
    """Have all keepers take samples during the block."""
    over = threading.Event()

    def profile() -> None:
        while not over.is_set():
            run.profile("2s")

    thread = threading.Thread(target=profile)
    if on:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if on:
            thread.join()


@contextmanager
def asking(address: str, local_dir: Path, directory: Path) -> Iterator[Path]:
    """Have a process ask; give the file with which it is switched on."""
    switch = directory / "on"
    directory.mkdir()
    command = [sys.executable, "-m", "benchmarks.telemetry", "--ask", address, str(local_dir), str(switch)]
    with subprocess.Popen(command) as process:
        try:
            yield switch
        finally:
            process.terminate()


def run_subject(directory: Path, load: Load, blocks: int) -> Result:
    """Run one job, with and without being asked, and return the throughput of both."""
    spark = sl.session("strandline-benchmark", MASTER, **SPARK_SETTINGS)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(10 * load.epochs * blocks + 1000))
    local_dir = directory / "local"
    with ThreadingHTTPServer(("127.0.0.1", 0), _Taker) as collector:
        taking = threading.Thread(target=collector.serve_forever, daemon=True)
        taking.start()
        counted = sl.stream(keyed_rows(spark, load)).key_by("key").process(BatchCounter(), output=OUTPUT, uid="counter")
        job = sl.Job(
            BENCHMARK, sinks=[counted.to(sl.sinks.noop(name="counted"))],
            checkpoints=sl.Checkpoints((directory / "checkpoints").as_uri(), every="10s"),
            settings=sl.Settings(local_dir=local_dir, **durability()),
            telemetry=sl.Telemetry(prometheus=0, otlp=f"http://127.0.0.1:{collector.server_port}", every="15s"),
        )  # fmt: skip
        run = job.start(spark)
        edges = []
        with asking(run.metrics_address, local_dir, directory / "asking") as switch:
            run_epochs(run.query, _WARM_UP)
            for number in range(len(KINDS) * blocks):
                kind = KINDS[number % len(KINDS)]
                switch.touch() if kind == SUBJECT else switch.unlink(missing_ok=True)
                with profiling(run, on=kind == "profiled"):
                    edges.append(len(spark_epochs(run.query)))
                    run_epochs(run.query, edges[-1] + load.epochs)
            edges.append(edges[-1] + load.epochs)
            epochs = spark_epochs(run.query)
            asked = int((switch.parent / "asked").read_text())
            answer_ms = median(timed_answer(run) for _ in range(_ANSWERS))
        run.stop()
        collector.shutdown()
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number, (begin, end) in enumerate(pairwise(edges)):
        # The epoch in which it was switched is neither.
        block = epochs[begin + 1 : min(end, begin + load.epochs)]
        took_s = sum(each.duration_ms for each in block) / 1000
        rates[KINDS[number % len(KINDS)]].append(sum(each.rows for each in block) / took_s)
    spark.stop()
    return {**{kind: median(rates[kind]) for kind in KINDS}, "asked": asked, "answer_ms": answer_ms}


def timed_answer(run: sl.Run) -> float:
    """Return the processor time of this thread for one answer to Prometheus, in ms."""
    reporter = run._telemetry
    assert reporter is not None
    began = time.thread_time()
    exposition(lambda: [reporter.read()])
    return (time.thread_time() - began) * 1000


def main() -> None:
    """Measure, or be one of the processes of a measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.telemetry", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=3, help="of each kind")
    parser.add_argument("--epochs", type=int, default=40, help="of a block: longer than the interval of checkpoints")
    parser.add_argument("--rows", type=int, default=100_000, help="of an epoch")
    parser.add_argument("--ask", nargs=3, help=argparse.SUPPRESS)
    add_subject_options(parser, [SUBJECT])
    given = parser.parse_args()
    if given.ask:
        address, local_dir, switch = given.ask
        ask(address, Path(local_dir), Path(switch))
        return
    load = Load(rows_per_epoch=given.rows, epochs=given.epochs, warm_up=0)
    if given.subject:
        report_result(given.result, run_subject(given.scratch, load, given.blocks))
        return
    progress(f"{BENCHMARK}: {given.blocks} blocks of {given.epochs} epochs of {given.rows:,} rows of each kind")
    options = ["--blocks", str(given.blocks), "--epochs", str(given.epochs), "--rows", str(given.rows)]
    results = measure_in_turn("benchmarks.telemetry", [SUBJECT], given.rounds, options)[SUBJECT]
    for kind in KINDS:
        emit(BENCHMARK, kind, "throughput", round(median_of(results, kind)), unit="rows/s")
    answer_ms = median_of(results, "answer_ms")
    emit(BENCHMARK, "answer", "processor_time", round(answer_ms, 2), unit="ms")
    share = answer_ms / 1000 / _USUAL_S * 100
    emit(BENCHMARK, "answer", "share", round(share, 4), unit="% of a processor", wanted_at_most=1)
    nothing, *others = KINDS
    for kind in others:
        ratios = [round(each[kind] / each[nothing], 4) for each in results]
        emit(BENCHMARK, kind, "ratio", median(ratios), peer=nothing, wanted_at_least=0.99, rounds=ratios)


if __name__ == "__main__":
    main()
