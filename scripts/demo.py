"""The demo: a stream of card payments, fraud alerts, incremental checkpoints, and a process killed with SIGKILL midway.

    python scripts/demo.py [--plain] [--seconds 30] [--stay]

It runs a job as a user would write it (examples/payments), kills one of the job's own keepers, lets the job recover,
and ends by comparing every alert in the sink with a plain batch computation over the same files. Exit code 0 only if
they are equal. Everything it makes lies in one temporary directory, which it removes.

Meanwhile it serves a page on loopback, and prints its address: the dashboard of the payments, with buttons that kill,
rescale, go back in time and fork. With --stay, payments go on after the comparison until Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import shutil
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC
from pathlib import Path
from typing import Any

from _demo_stage import ROOT, DemoError, compare, perform, session_settings  # isort: skip  (it makes the rest found)
from _demo_view import View

import strandline as sl
from examples.payments.dashboard import ActionError, Dashboard, Journal
from examples.payments.files import list_files, read_files
from examples.payments.model import ALERT_SCHEMA, Alert
from examples.payments.oracle import oracle
from examples.payments.server import Server

CARDS = 10_000
PER_FILE = 5_000
PER_FILE_LATER = 1_000
"""With --stay, so that an hour of payments is no more than a gigabyte."""
PACE_S = 0.8
ENDLESS = 100_000


def tell(home: Path, dashboard: Dashboard, seconds: float, seed: int, cleanup: contextlib.ExitStack) -> str:
    """Play the whole story; return what was shown, or raise DemoError."""
    journal = dashboard.journal
    journal.say("payments begin to arrive; starting Spark")
    # The world does not wait for us: what comes before the job runs is its first work.
    generator = start_generator(home / "payments", seed, PER_FILE)
    cleanup.callback(end_process, generator)
    # A demonstration leaves nothing behind, nor anything at work.
    spark = sl.session("strandline-demo", **session_settings(home))
    cleanup.callback(quietly, spark.stop)
    # PySpark's own handler would cancel Spark's jobs first, and that would look like a failure of the job.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    # A signal to the whole process group ends the JVM, too: its broken connection is then no news.
    spark.sparkContext._accumulatorServer.handle_error = lambda *_: None
    journal.say(f"Spark {spark.version} is there; starting the job and its keepers")
    cleanup.callback(quietly, dashboard.end_jobs)
    dashboard.start(spark)
    journal.say("the job runs, with a checkpoint every 3 s")

    # Where all of this is slow, fewer payments tell the same story in the same two minutes.
    began_s, lasts_s = journal.elapsed_s, max(10.0, min(seconds, 45.0 - journal.elapsed_s))
    half_s, end_s = began_s + lasts_s / 2, began_s + lasts_s
    completed = dashboard.main.monitor.completed
    dashboard.wait_for(lambda: journal.elapsed_s >= half_s and len(completed()) >= 2, "half-way")
    with dashboard.at_work("kill"):
        dashboard.kill()

    dashboard.wait_for(lambda: journal.elapsed_s >= end_s or generator.poll() is not None, "the end of the payments")
    if generator.poll() is not None:
        raise DemoError(f"the generator of payments ended with exit code {generator.returncode}")
    end_process(generator)
    journal.say("no more payments come; waiting until all are processed")
    dashboard.finish()
    status = dashboard.run.status()

    journal.say("comparing the sink with a plain batch computation over the same files")
    payments, alerts = check(spark, home)
    return (
        f"{alerts:,} alerts from {payments:,} payments equal the batch computation, row for row; "
        f"1 keeper killed, recovered in {dashboard.recovered_s:.1f} s; {len(completed())} checkpoints, "
        f"{status.epoch} epochs"
    )


def stay(home: Path, dashboard: Dashboard, seed: int, cleanup: contextlib.ExitStack) -> None:
    """Go on with the payments and the job until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        written = PER_FILE * len(list_files(home / "payments"))
        generator = start_generator(home / "payments", seed, PER_FILE_LATER, written)
        cleanup.callback(end_process, generator)
        dashboard.start()
        dashboard.journal.say("payments go on, fewer now: the page's buttons are yours; Ctrl-C ends all")
        dashboard.wait_for(lambda: False, "Ctrl-C", float("inf"))


def check(spark: Any, home: Path) -> tuple[int, int]:
    """Compare what a reader of the sink sees with the oracle; return how many payments and alerts there were."""
    payments = list(read_files(home / "payments"))
    expected = Counter(oracle(payments))
    names = [part.split()[0] for part in ALERT_SCHEMA.split(", ")]
    rows = spark.read.schema(ALERT_SCHEMA).parquet(str(home / "alerts")).select(*names).collect()
    found = Counter(Alert(row.card, row.kind, row.amount_cents, row.ts.astimezone(UTC), row.score) for row in rows)
    compare("sink", found, expected)
    return len(payments), found.total()


def start_generator(directory: Path, seed: int, per_file: int, after: int = 0) -> subprocess.Popen[bytes]:
    """Write payments in a process of its own, as the world outside would, until it is ended."""
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "examples.payments.files", str(directory), f"--files={ENDLESS}", f"--seed={seed}"]
    options = [f"--cards={CARDS}", f"--per-file={per_file}", f"--pace={PACE_S}", f"--after={after}"]
    return subprocess.Popen(
        [*command, *options], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )


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
    parser.add_argument("--stay", action="store_true", help="go on after the comparison until Ctrl-C")
    parser.add_argument("--port", type=int, default=0, help="of the page (default: any free one)")
    given = parser.parse_args()

    def play(home: Path, cleanup: contextlib.ExitStack) -> str:
        cleanup.callback(shutil.rmtree, home, ignore_errors=True)
        cleanup.callback(ignore_interrupts)
        journal = Journal()
        logging.getLogger().handlers = [journal]
        dashboard = Dashboard(home, journal)
        cleanup.callback(dashboard.close)
        try:
            server = Server(dashboard, given.port)
        except OSError as error:
            raise DemoError(f"port {given.port} cannot be used: {error.strerror}; give another one: --port") from error
        cleanup.callback(server.close)
        print(f"demo: the page is {server.address}", flush=True)
        try:
            with View(dashboard, server.address, plain=given.plain):
                shown = tell(home, dashboard, given.seconds, given.seed, cleanup)
                dashboard.passed = f"PASS  {shown}"
                if given.stay:
                    journal.say(dashboard.passed)
                    stay(home, dashboard, given.seed, cleanup)
        except ActionError as error:
            raise DemoError(str(error)) from error
        finally:
            dashboard.outcome = dashboard.passed or "The demo has ended early; its terminal says why."
        return shown

    return perform(play)


def ignore_interrupts() -> None:
    """From here on only the clean-up is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
