"""Rows into SQLite: the conformance of its sink, values of every type, and tables that rows do not fit."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructField, StructType, TimestampNTZType, TimestampType

import strandline as sl
from strandline.core import failpoints
from strandline.core.errors import ConfigurationError, ConflictError, CorruptionError, FencedError, SinkError
from strandline.testing.sinks.conformance import Check, Promise, Trial, checks, name_of
from tests.ends import inprocess
from tests.ends.test_postgres_rows import batch_of, write, writer
from tests.soak import examples

US, UTC = pa.timestamp("us"), pa.timestamp("us", "Europe/Berlin")


def sql(path: Path, text: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(text, values).fetchall()


def target_of(path: Path, columns: pa.Schema, table: str = "results", **given: Any) -> Any:
    target = sl.sinks.sqlite(path, table, **{"create": True, **given}).target
    target.try_out(columns)
    target.claim(writer())
    return target


# A driver that dies leaves its connections open, and its process closes them.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("given", [{}, {"key": "n"}], ids=["appended", "by key"])
@pytest.mark.parametrize("check", checks(Promise.EXACTLY_ONCE, Promise.LASTING), ids=name_of)
def test_conformance(tmp_path: Path, check: Check, given: Any) -> None:
    path = tmp_path / "results.db"
    sql(path, "create table results (n integer primary key)")
    session: Any = inprocess.Session()
    trial = Trial(
        session,
        make=lambda: sl.sinks.sqlite(path, "results", **given),
        visible=lambda: [n for (n,) in sql(path, "select n from results")],
    )
    trial.crashes = 20
    check(trial)


def test_values_of_every_type(tmp_path: Path) -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678)
    doc = pa.struct({"a": pa.int64(), "m": pa.map_(pa.string(), pa.float64())})
    batch = batch_of({
        "b": (pa.bool_(), [True, None]), "i": (pa.int64(), [2**63 - 1, None]), "f": (pa.float64(), [float("inf"), None]),
        "s": (pa.string(), ["a\0b'", None]), "x": (pa.binary(), [b"\0\xff", None]),
        "n": (pa.decimal128(38, 18), [Decimal("12345678901234567890.123456789012345678"), None]),
        "d": (pa.date32(), [dt.date(1, 1, 1), None]), "t": (US, [at, None]), "z": (UTC, [at.replace(tzinfo=dt.UTC), None]),
        "l": (pa.list_(pa.string()), [["x", None], None]), "o": (doc, [{"a": 1, "m": [("k", 0.5)]}, None]),
    })  # fmt: skip
    write(target_of(tmp_path / "t.db", batch.schema), batch)
    first, second = sql(tmp_path / "t.db", "select * from results")
    assert first[:9] == (
        1, 2**63 - 1, float("inf"), "a\0b'", b"\0\xff", "12345678901234567890.123456789012345678", "0001-01-01",
        "2026-01-02 03:04:05.000678", "2026-01-02 03:04:05.000678Z",
    )  # fmt: skip
    assert [json.loads(text) for text in first[9:]] == [["x", None], {"a": 1, "m": {"k": 0.5}}]
    assert second == (None,) * 11


@examples(100)
@given(transactions=st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99), st.booleans() | st.none()), max_size=8), max_size=6
))  # fmt: skip
def test_the_last_row_of_a_key_counts(tmp_path_factory: pytest.TempPathFactory, transactions: Any) -> None:
    path = tmp_path_factory.mktemp("keyed") / "t.db"
    columns = pa.schema({"k": pa.int64(), "gone": pa.bool_(), "v": pa.int32()})
    target = target_of(path, columns, key="k", delete="gone")
    wanted: dict[int, int] = {}
    for rows in transactions:
        for k, v, gone in rows:
            wanted.pop(k, None)
            if not gone:
                wanted[k] = v
        write(target, pa.RecordBatch.from_pylist([{"k": k, "gone": gone, "v": v} for k, v, gone in rows], columns))
    assert dict(sql(path, "select k, v from results")) == wanted


def test_keys_that_only_the_database_knows_to_be_equal(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    sql(path, "create table results (k text collate nocase primary key, v integer)")
    columns = {"k": (pa.string(), ["a", "B", "A", "b"]), "v": (pa.int32(), [1, 2, 3, 4]),
               "gone": (pa.bool_(), [False, False, None, True])}  # fmt: skip
    write(target_of(path, batch_of(columns).schema, key="k", delete="gone"), batch_of(columns))
    assert sql(path, "select v from results") == [(3,)]


COLUMNS = pa.schema({"k": pa.int64(), "n": pa.decimal128(10, 2)})


@pytest.mark.parametrize(
    ("statement", "given", "words", "hint"),
    [
        ("select 1", {}, "has no table t", 'create table if not exists "t" ("k" integer, "n" text)'),
        ("create view t as select 1 k, 2 n", {}, "t is a view", ""),
        ("create table t (k integer)", {}, "table t has no column n", 'add column "n" text'),
        ("create table t (k integer, n numeric)", {}, "column n is numeric", "make the column text"),
        ("create table t (k text, n text)", {}, "column k is text", "make the column integer"),
        ("create table t (k integer, n text, o not null)", {}, "column o is not null", ""),
        ("create table t (k integer, n text, o not null default 1)", {}, None, ""),
        ("create table t (k integer, n text as (1))", {}, "table t computes column n", ""),
        ("create table t (k integer, n text)", {"key": "k"}, "no unique index on (k)", "create unique index"),
        ("create table t (k integer primary key, n text)", {"key": "k"}, None, ""),
        ("create table t (k integer, n text, unique (n, k))", {"key": ["k", "n"]}, None, ""),
        ("create table t (k integer, n text)", {"key": "x"}, "its key names the column 'x'", ""),
    ],
)
def test_tables_that_rows_do_not_fit(tmp_path: Path, statement: str, given: Any, words: Any, hint: str) -> None:
    sql(tmp_path / "t.db", statement)
    target = sl.sinks.sqlite(tmp_path / "t.db", "t", **given).target
    if words is None:
        target.try_out(COLUMNS)
        return
    with pytest.raises(ConfigurationError) as caught:
        target.try_out(COLUMNS)
    assert words in caught.value.message
    assert hint in caught.value.hint


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    def refused(path: Path, **given: Any) -> str:
        with pytest.raises(ConfigurationError) as caught:
            sl.sinks.sqlite(path, "t", **given).target.try_out(COLUMNS)
        return caught.value.message

    (tmp_path / "text").write_text("this is not a database, whatever it is called\n" * 50)
    assert "there is no such directory" in refused(tmp_path / "nowhere" / "t.db", create=True)
    assert "does not exist" in refused(tmp_path / "t.db")
    assert "cannot be used: file is not a database" in refused(tmp_path / "text")
    sl.sinks.sqlite(tmp_path / "t.db", "t", create=True).target.try_out(COLUMNS)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_two_sinks_of_one_identity_do_not_share_a_record(tmp_path: Path) -> None:
    target = target_of(tmp_path / "t.db", pa.schema({"n": pa.int64()}))
    target.claim(replace(writer(2), life=""))
    with pytest.raises(
        ConfigurationError, match="has a record of sink 'out' of job 'job', life  under the same identity"
    ):
        target.claim(replace(writer(3), life="another"))


def test_rows_are_not_written_again_after_record_was_changed(tmp_path: Path) -> None:
    """The driver dies after it has delivered the first checkpoint's rows, and before it deletes their staged files."""
    path = tmp_path / "results.db"
    sql(path, "create table results (n integer)")
    session: Any = inprocess.Session()
    records = iter(["first", "second", "first"])
    trial = Trial(
        session,
        make=lambda: sl.sinks.sqlite(path, "results", record=next(records)),
        visible=lambda: [n for (n,) in sql(path, "select n from results")],
    )
    sink = trial.start()
    pending = trial.stage(sink, 1)
    failpoints.arm("sink.delivered", lambda: 1 / 0, at=2)
    with pytest.raises(ZeroDivisionError):
        sink.commit(pending)
    failpoints.disarm_all()
    with pytest.raises(CorruptionError, match="has no record of the sink, and rows that the checkpoint lists may be"):
        trial.start(pending, 1)
    trial.expect(1)
    trial.start(pending, 1)
    trial.expect(1)


def test_rows_that_an_older_program_has_staged_lack_what_the_new_one_names(tmp_path: Path) -> None:
    older = batch_of({"k": (pa.int64(), [1])})
    columns = batch_of({"k": (pa.int64(), [1]), "gone": (pa.bool_(), [True])}).schema
    target = target_of(tmp_path / "t.db", columns, key="k", delete="gone")
    with pytest.raises(ConfigurationError, match="its delete names the column 'gone', which the rows do not have"):
        write(target, older)


def test_what_must_not_happen_unseen(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    batch = batch_of({"k": (pa.int64(), [1]), "f": (pa.float64(), [1.5])})
    target = target_of(path, batch.schema, key="k")
    write(target, batch)
    with pytest.raises(SinkError, match="column f: a number is NaN"):
        write(target, batch_of({"k": (pa.int64(), [2]), "f": (pa.float64(), [float("nan")])}))
    with closing(target.connect(writer(), 0)) as lane, pytest.raises(ConflictError, match="another task writes"):
        lane.write([batch], None, "2")
    target.claim(writer(2))
    with pytest.raises(FencedError, match="a newer driver"):
        write(target, batch)
    with pytest.raises(FencedError, match="a newer driver"):
        target.claim(writer())
    sql(path, "delete from strandline_deliveries")
    with pytest.raises(CorruptionError, match="this run's claim is not in "):
        write(target, batch)
    appending = target_of(path, batch.schema)
    with pytest.raises(SinkError, match=r"refuses rows: UNIQUE constraint failed: results\.k"):
        write(appending, batch)
    assert sql(path, "select k, f from results") == [(1, 1.5)]


def test_texts_that_are_no_utf8_are_refused(tmp_path: Path) -> None:
    text = pa.array([b"\xff"], pa.binary()).view(pa.string())
    lists = pa.ListArray.from_arrays([0, 1], text)
    for column in (text, lists):
        batch = pa.RecordBatch.from_arrays([column], names=["v"])
        with pytest.raises(SinkError, match="column v: a text is no UTF-8") as caught:
            write(target_of(tmp_path / "t.db", batch.schema, f"t{batch.schema.types[0]}"[:4]), batch)
        assert "make_valid_utf8(v)" in caught.value.hint


def test_what_may_pass(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    target = target_of(path, COLUMNS, timeout="10ms")
    batch = batch_of({"k": (pa.int64(), [1]), "n": (pa.decimal128(10, 2), [Decimal("1.50")])})
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(sqlite3.OperationalError, match="locked") as locked:
            write(target, batch)
        other.execute("rollback")
    path.rename(tmp_path / "away")
    with pytest.raises(sqlite3.OperationalError, match="unable to open") as away:
        write(target, batch)
    assert not path.exists()
    (tmp_path / "away").rename(path)
    assert target.may_pass(locked.value)
    assert target.may_pass(away.value)
    assert not target.may_pass(sqlite3.OperationalError("no such table"))
    write(target, batch)
    assert sql(path, "select * from results") == [(1, "1.50")]


def test_a_job_is_refused_by_spark_s_own_types(tmp_path: Path) -> None:
    """As the engine asks: with the columns of a DataFrame, times among them."""
    columns = StructType([StructField("at", TimestampType()), StructField("local", TimestampNTZType())])
    empty: Any = SimpleNamespace(schema=columns)
    sl.sinks.sqlite(tmp_path / "t.db", "t", create=True).try_out(empty)
    with pytest.raises(ConfigurationError, match="does not exist"):
        sl.sinks.sqlite(tmp_path / "t.db", "t").try_out(empty)
