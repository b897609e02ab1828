"""The sinks in which rows of a view are replaced and deleted by key, with readers of their own."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import strandline as sl
from tests.kafkaserver import Kafka
from tests.postgres import Server
from tests.spark.views.harness import Bag


@dataclass(frozen=True)
class Places:
    """Where the sinks write."""

    path: str
    dsn: str
    servers: str
    topic: str

    @property
    def catalog(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.path}/c.db", "warehouse": f"file://{self.path}/w"}

    def sink(self, kind: str, key: Sequence[str], **more: Any) -> Any:
        """Return the sink of a kind."""
        given = {"key": key, "name": kind, **more}
        if kind == "postgres":
            return sl.sinks.postgres(self.dsn, "result", create=True, **given)
        if kind == "sqlite":
            return sl.sinks.sqlite(f"{self.path}/result.db", "result", create=True, **given)
        if kind == "delta":
            return sl.sinks.delta(f"{self.path}/delta", **given)
        if kind == "iceberg":
            return sl.sinks.iceberg(self.catalog, "a.result", **given)
        return sl.sinks.kafka(self.servers, self.topic, **given)


class Ends:
    """One place of each kind, and what another program finds there."""

    def __init__(self, path: Path, postgresql: Server, kafka: Kafka) -> None:
        self._postgresql, self._kafka = postgresql, kafka
        dsn = postgresql.schema()
        topic = kafka.create(dsn.rpartition("%3D")[2], 3, cleanup_policy="compact")
        self.places = Places(str(path), dsn, kafka.servers, topic)

    def rows(self, kind: str, columns: Sequence[str]) -> Bag:
        """Return the rows with these columns, each value as text: see `as_text`."""
        read: Callable[[Sequence[str]], list[tuple[Any, ...]]] = getattr(self, f"_of_{kind}")
        return as_text(read(columns))

    def messages(self) -> list[Any]:
        """Return all messages of the topic, with those that others have replaced."""
        return self._kafka.messages(self.places.topic)

    def _of_postgres(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        with self._postgresql.connect(self.places.dsn) as db:
            rows: list[tuple[Any, ...]] = db.execute(f"SELECT {', '.join(columns)} FROM result").fetchall()
            return rows

    def _of_sqlite(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        with sqlite3.connect(f"{self.places.path}/result.db") as db:
            rows = db.execute(f"SELECT {', '.join(columns)} FROM result").fetchall()
        db.close()
        return rows

    def _of_delta(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        rows = DeltaTable(f"{self.places.path}/delta").to_pyarrow_table().select(columns)
        return [tuple(row.values()) for row in rows.to_pylist()]

    def _of_iceberg(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        rows = load_catalog(**self.places.catalog).load_table("a.result").scan().to_arrow().select(columns)
        return [tuple(row.values()) for row in rows.to_pylist()]

    def _of_kafka(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        newest = {message.key(): message.value() for message in self.messages()}
        rows = [json.loads(value, parse_float=Decimal) for value in newest.values() if value is not None]
        return [tuple(row.get(name) for name in columns) for row in rows]


def as_text(rows: Iterable[Sequence[Any]]) -> Bag:
    """Return rows with values as text, the same for all places: some have no types for times, numbers and bytes."""
    return Counter(tuple(map(_text, row)) for row in rows)


def _text(value: Any) -> str | None:
    if isinstance(value, dt.datetime):
        moment = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
        return moment.isoformat(timespec="milliseconds" if moment.microsecond == 0 else "microseconds")
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, str) and (moment := re.fullmatch(r"(\d{4}-..-..)[ T](..:..:..\.\d+)Z", value)):
        return _text(dt.datetime.fromisoformat(f"{moment[1]}T{moment[2]}"))
    return None if value is None else str(value)


KINDS = ("postgres", "sqlite", "delta", "iceberg", "kafka")
