"""Delta tables as sinks. The record is an application transaction, which Delta's commits check for conflicts."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.checkpoint.folder import Folder, folder_at
from strandline.core.datasets import Dataset
from strandline.core.errors import ConfigurationError, NotFoundError, SinkError, StrandlineError
from strandline.core.ids import Epoch, unique_name
from strandline.ends.arguments import check_location
from strandline.ends.begins import MOST_BEGINS, Begin, with_begin
from strandline.ends.committables import TaskAttempt
from strandline.ends.tables.columns import check_names, fit_columns, plain_type
from strandline.ends.tables.datafiles import DataFile, FileLayout, WriteDataFiles
from strandline.ends.tables.errors import describe_error
from strandline.plan.columns import quoted
from strandline.spark.sinks.base import SinkContext
from strandline.spark.sinks.tables.format import CommitRecord, ExistingRows, NewColumns
from strandline.spark.sinks.tables.sink import TableSink
from strandline.spark.sinks.tables.undo import GONE, Change, NotUndoableError, plain_rows
from strandline.storage.local import sync_directory, sync_file
from strandline.storage.place import Place

log = logging.getLogger(__name__)

_IDENTITY = "strandline.identity"
"""The key of the sink's identity in the log, in each of its transactions."""
_FIRST = "strandline.first"
"""The key of the first epoch of which a transaction has rows."""
_EPOCH_BITS = 40
"""The lower bits of an application transaction's version; the higher ones are the generation."""
_THREADS = 8
_VIOLATION = re.compile(r"(\d+) rows failed validation check")
_STORAGE_ERROR = re.compile(r"Generic (?!DeltaTable )\w+ error")
_UNSUPPORTED = "Unsupported table features"
_CLEANED = "Invalid table version"
"""The log was cleaned up to a version after the one that was loaded."""
_PLAIN = re.compile(r"[A-Za-z0-9_=./-]+")
_SCHEMES = ("file", "s3", "s3a", "gs", "az", "abfs", "abfss")
_COMPUTED = ("delta.generationExpression", "delta.invariants", "delta.identity.start", "delta.identity.step")
"""Properties of columns that writers must compute or check for each row."""


class DeltaSink(TableSink):
    """Write rows into a Delta table, exactly once: visible when the checkpoint after them completes, in one version.

    Tasks write the data files; the driver adds them to the table's log. With `key`, rows replace those that have the
    same key, or delete them if the boolean column `delete` is true, and the last one of a checkpoint counts: the driver
    merges them in memory.

    `url` is a directory, or s3://, gs://, az:// or abfss://; a missing table is created. `storage_options` are those of
    checkpoints (`endpoint`, `access_key_id`, …); missing ones come from the environment. `new_columns` is "refuse" or
    "add", for columns that the table does not have. A job that begins anew in a table with rows of its earlier life is
    refused, unless `existing="keep"`, or rows are replaced by `key`. A file ends at `target_bytes`, or with the
    checkpoint; with `compact_every=n`, small files are compacted after every n-th commit.

    Other writers may use the table at the same time. A restore to an older checkpoint removes files that later ones
    have added, in a separate version; rows that were compacted since, or merged by key, stay.
    """

    expiry = ", or its record is older than the table's delta.setTransactionRetentionDuration"

    def __init__(
        self,
        url: str | Path,
        *,
        key: str | Sequence[str] | None = None,
        delete: str | None = None,
        partition_by: str | Sequence[str] = (),
        new_columns: NewColumns = "refuse",
        existing: ExistingRows = "refuse",
        storage_options: Mapping[str, str] | None = None,
        target_bytes: int = 64 << 20,
        compact_every: int = 0,
        name: str | None = None,
    ) -> None:
        self.url = _url(url)
        super().__init__(
            f"sinks.delta('{_without_secrets(self.url)}')", key=key, delete=delete, partition_by=partition_by,
            new_columns=new_columns, existing=existing, storage_options=storage_options, target_bytes=target_bytes,
            name=name,
        )  # fmt: skip
        if not isinstance(compact_every, int) or isinstance(compact_every, bool) or compact_every < 0:
            raise ConfigurationError(
                f"{self._where}: compact_every is {compact_every!r:.200}, expected a number of commits",
                hint="write it like compact_every=50, or leave it out, for no compaction",
            )
        self.compact_every = compact_every
        self.destination = f"Delta table {_without_secrets(self.url)}"
        self.datasets = [Dataset.at(self.url)]
        # Compacted rows cannot be distinguished; those by key are taken back one by one.
        self.takes_back = bool(self.key) or not compact_every
        self._commits = 0
        self._seen = -1
        self._delta: Any = _deltalake()

    def load(self) -> Any:
        try:
            return self._delta.DeltaTable(self.url, storage_options=self._options or None)
        except self._delta.exceptions.TableNotFoundError:
            return None

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self._seen = -1

    def create(self, columns: pa.Schema) -> None:
        self._delta.DeltaTable.create(
            self.url, _creatable(columns), mode="ignore", partition_by=list(self.partition_by),
            storage_options=self._options or None,
        )  # fmt: skip

    def check_creatable(self, columns: pa.Schema) -> None:
        self._convert(columns)
        self._check_partition(columns, self.partition_by)

    def layout(self, table: Any, columns: pa.Schema, key: Sequence[str]) -> tuple[FileLayout, list[pa.Field]]:
        existing = pa.schema(table.schema())
        self._check_supported(table, key)
        self._convert(columns)
        schema, new = fit_columns(
            self._where, columns, existing, key=self._never_null(key), may_add=self.new_columns == "add"
        )
        split = tuple(table.metadata().partition_columns)
        if self.partition_by and self.partition_by != split:
            raise ConfigurationError(
                f"{self._where}: the table is partitioned by {list(split) or 'nothing'}, not by "
                f"{list(self.partition_by)}",
                hint="leave partition_by out for an existing table",
            )
        if key:
            # The merge divides its rows itself.
            return FileLayout(schema), new
        check_names(self._where, "the table's partitioning", split, schema)
        self._check_partition(schema, split)
        return FileLayout(schema, [(column, "") for column in split], leaves_out=True, statistics=True), new

    def add_columns(self, table: Any, columns: Sequence[pa.Field]) -> None:
        table.alter.add_columns(self._convert(pa.schema(columns)).fields)

    def place_of(self, table: Any) -> Place | None:
        url = self.url if "://" in self.url else Path(self.url).as_uri()
        return Place(url=url, options=self._options, fsync=self.fsync)

    def record(self, table: Any, identity: str = "") -> CommitRecord | None:
        version = table.transaction_version(f"strandline-{identity or self._opened.identity}")
        return None if version is None else CommitRecord(*_begin_of(version))

    def begins(self, table: Any, identity: str = "") -> list[Begin]:
        return _begins_of(self._begin_versions(table, identity or self._opened.identity))

    def _begin_versions(self, table: Any, identity: str) -> dict[str, int]:
        """Return the versions of the application transactions that record begins; 0 for one that records none."""
        apps = [f"strandline-{identity}-begin-{number}" for number in range(MOST_BEGINS)]
        return {app: table.transaction_version(app) or 0 for app in apps}

    def _new_begins(self, table: Any, record: CommitRecord, gone: Collection[str]) -> dict[str, int]:
        """Return the versions of application transactions that record the begin of a run."""
        if record.begin is None:
            return {}
        run, versions = self._opened, dict[str, int]()
        for identity in (run.identity, *gone):
            before = self._begin_versions(table, identity)
            begins = with_begin(_begins_of(before), record.generation, record.begin, run.restored_by, run.turns)
            wanted = [_version_of(*begin) for begin in begins] + [0] * (MOST_BEGINS - len(begins))
            versions |= {app: version for app, version in zip(before, wanted, strict=True) if version != before[app]}
        return versions

    def in_effect(self, table: Any) -> CommitRecord | None:
        at, seen = int(table.version()), self._seen
        if self.record(table) is None:
            # The log may no longer have the version, from before the sink, to which the table was put back.
            return None
        for entry in self._entries(table):
            if entry["version"] > at:
                continue
            if entry["version"] <= seen:
                break
            # RESTORE and REPLACE do not change the record.
            operation = entry.get("operation", "")
            if operation == "RESTORE":
                to = self._restored(entry.get("operationParameters", {}))
                if to is None:
                    return None
                at, seen = to, -1
            elif "REPLACE TABLE" in operation:
                return None
            elif seen < 0 and entry.get(_IDENTITY) == self._opened.identity:
                # An older run has checked the versions before.
                break
        return self.record(table if at == int(table.version()) else self._as_of(at))

    def _entries(self, table: Any) -> Iterator[dict[str, Any]]:
        """Yield the log's entries of a table's versions, the newest first. Older ones are read on demand.

        The library's `history` holds Python's lock until storage has answered, so that the whole driver stands still,
        and it numbers entries wrongly if a version has none.
        """
        folder, end, count = folder_at(self.place(table)), int(table.version()) + 1, 2
        with ThreadPoolExecutor(_THREADS, "strandline-log") as pool:
            while end:
                versions = range(end - 1, max(end - 1 - count, -1), -1)
                for entry in pool.map(lambda version: _entry(folder, version), versions):
                    if entry is None:
                        return
                    yield entry
                end, count = versions[-1], count * 8

    def _restored(self, parameters: Mapping[str, Any]) -> int | None:
        """Return the version to which a table was restored, if it is known."""
        version, time_ms = parameters.get("version"), parameters.get("datetime")
        if version is not None:
            return int(version)
        # Spark writes a text in its session's time zone.
        if time_ms is None:
            return None
        return int(self._as_of(datetime.fromtimestamp(int(time_ms) / 1000, UTC)).version())

    def _as_of(self, when: int | datetime) -> Any:
        table = self.load()
        table.load_as_version(when)
        return table

    def knows(self, table: Any, context: SinkContext) -> bool:
        return table.transaction_version(_application(context)) is not None

    def commit_files(
        self, table: Any, record: CommitRecord, files: Sequence[DataFile], after: Epoch | None = None
    ) -> None:
        seen, now_ms, split = int(table.version()), int(time.time() * 1000), list(table.metadata().partition_columns)
        actions, later = self._added(files, split, now_ms, is_new=True), []
        if after is not None:
            later = self._later(table, after, now_ms)
        gone = () if after is None else self._gone
        begins = self._new_begins(table, record, gone)
        table.create_write_transaction(
            [*actions, *later], "append", table.schema(), partition_by=split,
            # No retry for removals: the library would not notice that another writer has compacted the files.
            commit_properties=self._properties(record, gone, begins, retries=not later),
        )  # fmt: skip
        self._seen = seen

    def commit_rows(
        self,
        table: Any,
        record: CommitRecord,
        rows: pa.Table,
        gone: pa.Table,
        key: Sequence[str],
        *,
        goes_back: bool = False,
    ) -> None:
        seen, others = int(table.version()), self._gone if goes_back else ()
        properties = self._properties(record, others, self._new_begins(table, record, others), retries=not goes_back)
        marked = pa.concat_tables(
            [part.append_column(GONE, pa.repeat(part is gone, len(part))) for part in (rows, gone)]
        )
        # By "=", the library finds out which files cannot have the keys.
        equal = {name: "is not distinct from" if marked[name].null_count else "=" for name in key}
        same = " and ".join(f"(target.{quoted(name)} {each} source.{quoted(name)})" for name, each in equal.items())
        merge = table.merge(
            marked, same, source_alias="source", target_alias="target", streamed_exec=False,
            commit_properties=properties,
        )  # fmt: skip
        columns = {quoted(column): f"source.{quoted(column)}" for column in rows.column_names}
        is_gone, stays = f"source.{quoted(GONE)}", f"not source.{quoted(GONE)}"
        try:
            merge.when_matched_delete(is_gone).when_matched_update(columns, stays).when_not_matched_insert(
                columns, stays
            ).execute()
        except self._delta.exceptions.DeltaError as error:
            if (match := _VIOLATION.search(str(error))) is None:
                raise
            rules = [value for name, value in table.metadata().configuration.items() if "delta.constraints." in name]
            raise SinkError(
                f"{self._where}: {match[1]} rows violate constraints of the table: {'; '.join(rules) or 'no nulls'}",
                hint="change the table so that it accepts them; and drop such rows in a step before the sink",
            ) from None
        self._seen = seen

    def changes_after(self, table: Any, epoch: Epoch) -> Iterator[Change]:
        folder, at = folder_at(self.place(table)), int(table.version())
        # Each sink's transactions up to the first one, in reverse order, that is not later.
        left = {each for each in (self._opened.identity, *self._gone) if self.record(table, each) is not None}
        first = at + 1
        for entry in self._entries(table):
            if not left:
                return
            first = entry["version"]
            if first > at:
                continue
            if entry.get("operation", "") == "RESTORE" or "REPLACE TABLE" in entry.get("operation", ""):
                raise NotUndoableError("another program has put the table back since")
            if (identity := entry.get(_IDENTITY)) not in left:
                continue
            actions = _actions(folder, entry["version"])
            (version,) = (
                txn["version"] for txn in actions.get("txn", ()) if txn["appId"] == f"strandline-{identity}"
            )  # fmt: skip
            if (reached := _begin_of(version)[1]) <= epoch:
                left.discard(identity)
                continue
            if int(entry.get(_FIRST, 0)) <= epoch:
                raise NotUndoableError(
                    f"version {entry['version']}, of epoch {reached}, has rows of earlier epochs, too"
                )
            yield Change(*(self._rows_of(table, folder, actions.get(each, ())) for each in ("remove", "add")))
        # The sink may have begun later, with the table.
        if left and first > 0:
            raise NotUndoableError("the table's log does not reach back to that epoch")

    def _rows_of(self, table: Any, folder: Folder, files: Sequence[dict[str, Any]]) -> pa.Table:
        """Return the rows of files of the log, with the partition columns."""
        schema = pa.schema(table.schema())
        tables = [plain_rows(schema.empty_table())]
        for file in files:
            path = unquote(file["path"])
            if file.get("deletionVector") or "://" in path:
                raise NotUndoableError(f"the file {path} has a deletion vector, or is not in the table's directory")
            try:
                rows = plain_rows(pq.read_table(pa.BufferReader(folder.get(path))))
            except NotFoundError:
                raise NotUndoableError(f"the file {path} is gone, perhaps by a vacuum") from None
            for name, text in (file.get("partitionValues") or {}).items():
                value = pa.scalar(text, pa.string()).cast(schema.field(name).type)
                rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
            tables.append(rows)
        return pa.concat_tables(tables, promote_options="permissive").select(schema.names)

    def committed(self, table: Any) -> None:
        self._sync()
        self._commits += 1
        if self.compact_every and self._commits % self.compact_every == 0:
            try:
                self._compact()
            except (pa.ArrowException, StrandlineError, self._delta.exceptions.DeltaError) as error:
                log.info("%s: small files of %s stay: %s", self._label, self._where, self.words(error))
            self._sync()

    def is_conflict(self, error: Exception) -> bool:
        if isinstance(error, self._delta.exceptions.CommitFailedError):
            return _UNSUPPORTED not in str(error)
        return isinstance(error, self._delta.exceptions.DeltaError) and _CLEANED in str(error)

    def may_pass(self, error: Exception) -> bool:
        # Errors of storage are OSErrors, or known only by their text.
        return isinstance(error, OSError) or (
            isinstance(error, self._delta.exceptions.DeltaError) and _STORAGE_ERROR.search(str(error)) is not None
        )

    def words(self, error: Exception) -> str:
        return describe_error(error, self._options)

    def next_step(self, error: Exception) -> str:
        step = super().next_step(error)
        if _UNSUPPORTED not in str(error):
            return step
        return f"{step}; remove the features with ALTER TABLE … DROP FEATURE, and start again"

    def _compact(self) -> None:
        """Replace small files by larger ones with the same rows.

        deltalake's optimize does not detect another writer's compaction of the same files, and duplicates their rows.
        """
        table, actions = self.load(), self._delta.transaction
        by_part: dict[str, list[dict[str, Any]]] = {}
        for each in _files_of(table):
            # With other characters, a path differs from the one in the log.
            if each["size_bytes"] < self.target_bytes // 2 and _PLAIN.fullmatch(each["path"]):
                by_part.setdefault(str(each.get("partition")), []).append(each)
        small = {each["path"]: each["size_bytes"] for part in by_part.values() if len(part) > 1 for each in part}
        if not small:
            return
        rows, columns, split = table.to_pyarrow_dataset(), pa.schema(table.schema()), table.metadata().partition_columns
        self._check_partition(columns, split)
        layout = FileLayout(_creatable(columns), [(column, "") for column in split], leaves_out=True, statistics=True)
        task = WriteDataFiles(
            self.place(table), "strandline-compacted", self._opened.generation, Epoch(0), layout, self.target_bytes
        )  # fmt: skip
        fragments = {fragment.path: fragment for fragment in rows.get_fragments()}
        if not small.keys() <= fragments.keys():
            return
        # One partition after the other, so that few files are open at a time.
        batches = (batch for path in small for batch in fragments[path].to_batches(schema=rows.schema))
        files, now_ms = task.write(batches, TaskAttempt(0, unique_name())), int(time.time() * 1000)
        table = self.load()
        if small.keys() <= {each["path"] for each in _files_of(table)}:
            metadata = {"strandline": f"job {self._opened.job}, sink {self._opened.sink}", "isBlindAppend": False}
            table.create_write_transaction(
                [
                    *self._added(files, split, now_ms, is_new=False),
                    *(actions.RemoveAction(path, False, now_ms, size) for path, size in small.items()),
                ],
                "append", table.schema(), partition_by=split,
                # No retry: only the next version has no conflict.
                commit_properties=self._delta.CommitProperties(custom_metadata=metadata, max_commit_retries=0),
            )  # fmt: skip

    def _added(self, files: Sequence[DataFile], split: Sequence[str], now_ms: int, *, is_new: bool) -> list[Any]:
        return [
            self._delta.transaction.AddAction(
                path=file.path, size=file.bytes, modification_time=now_ms, data_change=is_new, stats=file.statistics,
                partition_values=dict(zip(split, file.partition, strict=True)),
            )
            for file in files
        ]  # fmt: skip

    def _properties(
        self,
        record: CommitRecord,
        gone: Collection[str] = (),
        begins: Mapping[str, int] | None = None,
        *,
        retries: bool = True,
    ) -> Any:
        run = self._opened
        version = _version_of(record.generation, record.epoch)
        metadata = {
            "strandline": f"job {run.job}, sink {run.sink}, epoch {record.epoch}", _IDENTITY: run.identity,
            _FIRST: str(record.first or record.epoch),
        }  # fmt: skip
        apps = [*(f"strandline-{identity}" for identity in (run.identity, *gone)), _application(run)]
        # Spark drops transactions without a time as soon as delta.setTransactionRetentionDuration is set.
        versions = {**dict.fromkeys(apps, version), **(begins or {})}
        transactions = [self._delta.Transaction(app, each, int(time.time() * 1000)) for app, each in versions.items()]
        most = None if retries else 0
        return self._delta.CommitProperties(
            custom_metadata=metadata, app_transactions=transactions, max_commit_retries=most
        )

    def _later(self, table: Any, epoch: Epoch, now_ms: int) -> list[Any]:
        """Return the actions that remove files of later epochs of older runs."""
        record = None if self.key else self._later_record(table, epoch)
        if record is None:
            return []
        configuration = table.metadata().configuration
        pattern = re.compile(self._later_paths)
        later = [each for each in _files_of(table) if (m := pattern.match(each["path"])) and int(m[2]) > epoch]
        is_kept = configuration.get("delta.appendOnly") == "true"
        log.warning(
            "%s: the job goes back to epoch %d; rows of later epochs, up to %d, %s", self._label, epoch, record.epoch,
            f"stay, as it is append-only, in {self._where}" if is_kept
            else f"are removed with {len(later)} files from {self._where}; those stay that were compacted or rewritten "
            "since, or marked by deletion vectors",
        )  # fmt: skip
        if is_kept:
            return []
        remove = self._delta.transaction.RemoveAction
        return [remove(each["path"], True, now_ms, each["size_bytes"]) for each in later]

    def _check_supported(self, table: Any, key: Sequence[str]) -> None:
        """Raise ConfigurationError for tables that need more of a writer than its rows."""
        configuration = table.metadata().configuration
        constraints = [item for item in configuration.items() if item[0].startswith("delta.constraints.")]
        unsupported = [f"{name} = {value}" for name, value in constraints]
        if configuration.get("delta.columnMapping.mode", "none") != "none":
            unsupported.append("column mapping")
        if key and configuration.get("delta.appendOnly") == "true":
            unsupported.append("delta.appendOnly, which excludes upserts")
        for column in table.schema().fields:
            unsupported += [f"{name} of column '{column.name}'" for name in _COMPUTED if name in column.metadata]
        if unsupported and not (key and all("constraints" in each for each in unsupported)):
            raise ConfigurationError(
                f"{self._where}: the table has {', '.join(unsupported)}, which this sink does not support",
                hint="write to a table without it, and copy the rows from there with another program",
            )

    def _convert(self, columns: pa.Schema) -> Any:
        for column in columns:
            try:
                self._delta.Schema.from_arrow(_creatable(pa.schema([column])))
            except Exception as error:
                raise ConfigurationError(
                    f"{self._where}: Delta has no type for column '{column.name}', which is {column.type}: "
                    f"{self.words(error)}",
                    hint="cast it before the sink",
                ) from None
        return self._delta.Schema.from_arrow(_creatable(columns))

    def _check_partition(self, columns: pa.Schema, split: Sequence[str]) -> None:
        for name in split:
            kind = plain_type(columns.field(name).type)
            if not (pa.types.is_integer(kind) or kind in (pa.string(), pa.bool_(), pa.date32())):
                raise ConfigurationError(
                    f"{self._where}: the table is partitioned by '{name}', which is {kind}; expected whole numbers, "
                    "text, booleans or dates",
                    hint="partition by the date of a time",
                )
        if len(split) == len(columns):
            raise ConfigurationError(f"{self._where}: partition_by leaves no column for the files")

    def _sync(self) -> None:
        """Sync the newest entries of a log on this machine, since Delta does not."""
        if "://" in self.url or not self._opened.fsync:
            return
        directory = Path(self.url) / "_delta_log"
        for entry in sorted(directory.glob("*.json"))[-3:]:
            sync_file(entry)
        sync_directory(directory)


def _version_of(generation: int, epoch: int) -> int:
    """Return a record or a begin as the version of an application transaction."""
    return (generation << _EPOCH_BITS) | epoch


def _begin_of(version: int) -> Begin:
    return version >> _EPOCH_BITS, version & ((1 << _EPOCH_BITS) - 1)


def _begins_of(versions: Mapping[str, int]) -> list[Begin]:
    return sorted(_begin_of(version) for version in versions.values() if version)


def _deltalake() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ImportError as error:
        raise ConfigurationError(
            "sinks.delta() needs the package deltalake, which is not installed", hint="pip install 'strandline[delta]'"
        ) from error
    return deltalake


def _application(run: SinkContext) -> str:
    """Return the application id of a sink of this name in all lives of a job."""
    return f"strandline-{hashlib.sha256(f'{run.job}/{run.sink}'.encode()).hexdigest()[:32]}"


def _url(url: str | Path) -> str:
    text = check_location("sinks.delta()", "url", url).rstrip("/")
    parts = urlsplit(text)
    if "://" in text and parts.scheme not in _SCHEMES:
        raise ConfigurationError(
            f"sinks.delta('{_without_secrets(text)}'): a table cannot be at {parts.scheme}://",
            hint=f"give a directory, or one of {', '.join(f'{scheme}://' for scheme in _SCHEMES)}",
        )
    if "://" in text and parts.scheme != "file":
        return text.replace("s3a://", "s3://", 1)
    path = str(Path(unquote(parts.path) if parts.scheme == "file" else text).expanduser().absolute())
    if code := re.search("%[0-9A-Fa-f]{2}", path):
        raise ConfigurationError(
            f"sinks.delta('{path}'): the directory's name has '{code[0]}', which the library takes for another "
            "character",
            hint="name the directory without a '%'",
        )
    return path


def _without_secrets(url: str) -> str:
    return re.sub(r"://[^/@\s]+:[^/@\s]+@", "://", url)


def _creatable(columns: pa.Schema) -> pa.Schema:
    """Return the columns of a new table. All may be null, since rows of older programs lack later columns."""
    return pa.schema([pa.field(column.name, plain_type(column.type), True) for column in columns])


def _files_of(table: Any) -> list[dict[str, Any]]:
    """Return path, size and partition of each file of a table."""
    added = pa.table(table.get_add_actions(flatten=False))
    files: list[dict[str, Any]] = added.select(
        [name for name in ("path", "size_bytes", "partition") if name in added.column_names]
    ).to_pylist()
    return files


def _entry(folder: Folder, version: int) -> dict[str, Any] | None:
    """Return the log's entry of a version, without those of its files; None if it is not in the log any more."""
    try:
        lines = io.BytesIO(folder.get(f"_delta_log/{version:020}.json"))
    except NotFoundError:
        return None
    actions = (json.loads(line) for line in lines if b'"commitInfo"' in line)
    # Writers may leave it out.
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    return {**info, "version": version}


def _actions(folder: Folder, version: int) -> dict[str, list[dict[str, Any]]]:
    """Return the actions of the log's entry of a version, by their kinds."""
    actions: dict[str, list[dict[str, Any]]] = {}
    try:
        lines = folder.get(f"_delta_log/{version:020}.json").splitlines()
    except NotFoundError:
        raise NotUndoableError(f"version {version} is not in the table's log any more") from None
    for line in filter(bytes.strip, lines):
        for kind, action in json.loads(line).items():
            actions.setdefault(kind, []).append(action)
    return actions
