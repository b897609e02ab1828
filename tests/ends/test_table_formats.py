"""What sinks of table formats do besides: rivals, answers that are lost, keys, columns, partitions, and mistakes."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake import Schema as DeltaSchema
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import StringType as IcebergString
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import strandline as sl
from strandline.core import failpoints
from strandline.core.errors import (
    AccessError,
    ConfigurationError,
    CorruptionError,
    FencedError,
    SinkError,
    UnavailableError,
)
from strandline.core.ids import Epoch, Generation
from strandline.ends.tables.datafiles import cast_rows, refuse_unreadable, statistics_of
from strandline.spark.sinks.base import SinkContext
from strandline.testing.sinks.conformance import (
    Promise,
    Trial,
    a_target_that_is_away_is_caught_up_with,
    checks,
    lives_and_sinks_share_a_place,
    name_of,
)
from strandline.testing.sinks.conformance import an_answer_that_is_lost_is_asked_for as lost_answer
from tests.ends import inprocess
from tests.pages import run_page

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

    def start(self, pending: Sequence[str] = (), epoch: int = 0, *, fresh: bool = False, **options: Any) -> Any:
        sink = self.make(**options)
        sink.patience_s = sink.start_patience_s = 0.5
        self.go_on(sink, pending, epoch, fresh=fresh)
        return sink

    def go_on(self, sink: Any, pending: Sequence[str], epoch: int, *, fresh: bool = False) -> list[str]:
        """Restart a sink of this process, as a run does; return what it leaves."""
        self.generation += 1
        context = SinkContext(SESSION, "job", "life", Generation(self.generation), "out", fsync=False)
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


@pytest.fixture(params=["delta", "iceberg"])
def place(request: Any, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path / "place")


@pytest.fixture
def delta(tmp_path: Path) -> Place:
    return Place("delta", tmp_path / "place")


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


# -- rivals, and what is away


# By key, only the commit itself is another one.
@pytest.mark.parametrize(
    ("key", "at"),
    [
        (None, "load"), (None, "files"), (None, "commit"), ("k", "commit"),
        *(pytest.param("k", at, marks=pytest.mark.soak) for at in ("load", "files")),
    ],
)  # fmt: skip
def test_a_replaced_driver_that_has_looked_before_cannot_commit(place: Place, key: Any, at: str) -> None:
    older = place.start(key=key)
    first = stage(older, 1, [(1, "a")])
    older.commit(first)
    second = stage(older, 2, [(2, "b")])
    newer: list[Any] = []

    def replace() -> None:
        newer.append(place.start(first, 1, key=key))

    if at == "load":
        meanwhile(older, replace)
    elif at == "files":
        failpoints.arm("sink.table_before", replace)
    elif place.kind == "delta":
        before_next(older, "_properties", replace)
    else:
        before_next(older._catalog(), "commit_table", replace)
    with pytest.raises(FencedError, match="generation 2 of the job writes"):
        older.commit([*first, *second])
    assert place.pairs() == [(1, "a")]
    newer[0].commit(stage(newer[0], 2, [(2, "again")]))
    assert place.pairs() == [(1, "a"), (2, "again")]


@pytest.mark.parametrize("key", [None, "k"])
def test_another_writer_is_no_hindrance(place: Place, key: Any) -> None:
    sink = place.start(key=key)
    sink.commit(stage(sink, 1, [(1, "a")]))
    staged = stage(sink, 2, [(2, "b")])
    meanwhile(sink, lambda: place.append(pa.table({"k": [7], "v": ["other"]})))
    assert not sink.commit(staged)
    assert place.pairs() == [(1, "a"), (2, "b"), (7, "other")]


@pytest.mark.parametrize("key", [None, "k"])
def test_a_writer_of_another_branch_is_no_hindrance(tmp_path: Path, key: Any) -> None:
    place = Place("iceberg", tmp_path / "place")
    sink = place.start(key=key)
    sink.commit(stage(sink, 1, [(1, "a")]))
    table = place.table()
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "other").commit()
    staged = stage(sink, 2, [(2, "b")])
    rows = pa.table({"k": [7], "v": ["other"]})
    before_next(sink._catalog(), "commit_table", lambda: place.table().append(rows, branch="other"))
    assert not sink.commit(staged)
    assert place.pairs() == [(1, "a"), (2, "b")]


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


# A table is loaded in the same way with a key and without.
@pytest.mark.parametrize(
    ("check", "key"),
    [
        (a_target_that_is_away_is_caught_up_with, None), (lost_answer, None), (lost_answer, "n"),
        pytest.param(a_target_that_is_away_is_caught_up_with, "n", marks=pytest.mark.soak),
    ],
)  # fmt: skip
def test_a_table_that_is_away(place: Place, monkeypatch: pytest.MonkeyPatch, key: Any, check: Any) -> None:
    check(
        Trial(
            SESSION,
            make=lambda: place.make(key=key),
            visible=lambda: place.rows()["n"].to_pylist(),
            away=lambda: away(monkeypatch),
            mute=lambda: mute(monkeypatch),
        )
    )


def test_what_waits_is_told(delta: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = delta.start()
    staged = stage(sink, 1, [(1, "a"), (2, "b")])
    with away(monkeypatch):
        assert sink.commit(staged) == staged[:1]
    assert (sink.status().waiting_rows, sink.status().rows) == (2, 0)
    assert "nobody listens" in sink.status().failure
    sink.commit(staged)
    assert (sink.status().waiting_rows, sink.status().rows, sink.status().failure) == (0, 2, "")


def test_rows_are_staged_while_the_table_cannot_be_asked(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again and again how it wants them: a catalog that is away need not end the job."""
    monkeypatch.setattr("strandline.spark.sinks.tables.sink._RELOAD_S", 0.0)
    sink = place.start()
    left = stage(sink, 1, [(1, "a")])
    with away(monkeypatch):
        left += stage(sink, 2, [(2, "b")])
        assert len(sink.commit(left)) == 2
    sink.commit(left)
    assert sorted(place.pairs()) == [(1, "a"), (2, "b")]
    # A run that has never asked it does not know.
    sink = place.start([], 2)
    with away(monkeypatch), pytest.raises(UnavailableError, match="nobody listens"):
        stage(sink, 3, [(3, "c")])


@pytest.mark.parametrize("key", [None, "k"])
def test_a_job_that_restarts_while_its_table_is_away(place: Place, monkeypatch: pytest.MonkeyPatch, key: Any) -> None:
    """It goes on, as often as it has to; what its checkpoint lists, and what it stages, comes when the table is back."""
    sink = place.start(key=key)
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    second = stage(sink, 2, [(2, "b")])
    sink.commit(second)
    fourth = stage(sink, 4, [(4, "void")])
    with away(monkeypatch):
        for _ in range(2):
            assert place.go_on(sink, second, 2) == second[:1]
            third = stage(sink, 3, [(3, "c")])
            assert sink.commit([*second[:1], *third]) == [second[0], third[0]]
    assert sink.status().waiting_rows == 2
    for _ in range(2):
        assert sink.commit([second[0], *third]) == []
    assert place.pairs() == [(1, "a"), (2, "b"), (3, "c")]
    (void,) = [file for each in sink._decode(fourth)[0] for file in each.files]
    assert not list(place.path.rglob(Path(void.path).name))
    place.start(third, 3, key=key)
    assert place.pairs() == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("commits", [False, True])
def test_a_table_that_was_not_made_yet_when_its_catalog_was_away(
    place: Place, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    sink = place.start()
    with away(monkeypatch):
        assert not place.go_on(sink, [], 0)
    if commits:
        sink.commit([])
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    assert place.pairs() == [(1, "a")]
    place.start(first, 1)
    assert place.pairs() == [(1, "a")]


@pytest.mark.parametrize("key", [None, "k"])
def test_a_table_that_goes_away_right_behind_a_transaction(
    place: Place, monkeypatch: pytest.MonkeyPatch, key: Any
) -> None:
    """What is left to do then is to delete files that nobody needs."""

    def away_behind(commit: Any) -> Any:
        def made(*arguments: Any, **named: Any) -> None:
            commit(*arguments, **named)
            monkeypatch.undo()
            before_next(sink, "load", gone)

        return made

    def gone() -> None:
        raise ConnectionRefusedError("nobody listens")

    sink = place.start(key=key)
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    monkeypatch.setattr(sink, "commit_files", away_behind(sink.commit_files))
    assert place.go_on(sink, first, 1) == []
    second = stage(sink, 2, [(2, "b")])
    sink.patience_s = 0.0
    monkeypatch.setattr(sink, "committed", away_behind(sink.committed))
    assert sink.commit(second) == []
    assert place.pairs() == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("answer", ["", "lost"])
def test_a_run_that_goes_back_needs_its_table(place: Place, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """A later run would not know what is to be taken back: it restores a checkpoint of after that."""
    sink = place.start()
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    second = stage(sink, 2, [(2, "gone")])
    sink.patience_s = 0.0
    with mute(monkeypatch) if answer else nullcontext():
        assert bool(sink.commit(second)) == bool(answer)
    with away(monkeypatch):
        for _ in range(2):
            with pytest.raises(UnavailableError, match="nobody listens"):
                place.go_on(sink, first, 1)
    assert not place.go_on(sink, first, 1)
    assert place.pairs() == [(1, "a")]
    second = stage(sink, 2, [(2, "b")])
    sink.commit(second)
    assert place.pairs() == [(1, "a"), (2, "b")]
    # So does a program that starts the job once more: another one may have gone back in between.
    tried(sink, NAMES)
    with away(monkeypatch):
        assert place.go_on(sink, second, 2)
        sink._begin_anew()
        with pytest.raises(UnavailableError, match="nobody listens"):
            place.go_on(sink, second, 2)


def test_a_run_that_was_replaced_while_its_table_was_away(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = place.start()
    first = stage(sink, 1, [(1, "a")])
    with away(monkeypatch):
        assert place.go_on(sink, first, 1) == first[:1]
        second = stage(sink, 2, [(2, "b")])
    place.start(first, 1)
    with pytest.raises(FencedError):
        sink.commit([*first, *second])
    assert place.pairs() == [(1, "a")]


def test_a_data_file_that_is_gone_is_not_listed(place: Place) -> None:
    sink = place.start()
    staged = stage(sink, 1, [(1, "a")])
    (file,) = place.path.rglob("strandline-*/g1/*.parquet")
    file.unlink()
    with pytest.raises(CorruptionError, match=rf"{file.name} is gone"):
        sink.commit(staged)
    assert place.pairs() == [] if place.kind == "iceberg" else place.files() == []


def test_a_table_that_is_gone_or_put_back(place: Place) -> None:
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    staged = stage(sink, 2, [(2, "b")])
    if place.kind == "delta":
        for entry in (place.path / "table" / "_delta_log").iterdir():
            entry.unlink()
    else:
        load_catalog(**place.catalog).drop_table("a.table")
    with pytest.raises(CorruptionError, match="less of the job's rows than it had"):
        sink.commit(staged)
    with pytest.raises(CorruptionError, match="the table is gone, and rows of the last checkpoint wait for it"):
        place.start(staged, 2)
    with pytest.raises(CorruptionError, match="the table is gone, with rows that would not come again"):
        place.start(staged[1:], 2)
    place.start([], 2)


def test_a_table_made_anew_does_not_hide_what_is_gone(place: Place) -> None:
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    staged = stage(sink, 2, [(2, "b")])
    place.make_anew(pa.table({"k": [7], "v": ["other"]}))
    with pytest.raises(CorruptionError, match=r"it has none on record, and had epoch 1"):
        place.start(staged, 2)
    assert place.pairs() == [(7, "other")]


# What is on record, and was, is compared before rows are looked at.
@pytest.mark.parametrize(
    ("how", "key"),
    [
        ("its own command", None), ("its own command", "k"), ("a copy", None),
        pytest.param("a copy", "k", marks=pytest.mark.soak),
    ],
)  # fmt: skip
def test_a_table_that_was_put_back_is_not_written_to(place: Place, how: str, key: Any) -> None:
    """Rows between are nobody's to add again: neither the run nor the next one may go on behind a hole."""
    sink = place.start(key=key)
    sink.commit(stage(sink, 1, [(1, "a")]))
    older, put_back = place.marked(how)
    second = stage(sink, 2, [(2, "b")])
    sink.commit(second)
    staged = stage(sink, 3, [(3, "c")])
    newer, bring_back = place.marked(how)
    put_back()
    lost = r"less of the job's rows than it had: it was put back .* \(it has epoch 1 on record, and had epoch 2\)"
    with pytest.raises(CorruptionError, match=lost):
        sink.commit(staged)
    with pytest.raises(CorruptionError, match=lost):
        place.start(staged, 3, key=key)
    # Where no rows wait, too.
    with pytest.raises(CorruptionError, match=lost):
        place.start(staged[-1:], 2, key=key)
    assert place.pairs() == older
    bring_back()
    assert place.pairs() == newer
    place.start(staged, 3, key=key)
    assert place.pairs() == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("how", ["its own command", "a copy"])
def test_a_job_may_go_back_with_its_table(place: Place, how: str) -> None:
    """What the older checkpoint lists is not in the older table, whatever the record says that was left as it is."""
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    _, put_back = place.marked(how)
    second = stage(sink, 2, [(2, "b")])
    sink.commit(second)
    sink.commit(stage(sink, 3, [(3, "c")]))
    put_back()
    sink = place.start(second, 2)
    assert place.pairs() == [(1, "a"), (2, "b")]
    third = stage(sink, 3, [(3, "d")])
    sink.commit(third)
    place.start(second, 2).commit(third)
    assert place.pairs() == [(1, "a"), (2, "b"), (3, "d")]


def test_a_table_that_is_put_back_while_a_transaction_is_under_way(delta: Place) -> None:
    sink = delta.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    _, put_back = delta.marked("its own command")
    sink.commit(stage(sink, 2, [(2, "b")]))
    third = stage(sink, 3, [(3, "c")])
    before_next(sink, "_properties", put_back)
    with pytest.raises(CorruptionError, match="it was put back"):
        sink.commit(third)
    assert delta.pairs() == [(1, "a")]


def test_restored_to_a_time_and_there_and_back(delta: Place) -> None:
    sink = delta.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    sink.commit(stage(sink, 2, [(2, "b")]))
    staged = stage(sink, 3, [(3, "c")])
    versions = {entry["version"]: entry["timestamp"] for entry in delta.table().history()}
    newest = max(versions)
    delta.table().restore(datetime.datetime.fromtimestamp(versions[newest - 1] / 1000, datetime.UTC))
    for _ in range(5):
        delta.append(pa.table({"k": [7], "v": ["other"]}))
    with pytest.raises(CorruptionError, match="had epoch 2"):
        delta.start(staged, 3)
    delta.table().restore(newest)
    delta.start(staged, 3)
    assert delta.pairs() == [(1, "a"), (2, "b"), (3, "c")]


def test_a_table_that_was_restored_before_the_sink_began(delta: Place) -> None:
    """To a version whose entry in the log is gone by now."""
    for number in range(4):
        delta.append(pa.table({"k": [number], "v": ["other"]}))
    delta.table().restore(1)
    delta.table().create_checkpoint()
    for version in range(3):
        (delta.path / f"table/_delta_log/{version:020}.json").unlink()
    sink = delta.start()
    sink.commit(stage(sink, 1, [(7, "a")]))
    assert delta.pairs() == [(0, "other"), (1, "other"), (7, "a")]


def test_rows_that_deletion_vectors_keep_are_told_of(delta: Place, caplog: Any) -> None:
    fields = DeltaSchema.from_arrow(pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())]))
    DeltaTable.create(str(delta.path / "table"), fields, configuration={"delta.enableDeletionVectors": "true"})
    sink = delta.start()
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    sink.commit(stage(sink, 2, [(2, "b")]))
    delta.start(first, 1)
    assert "marked by deletion vectors: those stay there" in caplog.text


def test_a_table_that_was_replaced_in_place(delta: Place) -> None:
    sink = delta.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    staged = stage(sink, 2, [(2, "b")])
    DeltaTable.create(str(delta.path / "table"), delta.table().schema(), mode="overwrite")
    with pytest.raises(CorruptionError, match="it has none on record, and had epoch 1"):
        sink.commit(staged)
    with pytest.raises(CorruptionError, match="it has none on record, and had epoch 1"):
        delta.start(staged, 2)


@pytest.mark.parametrize("key", [None, "k"])
def test_the_log_of_a_table_is_in_order_after_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: Any
) -> None:
    """Iceberg's Java library loads no table whose log goes back by more than a minute."""
    place = Place("iceberg", tmp_path / "place")
    sink = place.start(key=key)
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    now, wider = time.time(), StructType([*NAMES.fields, StructField("w", ByteType())])

    class Earlier(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(time.time(), tz)

    monkeypatch.setattr(time, "time", lambda: now - 3600)
    monkeypatch.setattr("pyiceberg.table.update.datetime", Earlier)
    sink.commit(second := stage(sink, 2, [(1, "b"), (2, "b")]))
    sink = place.start([*first, *second], 2, key=key, new_columns="add")
    sink.commit(stage(sink, 3, [(3, "c", 3)], schema=wider))
    metadata = place.table().metadata
    for log in (metadata.snapshot_log, [*metadata.metadata_log, *metadata.snapshot_log[-1:]], metadata.snapshots):
        times = [each.timestamp_ms for each in log]
        assert times == sorted(times)
    assert metadata.last_updated_ms >= now * 1000 - 1000
    assert place.pairs() == [*([] if key else [(1, "a")]), (1, "b"), (2, "b"), (3, "c")]


def test_snapshots_that_expire_take_no_record_along(tmp_path: Path) -> None:
    place = Place("iceberg", tmp_path / "place")
    sink = place.start()
    staged = stage(sink, 1, [(1, "a")])
    sink.commit(staged)
    place.append(pa.table({"k": [7], "v": ["other"]}))
    table = place.table()
    expire = table.maintenance.expire_snapshots()
    for snapshot in table.snapshots()[:-1]:
        expire = expire.by_id(snapshot.snapshot_id)
    expire.commit()
    assert len(place.table().snapshots()) == 1
    place.start(staged, 1)
    assert place.pairs() == [(1, "a"), (7, "other")]


@pytest.mark.parametrize("value", [None, 1])
def test_a_record_that_another_program_removes_or_sets_back_deletes_no_files(tmp_path: Path, value: Any) -> None:
    """A start would take the table's files for those of epochs that were never added."""
    place = Place("iceberg", tmp_path / "place")
    sink = place.start()
    for epoch in (1, 2):
        sink.commit(staged := stage(sink, epoch, [(epoch, "a")]))
        if epoch == 1:
            (before,) = [each for each in place.table().properties.items() if each[0].startswith("strandline.sink.")]
    with place.table().transaction() as transaction:
        transaction.set_properties(dict([before])) if value else transaction.remove_properties(before[0])
    with pytest.raises(CorruptionError, match="less of the job's rows"):
        place.start(staged, 2)
    assert place.pairs() == [(1, "a"), (2, "a")]


def test_a_tag_that_keeps_the_newest_snapshot_is_no_rollback(tmp_path: Path) -> None:
    """Those between it and what the table shows are expired."""
    place = Place("iceberg", tmp_path / "place")
    sink = place.start()
    staged = stage(sink, 1, [(1, "a")])
    sink.commit(staged)
    table = place.table()
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "day").commit()
    for number in (7, 8):
        place.append(pa.table({"k": [number], "v": ["other"]}))
    place.table().maintenance.expire_snapshots().older_than(datetime.datetime.now()).commit()
    assert [each.sequence_number for each in place.table().snapshots()] == [2, 4]
    sink = place.start(staged, 1)
    sink.commit(stage(sink, 2, [(2, "b")]))
    assert place.pairs() == [(1, "a"), (2, "b"), (7, "other"), (8, "other")]


def test_a_rollback_is_seen_where_what_it_went_to_has_expired(tmp_path: Path) -> None:
    place = Place("iceberg", tmp_path / "place")
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    place.append(pa.table({"k": [7], "v": ["other"]}))
    _, put_back = place.marked("its own command")
    staged = stage(sink, 2, [(2, "b")])
    sink.commit(staged)
    older = place.table().snapshots()[:-1]
    put_back()
    place.append(pa.table({"k": [8], "v": ["other"]}))
    expire = place.table().maintenance.expire_snapshots()
    for snapshot in older:
        expire = expire.by_id(snapshot.snapshot_id)
    expire.commit()
    assert [each.sequence_number for each in place.table().snapshots()] == [4, 5]
    with pytest.raises(CorruptionError, match="had epoch 1"):
        place.start(staged, 2)


def test_the_same_generation_again_is_refused(delta: Place) -> None:
    sink = delta.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    delta.generation = 0
    with pytest.raises(UnavailableError, match="the checkpoint directory was set back"):
        delta.start([], 1)
    delta.generation = 1
    with pytest.raises(CorruptionError, match="begins without any checkpoint"):
        delta.start()


def test_a_start_with_the_snapshot_of_another_job_may_come_again(delta: Place) -> None:
    DeltaTable.create(str(delta.path / "table"), pa.schema([("k", pa.int64()), ("v", pa.string())]))
    delta.start(epoch=7, fresh=True)
    sink = delta.start(epoch=7, fresh=True)
    sink.commit(stage(sink, 8, [(1, "a")]))
    assert delta.pairs() == [(1, "a")]
    with pytest.raises(CorruptionError, match=r"up to epoch 8 .*\s*begins without any checkpoint"):
        delta.start(epoch=7, fresh=True)


@pytest.mark.parametrize("before", [None, "k"])
def test_a_program_that_has_another_key_than_before(place: Place, before: Any) -> None:
    """What waits is written as it was staged; what the table lists is nobody's to delete."""
    after = None if before else "k"
    sink = place.start(key=before)
    first = stage(sink, 1, [(1, "a")], [(2, "b")])
    sink.commit(first)
    waiting = stage(sink, 2, [(1, "c")])
    sink = place.start([*first, *waiting], 2, key=after)
    wanted = [(1, "c"), (2, "b")] if before else [(1, "a"), (1, "c"), (2, "b")]
    assert place.pairs() == wanted
    last = stage(sink, 3, [(2, "d")])
    sink.commit(last)
    place.start(last, 3, key=before)
    place.start(last, 3, key=after)
    assert place.pairs() == sorted([*wanted, (2, "d")] if before else [*wanted[:2], (2, "d")])


# -- rows


def test_the_last_row_of_a_key_stays(place: Place) -> None:
    sink = place.start(key="k")
    first = stage(sink, 1, [(1, "a"), (2, "b"), (1, "c")], [(3, "d")])
    sink.commit([*first, *stage(sink, 2, [(3, "e"), (4, "f")])])
    assert place.pairs() == [(1, "c"), (2, "b"), (3, "e"), (4, "f")]
    sink.commit(stage(sink, 3, [(2, "g")]))
    assert place.pairs() == [(1, "c"), (2, "g"), (3, "e"), (4, "f")]
    assert not [path for path in place.path.rglob("_strandline/**/*") if path.is_file()]


def test_null_lists_and_maps_stay_null_where_rows_are_merged(place: Place) -> None:
    inner = StructType([StructField("a", LongType())])
    columns = StructType([
        StructField("k", LongType()), StructField("m", MapType(StringType(), inner)), StructField("l", ArrayType(inner)),
    ])  # fmt: skip
    sink = place.start(key="k")
    sink.commit(stage(sink, 1, [(1, None, None), (2, {}, []), (3, {"x": {"a": 1}}, [{"a": 1}])], schema=columns))
    sink.commit(stage(sink, 2, [(3, None, None)], schema=columns))
    rows = [row for path in place.files() for row in pq.read_table(path.removeprefix("file://")).to_pylist()]
    assert sorted(tuple(row.values()) for row in rows) == [(1, None, None), (2, [], []), (3, None, None)]


def test_a_life_that_begins_where_another_has_left_rows(place: Place) -> None:
    def begin(sink: Any, **given: Any) -> None:
        sink.check(
            SinkContext(SESSION, "job", given.pop("life", ""), Generation(0), "out", begins="starts afresh", **given)
        )

    begin(place.make())
    sink = place.start()
    sink.commit(stage(sink, 3, [(1, "a")]))
    begin(place.make(), life="life")
    begin(place.make(existing="keep"))
    begin(place.make(key="k"))
    begin(place.make(), from_life="life", from_epoch=3)
    for other in (
        {},
        {"life": "another"},
        {"from_life": "life", "from_epoch": 2},
        {"from_life": "another", "from_epoch": 9},
    ):
        with pytest.raises(ConfigurationError, match="rows of an earlier life of job 'job', which starts afresh"):
            begin(place.make(), **other)
    place.make().check(SinkContext(SESSION, "another", "", Generation(0), "out"))
    with pytest.raises(ConfigurationError, match="existing is 'replace'"):
        place.make(existing="replace")


def test_a_key_of_several_columns(place: Place) -> None:
    schema = StructType([*NAMES.fields, StructField("n", IntegerType())])
    sink = place.start(key=["k", "v"])
    sink.commit(stage(sink, 1, [(1, "a", 1), (1, "b", 2), (2, "a", 3)], schema=schema))
    sink.commit(stage(sink, 2, [(1, "b", 4), (2, "b", 5)], schema=schema))
    rows = sorted(tuple(row.values()) for row in place.rows().select(["k", "v", "n"]).to_pylist())
    assert rows == [(1, "a", 1), (1, "b", 4), (2, "a", 3), (2, "b", 5)]


def test_a_key_without_value_is_refused(place: Place) -> None:
    sink = place.start(key="k")
    with pytest.raises(RuntimeError):
        stage(sink, 1, [(None, "a")])
    rows = pa.RecordBatch.from_pydict({"k": pa.array([1, None])})
    with pytest.raises(ConfigurationError, match="column 'k' of the table takes no nulls, and 1 rows have none"):
        cast_rows(rows, pa.schema([pa.field("k", pa.int64(), nullable=False)]))


def test_values_that_tables_cannot_tell_of_are_refused() -> None:
    text = pa.array([b"\xff"], pa.binary()).view(pa.string())
    far = pa.array([1 << 60]).cast(pa.timestamp("us"))
    for column, said in ((text, "is no UTF-8"), (pa.ListArray.from_arrays([0, 1], text), "is no UTF-8"), (far, "9999")):
        with pytest.raises(ConfigurationError, match=f"column 'v' cannot be written into a table: .*{said}"):
            refuse_unreadable(pa.table({"v": column}))
    refuse_unreadable(pa.table({"v": ["é", None]}))


@pytest.mark.parametrize("key", [None, "k"])
def test_new_columns(place: Place, key: Any) -> None:
    sink = place.start(key=key)
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    wider = StructType([*NAMES.fields, StructField("w", ByteType())])
    refusing = place.start(first, 1, key=key)
    with pytest.raises(ConfigurationError, match="new columns that the table does not have: w"):
        stage(refusing, 2, [(2, "b", 2)], schema=wider)
    waiting = stage(refusing, 2, [(5, "waited")])
    adding = place.start([*first, *waiting], 2, key=key, new_columns="add")
    adding.commit(stage(adding, 3, [(2, "b", 2)], schema=wider))
    rows = sorted(tuple(row.values()) for row in place.rows().select(["k", "v", "w"]).to_pylist())
    assert rows == [(1, "a", None), (2, "b", 2), (5, "waited", None)]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (StructField("k", StringType()), "column 'k': the job gives string, the table has int64"),
        (StructField("k", DoubleType()), "column 'k': the job gives double, the table has int64"),
        (StructField("K", LongType()), "column 'K' differs from the table's 'k' only in case"),
        (StructField("other", NullType()), "has no type for column 'other'|new columns"),
    ],
    ids=["text", "double", "case", "nothing"],
)
def test_columns_that_do_not_fit_are_refused_before_the_start(place: Place, field: StructField, words: str) -> None:
    tried(place.make(), NAMES)
    assert not list(place.path.rglob("*.parquet"))
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    with pytest.raises(ConfigurationError, match=words):
        tried(place.make(), StructType([field, NAMES["v"]]))
    tried(place.make(), StructType([StructField("k", IntegerType())]))


def test_what_cannot_be_reached_or_written_is_refused_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for sink, words in (
        (sl.sinks.delta(tmp_path / "file" / "table"), "cannot be written"),
        (
            sl.sinks.iceberg({"type": "sql", "uri": f"sqlite:///{tmp_path}/no/c.db", "warehouse": "w"}, "a.b"),
            "unable to open",
        ),
        (sl.sinks.iceberg({"type": "rest", "uri": "http://127.0.0.1:9", "token": "secret-token"}, "a.b"), "refused"),
        (sl.sinks.iceberg("nobodys", "a.b"), "URI missing"),
    ):
        sink.patience_s = 0.0
        with pytest.raises(ConfigurationError, match=words) as refused:
            tried(sink, NAMES)
        assert "secret-token" not in str(refused.value)


@pytest.mark.parametrize("uri", ["postgresql://me:se@cret@host:5432/cat", "postgresql://host:5432/cat?password=secret"])
def test_the_destination_says_no_password(uri: str) -> None:
    sink = sl.sinks.iceberg({"name": "c", "type": "sql", "uri": uri}, "a.b")
    assert sink.destination == "Iceberg table a.b of catalog c postgresql://host:5432/cat"


def test_parameters_that_name_what_is_not_there(place: Place) -> None:
    for options in ({"key": "x"}, {"partition_by": "x"}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(options))} names column 'x'"):
            tried(place.make(**options), NAMES)
    with pytest.raises(ConfigurationError, match="column 'd' of the key is double"):
        tried(place.make(key="d"), StructType([StructField("d", DoubleType())]))
    with pytest.raises(ConfigurationError, match="new_columns is 'drop'"):
        place.make(new_columns="drop")
    with pytest.raises(ConfigurationError, match="target_bytes is 0"):
        place.make(target_bytes=0)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_table_in_parts(place: Place, key: Any) -> None:
    schema = StructType([*NAMES.fields, StructField("day", DateType()), StructField("at", TimestampType())])
    one, two = datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)
    at = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    sink = place.start(key=key, partition_by="day")
    first = stage(
        sink, 1, [(1, "a", one, at), (2, "b", two, at), (3, "c", one, None)], [(4, "", None, at)], schema=schema
    )
    sink.commit(first)
    sink.commit(stage(sink, 2, [(5, "d", two, at)], schema=schema))
    found = {row["k"]: (row["v"], row["day"], row["at"]) for row in place.rows().to_pylist()}
    assert found == {1: ("a", one, at), 2: ("b", two, at), 3: ("c", one, None), 4: ("", None, at), 5: ("d", two, at)}
    if place.kind == "delta":
        days = pa.table(place.table().get_add_actions(flatten=True))["partition.day"].to_pylist()
        assert set(days) == {one, two, None}
    else:
        found_days = {task.file.partition[0] for task in place.table().scan().plan_files()}
        assert found_days == {(day - datetime.date(1970, 1, 1)).days for day in (one, two)} | {None}


# -- others change the table between two epochs, or while rows wait


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


@pytest.mark.parametrize("at", ["before", "staged", "commit"])
def test_rows_are_written_again_where_the_table_is_divided_otherwise(place: Place, at: str) -> None:
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    if at == "before":
        changed(place, "parts")
    second = stage(sink, 2, [(2, "b"), (3, "c"), (4, "b")], [(5, "c")])
    if at == "staged":
        changed(place, "parts")
    if at == "commit":
        before_next(sink, "commit_files", lambda: changed(place, "parts"))
    sink.commit(second)
    before = [(0, "z")] if place.kind == "delta" else [(1, "a")]
    assert place.pairs() == [*before, (2, "b"), (3, "c"), (4, "b"), (5, "c")]
    third = stage(sink, 3, [(6, "b"), (7, "d")])
    files = {Path(file).name for file in staged_files(third)}
    sink.commit(third)
    assert files <= {Path(file).name for file in place.files()}
    assert place.pairs() == [*before, (2, "b"), (3, "c"), (4, "b"), (5, "c"), (6, "b"), (7, "d")]
    place.start(third, 3)
    assert len(place.pairs()) == 7


def staged_files(staged: Sequence[str]) -> list[str]:
    return [file[0] for text in staged if (found := json.loads(text))[0] == "files" for file in found[4]]


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("at", ["before", "staged", "commit"])
@pytest.mark.parametrize(("how", "words"), [("type", "the table has string"), ("gone", "does not have: k")])
def test_rows_are_not_written_into_columns_of_others(place: Place, how: str, words: str, at: str, key: Any) -> None:
    sink = place.start(key=key)
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    if at == "before":
        changed(place, how)
    second = stage(sink, 2, [(2, "b")])
    if at == "staged":
        changed(place, how)
    if at == "commit":
        before_next(sink, "commit_rows" if key else "commit_files", lambda: changed(place, how))
    with pytest.raises(ConfigurationError, match=words) as caught:
        sink.commit(second)
    assert "was changed after rows of the last checkpoint were staged" in str(caught.value)
    assert "drop=['out']" in str(caught.value)
    assert len(place.rows()) == 1
    with pytest.raises(ConfigurationError, match=words):
        place.start([*first, *second], 2, key=key)


def test_a_constraint_that_comes_later_is_obeyed(delta: Place) -> None:
    sink = delta.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    second = stage(sink, 2, [(5, "b")])
    changed(delta, "constraint")
    with pytest.raises(ConfigurationError, match=r"delta.constraints.small = k < 3"):
        sink.commit(second)
    assert delta.pairs() == [(1, "a")]


def test_rows_against_a_constraint_end_the_commit_without_their_values(delta: Place) -> None:
    sink = delta.start(key="k")
    sink.commit(stage(sink, 1, [(1, "a")]))
    changed(delta, "constraint")
    sink.commit(stage(sink, 2, [(2, "b")]))
    with pytest.raises(SinkError, match="1 rows violate constraints of the table: k < 3") as caught:
        sink.commit(stage(sink, 3, [(5, "secret"), (1, "c")]))
    assert "secret" not in str(caught.value)
    assert delta.pairs() == [(1, "a"), (2, "b")]


def test_two_sinks_of_one_identity_do_not_share_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("iceberg", tmp_path / "place")
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    monkeypatch.setattr(SinkContext, "identity", sink._opened.identity)
    other = place.make()
    other.open(SinkContext(SESSION, "job", "life", Generation(3), "other", fsync=False))
    with pytest.raises(
        ConfigurationError, match="is the record of sink 'out' of job 'job'; expected that of sink 'other'"
    ):
        other.recover([], Epoch(0), fresh=True)


def test_a_renamed_column_takes_its_rows_along(tmp_path: Path) -> None:
    place = Place("iceberg", tmp_path / "place")
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    with place.table().update_schema() as schema:
        schema.rename_column("v", "old")
    with place.table().update_schema() as schema:
        schema.add_column("v", IcebergString())
    sink.commit(stage(sink, 2, [(2, "b")]))
    found = sorted((row["k"], row["v"], row["old"]) for row in place.rows().to_pylist())
    assert found == [(1, None, "a"), (2, "b", None)]


def test_files_end_at_their_size_and_are_held_together(delta: Place) -> None:
    sink = delta.start(target_bytes=4096, compact_every=2)
    rows = [(n, uuid.uuid4().hex) for n in range(3000)]
    sink.commit(stage(sink, 1, rows))
    assert len(delta.files()) == 1, "one batch of rows is in one file"
    sink.commit(stage(sink, 2, [(-1, "a")], [(-2, "b")]))
    assert len(delta.files()) == 2, "those of the second commit are held together"
    sink.commit(stage(sink, 3, [(-3, "c")]))
    assert len(delta.files()) == 3
    assert len(delta.pairs()) == 3003


@pytest.mark.parametrize("columns", [["k"], ["k", "v"]])
def test_small_files_are_held_together_in_their_parts(delta: Place, columns: list[str]) -> None:
    rows = pa.table({"k": [1, 2, 1], "v": ["x", None, "x"], "at": [datetime.datetime(2026, 1, 2), None, None]})
    for _ in range(2):
        write_deltalake(str(delta.path / "table"), rows, partition_by=columns, mode="append")
    sink = delta.start(compact_every=1)
    delta.table().alter.add_columns(DeltaSchema.from_arrow(pa.schema([("later", pa.int64())])).fields)
    schema = StructType([*NAMES.fields, StructField("later", LongType())])
    sink.commit(stage(sink, 1, [(1, "x", 5)], schema=schema))
    assert len(delta.files()) == 2
    found = delta.rows().select(["k", "v", "at", "later"]).to_pylist()
    wanted = 2 * rows.append_column("later", pa.nulls(3, pa.int64())).to_pylist()
    wanted.append({"k": 1, "v": "x", "at": None, "later": 5})
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def test_small_files_of_many_parts_are_held_together(delta: Place) -> None:
    """However their rows are mixed: of so many parts, not all files can be open at a time."""
    sink = delta.start(compact_every=2, partition_by="k")
    for epoch in (1, 2):
        sink.commit(stage(sink, epoch, [(n, "a") for n in range(100)]))
    assert len(delta.files()) == 100
    assert len(delta.pairs()) == 200


@pytest.mark.parametrize("others", ["compact", "append", "delete"])
def test_another_writer_comes_before_a_compaction(delta: Place, others: str) -> None:
    sink = delta.start(compact_every=2)
    sink.commit(stage(sink, 1, [(1, "a")]))
    acts = {
        "compact": lambda: delta.table().optimize.compact(),
        "append": lambda: delta.append(pa.table({"k": [7], "v": ["other"]})),
        "delete": lambda: delta.table().delete("k = 1"),
    }
    committed, load = sink.committed, sink.load

    def loaded() -> Any:
        table, sink.load = load(), load
        acts[others]()
        return table

    def then_loads(table: Any) -> None:
        sink.load = loaded
        committed(table)

    sink.committed = then_loads
    sink.commit(stage(sink, 2, [(2, "b")]))
    rows = {"compact": [(1, "a"), (2, "b")], "append": [(1, "a"), (2, "b"), (7, "other")], "delete": [(2, "b")]}
    assert delta.pairs() == rows[others]
    assert len(delta.files()) == (2 if others == "append" else 1)


def test_delta_tables_that_want_more_of_a_writer_are_refused(delta: Place) -> None:
    DeltaTable.create(str(delta.path / "table"), pa.schema([("k", pa.int64()), ("v", pa.string())]))
    delta.table().alter.add_constraint({"positive": "k > 0"})
    with pytest.raises(ConfigurationError, match=r"delta.constraints.positive = k > 0"):
        tried(delta.make(), NAMES)


def test_files_that_are_compacted_while_they_are_taken_back_are_reported(delta: Place, caplog: Any) -> None:
    sink = delta.start()
    sink.commit(first := stage(sink, 1, [(1, "a")]))
    sink.commit([*first, *stage(sink, 2, [(2, "b")])])
    before_next(sink := delta.make(), "_properties", lambda: delta.table().optimize.compact())
    delta.go_on(sink, first, 1)
    assert delta.pairs() == [(1, "a"), (2, "b")]
    assert "rows of later epochs, up to 2" in caplog.text


def test_an_append_only_table_takes_nothing_back(delta: Place) -> None:
    configuration: Any = {"delta.appendOnly": "true"}
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    DeltaTable.create(str(delta.path / "table"), schema, configuration=configuration)
    with pytest.raises(ConfigurationError, match="appendOnly"):
        tried(delta.make(key="k"), NAMES)
    sink = delta.start()
    first = stage(sink, 1, [(1, "a")])
    sink.commit([*first, *stage(sink, 2, [(2, "b")])])
    delta.start(first, 1)
    assert delta.pairs() == [(1, "a"), (2, "b")]


def test_a_partitioning_that_files_do_not_tell_is_refused(tmp_path: Path) -> None:
    from pyiceberg.transforms import BucketTransform, DayTransform

    place = Place("iceberg", tmp_path / "place")
    schema = StructType([*NAMES.fields, StructField("at", TimestampType())])
    sink = place.start()
    stage(sink, 1, [(1, "a", None)], schema=schema)
    with place.table().update_spec() as spec:
        spec.add_field("at", DayTransform(), "day")
    days = [datetime.datetime(2026, 1, day, 23, tzinfo=datetime.UTC) for day in (1, 2)]
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a", days[0]), (2, "b", days[1]), (3, "c", days[0])], schema=schema))
    assert len(place.files()) == 2
    assert len(place.pairs()) == 3
    with place.table().update_spec() as spec:
        spec.add_field("k", BucketTransform(4), "bucket")
    with pytest.raises(ConfigurationError, match=r"partitioned by bucket\[4\]\(k\)"):
        tried(place.make(), schema)


def test_rows_by_key_into_parts_that_need_another_package_are_refused_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the job would begin, and end with its first checkpoint."""
    from pyiceberg.transforms import DayTransform

    place = Place("iceberg", tmp_path / "place")
    schema = StructType([*NAMES.fields, StructField("at", TimestampType())])
    stage(place.start(), 1, [(1, "a", None)], schema=schema)
    with place.table().update_spec() as spec:
        spec.add_field("at", DayTransform(), "day")
    monkeypatch.setattr("strandline.spark.sinks.tables.iceberg.find_spec", lambda _: None)
    tried(place.make(), schema)
    with pytest.raises(ConfigurationError, match=r"day\(at\), for which rows by key need the package pyiceberg-core"):
        tried(place.make(key="k"), schema)


@pytest.mark.parametrize("day", [datetime.date.min, datetime.date.max])
def test_rows_are_found_by_the_first_and_the_last_date(tmp_path: Path, day: datetime.date) -> None:
    from pyiceberg.transforms import YearTransform

    place = Place("iceberg", tmp_path / "place")
    schema = StructType([*NAMES.fields, StructField("day", DateType())])
    stage(place.start(), 1, [(1, "a", day)], schema=schema)
    with place.table().update_spec() as spec:
        spec.add_field("day", YearTransform(), "year")
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a", day), (2, "b", day)], schema=schema))
    ((_, kept),) = sink._replaced(place.table(), pa.table({"k": [1], "day": [day]}), ["k", "day"])
    assert kept["k"].to_pylist() == [2]


@pytest.mark.parametrize("key", [None, "k"])
def test_a_commit_that_meets_itself_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """Its answer was lost, and what is between asked again; one that another writer was faster than leaves nothing."""
    place = Place("iceberg", tmp_path / "place")
    sink = place.start(key=key)
    first = stage(sink, 1, [(1, "a"), (2, "b")])
    commit, times = SqlCatalog.commit_table, []

    def commit_again(catalog: Any, *given: Any) -> Any:
        times.append(commit(catalog, *given))
        return times[0] if len(times) > 1 else commit(catalog, *given)

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", commit_again)
        sink.commit(first)
    assert place.pairs() == [(1, "a"), (2, "b")]
    meanwhile(sink, lambda: place.append(pa.table({"k": pa.array([0], pa.int64()), "v": ["z"]})))
    sink.commit(stage(sink, 2, [(3, "c")]))
    assert place.pairs() == [(0, "z"), (1, "a"), (2, "b"), (3, "c")]
    assert len(list(place.path.glob("w/**/snap-*.avro"))) == len(place.table().snapshots())


# -- statistics, by which readers leave files out

VALUES = {
    "n": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "s": (pa.string(), st.text(max_size=80)),
    "d": (pa.date32(), st.dates()),
    "t": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
    "u": (pa.timestamp("us"), st.datetimes()),
}
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | kind for name, (_, kind) in VALUES.items()}), max_size=8)


@given(rows=ROWS)
@settings(max_examples=60, deadline=None)
def test_statistics_hold_every_value(rows: list[dict[str, Any]]) -> None:
    schema = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema), out, row_group_size=3)
    said = json.loads(statistics_of(out.getvalue().to_pybytes()))
    assert said["numRecords"] == len(rows)
    for name, nulls in said["nullCount"].items():
        assert nulls == sum(row[name] is None for row in rows)
        for row in rows:
            if row[name] is None or name not in said["minValues"]:
                continue
            low, high = (_value(name, said[end][name]) for end in ("minValues", "maxValues"))
            assert low <= row[name] <= high


def _value(name: str, said: Any) -> Any:
    if name == "d":
        return datetime.date.fromisoformat(said)
    return datetime.datetime.fromisoformat(said) if name in "tu" else said


# -- in object storage


# That lives share a place, `test_delta` shows with a directory: it is a matter of paths.
@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=name_of(check), marks=pytest.mark.soak if check is lives_and_sinks_share_a_place else ())
        for check in checks(Promise.LASTING, Promise.TAKES_BACK)[-3:]
    ],
)
def test_delta_in_object_storage(s3: Any, check: Any) -> None:
    url = s3.url(f"delta-{uuid.uuid4().hex[:8]}")

    def visible() -> list[int]:
        numbers: list[int] = DeltaTable(url, storage_options=s3.options).to_pyarrow_table()["n"].to_pylist()
        return numbers

    trial = Trial(SESSION, lambda: sl.sinks.delta(url, storage_options=s3.options), visible)
    trial.crashes = 2
    check(trial)


def test_iceberg_in_object_storage(s3: Any, tmp_path: Path) -> None:
    place = Place("iceberg", tmp_path / "place")
    place.catalog |= {
        "warehouse": s3.url("warehouse"),
        "s3.endpoint": s3.options["endpoint"],
        "s3.access-key-id": s3.options["access_key_id"],
        "s3.secret-access-key": s3.options["secret_access_key"],
        "s3.region": "us-east-1",
    }
    sink = place.start()
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    sink = place.start(first, 1, key="k")
    sink.commit(stage(sink, 2, [(1, "b")]))
    assert place.pairs() == [(1, "b")]


def test_wrong_credentials_are_told_without_them(s3: Any) -> None:
    options = {**s3.options, "secret_access_key": "not-the-right-secret"}
    with pytest.raises(AccessError, match=r"access was refused") as refused:
        tried(sl.sinks.delta(s3.url("secret"), storage_options=options), NAMES)
    assert not any(part in str(refused.value) for part in ("not-the-right", s3.options["access_key_id"]))
    assert "not-the-right" not in repr(vars(refused.value))


def test_the_page_of_tables(tmp_path: Path) -> None:
    edit = lambda code: re.sub(r'(")tables/|(///)/?tables/', rf"\1\2{tmp_path}/", code)  # noqa: E731
    made = run_page("tables.md", 1, edit)
    schema = StructType([*NAMES.fields, StructField("shop", StringType()), StructField("day", DateType())])
    tried(made["orders"], schema)
    tried(made["totals"], schema)
    with pytest.raises(ConfigurationError, match="key names column 'order_id'"):
        tried(made["latest"], schema)
    assert made["raw"].format == "json"
    assert not list(tmp_path.rglob("*.parquet"))
