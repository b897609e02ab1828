"""The state in a job's snapshots: tables, rows, SQL, and one key through all retained checkpoints and now."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from strandline.control.client import Driver, call
from strandline.control.commands import LOOKUP, LookUp
from strandline.core.errors import ConfigurationError, NotFoundError, StrandlineError, UnavailableError
from strandline.runtime.state.lookups import KNOWN
from strandline.snapshot.opening.snapshot import Snapshot, pinned_snapshot
from strandline.snapshot.rows.keys import key_columns, key_from_text
from strandline.snapshot.rows.plain import first_rows, plain_column
from strandline.snapshot.tables.reader import StateReader
from strandline.snapshot.tables.sql import query
from strandline.snapshot.tables.table import Table, all_tables, find_table
from strandline.snapshot.tools.comparison import KeyDiff
from strandline.snapshot.tools.diff import diff_snapshots
from strandline.types.jsonforms import to_json
from strandline.ui.jobs import Job
from strandline.ui.living import TIMEOUT_S, first_keys, one_key
from strandline.ui.steps import cell

_MOST_ROWS = 200
_MOST_POINTS = 2000
"""Rows of the result of a query, which may be plotted."""
_MOST_CHECKPOINTS = 12
_MOST_KEYS = 50
"""Of one state that differ."""


@dataclass
class Browser:
    """Reads state for the page. Values are shown only if the page was started for that."""

    options: Mapping[str, str]
    shows_values: bool
    _querying: threading.Lock = field(default_factory=threading.Lock, init=False)

    def tables(self, url: str) -> dict[str, Any]:
        """Return the tables of a snapshot, with their columns, and the operators' keys."""
        with pinned_snapshot(url, self.options) as snapshot:
            tables = all_tables(snapshot)
            return {
                "url": snapshot.url,
                "checkpoint": snapshot.manifest.checkpoint,
                "epoch": snapshot.manifest.epoch,
                "tables": [asdict(table.summary()) for table in tables],
                "keys": {
                    table.operator.uid: [
                        {"name": each.name, "type": each.type.ddl} for each in key_columns(table.operator)
                    ]
                    for table in tables
                },
            }

    def rows(self, url: str, name: str) -> dict[str, Any]:
        """Return the first rows of a table."""
        self.check()
        with pinned_snapshot(url, self.options) as snapshot, StateReader() as reader:
            table = find_table(snapshot, name)
            return _result(snapshot, table.schema, reader.rows(table))

    def living_rows(self, driver: Driver, table: str, partition: str, key: Sequence[str]) -> dict[str, Any]:
        """Return some keys of a running job's state with their values, or those of one key."""
        self.check()
        answer = one_key(driver, table, key) if key else first_keys(driver, table, partition)
        return {**answer, "rows": [[*map(cell, row)] for row in answer["rows"]]}

    def query(self, url: str, sql: str) -> dict[str, Any]:
        """Return the first rows of a SELECT over a snapshot's tables."""
        self.check()
        with self._alone(), pinned_snapshot(url, self.options) as snapshot, query(snapshot, sql, self.options) as rows:
            return _result(snapshot, rows.schema, rows, _MOST_POINTS)

    def difference(self, before: str, after: str, sample: float) -> dict[str, Any]:
        """Return the numbers of keys that two snapshots have in another way, and some of these keys."""
        if not 0 < sample <= 1:
            raise ConfigurationError(f"a part of {sample:g} of the keys was asked for, expected more than 0, at most 1")
        with (
            self._alone(),
            pinned_snapshot(before, self.options) as old,
            pinned_snapshot(after, self.options) as new,
        ):
            diff = diff_snapshots(old, new, sample=sample, most_keys=_MOST_KEYS if self.shows_values else 0)
            return {
                "groups": diff.groups,
                "groups_read": diff.groups_read,
                "states": [
                    {"equal": state.is_equal, **asdict(state), "keys": [*map(_key, state.keys)]}
                    for state in diff.states
                ],
            }

    def key(self, job: Job, checkpoints: Sequence[int], uid: str, texts: Sequence[str]) -> dict[str, Any]:
        """Return what an operator has for a key: now, if the job runs, and at each of its newest checkpoints."""
        self.check()
        tables: dict[str, dict[str, Any]] = {}
        key: Any = None
        for number in sorted(checkpoints)[-_MOST_CHECKPOINTS:]:
            try:
                with pinned_snapshot(f"{job.url}/chk-{number}", self.options) as snapshot, StateReader() as reader:
                    for table in (each for each in all_tables(snapshot) if each.operator.uid == uid):
                        key = key_from_text(table.operator, [*texts])
                        self._add(tables, table, number, snapshot, reader, key)
            except NotFoundError:
                # The job has replaced the checkpoint meanwhile.
                continue
        if not tables:
            raise NotFoundError(
                f"no checkpoint of '{job.name}' has an operator '{uid}'", hint="take a checkpoint, and look again"
            )
        text = key_text(key, len(texts))
        if job.driver is not None:
            for entry in tables.values():
                if entry["kind"] in KNOWN:
                    entry["now"] = _now(job.driver, entry["table"], text)
        return {"operator": uid, "key": [*texts], "text": text, "tables": [*tables.values()]}

    def _add(
        self, tables: dict[str, dict[str, Any]], table: Table, number: int, snapshot: Snapshot, reader: StateReader,
        key: Any,
    ) -> None:  # fmt: skip
        if table.is_broadcast:
            return
        ttl = table.state.ttl
        entry = tables.setdefault(
            table.name,
            {"table": table.name, "kind": table.state.kind, "ttl": ttl.time if ttl else "", "at": []},
        )  # fmt: skip
        result = _result(snapshot, table.schema, [reader.look_up(table, key)])
        entry["at"].append({"created_ms": snapshot.manifest.created_ms, **result})

    def check(self) -> None:
        """Raise ConfigurationError unless the page shows values."""
        if not self.shows_values:
            raise ConfigurationError(
                "keys and values are hidden", hint="start the page with `strandline ui --values shown` to see them"
            )

    @contextmanager
    def _alone(self) -> Any:
        if not self._querying.acquire(blocking=False):
            raise UnavailableError("another query is running", hint="try again when it has ended")
        try:
            yield
        finally:
            self._querying.release()


def key_text(key: Any, columns: int) -> str:
    """Return a key as commands take it: plain text or JSON; of several columns, a list."""
    plain = to_json(key)
    return plain if columns == 1 and isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _now(driver: Driver, table: str, text: str) -> dict[str, Any]:
    try:
        answer = call(driver, LOOKUP, LookUp(table, [text]), timeout_s=TIMEOUT_S)
    except StrandlineError as error:
        return {"error": error.message}
    (value,) = answer.values
    first = value[0] if isinstance(value, list) and value else None
    return {"epoch": answer.epoch, "value": cell(value), "first": cell(first)}


def _result(
    snapshot: Snapshot, schema: pa.Schema, batches: Iterable[pa.RecordBatch], most: int = _MOST_ROWS
) -> dict[str, Any]:
    rows: list[list[str | None]] = []
    for batch in first_rows(batches, most + 1):
        rows += [[*map(cell, row)] for row in zip(*map(plain_column, batch.columns), strict=True)]
    return {
        "checkpoint": snapshot.manifest.checkpoint,
        "epoch": snapshot.manifest.epoch,
        "columns": [
            {"name": name, "type": str(kind), "is_number": _is_number(kind), "is_time": _is_time(kind)}
            for name, kind in zip(schema.names, schema.types, strict=True)
        ],
        "rows": rows[:most],
        "has_more": len(rows) > most,
    }


def _key(key: KeyDiff) -> dict[str, Any]:
    def side(rows: Sequence[Mapping[str, Any]], count: int) -> str:
        more = f" and {count - len(rows)} more rows" if count > len(rows) else ""
        return ", ".join(filter(None, map(cell, rows))) + more

    return {
        "change": key.change, "key": cell([*key.key.values()] if len(key.key) > 1 else next(iter(key.key.values()))),
        "before": side(key.before, key.rows_before), "after": side(key.after, key.rows_after),
    }  # fmt: skip


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))
