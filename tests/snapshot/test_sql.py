"""SQL over the tables of a snapshot: what it sees, what it reads, and what it says when it cannot."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from strandline.core.errors import ConfigurationError, CorruptionError
from strandline.format.manifest import MANIFEST
from strandline.snapshot.opening.snapshot import open_snapshot
from strandline.snapshot.tables import sql as module
from strandline.snapshot.tables.reader import StateReader
from strandline.snapshot.tables.sql import query
from strandline.snapshot.tables.table import Table
from tests.snapshot.stateful import checkpoint_of, savepoint_of

pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_of(tmp_path_factory.mktemp("job"))


def ask(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    with query(open_snapshot(str(folder)), sql) as found:
        return [tuple(row.values()) for row in found.read_all().to_pylist()]


def test_tables_of_a_job_of_two_partitions_are_joined(checkpoint: Path) -> None:
    joined = 'SELECT count(*), sum(v.value), sum(t.value) FROM op.value v JOIN "op.top" t USING (k)'
    assert ask(checkpoint, joined) == [(60, sum(range(60)), sum(range(60)))]
    # A table is read as often as the query scans it.
    assert ask(checkpoint, "SELECT count(*) FROM top a JOIN top b USING (k) WHERE a.value = b.value") == [(60,)]
    last = "SELECT k, max(position), max_by(value, position) FROM history GROUP BY k ORDER BY k LIMIT 1"
    assert ask(checkpoint, last) == [("k0", 5, 1)]
    assert ask(checkpoint, 'SELECT DISTINCT epoch(time) FROM op."timers.processing"') == [(1_700_086_400.0,)]
    assert ask(checkpoint, "SELECT m.value.n, p.value.s FROM mean m, pair p WHERE m.k = 'k7' AND p.k = 'k7'") == [
        (2, "1")
    ]


def test_a_savepoint_gives_the_same(checkpoint: Path) -> None:
    savepoint = savepoint_of(checkpoint, "canonical")
    for name in ("history", '"timers.event"'):
        of_all = f"SELECT * FROM op.{name}"
        assert ask(savepoint, of_all) == ask(checkpoint, of_all)


@pytest.mark.parametrize("uid", ["memory", "Memory", "snapshot", "main", "select", 'q"t', "ü x"])
def test_operators_may_be_called_as_duckdb_calls_its_own(checkpoint: Path, uid: str) -> None:
    snapshot = open_snapshot(str(checkpoint))
    (operator,) = snapshot.manifest.operators
    renamed = structs.replace(snapshot.manifest, operators=[structs.replace(operator, uid=uid)])
    quoted = uid.replace('"', '""')
    for name in (f'"{quoted}".top', f'"{quoted}.top"', "top"):
        with query(replace(snapshot, manifest=renamed), f"SELECT count(*) FROM {name}") as found:
            assert found.read_all().to_pylist() == [{"count_star()": 60}]


def test_metadata_is_seen_and_times_are_in_utc(checkpoint: Path) -> None:
    assert ask(checkpoint, "SELECT count(*), sum(bytes) > 0 FROM metadata.files WHERE operator = 'op'")[0][1]
    ((name, created),) = ask(
        checkpoint, "SELECT o.operator, created::VARCHAR FROM metadata.operators o, metadata.snapshot"
    )
    assert (name, created) == ("op", "2023-11-14 22:13:20+00")


def test_only_what_the_query_names_is_read(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    class Noting(StateReader):
        def rows(self, table: Table, groups: range | None = None) -> Any:
            read.append(table.name)
            yield from super().rows(table, groups)

    monkeypatch.setattr(module, "StateReader", Noting)
    ask(checkpoint, "SELECT 1")
    ask(checkpoint, "DESCRIBE op.value")
    assert not read
    ask(checkpoint, "SELECT * FROM op.mean")
    assert read == ["op.mean"]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT * FROM nothing", r"nothing does not exist[^$]*the tables are op.value, [^$]*metadata.files"),
        ("SELEC", "syntax error"),
        ("SELECT error('no')", "the query failed[^$]*no"),
        ("", "the query is empty, expected one SELECT"),
        ("COPY (SELECT 1) TO '{out}'", "the query is COPY, expected one SELECT"),
        ("SELECT 1; COPY (SELECT 1) TO '{out}'", "the query is SELECT and COPY, expected one SELECT"),
        ("EXPLAIN ANALYZE COPY (SELECT 1) TO '{out}'", "the query is EXPLAIN"),
        ("ATTACH '{out}'", "the query is ATTACH"),
        ("DROP VIEW top", "the query is DROP"),
        # A name in SQL is none of the program's own.
        ("SELECT * FROM of_the_program", "of_the_program does not exist"),
    ],
)
def test_what_cannot_be_asked(
    checkpoint: Path, sql: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "of_the_program", pa.table({"a": [1]}), raising=False)
    with pytest.raises(ConfigurationError, match=said):
        ask(checkpoint, sql.format(out=tmp_path / "out"))
    assert not list(tmp_path.iterdir())


def test_damage_is_said_as_such(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint.parent, tmp_path / "copy")
    snapshot = open_snapshot(str(tmp_path / "copy" / checkpoint.name))
    shutil.rmtree(tmp_path / "copy" / "shared")
    with pytest.raises(CorruptionError, match="missing"), query(snapshot, "SELECT * FROM op.top") as found:
        found.read_all()


@pytest.mark.parametrize("sql", ["SELECT count(*)", "SELECT i"])
def test_an_interrupt_ends_a_query_while_duckdb_runs_it(checkpoint: Path, sql: str) -> None:
    began = time.monotonic()
    timer = threading.Timer(1, partial(signal.pthread_kill, threading.get_ident(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ask(checkpoint, f"{sql} FROM range(5_000_000_000) t(i) WHERE i % 100_000_000_007 = 3")
    assert time.monotonic() - began < 10
    timer.join()


def test_without_duckdb(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigurationError, match=r"needs DuckDB[^$]*pip install 'strandline\[tables\]'"):
        ask(checkpoint, "SELECT 1")


@pytest.mark.parametrize("uid", ["temp", "System", "pg_catalog", "information_schema", "metadata", "main", "memory"])
def test_an_operator_may_be_called_as_a_schema_of_the_database(tmp_path: Path, uid: str) -> None:
    folder = checkpoint_of(tmp_path, "memory", 1)
    found = MANIFEST.decode((folder / "_metadata").read_bytes(), "it")
    (op,) = found.operators
    (folder / "_metadata").write_bytes(
        MANIFEST.encode(structs.replace(found, operators=[structs.replace(op, uid=uid)]))
    )
    for name in (f'"{uid}.top"', "top"):
        assert ask(folder, f"SELECT count(*) FROM {name}") == [(60,)]
    if uid in ("metadata", "main", "memory"):
        assert ask(folder, f"SELECT count(*) FROM {uid}.top") == [(60,)]
    else:
        with pytest.raises(
            ConfigurationError, match=f'a schema of DuckDB.s own: write [^$]*"{uid}.top"[^$]*in one pair'
        ):
            ask(folder, f"SELECT count(*) FROM {uid}.top")
    assert ask(folder, "SELECT DISTINCT operator FROM metadata.operators") == [(uid,)]
