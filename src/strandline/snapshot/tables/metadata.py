"""Metadata tables of a snapshot: operators, states, partitions, files, the snapshot itself and its job's history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.errors import NotFoundError
from strandline.format.manifest import FileRef, OperatorInfo
from strandline.snapshot.opening.listing import list_snapshots
from strandline.snapshot.opening.snapshot import Snapshot
from strandline.snapshot.tables.table import Table, all_tables

Row = dict[str, Any]
_TIME = pa.timestamp("ms", "UTC")
_TEXT, _LONG, _INT, _BOOL, _DOUBLE = pa.string(), pa.int64(), pa.int32(), pa.bool_(), pa.float64()


@dataclass(frozen=True, slots=True)
class _View:
    columns: dict[str, pa.DataType]
    rows: Callable[[Snapshot, Mapping[str, str] | None], Iterator[Row]]


def metadata(snapshot: Snapshot, name: str, options: Mapping[str, str] | None = None) -> pa.Table:
    """Return one of the `METADATA_TABLES`.

    `options` are the storage's, for the history, which reads all of the job's checkpoints. Raises NotFoundError for
    another name.
    """
    view = _view(name)
    return pa.Table.from_pylist(list(view.rows(snapshot, options)), schema=metadata_schema(name))


def metadata_schema(name: str) -> pa.Schema:
    """Return the columns of a metadata table."""
    return pa.schema(_view(name).columns)


def _view(name: str) -> _View:
    if name not in _VIEWS:
        raise NotFoundError(f"there is no metadata table '{name}'", hint=f"there are {', '.join(_VIEWS)}")
    return _VIEWS[name]


def _snapshot(snapshot: Snapshot, options: Mapping[str, str] | None) -> Iterator[Row]:
    m = snapshot.manifest
    yield {
        "url": snapshot.url, "kind": snapshot.kind, "form": m.savepoint or m.mode, "job": m.job,
        "generation": m.generation, "checkpoint": m.checkpoint, "epoch": m.epoch, "triggered": m.triggered_ms,
        "created": m.created_ms, "bytes": m.total_bytes, "engine_version": m.engine_version,
    }  # fmt: skip


def _operators(snapshot: Snapshot, options: Mapping[str, str] | None) -> Iterator[Row]:
    for operator in snapshot.manifest.operators:
        yield {
            "operator": operator.uid, "backend": operator.backend, "parallelism": operator.parallelism,
            "max_parallelism": operator.max_parallelism, "key_schema": operator.key_schema,
            "states": len(operator.states), "bytes": sum(file.size for _, _, file in _files_of(operator)),
        }  # fmt: skip


def _states(snapshot: Snapshot, options: Mapping[str, str] | None) -> Iterator[Row]:
    tables = {(table.operator.uid, table.state.name): table for table in all_tables(snapshot)}
    for operator in snapshot.manifest.operators:
        for state in operator.states:
            table: Table | None = tables.get((operator.uid, state.name))
            ttl = state.ttl or None
            yield {
                "operator": operator.uid, "state": state.name, "table": table.name if table else None,
                "kind": state.kind, "key_type": state.key_type or None, "value_type": state.value_type or None,
                "schema_id": state.schema_id, "ttl_ms": ttl.duration_ms if ttl else None,
                "ttl_time": ttl.time if ttl else None,
                "rows": None if table is None or table.files is None else sum(file.rows for file in table.files),
            }  # fmt: skip


def _partitions(snapshot: Snapshot, options: Mapping[str, str] | None) -> Iterator[Row]:
    for operator in snapshot.manifest.operators:
        for part in operator.partitions:
            yield {
                "operator": operator.uid, "partition": part.index, "first_key_group": part.first_key_group,
                "last_key_group": part.last_key_group, "files": len(part.files),
                "bytes": sum(file.size for file in part.files), "uploaded_bytes": part.uploaded_bytes,
                "sync_ms": part.sync_ms, "async_ms": part.async_ms,
            }  # fmt: skip


def _files(snapshot: Snapshot, options: Mapping[str, str] | None) -> Iterator[Row]:
    files: list[tuple[str | None, int | None, str | None, FileRef]] = [
        (operator.uid, *one) for operator in snapshot.manifest.operators for one in _files_of(operator)
    ]
    source = snapshot.manifest.source
    files += [(None, None, None, file) for file in (source.files() if source else [])]
    for operator, partition, state, file in files:
        yield {
            "operator": operator, "partition": partition, "state": state, "name": file.name, "path": file.path or None,
            "bytes": file.size, "sha256": file.sha256, "shared": file.shared,
        }  # fmt: skip


def _files_of(operator: OperatorInfo) -> Iterator[tuple[int | None, str | None, FileRef]]:
    for part in operator.partitions:
        for file in part.files:
            yield part.index, None, file
    for state, tables in (operator.tables or {}).items():
        for table in tables:
            yield None, state, table.file


def _history(snapshot: Snapshot, options: Mapping[str, str] | None) -> Iterator[Row]:
    of_job = isinstance(snapshot.folder, JobDirectory)
    for summary in list_snapshots(snapshot.folder.url if of_job else snapshot.url, options):
        row = asdict(summary)
        yield {**row, "created": row["created_ms"], "bytes": row["total_bytes"]}


_VIEWS = {
    "snapshot": _View(
        {
            "url": _TEXT, "kind": _TEXT, "form": _TEXT, "job": _TEXT, "generation": _LONG, "checkpoint": _LONG,
            "epoch": _LONG, "triggered": _TIME, "created": _TIME, "bytes": _LONG, "engine_version": _TEXT,
        },
        _snapshot,
    ),
    "operators": _View(
        {
            "operator": _TEXT, "backend": _TEXT, "parallelism": _INT, "max_parallelism": _INT, "key_schema": _TEXT,
            "states": _INT, "bytes": _LONG,
        },
        _operators,
    ),
    "states": _View(
        {
            "operator": _TEXT, "state": _TEXT, "table": _TEXT, "kind": _TEXT, "key_type": _TEXT, "value_type": _TEXT,
            "schema_id": _INT, "ttl_ms": _LONG, "ttl_time": _TEXT, "rows": _LONG,
        },
        _states,
    ),
    "partitions": _View(
        {
            "operator": _TEXT, "partition": _INT, "first_key_group": _INT, "last_key_group": _INT, "files": _INT,
            "bytes": _LONG, "uploaded_bytes": _LONG, "sync_ms": _DOUBLE, "async_ms": _DOUBLE,
        },
        _partitions,
    ),
    "files": _View(
        {
            "operator": _TEXT, "partition": _INT, "state": _TEXT, "name": _TEXT, "path": _TEXT, "bytes": _LONG,
            "sha256": _TEXT, "shared": _BOOL,
        },
        _files,
    ),
    "history": _View(
        {
            "url": _TEXT, "kind": _TEXT, "state": _TEXT, "reason": _TEXT, "form": _TEXT, "job": _TEXT,
            "checkpoint": _LONG, "epoch": _LONG, "created": _TIME, "bytes": _LONG,
        },
        _history,
    ),
}  # fmt: skip
METADATA_TABLES = tuple(_VIEWS)
"""The names of the metadata tables of each snapshot."""
