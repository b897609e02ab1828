"""The demo: a stream of card payments, fraud alerts, incremental checkpoints, and a process killed with SIGKILL midway.

    python scripts/demo.py [--plain] [--seconds 30]

It runs a job as a user would write it (examples/payments), kills one of the job's own keepers, lets the job recover,
and ends by comparing every alert in the sink with a plain batch computation over the same files. Exit code 0 only if
they are equal. Everything it makes lies in one temporary directory, which it removes.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC
from pathlib import Path
from typing import Any

from _demo_stage import ROOT, DemoError, compare, perform, session_settings  # isort: skip  (it makes the rest found)
from _demo_monitor import Monitor
from _demo_view import View

import strandline as sl
from examples.payments.detector import FraudDetector
from examples.payments.files import read_files
from examples.payments.model import ALERT_SCHEMA, PAYMENT_SCHEMA, Alert
from examples.payments.oracle import oracle

CARDS = 50_000
PER_FILE = 5_000
PACE_S = 0.8
ENDLESS = 100_000
KEEPERS = 2
PATIENCE_S = 60.0


def build_job(spark: Any, home: Path) -> sl.Job:
    """The program: this is all that a user writes."""
    events = spark.readStream.schema(PAYMENT_SCHEMA).option("maxFilesPerTrigger", 5).json(str(home / "payments"))
    alerts = (
        sl.stream(events)
        .key_by("card", order_by="payment_id")
        .process(FraudDetector(), output=ALERT_SCHEMA, uid="fraud")
    )
    return sl.Job(
        "demo",
        sinks=[alerts.to(sl.sinks.files(str(home / "alerts"), format="parquet"))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="3s", mode="incremental", retain=2),
        restart=sl.Restart(delay="200ms"),
        trigger="400ms",
        settings=sl.Settings(parallelism=KEEPERS, state_memory="512MB", local_dir=home / "local"),
    )


def tell(home: Path, monitor: Monitor, seconds: float, seed: int, cleanup: contextlib.ExitStack) -> str:
    """Play the whole story; return what was shown, or raise DemoError."""
    monitor.say("payments begin to arrive; starting Spark")
    # The world does not wait for us: what comes before the job runs is its first work.
    generator = start_generator(home / "payments", seed)
    cleanup.callback(end_process, generator)
    # A demonstration leaves nothing behind, nor anything at work.
    spark = sl.session("strandline-demo", **session_settings(home))
    cleanup.callback(quietly, spark.stop)
    # PySpark's own handler would cancel Spark's jobs first, and that would look like a failure of the job.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    # A signal to the whole process group ends the JVM, too: its broken connection is then no news.
    spark.sparkContext._accumulatorServer.handle_error = lambda *_: None
    monitor.say(f"Spark {spark.version} is there; starting the job and its {KEEPERS} keepers")
    run = build_job(spark, home).start(spark)
    cleanup.callback(quietly, run.stop, timeout=15.0)
    monitor.watch(run)
    monitor.say("the job runs, with a checkpoint every 3 s")

    # Where all of this is slow, fewer payments tell the same story in the same two minutes.
    began_s, lasts_s = monitor.elapsed_s, max(10.0, min(seconds, 45.0 - monitor.elapsed_s))
    half_s, end_s = began_s + lasts_s / 2, began_s + lasts_s
    wait_for(lambda: monitor.elapsed_s >= half_s and monitor.completed() >= 2, run, "half-way")
    took_s = kill_a_keeper(run, monitor)

    wait_for(lambda: monitor.elapsed_s >= end_s or generator.poll() is not None, run, "the end of the payments")
    if generator.poll() is not None:
        raise DemoError(f"the generator of payments ended with exit code {generator.returncode}")
    end_process(generator)
    monitor.say("no more payments come; waiting until all are processed")
    run.process_all_available(2 * PATIENCE_S)
    monitor.say("taking the final checkpoint: it makes the last alerts visible")
    run.stop(checkpoint=True, timeout=PATIENCE_S)
    monitor.sample()
    status = run.status()
    if status.restarts < 1:
        raise DemoError("the job was not restarted after its keeper was killed")

    monitor.say("comparing the sink with a plain batch computation over the same files")
    payments, alerts = check(spark, home)
    return (
        f"{alerts:,} alerts from {payments:,} payments equal the batch computation, row for row; "
        f"1 keeper killed, recovered in {took_s:.1f} s; {monitor.completed()} checkpoints, {status.epoch} epochs"
    )


def kill_a_keeper(run: sl.Run, monitor: Monitor) -> float:
    """Kill one of the run's keepers with SIGKILL; return the seconds until the first new epoch with events."""
    before = run.status()
    victim = before.keepers[0]
    if b"strandline.keeper.process" not in Path(f"/proc/{victim.pid}/cmdline").read_bytes():
        raise DemoError(f"process {victim.pid} is no keeper")
    killed = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    monitor.say(f"kill -9 {victim.pid}: the keeper of partition {victim.partition} is gone, in epoch {before.epoch}")

    def is_back() -> bool:
        now = run.status()
        return now.generation > before.generation and now.state == "running" and now.epochs > 0

    wait_for(is_back, run, "recovery")
    took_s = time.monotonic() - killed
    after = run.status()
    monitor.say(
        f"recovered: generation {after.generation} went on from checkpoint {after.restored_from}; "
        f"first new epoch after {took_s:.1f} s"
    )
    return took_s


def check(spark: Any, home: Path) -> tuple[int, int]:
    """Compare what a reader of the sink sees with the oracle; return how many payments and alerts there were."""
    payments = list(read_files(home / "payments"))
    expected = Counter(oracle(payments))
    names = [part.split()[0] for part in ALERT_SCHEMA.split(", ")]
    rows = spark.read.schema(ALERT_SCHEMA).parquet(str(home / "alerts")).select(*names).collect()
    found = Counter(Alert(row.card, row.kind, row.amount_cents, row.ts.astimezone(UTC), row.score) for row in rows)
    compare("sink", found, expected)
    return len(payments), found.total()


def start_generator(directory: Path, seed: int) -> subprocess.Popen[bytes]:
    """Write payments in a process of its own, as the world outside would, until it is ended."""
    directory.mkdir()
    command = [sys.executable, "-m", "examples.payments.files", str(directory), f"--files={ENDLESS}", f"--seed={seed}"]
    options = [f"--cards={CARDS}", f"--per-file={PER_FILE}", f"--pace={PACE_S}"]
    return subprocess.Popen(
        [*command, *options], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )


def wait_for(condition: Any, run: sl.Run, what: str) -> None:
    """Wait for a condition while the job lives."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if run.await_termination(0.1):
            raise DemoError(f"the job ended while waiting for {what}")
        if time.monotonic() > deadline:
            raise DemoError(f"waited {PATIENCE_S:.0f} s for {what}, in vain; the job: {run.status()}")


def quietly(step: Any, *args: Any, **kwargs: Any) -> None:
    """Take a step of the clean-up; the next ones are taken whatever becomes of it."""
    with contextlib.suppress(Exception):
        step(*args, **kwargs)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End a child that may still run."""
    process.terminate()
    process.wait(10)


def main() -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--plain", action="store_true", help="lines instead of a live screen, even on a terminal")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long payments arrive at most (default 30)")
    parser.add_argument("--seed", type=int, default=1, help="of the generated payments")
    given = parser.parse_args()

    def play(home: Path, cleanup: contextlib.ExitStack) -> str:
        monitor = Monitor(home / "alerts", home / "payments", PER_FILE)
        logging.getLogger().handlers = [monitor]
        cleanup.callback(shutil.rmtree, home, ignore_errors=True)
        cleanup.callback(ignore_interrupts)
        with View(monitor, plain=given.plain):
            return tell(home, monitor, given.seconds, given.seed, cleanup)

    return perform(play)


def ignore_interrupts() -> None:
    """From here on only the clean-up is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
