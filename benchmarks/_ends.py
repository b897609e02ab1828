"""What `benchmarks.ends` writes into: each system with its server, its sink, and how its own client sees new rows."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import strandline as sl


class End(ABC):
    """A system that rows end in. Rows are `id bigint, person string, amount double, at timestamp`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextmanager
    def running(self, spark: Any) -> Iterator[None]:
        """Run the server, if there is one."""
        yield

    @abstractmethod
    def sink(self) -> sl.sinks.Sink:
        """Return the sink."""

    @abstractmethod
    def count(self) -> int:
        """Return how many rows everybody can see, cheaply."""

    @abstractmethod
    def new(self) -> list[float]:
        """Return the event times, in seconds, of rows that can be seen now and could not before."""


class Kafka(End):
    @contextmanager
    def running(self, spark: Any) -> Iterator[None]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        from tests import kafkaserver

        server = kafkaserver.start()
        self.servers, self.topic = server.servers, server.create("out", 2)
        for jar in kafkaserver.connector():
            spark.sql(f"ADD JAR '{jar}'")
        self._consumer = Consumer({
            "bootstrap.servers": self.servers, "group.id": "benchmark", "isolation.level": "read_committed",
            "enable.auto.commit": False, "fetch.wait.max.ms": 20,
        })  # fmt: skip
        self._consumer.assign([TopicPartition(self.topic, number, OFFSET_BEGINNING) for number in (0, 1)])
        try:
            yield
        finally:
            self._consumer.close()
            server.stop()

    def sink(self) -> sl.sinks.Sink:
        return sl.sinks.kafka(self.servers, self.topic, key="person", name="out")

    def count(self) -> int:
        """With the few marks of transactions, each of which has an offset."""
        from confluent_kafka import TopicPartition

        ends = [self._consumer.get_watermark_offsets(TopicPartition(self.topic, n), timeout=10) for n in (0, 1)]
        return sum(high for _, high in ends)

    def new(self) -> list[float]:
        messages = self._consumer.consume(10_000, 0.02)
        return [_seconds(json.loads(message.value())["at"]) for message in messages if not message.error()]


class PostgreSQL(End):
    _key: str | None = None

    @contextmanager
    def running(self, spark: Any) -> Iterator[None]:
        from tests import postgres

        server = postgres.start()
        if server is None:
            raise SystemExit("there is no PostgreSQL for this machine")
        # What it commits is on disk, as in production.
        server.settings |= {
            "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "shared_buffers": "512MB",
            "max_wal_size": "8GB",
        }  # fmt: skip
        server.kill()
        server.start()
        self._dsn, self._last = server.schema(), [-1, -1]
        self._db = server.connect(self._dsn)
        try:
            yield
        finally:
            self._db.close()
            server.stop()

    def sink(self) -> sl.sinks.Sink:
        return sl.sinks.postgres(self._dsn, "results", create=True, key=self._key, name="out")

    def count(self) -> int:
        return int(self._ask("select count(*) from results")[0][0] or 0)

    def new(self) -> list[float]:
        found: list[tuple[float, int]] = []
        for lane, last in enumerate(self._last):
            rows = self._ask(f"select extract(epoch from at), id from results where id % 2 = {lane} and id > {last}")
            if rows:
                self._last[lane] = max(number for _, number in rows)
            found += rows
        return [float(at) for at, _ in found]

    def _ask(self, question: str) -> list[Any]:
        import psycopg

        try:
            rows: list[Any] = self._db.execute(question).fetchall()
        except psycopg.errors.UndefinedTable:
            return [(0,)] if "count" in question else []
        return rows


class PostgreSQLByKey(PostgreSQL):
    """Each row in the place of the one that had its key, of 100,000."""

    _key = "person"

    def count(self) -> int:
        """As the numbers of rows tell it."""
        return int(self._ask("select count(*), max(id) + 1 from results")[0][-1] or 0)


class Files(End):
    """Parquet files, renamed into place."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._path = directory / "out"
        self._counted: dict[str, int] = {}
        self._seen: set[str] = set()

    def sink(self) -> sl.sinks.Sink:
        return sl.sinks.files(str(self._path), name="out")

    def _files(self) -> list[str]:
        return [str(path) for path in self._path.glob("part-*.parquet")]

    def count(self) -> int:
        import pyarrow.parquet as pq

        for path in self._files():
            if path not in self._counted:
                self._counted[path] = pq.read_metadata(path).num_rows
        return sum(self._counted.values())

    def new(self) -> list[float]:
        import pyarrow.parquet as pq

        fresh = [path for path in self._files() if path not in self._seen]
        self._seen.update(fresh)
        return [at.timestamp() for path in fresh for at in pq.read_table(path, columns=["at"])["at"].to_pylist()]


class Delta(Files):
    """A Delta table, as its log has it."""

    def sink(self) -> sl.sinks.Sink:
        return sl.sinks.delta(self._path, name="out")

    def _files(self) -> list[str]:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return [uri.removeprefix("file://") for uri in DeltaTable(str(self._path)).file_uris()]
        except TableNotFoundError:
            return []


ENDS: dict[str, type[End]] = {
    "kafka": Kafka, "postgresql": PostgreSQL, "postgresql-by-key": PostgreSQLByKey, "delta": Delta, "files": Files,
}  # fmt: skip


def ages(end: End) -> list[float]:
    """Return how old new rows are, in milliseconds."""
    found = end.new()
    now = time.time()
    return [(now - at) * 1000 for at in found]


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()
