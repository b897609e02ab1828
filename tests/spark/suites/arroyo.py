"""Reads Arroyo's golden queries as cases: the rows of a file in several epochs, and the rows that its sink then has.

Windows are functions of a row's time that the text does not name, `tumble(interval '1 hour')`: they are given the
source's column of event time.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.spark.suites.cases import Case, Check, Input, Row, UnreadableError, normal, text_of
from tests.spark.suites.fetching import HOME

ROOT = HOME / "arroyo" / "crates" / "arroyo-sql-testing"
_EPOCHS = 4
_TYPES = {
    "TEXT": "string", "VARCHAR": "string", "BIGINT UNSIGNED": "bigint", "INTEGER": "int", "INT": "int", "BIGINT": "bigint", "FLOAT": "float",
    "DOUBLE": "double", "BOOLEAN": "boolean", "TIMESTAMP": "timestamp",
}  # fmt: skip
_TABLE = re.compile(r"create\s+table\s+(\w+)\s*(?:\((.*?)\))?\s*(?:with\s*\((.*)\))?$", re.I | re.S)
_VIEW = re.compile(r"create\s+view\s+(\w+)\s+as\s+(.*)$", re.I | re.S)
_INSERT = re.compile(r"insert\s+into\s+(\w+)\s+(.*)$", re.I | re.S)
_OPTION = re.compile(r"'?([\w.]+)'?\s*=\s*'([^']*)'")
_INTERVAL = r"interval\s+'(\d+)\s*(\w*)'(?:\s*(second|minute|hour|day|month)\b)?"
_WINDOW = re.compile(rf"\b(tumble|hop|session)\s*\(\s*{_INTERVAL}\s*(?:,\s*{_INTERVAL}\s*)?\)", re.I)
_RUST = re.compile(r"(double_negative|my_median|none_udf|max_product)\(")


@dataclass
class _Table:
    columns: list[tuple[str, str]]
    computed: list[tuple[str, str]]
    key: list[str]
    watermark: tuple[str, str] | None
    options: dict[str, str]


@dataclass
class _Program:
    tables: dict[str, _Table] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)
    inserts: dict[str, list[str]] = field(default_factory=dict)
    """Queries, by the tables that they write."""


def programs() -> Iterator[tuple[str, Case | str]]:
    """Yield each query's name, and its case or why there is none."""
    for path in sorted((ROOT / "src" / "test" / "queries").glob("*.sql")):
        text = path.read_text()
        source = re.search(r"\$input_dir/(\w+)", text)
        name = f"{source[1] if source else 'none'}/{path.stem}"
        try:
            yield name, _case(name, path.stem, text)
        except UnreadableError as error:
            yield name, str(error)


def _case(name: str, stem: str, text: str) -> Case:
    if _RUST.search(text):
        raise UnreadableError("functions in Rust")
    program = _program(text)
    inputs, views, checks = [], [], []
    times = {of.watermark[0] if of.watermark else "timestamp" for of in program.tables.values() if _is_source(of)}
    if len(times) != 1:
        raise UnreadableError("windows of several tables whose times have other names")
    (time,) = times
    for table, of in program.tables.items():
        if _is_source(of):
            inputs.append(Input(table, of.columns, _epochs(of), of.key, of.computed, of.watermark))
    for target, queries in program.inserts.items():
        of = program.tables[target]
        query = _spark("\nUNION ALL\n".join(queries), time)
        if not of.options:
            views.append((target, _named(query, target, of)))
            continue
        golden = ROOT / "golden_outputs" / f"{stem}.json"
        # A query that Arroyo refuses may have an older output.
        has_golden = golden.exists() and not text.startswith("--fail")
        lines = [json.loads(line) for line in golden.read_text().splitlines()] if has_golden else []
        rows = _answer(lines)
        names = [column for column, _ in of.columns] or sorted({key for row in rows for key in row})
        if of.columns:
            query = _named(query, "given", of)
        elif names:
            query = f"SELECT {', '.join(f'`{each}`' for each in names)} FROM ({query})"
        views.append(("sink", query))
        expected = [json.dumps([row.get(each) for each in names]) for row in rows] if has_golden else None
        checks = [Check(_EPOCHS // 2, "SELECT * FROM sink", None), Check(_EPOCHS, "SELECT * FROM sink", expected)]
    views = [*((each, _spark(query, time)) for each, query in program.views.items()), *views]
    return Case("Arroyo", name, inputs, views, checks, _EPOCHS // 2, _read)


def _is_source(table: _Table) -> bool:
    return table.options.get("type") == "source"


def _named(query: str, name: str, table: _Table) -> str:
    return f"SELECT * FROM ({query}) AS {name}({', '.join(f'`{each}`' for each, _ in table.columns)})"


def _program(text: str) -> _Program:
    program = _Program()
    for statement in re.sub(r"--.*", "", text).split(";"):
        given = statement.strip()
        if found := _TABLE.match(given):
            program.tables[found[1]] = _table(found[2] or "", dict(_OPTION.findall(found[3] or "")))
        elif found := _VIEW.match(given):
            program.views[found[1]] = found[2]
        elif found := _INSERT.match(given):
            program.inserts.setdefault(found[1], []).append(found[2])
        elif given:
            raise UnreadableError(f"a statement that begins with {given[:40]}")
    return program


def _table(columns: str, options: dict[str, str]) -> _Table:
    stored, computed, key, delay = [], [], [], ""
    time = options.get("event_time_field")
    for part in re.split(r",(?![^(]*\))", columns):
        text = " ".join(part.split())
        if found := re.match(r"watermark for (\w+)(?: as \(?.*interval '(.*?)'.*)?$", text, re.I):
            time, delay = found[1], found[2] or ""
        elif found := re.match(r"(\w+) \w+ generated always as \((.*)\) stored$", text, re.I):
            computed.append((found[1], found[2]))
            if found[1] == options.get("watermark_field"):
                delay = re.sub(r".*interval '(.*?)'.*", r"\1", found[2], flags=re.I)
        elif text:
            name, _, kind = text.partition(" ")
            key += [name] * ("PRIMARY KEY" in kind.upper())
            kind = re.sub(r"\s*(not null|primary key)", "", kind, flags=re.I).upper()
            if kind not in _TYPES:
                raise UnreadableError(f"a column of type {kind}")
            stored.append((name, _TYPES[kind]))
    return _Table(stored, computed, key, (time, delay or "1 second") if time else None, options)


def _spark(query: str, time: str) -> str:
    """Return a query in which windows name their column, with Spark's names of types."""

    def window(found: re.Match[str]) -> str:
        first, second = (f"{found[at]} {found[at + 1] or found[at + 2]}" for at in (2, 5))
        match found[1].lower():
            case "hop":
                return f"window(`{time}`, '{second}', '{first}')"
            case "session":
                return f"session_window(`{time}`, '{first}')"
        return f"window(`{time}`, '{first}')"

    # A window without a name has another one in Arroyo than `window`.
    query = re.sub(rf"(select\s+{_WINDOW.pattern})(\s*,)", lambda found: f"{found[1]} AS unnamed{found[found.re.groups]}", query, flags=re.I)  # fmt: skip
    query = _WINDOW.sub(window, query)
    return re.sub(r"\bas\s+bigint\s+unsigned\s*\)", "AS bigint)", query, flags=re.I)


def _epochs(table: _Table) -> list[list[Row]]:
    path = ROOT / "inputs" / Path(table.options["path"]).name
    if not path.exists():
        raise UnreadableError(f"the rows of {path.name} are not there")
    rows: list[Row] = []
    for line in path.read_text().splitlines():
        given = json.loads(line)
        if table.options["format"] == "debezium_json":
            is_gone = given["op"] == "d"
            rows.append((*_row(given["before" if is_gone else "after"], table), is_gone))
        else:
            rows.append(_row(given, table))
    size = -(-len(rows) // _EPOCHS)
    return [rows[at * size : (at + 1) * size] for at in range(_EPOCHS)]


def _row(given: dict[str, Any], table: _Table) -> Row:
    return tuple(_value(given.get(name), kind) for name, kind in table.columns)


def _value(value: Any, kind: str) -> Any:
    if kind != "timestamp" or value is None:
        return float(value) if kind in ("float", "double") and value is not None else value
    if isinstance(value, int):
        return dt.datetime.fromtimestamp(0, dt.UTC).replace(tzinfo=None) + dt.timedelta(microseconds=value)
    return dt.datetime.fromisoformat(value).replace(tzinfo=None)


def _answer(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that a sink has in the end: lines are rows, or changes as Debezium writes them."""
    if not all("op" in line and "after" in line for line in lines):
        return list(lines)
    rows: Counter[str] = Counter()
    for line in lines:
        for side, weight in (("before", -1), ("after", 1)):
            if line[side] is not None:
                rows[json.dumps(line[side], sort_keys=True)] += weight
    return [json.loads(text) for text in rows.elements()]


def _read(text: str) -> str:
    """Return an expected row as one that can be compared."""
    return normal(", ".join(map(text_of, json.loads(text))))
