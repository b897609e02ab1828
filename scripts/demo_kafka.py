"""The demo with Kafka: payments in, fraud alerts out, exactly once, while the broker and the driver are killed in turn.

    python scripts/demo_kafka.py [--seconds 40]

It starts a broker of its own on loopback, has payments arrive there, and runs the fraud job from topic to topic in a
process of its own. The broker is killed with SIGKILL and comes back; the job waits for it. Then the driver is killed,
and started again. At the end a reader of what is committed counts the alerts by card, and every one of them is compared
with a plain batch computation over the same payments. Exit code 0 only if they are equal. Everything lies in one
temporary directory, which it removes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

from _demo_stage import DemoError, compare, perform, session_settings  # isort: skip  (it makes the rest found)
import strandline as sl
from examples.payments.detector import FraudDetector
from examples.payments.generator import World, payments
from examples.payments.model import ALERT_SCHEMA, PAYMENT_SCHEMA, Alert, Payment
from examples.payments.oracle import oracle
from tests import kafkaserver

CARDS = 2_000
PER_SECOND = 1_000
DOWN_S = 5.0
PATIENCE_S = 300.0
STOP = "stop"


def build_job(spark: Any, servers: str, home: Path) -> sl.Job:
    """The program: this is all that a user writes."""
    from pyspark.sql import functions as F

    rows = sl.kafka.read(spark, servers, "payments", commit_to="fraud", max_rows_per_epoch=10_000)
    events = rows.select(F.from_json(F.col("value").cast("string"), PAYMENT_SCHEMA).alias("p")).select("p.*")
    alerts = (
        sl.stream(events, name="payments")
        .key_by("card", order_by="payment_id")
        .process(FraudDetector(), output=ALERT_SCHEMA, uid="fraud")
    )
    return sl.Job(
        "demo-kafka",
        sinks=[alerts.to(sl.sinks.kafka(servers, "alerts", key="card", name="alerts"))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="2s", retain=2),
        restart=sl.Restart(attempts=1000, delay="500ms"),
        trigger="500ms",
        settings=sl.Settings(parallelism=2, state_memory="256MB", local_dir=home / "local"),
    )


def run_job(servers: str, home: Path) -> None:
    """Be the driver: run the job until told to stop, then finish what there is."""
    logging.basicConfig(level=logging.WARNING, format="  driver: %(message)s", stream=sys.stdout)
    settings = {
        **session_settings(home),
        # Elsewhere it is sl.kafka.session_settings(): these were fetched with the broker.
        "spark.jars": ",".join(map(str, kafkaserver.connector())),
    }
    spark = sl.session("strandline-demo-kafka", log_dir=home / "logs", **settings)
    run = build_job(spark, servers, home).start(spark)
    while not (home / STOP).exists():
        run.await_termination(0.2)
    run.process_all_available(PATIENCE_S)
    run.stop(checkpoint=True, timeout=PATIENCE_S)
    spark.stop()


class Customers:
    """Payments that arrive whatever becomes of broker and job."""

    def __init__(self, servers: str, seed: int) -> None:
        from confluent_kafka import Producer

        self.sent: list[Payment] = []
        self._over = threading.Event()
        self._producer: Any = Producer(
            {
                "bootstrap.servers": servers, "enable.idempotence": True, "message.timeout.ms": 600_000,
                "partitioner": "murmur2_random", "log_level": 0,
            }
        )  # fmt: skip
        self._stream = payments(World(seed=seed, cards=CARDS, fraud=0.02))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._over.is_set():
            for _ in range(PER_SECOND // 10):
                payment = next(self._stream)
                row = json.dumps({**payment._asdict(), "ts": payment.ts.isoformat(timespec="milliseconds")})
                self._send(row, payment.card)
                self.sent.append(payment)
            self._producer.poll(0)
            due += 0.1
            time.sleep(max(0.0, due - time.monotonic()))

    def _send(self, row: str, card: str) -> None:
        while True:
            try:
                self._producer.produce("payments", row, card)
                return
            except BufferError:
                # The broker is away, and as many wait as may.
                self._producer.poll(0.1)

    def end(self) -> None:
        """Send no more, and wait until all are there."""
        self._over.set()
        self._thread.join()
        if left := self._producer.flush(PATIENCE_S):
            raise DemoError(f"{left} payments could not be sent")


def tell(home: Path, seconds: float, seed: int, cleanup: contextlib.ExitStack) -> str:
    """Play the whole story; return what was shown, or raise DemoError."""
    say("starting a broker")
    try:
        broker = kafkaserver.start()
    except kafkaserver.UnavailableServerError as error:
        raise DemoError(str(error)) from error
    cleanup.callback(broker.stop)
    broker.create("payments", 2)
    broker.create("alerts", 2)
    world = Customers(broker.servers, seed)
    say(f"payments begin to arrive, {PER_SECOND:,} a second; starting the job")
    driver = start_driver(broker.servers, home, cleanup)
    began = time.monotonic()
    wait_for_more(broker, driver, 0)
    say(f"the first alerts are committed; killing the broker, for {DOWN_S:.0f} s")

    broker.kill()
    time.sleep(DOWN_S)
    broker.run()
    had = count(broker)
    say(f"the broker is back, with {had:,} alerts")
    had = wait_for_more(broker, driver, had)
    say(f"the job has caught up with it: {had:,} alerts are committed")

    while time.monotonic() - began < seconds / 2:
        time.sleep(0.1)
    end_group(driver)
    had = count(broker)
    say(f"kill -9 {driver.pid}: the driver is gone; starting another, {had:,} alerts are committed")
    driver = start_driver(broker.servers, home, cleanup)
    had = wait_for_more(broker, driver, had)
    say(f"it goes on from its checkpoint: {had:,} alerts are committed")

    while time.monotonic() - began < seconds:
        time.sleep(0.1)
    world.end()
    say("no more payments come; waiting until all are processed")
    (home / STOP).touch()
    if driver.wait(PATIENCE_S):
        raise DemoError(f"the driver ended with exit code {driver.returncode}")
    return check(broker, world.sent)


def check(broker: kafkaserver.Kafka, sent: list[Payment]) -> str:
    """Compare what a reader of what is committed sees with the oracle."""
    expected, found = Counter(oracle(sent)), Counter[Alert]()
    by_card: Counter[str] = Counter()
    for message in broker.messages("alerts"):
        said = json.loads(message.value())
        found[Alert(**{**said, "ts": datetime.fromisoformat(said["ts"])})] += 1
        by_card[message.key().decode()] += 1
    compare("topic", found, expected)
    if by_card != Counter(alert.card for alert in expected.elements()):
        raise DemoError("the keys of the topic's messages are not the cards of their alerts")
    return (
        f"{found.total():,} alerts of {len(by_card):,} cards from {len(sent):,} payments, as a reader of what is "
        "committed sees them, equal the batch computation, each once; the broker and the driver were killed"
    )


def count(broker: kafkaserver.Kafka) -> int:
    """Return how many alerts a reader of what is committed sees."""
    return len(broker.messages("alerts"))


def wait_for_more(broker: kafkaserver.Kafka, driver: subprocess.Popen[bytes], had: int) -> int:
    """Wait until there are more alerts."""
    deadline = time.monotonic() + PATIENCE_S
    while (now := count(broker)) <= had:
        if driver.poll() is not None:
            raise DemoError(f"the driver ended with exit code {driver.returncode}")
        if time.monotonic() > deadline:
            raise DemoError(f"waited {PATIENCE_S:.0f} s for more than {had} alerts, in vain")
        time.sleep(0.3)
    return now


def start_driver(servers: str, home: Path, cleanup: contextlib.ExitStack) -> subprocess.Popen[bytes]:
    """Run the job in a process of its own."""
    driver = subprocess.Popen(
        [sys.executable, __file__, "--job", servers, str(home)], stdin=subprocess.DEVNULL, start_new_session=True
    )
    cleanup.callback(end_group, driver)
    return driver


def end_group(driver: subprocess.Popen[bytes]) -> None:
    """Kill the driver, with its JVM, as a machine's end would."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


_BEGAN = time.monotonic()


def say(what: str) -> None:
    """Tell a line of the story."""
    print(f"{time.monotonic() - _BEGAN:6.1f} s  {what}", flush=True)


def main() -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="how long payments arrive at least (default 40)")
    parser.add_argument("--seed", type=int, default=1, help="of the generated payments")
    parser.add_argument("--job", nargs=2, metavar=("SERVERS", "HOME"), help="be the driver: what the demo starts")
    given = parser.parse_args()
    if given.job:
        run_job(given.job[0], Path(given.job[1]))
        return 0

    def play(home: Path, cleanup: contextlib.ExitStack) -> str:
        cleanup.callback(remove, home)
        return tell(home, given.seconds, given.seed, cleanup)

    return perform(play)


def remove(home: Path) -> None:
    """Remove the directory; keepers of a driver that was killed may write there for a moment yet."""
    deadline = time.monotonic() + 15
    while home.exists() and time.monotonic() < deadline:
        shutil.rmtree(home, ignore_errors=True)
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
