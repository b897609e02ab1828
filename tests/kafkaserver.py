"""Apache Kafka on loopback: one broker of the real thing, from Maven's central repository.

    python -m tests.kafkaserver       fetch it, unless it is there

Spark's own jars have Ivy, which fetches the broker's. A formatted directory is kept beside them: each server starts with
a copy, and saves itself the program that formats one. So is an archive of the classes that a broker loads.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers import end_with_parent, free_ports, locked

VERSION = "4.4.0"
_ROOT = Path(__file__).parent.parent
_HOME = _ROOT / "build" / f"kafka-{VERSION}"
_LOCK = _HOME.parent / "fetch.lock"
"""Ivy fails in processes that fill one cache at the same time."""
_CLUSTER = "strandlinesOwnTests-wg"
_LIGHT = (
    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx400m", "-Xss512k", "-Xshare:auto", "-Xlog:disable",
    "-Djava.net.preferIPv4Stack=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)  # fmt: skip
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},SASL_PLAINTEXT://127.0.0.1:{secured},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker},SASL_PLAINTEXT://127.0.0.1:{secured}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_payments="{password}";
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={directory}/data
num.partitions=1
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
metadata.max.idle.interval.ms=0
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
log.cleaner.backoff.ms=500
log.cleaner.dedupe.buffer.size=4194304
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
num.network.threads=2
num.io.threads=4
"""
PASSWORD = "a-secret-of-these-tests"


class UnavailableServerError(Exception):
    """There is no broker to be had on this machine."""


@dataclass
class Kafka:
    """A broker. What it has been told outlives its process: `kill`, then `run`."""

    _directory: Path
    _ports: dict[str, int]
    _janitor: subprocess.Popen[bytes]
    _options: Sequence[str] = ()
    _process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._ports['broker']}"

    @property
    def secured(self) -> str:
        """Where it wants a name and a password: `payments` and PASSWORD."""
        return f"127.0.0.1:{self._ports['secured']}"

    def run(self) -> None:
        """Start the process, and wait until it answers."""
        with open(self._directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [_java(), *_LIGHT, *self._options, f"-Djava.io.tmpdir={self._directory}", "-cp", f"{_HOME}/jars/*", "kafka.Kafka", f"{self._directory}/settings"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=end_with_parent,
            )  # fmt: skip
        self._await()

    def _await(self) -> None:
        deadline = time.monotonic() + 120
        assert self._process is not None
        while not _answers(self._ports["broker"]):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self._directory / "log").read_text()[-5000:])
            time.sleep(0.05)

    def kill(self) -> None:
        """End the process as a power failure would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """Have the process end by itself."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(120)

    def freeze(self) -> None:
        """Have it answer nothing more, until `thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Have it go on, and wait until its partitions have a leader: its controller has missed its heartbeats."""
        from confluent_kafka import KafkaException

        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self._await()
        until = time.monotonic() + 120
        while True:
            try:
                self.put(self.create(f"thawed-{time.monotonic_ns()}", 1), [(None, "")])
                return
            except (KafkaException, TimeoutError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def stop(self) -> None:
        self.kill()
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        self._janitor.wait()

    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.servers})

    def create(self, topic: str, partitions: int = 2, **config: str) -> str:
        """Make a topic; settings are given with `_` for `.`. Returns its name."""
        from confluent_kafka.admin import NewTopic

        settings = {name.replace("_", "."): value for name, value in config.items()}
        admin = self.admin()
        for made in admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values():
            made.result(30)
        # The broker learns of it from the controller.
        until = time.monotonic() + 30
        while admin.list_topics(topic, 30).topics[topic].error is not None:
            assert time.monotonic() < until, f"the broker does not know topic {topic}"
        return topic

    def put(self, topic: str, rows: Sequence[tuple[str | None, str | None]], partition: int = -1) -> None:
        """Write keys and values, in order, into a partition of them all or the one of their keys."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.servers, "partitioner": "murmur2_random", "linger.ms": 1})
        for key, value in rows:
            producer.produce(topic, None if value is None else value.encode(), key, partition)
        assert producer.flush(60) == 0

    def begin(self, transactional_id: str) -> Any:
        """Return a producer that has begun a transaction under this id."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": transactional_id, "linger.ms": 1})
        # Without connections, a client waits half a second before it finds its coordinator.
        for _ in range(2):
            producer.list_topics(timeout=30)
        producer.init_transactions(30)
        producer.begin_transaction()
        return producer

    def messages(self, topic: str) -> list[Any]:
        """Return what a `read_committed` reader sees of a topic, partition after partition."""
        return list(self._messages(topic))

    def _messages(self, topic: str) -> Iterator[Any]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.servers, "group.id": "tests", "isolation.level": "read_committed",
                "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 50,
                "fetch.queue.backoff.ms": 1,
            }
        )  # fmt: skip
        try:
            partitions = consumer.list_topics(topic, 30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
            left = set(partitions)
            while left:
                message = consumer.poll(30)
                assert message is not None, f"{topic}: nothing is heard of partitions {left}"
                if message.error() is None:
                    yield message
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise AssertionError(message.error())
        finally:
            # It may never return.
            closing = threading.Thread(target=consumer.close, daemon=True)
            closing.start()
            closing.join(10)


def start() -> Kafka:
    """Start a broker that ends with this process, and leaves nothing; UnavailableServerError if it cannot be had."""
    fetch()
    return _started(_classes())


def _started(options: Sequence[str]) -> Kafka:
    directory = Path(tempfile.mkdtemp(prefix="kafka-"))
    # It lives until this process is gone or lets go of the pipe, however that comes about.
    janitor = subprocess.Popen(
        ["sh", "-c", f"trap '' INT; cat >/dev/null; sleep 0.1; rm -rf '{directory}'"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    shutil.copytree(_HOME / "formatted", directory / "data")
    names = ("broker", "secured", "controller")
    server = Kafka(directory, dict(zip(names, free_ports(len(names)), strict=True)), janitor, options)
    settings = _SETTINGS.format(directory=directory, password=PASSWORD, **server._ports)
    (directory / "settings").write_text(settings)
    try:
        server.run()
    except BaseException:
        server.stop()
        raise
    return server


@functools.cache
def _classes() -> Sequence[str]:
    """Return the option by which a broker loads its classes from an archive, made first: that halves what a start costs."""
    java = Path(shutil.which(_java()) or _java()).resolve()
    archive = _HOME / f"classes-{java.stat().st_mtime_ns}.jsa"
    if not archive.exists():
        made = archive.with_suffix(f".{os.getpid()}")
        server = _started([f"-XX:ArchiveClassesAtExit={made}"])
        try:
            server.put(server.create("archived"), [("a", "1")])
            assert server.messages("archived")
            server.end()
        finally:
            server.stop()
        # One that does not fit is not used.
        if made.exists():
            made.replace(archive)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


@functools.cache
def fetch() -> None:
    """Fetch the broker and format a directory, unless that was done; UnavailableServerError if it cannot be."""
    if _HOME.exists():
        return
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise UnavailableServerError("confluent-kafka is not installed") from error
    with locked(_LOCK):
        if not _HOME.exists():
            _fetch()


def _fetch() -> None:
    made = Path(tempfile.mkdtemp(dir=_HOME.parent, prefix="kafka-"))
    try:
        print(f"fetching Apache Kafka {VERSION}, some 45 MB, for tests with a broker", file=sys.stderr)
        _retrieve(made, "org.apache.kafka", "kafka_2.13", VERSION)
        # What it says of fatal errors goes there.
        _retrieve(made, "org.slf4j", "slf4j-simple", "1.7.36")
        settings = _SETTINGS.format(directory=made, password="", broker=1, secured=2, controller=3)
        (made / "settings").write_text(settings)
        formatting = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", f"{made}/settings"]
        _run([_java(), *_LIGHT, "-cp", f"{made}/jars/*", *formatting])
        (made / "data").rename(made / "formatted")
        for file in (made / "formatted").rglob("*"):
            file.chmod(0o755 if file.is_dir() else 0o644)
        made.rename(_HOME)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def connector() -> list[Path]:
    """Fetch Spark's connector, unless that was done; return its jars, for a session that was made without."""
    return _package(0)


def avro() -> list[Path]:
    """Fetch what Spark has `from_avro` from, unless that was done; return its jars."""
    return _package(1)


@functools.cache
def _package(number: int) -> list[Path]:
    import strandline as sl

    settings = sl.kafka.session_settings(avro=True)
    organisation, module, version = settings["spark.jars.packages"].split(",")[number].split(":")
    home = _HOME.parent / f"{module}-{version}"
    with locked(_LOCK):
        if not home.exists():
            made = Path(tempfile.mkdtemp(dir=home.parent, prefix="connector-"))
            try:
                _retrieve(made, organisation, module, version)
                there = tuple(f"{name.partition(':')[2]}-" for name in settings["spark.jars.excludes"].split(","))
                for jar in (made / "jars").iterdir():
                    if jar.name.startswith(there):
                        jar.unlink()
                made.rename(home)
            finally:
                shutil.rmtree(made, ignore_errors=True)
    return sorted((home / "jars").iterdir())


def add_jars(spark: Any, find: Callable[[], list[Path]]) -> None:
    """Give a session the jars that `connector` or `avro` finds, or skip the test."""
    import pytest

    try:
        jars = find()
    except UnavailableServerError as error:
        pytest.skip(str(error))
    for jar in jars:
        spark.sql(f"ADD JAR '{jar}'")


def _retrieve(home: Path, organisation: str, module: str, version: str) -> None:
    import pyspark

    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    wanted = ["-dependency", organisation, module, version, "-confs", "default"]
    to = f"{home}/jars/[artifact]-[revision].[ext]"
    _run([_java(), "-cp", str(ivy), "org.apache.ivy.Main", "-warn", *wanted, "-retrieve", to])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise UnavailableServerError(f"Apache Kafka cannot be had here: {done.stdout[-2000:]}")


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def _answers(port: int) -> bool:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    quiet = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
    try:
        return bool(AdminClient(quiet).list_topics(timeout=1).brokers)
    except KafkaException:
        return False


if __name__ == "__main__":
    fetch()
    _classes()
    connector()
    avro()
