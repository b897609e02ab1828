"""Keys with nulls in tables of databases, as those of views may be: null is a key as others, or refused at the start."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.core.errors import ConfigurationError, SinkError
from strandline.storage.place import Place
from tests.postgres import Server
from tests.soak import examples

COLUMNS = pa.schema({"a": pa.string(), "b": pa.int64(), "v": pa.int64(), "gone": pa.bool_()})
WRITER = sl.sinks.Writer("0123abcd", 1, "out", "job", Place(url="file:/nowhere"))
KEY = ("a", "b")


def write(target: Any, *rows: tuple[Any, ...]) -> None:
    batch = pa.RecordBatch.from_pylist([dict(zip(COLUMNS.names, row, strict=True)) for row in rows], COLUMNS)
    with closing(target.connect(WRITER, 0)) as lane:
        since = lane.reached()
        lane.write([batch], since, f"{int(since or 0) + 1:09}")


class Database:
    """A database, with sinks of tables in it and its own reader."""

    def __init__(self, kind: str, path: Path, server: Server | None) -> None:
        self.kind, self._path, self._server = kind, path / "results.db", server
        self._dsn = server.schema() if server else ""

    def run(self, statement: str) -> list[Any]:
        if self._server:
            with self._server.connect(self._dsn) as db:
                found = db.execute(statement)
                return list(found.fetchall()) if found.description else []
        with closing(sqlite3.connect(self._path)) as db:
            rows = db.execute(statement).fetchall()
            db.commit()
            return rows

    def target(self, table: str, nullable: tuple[str, ...] = KEY, key: Any = KEY, **more: Any) -> Any:
        """Return a target for rows of a view with this key, of which columns may be null; its table may be there."""
        given = {"key": key, "create": True, **more}
        if self._server:
            made: Any = sl.sinks.postgres(self._dsn, table, **given)
        else:
            made = sl.sinks.sqlite(self._path, table, **given)
        sink, _ = made.deleting("gone", nullable)
        sink.target.try_out(COLUMNS)
        sink.target.claim(WRITER)
        return sink.target

    def rows(self, table: str) -> set[Any]:
        rows = [tuple(row) for row in self.run(f"SELECT a, b, v FROM {table}")]
        assert len(set(rows)) == len(rows)
        return set(rows)


@pytest.fixture(params=["postgres", "sqlite"])
def database(request: Any, tmp_path: Path) -> Database:
    server = request.getfixturevalue("postgresql") if request.param == "postgres" else None
    return Database(request.param, tmp_path, server)


@examples(30)
@given(
    transactions=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from([None, "", "x"]), st.sampled_from([None, 0, 1]), st.integers(0, 9),
                st.sampled_from([True, False, None]),
            ),
            min_size=1, max_size=9,
        ),
        min_size=1, max_size=4,
    )
)  # fmt: skip
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
@pytest.mark.parametrize("is_exact", [True, False])
def test_the_last_row_of_a_key_counts(
    request: Any, tmp_path_factory: pytest.TempPathFactory, kind: str, is_exact: bool, transactions: Any
) -> None:
    server = request.getfixturevalue("postgresql") if kind == "postgres" else None
    database = Database(kind, tmp_path_factory.mktemp("null"), server)
    if not is_exact:
        # The server compares the keys itself.
        text, unique = ("varchar(3)", "unique nulls not distinct") if kind == "postgres" else ("text", "unique")
        database.run(f"CREATE TABLE results (a {text}, b bigint, v bigint, {unique} (b, a))")
    target, wanted = database.target("results"), dict[Any, int]()
    for rows in transactions:
        write(target, *rows)
        for a, b, v, is_gone in rows:
            wanted.pop((a, b), None)
            if not is_gone:
                wanted[a, b] = v
        assert database.rows("results") == {(*key, v) for key, v in wanted.items()}


TABLES = {
    "postgres": (
        "(a text, b bigint, v bigint, primary key (a, b))", "(a text, b bigint, v bigint, unique (a, b))",
        "(a text, b bigint not null, v bigint, unique nulls not distinct (a, b))",
    ),
    "sqlite": (
        "(a text, b bigint, v bigint, primary key (a, b)) without rowid",
        "(a text, b bigint not null, v int, unique (a, b))",
        "(a text, b integer, v integer, primary key (a, b)) strict",
    ),
}  # fmt: skip


@pytest.mark.parametrize("number", range(3))
def test_a_table_that_cannot_have_them_is_refused_at_the_start(database: Database, number: int) -> None:
    database.run(f"CREATE TABLE results {TABLES[database.kind][number]}")
    with pytest.raises(
        ConfigurationError, match=r"'[ab]' is part of the key and may be null, and the table cannot"
    ) as caught:
        database.target("results")
    for way in ("WHERE", "IS NOT NULL", "coalesce(", "on_error='skip'"):
        assert way in caught.value.hint
    # Where no null can come, and where one would be left out, nothing is refused.
    target = database.target("results", nullable=())
    write(target, ("x", 1, 1, False))
    target = database.target("results", on_error="skip")
    write(target, ("x", 1, 2, False), ("y", 1, 3, False))
    with pytest.raises(SinkError, match=r"1 rows have no [ab], which is part of the key"):
        write(target, (None, None, 2, False))
    assert database.rows("results") == {("x", 1, 2), ("y", 1, 3)}


def test_a_number_that_sqlite_would_give_itself(tmp_path: Path) -> None:
    database = Database("sqlite", tmp_path, None)
    database.run("CREATE TABLE results (a text, b INTEGER PRIMARY KEY, v int)")
    with pytest.raises(ConfigurationError, match="'b' is part of the key and may be null"):
        database.target("results", key="b", nullable=("b",))
    # Other tables take nulls in a primary key, which a sink has made.
    database.run("CREATE TABLE others (a text, b bigint, v bigint, primary key (a, b))")
    target = database.target("others")
    for v in range(3):
        write(target, (None, None, v, False), (None, 1, v, False))
    assert database.rows("others") == {(None, None, 2), (None, 1, 2)}


def test_a_server_without_such_indexes(postgresql: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes a primary key, and says what can be done."""
    from strandline.ends.postgres import target

    monkeypatch.setattr(target, "_NULLS_NOT_DISTINCT", 10**9)
    database = Database("postgres", tmp_path, postgresql)
    with pytest.raises(ConfigurationError, match="may be null, and the table cannot have such a row") as caught:
        database.target("results")
    assert "from version 15 on" in caught.value.hint
    assert "add unique nulls not distinct" in caught.value.hint


def test_deletions_by_null_among_many_rows(database: Database) -> None:
    rng, target = random.Random(1), database.target("results")
    keys = [(a, b) for a in (None, *map(str, range(20))) for b in (None, *range(10))]
    write(target, *((a, b, 0, False) for a, b in keys))
    gone = set(rng.sample(keys, 60))
    write(target, *((a, b, 0, True) for a, b in gone))
    assert database.rows("results") == {(a, b, 0) for a, b in keys if (a, b) not in gone}
