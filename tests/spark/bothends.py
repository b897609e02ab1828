"""Kafka in, Kafka and PostgreSQL out, checkpoints in a bucket: the job, and twenty minutes in which all of it is killed.

    python -m tests.spark.bothends --minutes 20 [--seed 7]     what `make soak-ends` runs
    python -m tests.spark.bothends --driver ROOT               the driver of the job

Rows are numbered as they are produced, without end. At the end both targets must hold the same rows: each input once, counted in
its key's order, read by the targets' own clients. "One snapshot moves data between systems" is what that shows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

import strandline as sl
from tests import jvm, kafkaserver, postgres, seaweed
from tests.kafkaserver import Kafka
from tests.postgres import Server
from tests.seaweed import Seaweed
from tests.servers import end_with_parent
from tests.soak import MODE, SMALL_LOG
from tests.spark.harness import processes

_ROOT = Path(__file__).parent.parent.parent
_USERS = 40
_A_SECOND = 200
_PATIENCE_S = 300.0
_OUT = "user string, n bigint, seq bigint"


class Count(sl.KeyedProcess):
    """Numbers the rows of each user."""

    n = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        self.n.value += 1
        yield ctx.key, self.n.value, event.seq


def build(spark: Any, root: Path, given: dict[str, Any]) -> sl.Job:
    """Return the job."""
    read = sl.kafka.read(spark, given["kafka"], "in", options={"maxOffsetsPerTrigger": "10000"})
    event = F.from_json(F.col("value").cast("string"), "user string, seq bigint").alias("e")
    counted = sl.stream(read.select(event).select("e.*")).key_by("user").process(Count(), output=_OUT, uid="count")
    return sl.Job(
        "bothends",
        sinks=[
            counted.to(sl.sinks.kafka(given["kafka"], "out", key="user", name="to-kafka")),
            counted.to(sl.sinks.postgres(given["postgres"], "counted", create=True, name="to-postgres")),
        ],
        checkpoints=sl.Checkpoints(
            given["checkpoints"], every="1s", retain=2, storage_options=given["options"], mode=MODE, changelog=SMALL_LOG
        ),
        # Of its own: a driver that was stopped as if dead holds another one, as on another machine.
        settings=sl.Settings(parallelism=2, local_dir=root / f"on-{os.getpid()}", state_memory="128MB"),
        restart=sl.Restart(attempts=1000, delay="500ms", max_delay="5s"),
        trigger="200ms",
    )


def drive(root: Path) -> None:
    """Run the job until there is a file `stop`."""
    given = json.loads((root / "given.json").read_text())
    spark = sl.session("bothends", "local[2,4]", **{"spark.driver.memory": "1g"})
    for jar in kafkaserver.connector():
        spark.sql(f"ADD JAR '{jar}'")
    run = build(spark, root, given).start(spark)
    while not (root / "stop").exists():
        run.await_termination(0.2)
        found = run.glance()
        said = {
            "state": found.state, "epoch": found.epoch, "restarts": found.restarts, "failure": found.last_failure,
            "keepers": [keeper.pid for keeper in found.keepers], "waiting": [sink.waiting_rows for sink in found.sinks],
        }  # fmt: skip
        (root / "status.tmp").write_text(json.dumps(said))
        (root / "status.tmp").rename(root / "status.json")
    run.stop(checkpoint=True)
    spark.stop()


class Producer(threading.Thread):
    """Writes numbered rows; whatever the broker has acknowledged counts, and nothing is acknowledged twice."""

    def __init__(self, kafka: Kafka, rng: random.Random) -> None:
        super().__init__(name="producer")
        self.users: dict[int, str] = {}
        self.ended = threading.Event()
        self._kafka, self._rng = kafka, rng

    def run(self) -> None:
        from confluent_kafka import Producer as Client

        client = Client({
            "bootstrap.servers": self._kafka.servers, "enable.idempotence": True, "message.timeout.ms": 600_000,
            "linger.ms": 5,
        })  # fmt: skip
        seq = 0
        while not self.ended.wait(0.05):
            for _ in range(_A_SECOND // 20):
                user = f"u{self._rng.randrange(_USERS)}"
                self.users[seq] = user
                client.produce("in", json.dumps({"user": user, "seq": seq}).encode(), user)
                seq += 1
            client.poll(0)
        assert client.flush(300) == 0


class Rig:
    """The servers, the driver, and what may break."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.rng = root, random.Random(seed)
        self.struck: Counter[str] = Counter()
        self.kafka: Kafka = kafkaserver.start()
        self.postgres: Server = _there(postgres.start(), "PostgreSQL")
        self.seaweed: Seaweed = _there(seaweed.start(), "SeaweedFS")
        for topic in ("in", "out"):
            self.kafka.create(topic, 3)
        self.dsn = self.postgres.schema()
        self._given = {
            "kafka": self.kafka.servers, "postgres": self.dsn, "checkpoints": self.seaweed.url("ck"),
            "options": self.seaweed.options,
        }  # fmt: skip
        (root / "given.json").touch(mode=0o600)
        (root / "given.json").write_text(json.dumps(self._given))
        (root / "tmp").mkdir()
        self.producer = Producer(self.kafka, random.Random(seed + 1))
        self._driver: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the driver."""
        environment = {
            **os.environ, "TMPDIR": str(self.root / "tmp"), "SPARK_LOCAL_DIRS": str(self.root / "tmp"),
            "PYSPARK_PYTHON": sys.executable,
        }  # fmt: skip
        with (self.root / "driver.log").open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.bothends", "--driver", str(self.root)],
                cwd=_ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=end_with_parent,
            )  # fmt: skip

    def status(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads((self.root / "status.json").read_text())
            return found
        return {}

    # -- what breaks

    def driver_killed(self) -> None:
        self._driver.kill()
        self._driver.wait()
        self.start()

    def driver_stopped_as_if_dead(self) -> None:
        """Another driver takes over, and the first one wakes in the middle of what it did."""
        older = self._driver
        older.send_signal(signal.SIGSTOP)
        self.start()
        time.sleep(self.rng.uniform(8, 20))
        older.send_signal(signal.SIGCONT)
        time.sleep(5)
        older.kill()
        older.wait()

    def keeper_killed(self) -> None:
        for pid in self.rng.sample(found, 1) if (found := self.status().get("keepers", [])) else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def worker_killed(self) -> None:
        """One of Spark's Python workers, perhaps in the middle of a transaction."""
        found = [pid for pid, command in processes(str(self.root / "tmp")).items() if "daemon" in command]
        for pid in self.rng.sample(found, min(1, len(found))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def broker_killed(self) -> None:
        self.kafka.kill()
        time.sleep(self.rng.uniform(0, 15))
        self.kafka.run()

    def broker_frozen(self) -> None:
        self.kafka.freeze()
        time.sleep(self.rng.uniform(1, 20))
        self.kafka.thaw()

    def database_killed(self) -> None:
        self.postgres.kill()
        time.sleep(self.rng.uniform(0, 15))
        self.postgres.start()

    def bucket_away(self) -> None:
        self.seaweed.pause()
        time.sleep(self.rng.uniform(1, 20))
        self.seaweed.resume()

    def strike(self) -> None:
        """Have one of them, at random, now."""
        one = self.rng.choice([
            self.driver_killed, self.driver_stopped_as_if_dead, self.keeper_killed, self.worker_killed,
            self.broker_killed, self.broker_frozen, self.database_killed, self.bucket_away,
        ])  # fmt: skip
        one()
        self.struck[one.__name__] += 1

    # -- the end

    def settle(self) -> None:
        """Produce nothing more; wait until all is delivered, and end the job."""
        self.producer.ended.set()
        self.producer.join()
        reached, since = 0, time.monotonic()
        while reached < len(self.producer.users):
            self.stay_alive()
            time.sleep(1)
            if (rows := len(self.in_postgres())) > reached:
                reached, since = rows, time.monotonic()
            wanted = len(self.producer.users)
            assert time.monotonic() - since < _PATIENCE_S, f"{reached} of {wanted} rows, and no more: {self.status()}"
        (self.root / "stop").touch()
        assert self._driver.wait(180) == 0, (self.root / "driver.log").read_text()[-3000:]

    def stay_alive(self) -> None:
        """Start the driver again if it has ended by itself: somebody outside would."""
        if self._driver is not None and self._driver.poll() is not None:
            self.struck["driver_ended"] += 1
            self.start()

    def in_postgres(self) -> list[tuple[str, int, int]]:
        with contextlib.suppress(Exception), self.postgres.connect(self.dsn) as db:
            return [tuple(row) for row in db.execute("select user, n, seq from counted".replace("user", '"user"'))]
        return []

    def in_kafka(self) -> list[tuple[str, int, int]]:
        said = [json.loads(message.value()) for message in self.kafka.messages("out")]
        return [(each["user"], each["n"], each["seq"]) for each in said]

    def check(self) -> int:
        """Assert that both hold each row once, and the same; return how many."""
        kafka, database = self.in_kafka(), self.in_postgres()
        users = self.producer.users
        assert Counter(seq for _, _, seq in kafka) == Counter(users.keys()), _differs(kafka, users)
        assert Counter(kafka) == Counter(database), "Kafka and PostgreSQL differ"
        by_user: dict[str, list[int]] = defaultdict(list)
        for user, n, seq in kafka:
            assert users[seq] == user
            by_user[user].append(n)
        for user, numbers in by_user.items():
            assert numbers == list(range(1, len(numbers) + 1)), f"{user} is out of order, or has gaps"
        return len(users)

    def close(self) -> None:
        self.producer.ended.set()
        if self._driver is not None:
            self._driver.kill()
            self._driver.wait()
        for server in (self.kafka, self.postgres, self.seaweed):
            server.stop()


def soak(minutes: float, seed: int) -> dict[str, Any]:
    """Have things break for so long; return what did, and how many rows came through it."""
    root = Path(tempfile.mkdtemp(prefix="strandline-ends-"))
    rig = Rig(root, seed)
    try:
        rig.producer.start()
        rig.start()
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until:
            time.sleep(rig.rng.uniform(1, 45))
            rig.stay_alive()
            rig.strike()
            print(f"{time.strftime('%X')} {dict(rig.struck)} {rig.status()}", file=sys.stderr, flush=True)
        rig.settle()
        return {"seed": seed, "rows": rig.check(), "struck": dict(rig.struck)}
    except BaseException:
        print((root / "driver.log").read_text()[-5000:], file=sys.stderr)
        raise
    finally:
        rig.close()
        shutil.rmtree(root, ignore_errors=True)


def _differs(rows: list[tuple[str, int, int]], users: dict[int, str]) -> str:
    seen = Counter(seq for _, _, seq in rows)
    missing, twice = [s for s in users if not seen[s]], [s for s, times in seen.items() if times > 1]
    return f"{len(missing)} rows are missing, as {missing[:5]}; {len(twice)} came more than once, as {twice[:5]}"


def _there(server: Any, what: str) -> Any:
    if server is None:
        raise SystemExit(f"there is no {what} for this machine")
    return server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--driver", type=Path)
    given = parser.parse_args()
    if given.driver is not None:
        drive(given.driver)
        return
    jvm.use()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    print(json.dumps(soak(given.minutes, seed)))


if __name__ == "__main__":
    main()
