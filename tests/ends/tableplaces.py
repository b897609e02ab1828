"""One table of one format, with its own reader and other writers: what the tests of table formats share."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.types import StringType as IcebergString
from pyspark.sql.types import (
    LongType,
    StringType,
    StructField,
    StructType,
)

import strandline as sl
from strandline.core.ids import Epoch, Generation
from strandline.spark.sinks.base import SinkContext
from tests.ends import inprocess

SESSION: Any = inprocess.Session()

NAMES = StructType([StructField("k", LongType()), StructField("v", StringType())])


class Place:
    """One table of one format, and its own reader."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind, self.path = kind, path
        path.mkdir()
        self.catalog = {"type": "sql", "uri": f"sqlite:///{path}/c.db", "warehouse": f"file://{path}/w"}
        self.generation = 0

    def make(self, **options: Any) -> Any:
        if self.kind == "delta":
            return sl.sinks.delta(self.path / "table", **options)
        return sl.sinks.iceberg(self.catalog, "a.table", **options)

    def start(
        self,
        pending: Sequence[str] = (),
        epoch: int = 0,
        *,
        fresh: bool = False,
        restored_by: int = 0,
        **options: Any,
    ) -> Any:
        sink = self.make(**options)
        sink.patience_s = sink.start_patience_s = 0.5
        self.go_on(sink, pending, epoch, fresh=fresh, restored_by=restored_by)
        return sink

    def go_on(
        self, sink: Any, pending: Sequence[str], epoch: int, *, fresh: bool = False, restored_by: int = 0
    ) -> list[str]:
        """Restart a sink of this process, as a run does; return what it leaves."""
        self.generation += 1
        context = SinkContext(
            SESSION, "job", "life", Generation(self.generation), "out", fsync=False, restored_by=restored_by
        )
        sink.check(context)
        sink.open(context)
        left: list[str] = sink.recover(list(pending), Epoch(epoch), fresh=fresh or epoch == 0)
        return left

    def table(self) -> Any:
        if self.kind == "delta":
            return DeltaTable(str(self.path / "table"))
        return self.reader.load_table("a.table")

    @cached_property
    def reader(self) -> Any:
        return load_catalog(**self.catalog)

    def create(self, columns: pa.Schema, version: int = 2, part: str = "") -> None:
        """Create an Iceberg table, as another program does, perhaps in parts by a column."""
        self.reader.create_namespace("a")
        self.reader.create_table("a.table", columns, properties={"format-version": str(version)})
        if part:
            with self.table().update_spec() as spec:
                spec.add_identity(part)

    def rows(self) -> pa.Table:
        table = self.table()
        return table.to_pyarrow_table() if self.kind == "delta" else table.scan().to_arrow()

    def pairs(self) -> list[Any]:
        return sorted(tuple(row.values()) for row in self.rows().select(["k", "v"]).to_pylist())

    def append(self, rows: pa.Table) -> None:
        """Do what another writer does."""
        if self.kind == "delta":
            write_deltalake(str(self.path / "table"), rows, mode="append")
        else:
            self.table().append(rows)

    def make_anew(self, rows: pa.Table) -> None:
        """Put another table in the place of this one."""
        if self.kind == "delta":
            shutil.rmtree(self.path / "table" / "_delta_log")
        else:
            catalog = load_catalog(**self.catalog)
            catalog.drop_table("a.table")
            catalog.create_table("a.table", rows.schema)
        self.append(rows)

    def marked(self, how: str) -> tuple[list[Any], Callable[[], Any]]:
        """Return what is there, and what puts the table back to that: as its format does, or by a copy of its log."""
        if how == "its own command":
            table = self.table()
            if self.kind == "delta":
                version = table.version()
                return self.pairs(), lambda: self.table().restore(version)
            snapshot = table.current_snapshot().snapshot_id
            return self.pairs(), lambda: self.table().manage_snapshots().set_current_snapshot(snapshot).commit()
        log = self.path / ("table/_delta_log" if self.kind == "delta" else "c.db")
        copy = self.path / f"copy-{uuid.uuid4()}"
        made = shutil.copytree if self.kind == "delta" else shutil.copy
        made(log, copy)

        def put_back() -> None:
            if self.kind == "delta":
                shutil.rmtree(log)
            made(copy, log)
            vars(self).pop("reader", None)

        return self.pairs(), put_back

    def files(self) -> list[str]:
        table = self.table()
        if self.kind == "delta":
            return list(table.file_uris())
        return [task.file.file_path for task in table.scan().plan_files()]


def stage(sink: Any, epoch: int, *parts: Sequence[Sequence[Any]], schema: StructType = NAMES) -> list[str]:
    staged: list[str] = sink.write(inprocess.Given(schema, *parts), Epoch(epoch))
    return [*staged, sink.reached()]


def tried(sink: Any, schema: StructType) -> None:
    frame: Any = inprocess.Given(schema)
    sink.try_out(frame)


def meanwhile(sink: Any, others: Callable[[], Any]) -> None:
    """Have others do something when the sink has loaded its table for the next time, and knows nothing of it."""
    before_next(sink, "record", others)


def before_next(made: Any, method: str, others: Callable[[], Any]) -> None:
    """Have others do something before the next call of a method."""
    call, left = getattr(made, method), [others]

    def called(*arguments: Any, **named: Any) -> Any:
        if left:
            left.pop()()
        return call(*arguments, **named)

    setattr(made, method, called)


@contextmanager
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def load(self: Any) -> Any:
        raise ConnectionRefusedError("nobody listens")

    with monkeypatch.context() as patch:
        for kind in (sl.sinks.delta, sl.sinks.iceberg):
            patch.setattr(kind, "load", load)
        yield


@contextmanager
def mute(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def losing(commit: Any) -> Any:
        def lose(*arguments: Any) -> None:
            commit(*arguments)
            raise TimeoutError("no answer")

        return lose

    with monkeypatch.context() as patch:
        for kind in (sl.sinks.delta, sl.sinks.iceberg):
            patch.setattr(kind, "commit_files", losing(kind.commit_files))
            patch.setattr(kind, "commit_rows", losing(kind.commit_rows))
        yield


def changed(place: Place, how: str) -> None:
    """Do to the table what its owner may."""
    path = str(place.path / "table")
    other = pa.table({"k": pa.array([0], pa.int64()), "v": ["z"]})
    if place.kind == "delta":
        if how == "parts":
            write_deltalake(path, other, mode="overwrite", schema_mode="overwrite", partition_by=["v"])
        elif how == "type":
            write_deltalake(path, pa.table({"k": ["z"], "v": ["z"]}), mode="overwrite", schema_mode="overwrite")
        elif how == "gone":
            write_deltalake(path, pa.table({"v": ["z"]}), mode="overwrite", schema_mode="overwrite")
        else:
            place.table().alter.add_constraint({"small": "k < 3"})
        return
    if how == "parts":
        with place.table().update_spec() as spec:
            spec.add_identity("v")
        return
    with place.table().update_schema() as schema:
        schema.rename_column("k", "old")
    if how == "type":
        with place.table().update_schema() as schema:
            schema.add_column("k", IcebergString())


def staged_files(staged: Sequence[str]) -> list[str]:
    return [file[0] for text in staged if (found := json.loads(text))[0] == "files" for file in found[4]]
