"""Reads RisingWave's sqllogictests as cases: a statement that changes tables is an epoch, and queries are checks.

DuckDB applies the statements to the tables, so that INSERT … SELECT, UPDATE and DELETE become versions of rows. Each
materialized view is a case of its own, with the views that it reads.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from tests.spark.suites.cases import HIDDEN, Case, Check, Input, Row, UnreadableError, normal_token
from tests.spark.suites.fetching import HOME

ROOT = HOME / "risingwave" / "e2e_test"
_TABLE = re.compile(r"\s*create\s+table\s+(?:if\s+not\s+exists\s+)?\"?(\w+)\"?\s*\(", re.I)
_VIEW = re.compile(r"\s*create\s+materialized\s+view\s+(?:if\s+not\s+exists\s+)?\"?(\w+)\"?\s+as\s+", re.I)
_DROP = re.compile(r"\s*drop\s+table\b", re.I)
_CHANGE = re.compile(r"\s*(insert\s+into|delete\s+from|update)\s+\"?(\w+)\"?", re.I)
_TYPES = {
    "INTEGER": "int", "VARCHAR": "string", "TIMESTAMP": "timestamp_ntz", "TIMESTAMP WITH TIME ZONE": "timestamp", "HUGEINT": "decimal(38,0)",
}  # fmt: skip


@dataclass
class _Section:
    """The tables that are there at the same time, and what happens to them."""

    tables: dict[str, _Table] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)
    checks: list[tuple[int, str, list[str]]] = field(default_factory=list)
    epochs: int = 0
    is_over: bool = False


@dataclass
class _Table:
    columns: list[tuple[str, str]]
    key: list[str]
    only_come: bool
    rows: dict[Any, Row] = field(default_factory=dict)
    epochs: dict[int, list[Row]] = field(default_factory=dict)


def programs() -> Iterator[tuple[str, Case | str]]:
    """Yield each view's name, and its case or why there is none."""
    for path in sorted(ROOT.rglob("*.slt")):
        name = str(path.relative_to(ROOT)).removesuffix(".slt")
        try:
            sections = _sections(path)
        except (UnreadableError, duckdb.Error) as error:
            yield name, str(error).splitlines()[0][:200]
            continue
        for number, section in enumerate(sections):
            for view in section.views:
                yield f"{name}/{number}/{view}", _case(f"{name}/{number}/{view}", section, view)


def _case(name: str, section: _Section, view: str) -> Case:
    wanted = [view]
    for other, query in reversed(section.views.items()):
        if other not in wanted and any(re.search(rf"\b{other}\b", section.views[each], re.I) for each in wanted):
            wanted.append(other)
        del query
    views = [(each, query) for each, query in section.views.items() if each in wanted]
    queries = " ".join(query for _, query in views)
    inputs = []
    for table, of in section.tables.items():
        if re.search(rf"\b{table}\b", queries, re.I):
            columns = of.columns if of.key or of.only_come else [(HIDDEN, "bigint"), *of.columns]
            epochs = [of.epochs.get(epoch, []) for epoch in range(1, section.epochs + 1)]
            if of.only_come:
                epochs = [[row[:-1] for row in rows] for rows in epochs]
            inputs.append(Input(table, columns, epochs, [] if of.only_come else of.key or [HIDDEN]))
    # Before the first epoch, a view has given nothing.
    asked = [each for each in section.checks if each[0] and re.search(rf"\b{view}\b", each[1], re.I)]
    checks = [Check(epoch, query, rows) for epoch, query, rows in asked]
    ends = [Check(epoch, f"SELECT * FROM {view}", None) for epoch in {section.epochs // 2 + 1, section.epochs}]
    middle = section.epochs // 2 or None
    return Case("RisingWave", name, inputs, views, [*checks, *ends], middle, read, write)


def _sections(path: Path) -> list[_Section]:
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    sections = [_Section()]
    for block in re.split(r"\n\s*\n", path.read_text()):
        lines = [line for line in block.strip().splitlines() if not line.lstrip().startswith("#")]
        if not lines:
            continue
        head, text = lines[0].split(), "\n".join(lines[1:])
        if head[0] == "statement" and head[1:2] == ["ok"]:
            _statement(database, sections, re.sub(r"--.*", "", text).strip().rstrip(";"))
        elif head[0] == "query":
            query, found, rows = text.partition("----")
            if found:
                section = sections[-1]
                section.checks.append((section.epochs, query.strip().rstrip(";"), rows.strip("\n").splitlines()))
        elif head[0] not in ("statement", "sleep", "system", "include", "skipif", "onlyif"):
            raise UnreadableError(f"a record that begins with {lines[0][:60]}")
    return sections


def _statement(database: Any, sections: list[_Section], text: str) -> None:
    section = sections[-1]
    if _DROP.match(text):
        section.is_over = bool(section.tables)
    elif found := _TABLE.match(text):
        name = found[1].lower()
        if section.is_over:
            # What was there before is another case.
            sections.append(section := _Section())
            for (table,) in database.execute("SELECT table_name FROM duckdb_tables()").fetchall():
                database.execute(f'DROP TABLE "{table}"')
        only_come = bool(re.search(r"\)\s*append\s+only\s*$", text, re.I))
        database.execute(re.sub(r"\)\s*append\s+only\s*$", ")", text, flags=re.I))
        columns, key = [], []
        for column, kind, _, is_key, *_ in database.execute(f'DESCRIBE "{name}"').fetchall():
            kind = re.sub(r"(\w+)\[\]", lambda of: f"array<{_TYPES.get(of[1], of[1].lower())}>", kind)
            columns.append((column, _TYPES.get(kind, kind.lower())))
            key += [column] * (is_key == "PRI")
        section.tables[name] = _Table(columns, key, only_come)
    elif found := _VIEW.match(text):
        query = text[found.end() :].strip()
        if found[1] in section.views:
            raise UnreadableError(f"two views are named {found[1]}")
        section.views[found[1]] = query[1:-1] if query.startswith("(") and query.endswith(")") else query
    elif found := _CHANGE.match(text):
        database.execute(text)
        _changed(database, section, found[2].lower())


def _changed(database: Any, section: _Section, name: str) -> None:
    """Make an epoch of what a statement has changed in a table."""
    table = section.tables[name]
    section.epochs += 1
    names = [column for column, _ in table.columns]
    now = {}
    for number, *row in database.execute(f'SELECT rowid, * FROM "{name}"').fetchall():
        values = tuple(map(_value, row))
        now[tuple(values[names.index(each)] for each in table.key) if table.key else number] = values
    found = []
    for key, row in now.items():
        if table.rows.get(key) != row:
            found.append((*(() if table.key or table.only_come else (key,)), *row, False))
    for key, row in table.rows.items():
        if key not in now:
            found.append((*(() if table.key or table.only_come else (key,)), *row, True))
    table.rows = now
    table.epochs[section.epochs] = found


def _value(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    return value


def read(text: str) -> str:
    """Return an expected row as one that can be compared."""
    return " ".join(normal_token(each) for each in re.sub(r"(\d)\+00:00", r"\1", text).replace("(empty)", "").split())


def write(row: Sequence[Any]) -> str:
    """Return a row as RisingWave writes it."""
    return read(" ".join(map(_text, row)))


def _text(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "t" if value else "f"
        case list():
            return "{" + ",".join(map(_text, value)) + "}"
        case dt.datetime():
            return value.isoformat(sep=" ")
    return str(value)
