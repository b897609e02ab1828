"""What `ends` and `latency` write into: each system with its server, its sink, and how its own client sees new rows."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import strandline as sl


class Row(NamedTuple):
    """A row that can be seen, with its event time in seconds."""

    id: int
    at: float
    amount: float


class End(ABC):
    """A system that rows end in. Rows are `id bigint, person string, amount double, at timestamp`.

    While it runs, another process may see its rows: it gets a copy, as pickle makes one, which has no client yet.
    """

    counts_all = True
    """Whether `count` counts rows and nothing else."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextmanager
    def running(self, spark: Any, broker: Any = None) -> Iterator[None]:
        """Run the server, if there is one; `broker` is a running broker of Kafka."""
        yield

    @abstractmethod
    def sink(self) -> sl.sinks.Sink:
        """Return the sink."""

    @abstractmethod
    def count(self) -> int:
        """Return how many rows everybody can see, cheaply."""

    @abstractmethod
    def new(self) -> list[Row]:
        """Return rows that can be seen now and could not before."""


@contextmanager
def running_broker(spark: Any) -> Iterator[Any]:
    """Run a broker of Kafka, which the session can read from and write to."""
    from tests import kafkaserver

    server = kafkaserver.start()
    try:
        for jar in kafkaserver.connector():
            spark.sql(f"ADD JAR '{jar}'")
        yield server
    finally:
        server.stop()


class Kafka(End):
    counts_all = False
    visibility: Any = "checkpoint"
    _consumer: Any = None

    @contextmanager
    def running(self, spark: Any, broker: Any = None) -> Iterator[None]:
        if broker is None:
            with running_broker(spark) as broker, self.running(spark, broker):
                yield
            return
        self.servers, self.topic = broker.servers, broker.create("out", 2)
        try:
            yield
        finally:
            if self._consumer is not None:
                self._consumer.close()

    def sink(self) -> sl.sinks.Sink:
        return sl.sinks.kafka(self.servers, self.topic, key="person", name="out", visibility=self.visibility)

    def count(self) -> int:
        """With the few marks of transactions, each of which has an offset."""
        from confluent_kafka import TopicPartition

        consumer = self._client()
        ends = [consumer.get_watermark_offsets(TopicPartition(self.topic, n), timeout=10) for n in (0, 1)]
        return sum(high for _, high in ends)

    def new(self) -> list[Row]:
        messages = self._client().consume(10_000, 0.02)
        rows = [json.loads(message.value()) for message in messages if not message.error()]
        return [Row(row["id"], datetime.fromisoformat(row["at"]).timestamp(), row["amount"]) for row in rows]

    def _client(self) -> Any:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        if self._consumer is None:
            self._consumer = Consumer({
                "bootstrap.servers": self.servers, "group.id": "benchmark", "isolation.level": "read_committed",
                "enable.auto.commit": False, "fetch.wait.max.ms": 20,
            })  # fmt: skip
            self._consumer.assign([TopicPartition(self.topic, number, OFFSET_BEGINNING) for number in (0, 1)])
        return self._consumer


class PostgreSQL(End):
    _key: str | None = None
    _avoids_scans = False
    _db: Any = None

    @contextmanager
    def running(self, spark: Any, broker: Any = None) -> Iterator[None]:
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
        try:
            yield
        finally:
            if self._db is not None:
                self._db.close()
            server.stop()

    def sink(self) -> sl.sinks.Sink:
        return sl.sinks.postgres(self._dsn, "results", create=True, key=self._key, name="out")

    def count(self) -> int:
        return int(self._ask("select count(*) from results")[0][0] or 0)

    def new(self) -> list[Row]:
        found: list[Row] = []
        for lane, last in enumerate(self._last):
            rows = self._rows(f"id % 2 = {lane} and id > {last}")
            if rows:
                self._last[lane] = max(row.id for row in rows)
            found += rows
        return found

    def _rows(self, condition: str) -> list[Row]:
        rows = self._ask(f"select id, extract(epoch from at), amount from results where {condition}")
        return [Row(number, float(at), amount) for number, at, amount in rows]

    def _ask(self, question: str) -> list[Any]:
        import psycopg

        if self._db is None:
            self._db = psycopg.connect(self._dsn, autocommit=True, connect_timeout=10)
            if self._avoids_scans:
                self._db.execute("set enable_seqscan = off")
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


class PostgreSQLInAnyOrder(PostgreSQL):
    """Rows with ids from 0 on, in whatever order: those of one epoch come in more than one lane."""

    # Without statistics, the server expects a third of the table to be new, and reads all of it: a quarter of a core.
    _avoids_scans = True

    @contextmanager
    def running(self, spark: Any, broker: Any = None) -> Iterator[None]:
        import psycopg

        self._whole, self._beyond = -1, set[int]()
        """All ids up to this one were seen, and these."""
        with super().running(spark, broker):
            with psycopg.connect(self._dsn) as db:
                db.execute("create table results (id bigint, person text, amount double precision, at timestamptz)")
                db.execute("create index on results (id)")
            yield

    def new(self) -> list[Row]:
        rows = [row for row in self._rows(f"id > {self._whole}") if row.id not in self._beyond]
        self._beyond.update(row.id for row in rows)
        while self._whole + 1 in self._beyond:
            self._whole += 1
            self._beyond.discard(self._whole)
        return rows


class Files(End):
    """Parquet files, renamed into place."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._path = directory / "out"
        self._counted: dict[str, int] = {}
        self._seen: set[str] = set()

    def sink(self) -> sl.sinks.Sink:
        return sl.sinks.files(str(self._path), name="out")

    def _files(self) -> Sequence[str]:
        return [str(path) for path in self._path.glob("part-*.parquet")]

    def count(self) -> int:
        import pyarrow.parquet as pq

        for path in self._files():
            if path not in self._counted:
                self._counted[path] = pq.read_metadata(path).num_rows
        return sum(self._counted.values())

    def new(self) -> list[Row]:
        import pyarrow.parquet as pq

        found: list[Row] = []
        for path in self._files():
            if path not in self._seen:
                self._seen.add(path)
                columns = pq.read_table(path, columns=["id", "at", "amount"], partitioning=None).to_pydict().values()
                found += [Row(number, at.timestamp(), amount) for number, at, amount in zip(*columns, strict=True)]
        return found


class Delta(Files):
    """A Delta table, as its log has it."""

    _table: Any = None
    _listed: Sequence[str] = ()

    def sink(self) -> sl.sinks.Sink:
        return sl.sinks.delta(self._path, name="out")

    def _files(self) -> Sequence[str]:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        # Without the look into the directory, the table's library would need a part of a core.
        following = 0 if self._table is None else self._table.version() + 1
        if not (self._path / "_delta_log" / f"{following:020}.json").exists():
            return self._listed
        try:
            if self._table is None:
                self._table = DeltaTable(str(self._path))
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            return []
        self._listed = [uri.removeprefix("file://") for uri in self._table.file_uris()]
        return self._listed


class KafkaAtOnce(Kafka):
    """Rows are there with their epoch, at least once."""

    visibility = "epoch"


ENDS: dict[str, type[End]] = {
    "kafka": Kafka, "postgresql": PostgreSQL, "postgresql-by-key": PostgreSQLByKey, "delta": Delta, "files": Files,
}  # fmt: skip


def ages(end: End) -> list[float]:
    """Return how old new rows are, in milliseconds."""
    found = end.new()
    now = time.time()
    return [(now - row.at) * 1000 for row in found]
