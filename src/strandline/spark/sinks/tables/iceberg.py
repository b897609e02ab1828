"""Iceberg tables as sinks. The record is a table property, set in the same commit as the snapshot with the rows."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.datasets import Dataset
from strandline.core.errors import ConfigurationError, CorruptionError, UnavailableError
from strandline.core.ids import Epoch
from strandline.ends.begins import Begin, decode_begins, encode_begins, with_begin
from strandline.ends.tables.columns import fit_columns, plain_type
from strandline.ends.tables.datafiles import DataFile, FileLayout
from strandline.ends.tables.errors import describe_error
from strandline.spark.sinks.base import SinkContext
from strandline.spark.sinks.tables.format import CommitRecord, ExistingRows, NewColumns
from strandline.spark.sinks.tables.sink import TableSink
from strandline.spark.sinks.tables.undo import Change, NotUndoableError
from strandline.storage.local import sync_directory, sync_file
from strandline.storage.place import Place

log = logging.getLogger(__name__)

_PROPERTY = "strandline.sink."
_BEGINS = "strandline.begins."
_IDENTITY, _GENERATION, _EPOCH = "strandline.identity", "strandline.generation", "strandline.epoch"
_FIRST = "strandline.first"
"""The key of the first epoch of which a snapshot has rows."""
_UNITS = {"identity": "", "year": "year", "month": "month", "day": "day", "hour": "hour"}
"""Supported partition transforms, whose values follow from a file's statistics, and the units of the split."""
_S3 = {
    "s3.endpoint": "endpoint", "s3.region": "region", "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key", "s3.session-token": "session_token",
}  # fmt: skip
"""Names of storage options in catalogs and here."""
_PASSING = frozenset((
    "ConnectionError", "Timeout", "TimeoutError", "OperationalError", "InterfaceError", "ServiceUnavailableError",
    "ServerError", "CommitStateUnknownException", "TooManyRequestsError",
))  # fmt: skip
_NOT_THE_CATALOGS = re.compile("RESTError \\d+: (Received unexpected JSON|Could not decode json)|type=json_invalid")
"""In the library's errors for an answer that a gateway, and not the catalog, has given, such as a page."""
_CONFLICTS = frozenset(("CommitFailedException", "ValidationException"))
_EQUALITY_DELETES = "equality deletes"
"""In the error of the library, which cannot read tables that have them."""
_OLD_SEQUENCE = "older than last sequence number"
"""Part of the error of pyiceberg's catalogs for a snapshot after another branch got one."""
_INDEX = "__index__"
_FIELD_ID = b"PARQUET:field_id"
_NO_RETRIES = {"commit.retry.num-retries": "0"}


class IcebergSink(TableSink):
    """Write rows into an Iceberg table, exactly once: visible when the checkpoint after them completes, in one commit.

    Tasks write the data files; the driver adds them. With `key`, rows replace those that have the same key, or
    delete them if the boolean column `delete` is true, and the last one of a checkpoint counts: the driver merges them
    in memory, and one commit makes a snapshot without the old rows and one with the new ones.

    `catalog` is the name of one in pyiceberg's configuration, or its properties: `{"name": …, "type": "sql", "uri": …,
    "warehouse": …}`, `{"type": "rest", …}`. `table` is `namespace.table`; a missing table is created. Data files are
    written with the catalog's options for storage (`s3.endpoint`, `s3.access-key-id`, …), or with `storage_options`, as
    for checkpoints. `new_columns` is "refuse" or "add", for columns that the table does not have. A job that begins
    anew in a table with rows of its earlier life is refused, unless `existing="keep"`, or rows are replaced by `key`.

    Other writers may use the table at the same time. A restore to an older checkpoint removes files that later ones
    have added, in a separate snapshot; rows that were rewritten since, or merged by key, stay.
    """

    def __init__(
        self,
        catalog: str | Mapping[str, str],
        table: str,
        *,
        key: str | Sequence[str] | None = None,
        delete: str | None = None,
        partition_by: str | Sequence[str] = (),
        new_columns: NewColumns = "refuse",
        existing: ExistingRows = "refuse",
        storage_options: Mapping[str, str] | None = None,
        target_bytes: int = 64 << 20,
        name: str | None = None,
    ) -> None:
        if not isinstance(table, str) or "." not in table or not all(table.split(".")):
            # The argument may be a catalog by mistake, with secrets.
            value = repr(table) if isinstance(table, str) else f"of type {type(table).__name__}"
            raise ConfigurationError(
                f"sinks.iceberg(): the table is {value:.200}, expected 'namespace.table'",
                hint="write it like sinks.iceberg(catalog, 'shop.orders'): the catalog comes first",
            )
        super().__init__(
            f"sinks.iceberg('{table}')", key=key, delete=delete, partition_by=partition_by,
            new_columns=new_columns, existing=existing, storage_options=storage_options, target_bytes=target_bytes,
            name=name,
        )  # fmt: skip
        if not isinstance(catalog, str | Mapping) or not catalog:
            raise ConfigurationError(
                f"{self._where}: the catalog is {type(catalog).__name__ if catalog else repr(catalog)}, expected its "
                "name, or its properties as a dict",
                hint="write it like {'type': 'sql', 'uri': …, 'warehouse': …}, or as the name in pyiceberg's "
                "configuration",
            )
        self.table = table
        self._catalog_name = catalog if isinstance(catalog, str) else catalog.get("name", "default")
        self._properties = {} if isinstance(catalog, str) else {k: str(v) for k, v in catalog.items() if k != "name"}
        # Without user and password.
        uri = re.sub(r"://[^/\s]*@", "://", self._properties.get("uri", "").partition("?")[0])
        self.destination = f"Iceberg table {table} of catalog {self._catalog_name} {uri}".rstrip()
        self.datasets = [Dataset(uri or self._catalog_name, table)]
        self._lock = threading.Lock()
        self._loaded: Any = None
        _pyiceberg(self._where)

    def load(self) -> Any:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            table = self._catalog().load_table(self.table)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            if _NOT_THE_CATALOGS.search(str(error)):
                raise UnavailableError(f"{self._where}: {self.words(error)}") from None
            return None
        # Without this, the library would retry a commit after a conflict, and replace another writer's record.
        # Only this copy has the property: it is not written.
        properties = {**table.metadata.properties, **_NO_RETRIES}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        return table

    def create(self, columns: pa.Schema) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
        schema = pa.schema([pa.field(column.name, _iceberg_type(column.type), True) for column in columns])
        try:
            if not self.partition_by:
                catalog.create_table(self.table, schema)
                return
            with catalog.create_table_transaction(self.table, schema) as transaction, transaction.update_spec() as spec:
                for column in self.partition_by:
                    spec.add_identity(column)
        except TableAlreadyExistsError:
            pass

    def check_creatable(self, columns: pa.Schema) -> None:
        self._check_types(columns)
        for name in self.partition_by:
            if pa.types.is_nested(columns.field(name).type) or pa.types.is_floating(columns.field(name).type):
                raise ConfigurationError(
                    f"{self._where}: partition_by names '{name}', which is {columns.field(name).type}",
                    hint="partition by a column of whole numbers, text or dates",
                )

    def layout(self, table: Any, columns: pa.Schema, key: Sequence[str]) -> tuple[FileLayout, list[pa.Field]]:
        from pyiceberg.table import metadata

        if table.format_version > metadata.SUPPORTED_TABLE_FORMAT_VERSION:
            raise ConfigurationError(
                f"{self._where}: the table has format version {table.format_version}, and the library writes versions "
                f"up to {metadata.SUPPORTED_TABLE_FORMAT_VERSION}",
                hint="write to a table of an older version: none can be taken back to one",
            )
        existing = table.schema().as_arrow()
        self._check_types([column for column in columns if column.name not in existing.names])
        may_add = self.new_columns == "add"
        schema, new = fit_columns(self._where, columns, existing, key=self._never_null(key), may_add=may_add)
        new = [pa.field(column.name, _iceberg_type(column.type)) for column in new]
        schema = pa.schema([pa.field(c.name, _iceberg_type(c.type), c.nullable) for c in schema])
        self._check_parts(table, key)
        if key:
            return FileLayout(schema), new
        # Field ids identify a column that is renamed later, or dropped and added again.
        schema = pa.schema([_with_id(c, existing.field(c.name)) if c.name in existing.names else c for c in schema])
        split = []
        for field in table.spec().fields:
            column, transform = table.schema().find_column_name(field.source_id), str(field.transform)
            if transform not in _UNITS or column not in schema.names:
                gone = " (a table of version 1 keeps former partition fields)" if transform == "void" else ""
                raise ConfigurationError(
                    f"{self._where}: the table is partitioned by {transform}({column}){gone}; this sink supports "
                    f"{', '.join(_UNITS)} of the job's columns",
                    hint="change the table's partitioning, or give the sink a key: then pyiceberg writes the rows",
                )
            split.append((column, _UNITS[transform]))
        return FileLayout(schema, split), new

    def _check_parts(self, table: Any, key: Sequence[str]) -> None:
        """Refuse partitions of floating point, and those of rows by key that need a package which is not installed."""
        for field in table.spec().fields:
            column, transform = table.schema().find_column_name(field.source_id), str(field.transform)
            if transform == "identity" and str(table.schema().find_type(field.source_id)) in ("float", "double"):
                raise ConfigurationError(
                    f"{self._where}: the table is partitioned by '{column}', which is floating point: the library has "
                    "no partition for NaN, and readers who look for it would miss the rows",
                    hint="partition the table by another column",
                )
            if key and transform not in ("identity", "void") and find_spec("pyiceberg_core") is None:
                raise ConfigurationError(
                    f"{self._where}: the table is partitioned by {transform}({column}), for which rows by key "
                    "need the package pyiceberg-core, which is not installed",
                    hint="pip install 'pyiceberg[pyiceberg-core]', or partition the table by columns",
                )

    def _check_types(self, columns: Iterable[pa.Field]) -> None:
        for column in columns:
            if not _is_known(_iceberg_type(column.type)):
                raise ConfigurationError(
                    f"{self._where}: Iceberg has no type for column '{column.name}', which is {column.type}",
                    hint="cast it before the sink",
                )

    def add_columns(self, table: Any, columns: Sequence[pa.Field]) -> None:
        transaction = table.transaction()
        with transaction.update_schema() as update:
            update.union_by_name(pa.schema(columns))
        if time.time() * 1000 <= table.metadata.last_updated_ms:
            # The library takes the clock's time for this change, but a snapshot's time from _in_order().
            with transaction.update_snapshot().fast_append():
                pass
        self._end(transaction)

    def place_of(self, table: Any) -> Place | None:
        if table is None:
            return None
        properties = table.io.properties
        catalog_options = {name: properties[key] for key, name in _S3.items() if key in properties}
        if catalog_options.get("endpoint", "").startswith("http://"):
            catalog_options["allow_http"] = "true"
        remote = not table.location().startswith("file:")
        options = self._options or catalog_options if remote else {}
        return Place(url=f"{table.location().rstrip('/')}/data", options=options, fsync=self.fsync)

    def record(self, table: Any, identity: str = "") -> CommitRecord | None:
        name = _PROPERTY + (identity or self._opened.identity)
        text = table.properties.get(name)
        if text is None:
            return None
        try:
            fields = json.loads(text)
            record = CommitRecord(int(fields["generation"]), int(fields["epoch"]))
            job, sink = fields["job"], fields["sink"]
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptionError(
                f"{self._where}: the property {name} is {text!r:.200}, and no record of the sink",
                hint="restore its former value",
            ) from error
        if not identity and (job, sink) != (self._opened.job, self._opened.sink):
            raise ConfigurationError(
                f"{self._where}: the property {name} is the record of sink '{sink}' of job '{job}'; expected "
                f"that of {self._label}",
                hint="give the sink another name: it begins with a new record in that table",
            )
        return record

    def begins(self, table: Any, identity: str = "") -> list[Begin]:
        name = _BEGINS + (identity or self._opened.identity)
        return decode_begins(table.properties.get(name), f"{self._where}: the property {name}")

    def in_effect(self, table: Any) -> CommitRecord | None:
        # A rollback of the table does not change its properties. Another program may have removed one, or set it back.
        record, snapshot, end, begin_ms = self.record(table), table.current_snapshot(), 0, 0
        while snapshot is not None:
            if self._is_own(snapshot.summary):
                effective = _record_of(snapshot.summary)
                return effective if record is not None and effective <= record else None
            end, begin_ms, parent = snapshot.sequence_number or 0, snapshot.timestamp_ms, snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        snapshots = table.snapshots()
        matches = [s for s in snapshots if self._is_own(s.summary) and _record_of(s.summary) == record]
        if not matches:
            # The snapshot has expired.
            return record
        # A tag may keep the snapshot, while later ones up to the table's present ones have expired. If none of these
        # has expired, the table was put back, since expiry by age begins with the oldest.
        if table.format_version == 1:
            # Snapshots have no numbers. The sink's have later times than all before: see `_in_order`.
            return record if begin_ms > max(each.timestamp_ms for each in matches) else None
        first = max(each.sequence_number or 0 for each in matches)
        count = sum(first < (each.sequence_number or 0) < end for each in snapshots)
        return record if count < end - first - 1 else None

    def _is_own(self, summary: Any) -> bool:
        return summary is not None and summary[_IDENTITY] == self._opened.identity

    def knows(self, table: Any, context: SinkContext) -> bool:
        texts = [text for name, text in table.properties.items() if name.startswith(_PROPERTY)]
        return any((one.get("job"), one.get("sink")) == (context.job, context.sink) for one in map(json.loads, texts))

    def commit_files(
        self, table: Any, record: CommitRecord, files: Sequence[DataFile], after: Epoch | None = None
    ) -> None:
        later = [] if after is None else self._later(table, after)
        transaction = self._begin(table, record, None if after is None else self._gone)
        summary = self._summary(record)
        if files:
            root = table.location().rstrip("/")
            paths = [f"{root}/data/{file.path}" for file in files]
            transaction.add_files(paths, snapshot_properties=summary, check_duplicate_files=False)
        elif later:
            with transaction.update_snapshot(snapshot_properties=summary).overwrite() as snapshot:
                for file in later:
                    snapshot.delete_data_file(file)
        else:
            # An empty snapshot: conflicts are detected by the parent snapshot.
            with transaction.update_snapshot(snapshot_properties=summary).fast_append():
                pass
        self._end(transaction)

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
        _keep_nulls()
        transaction = self._begin(table, record, self._gone if goes_back else None)
        summary = self._summary(record)
        tables = [rows]
        keys = pa.concat_tables([rows.select(list(key)), gone.select(list(key))])
        replaced = list(self._replaced(table, keys))
        if replaced:
            # A table that is put back to this snapshot has neither the old rows nor the new ones: no record is right.
            incomplete = self._summary(CommitRecord(0, 0))
            with transaction.update_snapshot(snapshot_properties=incomplete).overwrite() as snapshot:
                for file, kept in replaced:
                    snapshot.delete_data_file(file)
                    tables.append(kept)
        transaction.append(pa.concat_tables(tables, promote_options="permissive"), snapshot_properties=summary)
        self._end(transaction)

    def changes_after(self, table: Any, epoch: Epoch) -> Iterator[Change]:
        # Each sink's transactions up to the first one, in reverse order, that is not later.
        left = {each for each in (self._opened.identity, *self._gone) if self.record(table, each) is not None}
        snapshot, is_first = table.current_snapshot(), False
        while snapshot is not None and left:
            parent = None if (each := snapshot.parent_snapshot_id) is None else table.snapshot_by_id(each)
            summary, changed = snapshot.summary, [snapshot]
            identity = None if summary is None else summary[_IDENTITY]
            if identity in left:
                # The snapshot without the rows that are replaced is in the same commit.
                if parent is not None and _is_incomplete(parent.summary, identity):
                    changed.append(parent)
                    parent = None if (each := parent.parent_snapshot_id) is None else table.snapshot_by_id(each)
                reached = _record_of(summary).epoch
                if reached <= epoch:
                    left.discard(identity)
                elif int(summary[_FIRST] or 0) <= epoch:
                    raise NotUndoableError(f"a snapshot of epoch {reached} has rows of earlier epochs, too")
                else:
                    yield self._change(table, changed)
            is_first, snapshot = changed[-1].parent_snapshot_id is None, parent
        # The sink may have begun later, with the table.
        if left and not is_first:
            raise NotUndoableError("the table's snapshots do not reach back to that epoch")

    def _change(self, table: Any, snapshots: Sequence[Any]) -> Change:
        """Return what the snapshots of one commit have changed."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
        from pyiceberg.table import FileScanTask

        _keep_nulls()
        files: dict[Any, list[Any]] = {ManifestEntryStatus.DELETED: [], ManifestEntryStatus.ADDED: []}
        try:
            for snapshot in snapshots:
                for manifest in snapshot.manifests(table.io):
                    if manifest.content == ManifestContent.DELETES:
                        raise NotUndoableError("another writer has deleted rows without rewriting their files")
                    if manifest.added_snapshot_id != snapshot.snapshot_id:
                        continue
                    for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                        if entry.status in files and entry.snapshot_id == snapshot.snapshot_id:
                            files[entry.status].append(entry.data_file)
            scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
            return Change(*(scan.to_table([FileScanTask(file) for file in each]) for each in files.values()))
        except FileNotFoundError as error:
            raise NotUndoableError(f"a file is gone: {self.words(error)}") from None

    def committed(self, table: Any) -> None:
        if not self._opened.fsync or not table.location().startswith("file:"):
            return
        # The library does not sync files on this machine.
        if (table := self.load()) is None:
            return
        snapshot = table.current_snapshot()
        written = [table.metadata_location]
        if snapshot is not None:
            new = [m for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id]
            written += [snapshot.manifest_list, *(manifest.manifest_path for manifest in new)]
        paths = [Path(unquote(urlsplit(path).path)) for path in written]
        for path in paths:
            sync_file(path)
        for directory in {path.parent for path in paths}:
            sync_directory(directory)

    def is_conflict(self, error: Exception) -> bool:
        return type(error).__name__ in _CONFLICTS or _OLD_SEQUENCE in str(error)

    def may_pass(self, error: Exception) -> bool:
        names = {kind.__name__ for kind in type(error).__mro__}
        return (
            bool(names & _PASSING)
            or isinstance(error, OSError | UnavailableError)
            or bool(_NOT_THE_CATALOGS.search(str(error)))
        )

    def next_step(self, error: Exception) -> str:
        step = super().next_step(error)
        if _EQUALITY_DELETES not in str(error):
            return step
        return f"{step}; another writer deletes rows by their values. Have it rewrite the data files, then start again"

    def words(self, error: Exception) -> str:
        return describe_error(error, {**self._properties, **self._options})

    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        with self._lock:
            if self._loaded is None:
                self._loaded = load_catalog(self._catalog_name, **self._properties)
            return self._loaded

    def _begin(self, table: Any, record: CommitRecord, gone: Mapping[str, str] | None = None) -> Any:
        from pyiceberg.table import update

        run = self._opened
        fields = {"generation": record.generation, "epoch": record.epoch, "job": run.job}
        sinks = {**(gone or {}), run.identity: run.sink}
        records = {_PROPERTY + identity: json.dumps({**fields, "sink": sink}) for identity, sink in sinks.items()}
        if record.begin is not None:
            for identity in sinks:
                known = self.begins(table, identity)
                begins = with_begin(known, record.generation, record.begin, run.restored_by, run.turns)
                records[_BEGINS + identity] = encode_begins(begins)
        transaction, metadata = table.transaction(), table.metadata
        requirements: Any = update
        # Without these, only another writer's snapshot is a conflict.
        transaction._stage((), (
            requirements.AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
            requirements.AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
        ))  # fmt: skip
        transaction.set_properties(records)
        return transaction

    def _end(self, transaction: Any) -> None:
        """Commit a transaction. After a conflict, delete its files only if the table does not have its snapshots.

        The library would always delete them. But a lower layer may have repeated the request after a lost answer, and
        the conflict is with the commit itself: then the table would list deleted files.
        """
        producers = list(transaction._snapshot_producers)
        for producer in producers:
            producer._clean_all_uncommitted = _keep_files
        transaction._updates = _in_order(transaction._updates, transaction._table.metadata.last_updated_ms + 1)
        try:
            transaction.commit_transaction()
        except Exception as error:
            if self.is_conflict(error):
                table = self.load()
                if table is not None and all(table.snapshot_by_id(one._snapshot_id) is None for one in producers):
                    for producer in producers:
                        del producer._clean_all_uncommitted
                        producer._clean_all_uncommitted()
            raise

    def _summary(self, record: CommitRecord) -> dict[str, str]:
        run = self._opened
        return {
            "strandline.job": run.job, "strandline.sink": run.sink, _IDENTITY: run.identity,
            _GENERATION: str(record.generation), _EPOCH: str(record.epoch), _FIRST: str(record.first or record.epoch),
        }  # fmt: skip

    def _later(self, table: Any, epoch: Epoch) -> list[Any]:
        """Return the files of later epochs that older runs have added."""
        record = None if self.key else self._later_record(table, epoch)
        if record is None:
            return []
        pattern = re.compile(rf"/{self._later_paths}[^/]*$")
        later = [file for file in _data_files(table) if (m := pattern.search(file.file_path)) and int(m[2]) > epoch]
        log.warning(
            "%s: the job goes back to epoch %d; rows of later epochs, up to %d, are removed with %d files from %s; "
            "those stay that another writer has compacted or rewritten since",
            self._label, epoch, record.epoch, len(later), self._where,
        )  # fmt: skip
        return later

    def _replaced(self, table: Any, keys: pa.Table) -> Iterator[tuple[Any, pa.Table]]:
        """Yield the files that have some of these keys, each with its other rows."""
        from pyiceberg import expressions
        from pyiceberg.io.pyarrow import ArrowScan

        # Untyped, since its type annotations exclude names of columns.
        e: Any = expressions
        row_filter = e.AlwaysTrue()
        for column in keys.schema:
            name, values = column.name, keys[column.name]
            if pa.types.is_boolean(column.type) or pa.types.is_binary(column.type):
                continue
            condition = e.IsNull(name) if values.null_count else e.AlwaysFalse()
            if values.null_count < len(values):
                ends = pc.min_max(values)
                least = e.GreaterThanOrEqual(name, ends["min"].as_py())
                condition = e.Or(condition, e.And(least, e.LessThanOrEqual(name, ends["max"].as_py())))
            row_filter = e.And(row_filter, condition)
        names = keys.column_names
        try:
            tasks = list(table.scan(row_filter=row_filter).plan_files())
        except (OverflowError, TypeError):
            # The library has computed the date before the first possible one, or after the last; or it has compared the
            # null of a partition.
            tasks = list(table.scan().plan_files())
        for task in tasks:
            stored = ArrowScan(table.metadata, table.io, table.schema(), e.AlwaysTrue()).to_table([task])
            stored = stored.cast(pa.schema([pa.field(c.name, plain_type(c.type), c.nullable) for c in stored.schema]))
            others = _others(stored.select(names), keys)
            if len(others) < stored.num_rows:
                yield task.file, stored.take(others)


def _others(stored: pa.Table, keys: pa.Table) -> pa.Array:
    """Return the indexes of the rows of other keys. By groups, in which null is equal to null: not so in a join."""
    numbers = pa.array([*range(len(stored)), *[-1] * len(keys)], pa.int64())
    both = pa.concat_tables([stored, keys.cast(stored.schema)]).append_column(_INDEX, numbers)
    groups = both.group_by(stored.column_names).aggregate([(_INDEX, "min"), (_INDEX, "list")])
    others = pc.list_flatten(groups.filter(pc.greater_equal(groups[f"{_INDEX}_min"], 0))[f"{_INDEX}_list"])
    return others.take(pc.sort_indices(others))


def _data_files(table: Any) -> Iterator[Any]:
    """Yield the data files of a table: its scan refuses tables with equality deletes, which do not matter here."""
    from pyiceberg.manifest import ManifestContent

    snapshot = table.current_snapshot()
    for manifest in [] if snapshot is None else snapshot.manifests(table.io):
        if manifest.content == ManifestContent.DATA:
            yield from (entry.data_file for entry in manifest.fetch_manifest_entry(table.io))


def _is_incomplete(summary: Any, identity: str) -> bool:
    """Whether this is the first of a merge's two snapshots."""
    return summary is not None and summary[_IDENTITY] == identity and _record_of(summary) == CommitRecord(0, 0)


def _record_of(summary: Any) -> CommitRecord:
    return CommitRecord(int(summary[_GENERATION]), int(summary[_EPOCH]))


def _in_order(updates: Sequence[Any], since_ms: int) -> tuple[Any, ...]:
    """Return the updates of a transaction, with no snapshot before the time `since_ms`, after the table's last change.

    The clock may be behind the last writer's. If a table's log goes back by more than a minute, Iceberg's Java library
    refuses the commit, or cannot load the table any more. pyiceberg does not check that, and replaces a time that is
    equal to the last one by the clock's.
    """
    return tuple(
        update.model_copy(update={"snapshot": snapshot.model_copy(update={"timestamp_ms": since_ms})})
        if (snapshot := getattr(update, "snapshot", None)) is not None and snapshot.timestamp_ms < since_ms
        else update
        for update in updates
    )


def _keep_files() -> None:
    """Do not delete the files of a commit."""


def _pyiceberg(where: str) -> None:
    try:
        import pyiceberg  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"{where} needs the package pyiceberg, which is not installed",
            hint="pip install 'strandline[iceberg]', and what the catalog needs: pyiceberg[sql-postgres], …",
        ) from error


@cache
def _keep_nulls() -> None:
    """Patch pyiceberg so that null lists and maps of structs stay null: it makes them empty."""
    from pyiceberg.io import pyarrow

    base: Any = pyarrow.ArrowProjectionVisitor

    class Visitor(base):  # type: ignore[misc]
        def list(self, kind: Any, array: Any, values: Any) -> Any:
            return _with_nulls_of(array, super().list(kind, array, values))

        def map(self, kind: Any, array: Any, keys: Any, values: Any) -> Any:
            return _with_nulls_of(array, super().map(kind, array, keys, values))

    pyarrow.ArrowProjectionVisitor = Visitor  # type: ignore[misc]


def _with_nulls_of(source: pa.Array | None, result: pa.Array | None) -> pa.Array | None:
    if source is None or result is None or source.null_count == result.null_count:
        return result
    # A null offset makes a null value; pc.if_else on the values would lose the field ids of inner columns.
    is_null = pa.concat_arrays([source.is_null(), pa.array([False])])
    offsets = pc.if_else(is_null, pa.scalar(None, result.offsets.type), result.offsets)
    children = (result.keys, result.items) if pa.types.is_map(result.type) else (result.values,)
    return type(result).from_arrays(offsets, *children, type=result.type)


def _iceberg_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in Iceberg, whose smallest integers have 32 bits."""
    kind = plain_type(kind)
    return pa.int32() if pa.types.is_signed_integer(kind) and kind.bit_width < 32 else kind


def _with_id(column: pa.Field, existing: pa.Field) -> pa.Field:
    """Return a column with the field ids of the table's column and its inner columns."""
    kind, known = column.type, existing.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_with_id(inner, known.field(inner.name)) for inner in kind.fields])
    elif pa.types.is_list(kind):
        kind = pa.list_(_with_id(kind.value_field, known.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_with_id(kind.key_field, known.key_field), _with_id(kind.item_field, known.item_field))
    return pa.field(column.name, kind, column.nullable, {_FIELD_ID: existing.metadata[_FIELD_ID]})


def _is_known(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_is_known(child.type) for child in kind.fields)
    if pa.types.is_list(kind):
        return _is_known(kind.value_type)
    if pa.types.is_map(kind):
        return _is_known(kind.key_type) and _is_known(kind.item_type)
    is_scalar = pa.types.is_signed_integer(kind) or pa.types.is_decimal128(kind) or pa.types.is_timestamp(kind)
    return is_scalar or kind in (pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.bool_(), pa.date32())
