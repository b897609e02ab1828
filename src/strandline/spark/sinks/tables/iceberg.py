"""Iceberg tables: the record is a table property, set in the same commit as the snapshot that adds the rows."""

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

from strandline.core.errors import ConfigurationError, CorruptionError
from strandline.core.ids import Epoch
from strandline.ends.tables.columns import fit_columns, plain_type
from strandline.ends.tables.datafiles import DataFile, Layout
from strandline.ends.tables.errors import describe_error
from strandline.spark.sinks.base import SinkContext
from strandline.spark.sinks.tables.format import CommitRecord, ExistingRows, NewColumns
from strandline.spark.sinks.tables.sink import TableSink
from strandline.storage.local import sync_directory, sync_file
from strandline.storage.place import Place

log = logging.getLogger(__name__)

_PROPERTY = "strandline.sink."
_IDENTITY, _GENERATION, _EPOCH = "strandline.identity", "strandline.generation", "strandline.epoch"
_UNITS = {"identity": "", "year": "year", "month": "month", "day": "day", "hour": "hour"}
"""Partitionings whose values the files' own statistics say, and how rows are split for them."""
_S3 = {
    "s3.endpoint": "endpoint", "s3.region": "region", "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key", "s3.session-token": "session_token",
}  # fmt: skip
"""What catalogs say of storage, in the words of ours."""
_PASSING = frozenset((
    "ConnectionError", "Timeout", "TimeoutError", "OperationalError", "InterfaceError", "ServiceUnavailableError",
    "ServerError", "CommitStateUnknownException",
))  # fmt: skip
_CONFLICTS = frozenset(("CommitFailedException", "ValidationException"))
_BEHIND = "older than last sequence number"
"""What a catalog of the library's own says of a snapshot if another branch got one meanwhile."""
_INDEX = "__index__"
_NUMBER = b"PARQUET:field_id"
_NO_RETRIES = {"commit.retry.num-retries": "0"}


class IcebergSink(TableSink):
    """Write rows into an Iceberg table, exactly once: visible when the checkpoint after them completes, in one commit.

    Tasks write the data files; the driver adds them. With `key`, rows replace those that have the same key, the last
    one of a checkpoint those before it: the driver merges them, in its own memory, and one commit makes a snapshot
    without the old rows and one with the new ones.

    `catalog` is the name of one in pyiceberg's configuration, or its properties: `{"name": …, "type": "sql", "uri": …,
    "warehouse": …}`, `{"type": "rest", …}`. `table` is `namespace.table`, made if it is not there. Data files go to
    storage with what the catalog says (`s3.endpoint`, `s3.access-key-id`, …), or with `storage_options`, as for
    checkpoints. `new_columns` is "refuse" or "add": what becomes of columns that the table does not have.
    A job that begins anew where an earlier life of it has left rows is refused, unless `existing="keep"`, or they are
    replaced by `key`.

    Other writers may use the table at the same time. A restore to an older checkpoint takes back what later ones have
    added, in a snapshot of its own; not what was rewritten since, and not what was merged by key.
    """

    def __init__(
        self,
        catalog: str | Mapping[str, str],
        table: str,
        *,
        key: str | Sequence[str] | None = None,
        partition_by: str | Sequence[str] = (),
        new_columns: NewColumns = "refuse",
        existing: ExistingRows = "refuse",
        storage_options: Mapping[str, str] | None = None,
        target_bytes: int = 64 << 20,
        name: str | None = None,
    ) -> None:
        if not isinstance(table, str) or "." not in table or not all(table.split(".")):
            # What is in its place may be a catalog, with secrets.
            given = repr(table) if isinstance(table, str) else f"of type {type(table).__name__}"
            raise ConfigurationError(
                f"sinks.iceberg(): the table is {given:.200}, expected 'namespace.table'",
                hint="write it like sinks.iceberg(catalog, 'shop.orders'): the catalog comes first",
            )
        super().__init__(
            f"sinks.iceberg('{table}')", key=key, partition_by=partition_by, new_columns=new_columns,
            existing=existing, storage_options=storage_options, target_bytes=target_bytes, name=name,
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
        # Without who it is, or with which password.
        uri = re.sub(r"://[^/\s]*@", "://", self._properties.get("uri", "").partition("?")[0])
        self.destination = f"Iceberg table {table} of catalog {self._catalog_name} {uri}".rstrip()
        self._lock = threading.Lock()
        self._loaded: Any = None
        _pyiceberg(self._where)

    def load(self) -> Any:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            table = self._catalog().load_table(self.table)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        # The library would try a commit that met a conflict again by itself, with a record that it must not replace.
        # Of this copy alone: it is not written.
        properties = {**table.metadata.properties, **_NO_RETRIES}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        return table

    def create(self, columns: pa.Schema) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
        schema = pa.schema([pa.field(column.name, _ours(column.type), True) for column in columns])
        try:
            if not self.partition_by:
                catalog.create_table(self.table, schema)
                return
            with catalog.create_table_transaction(self.table, schema) as making, making.update_spec() as spec:
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

    def layout(self, table: Any, columns: pa.Schema, key: Sequence[str]) -> tuple[Layout, list[pa.Field]]:
        there = table.schema().as_arrow()
        self._check_types([column for column in columns if column.name not in there.names])
        may_add = self.new_columns == "add"
        schema, new = fit_columns(self._where, columns, there, key=key, may_add=may_add)
        new = [pa.field(column.name, _ours(column.type)) for column in new]
        schema = pa.schema([pa.field(c.name, _ours(c.type), c.nullable) for c in schema])
        if key:
            self._check_parts(table)
            return Layout(schema), new
        # A column that is renamed later, or dropped and made anew, is known by its number.
        schema = pa.schema([_numbered(c, there.field(c.name)) if c.name in there.names else c for c in schema])
        split = []
        for field in table.spec().fields:
            column, how = table.schema().find_column_name(field.source_id), str(field.transform)
            if how == "void":
                continue
            if how not in _UNITS or column not in schema.names:
                raise ConfigurationError(
                    f"{self._where}: the table is partitioned by {how}({column}); this sink knows "
                    f"{', '.join(_UNITS)} of columns that the job gives",
                    hint="change the table's partitioning, or give the sink a key: rows are then written otherwise",
                )
            split.append((column, _UNITS[how]))
        return Layout(schema, split), new

    def _check_parts(self, table: Any) -> None:
        """Refuse a table into whose parts pyiceberg divides rows by a package of its own, where that is not there."""
        for field in table.spec().fields:
            if str(field.transform) not in ("identity", "void") and find_spec("pyiceberg_core") is None:
                column = table.schema().find_column_name(field.source_id)
                raise ConfigurationError(
                    f"{self._where}: the table is partitioned by {field.transform}({column}), for which rows by key "
                    "need the package pyiceberg-core, which is not installed",
                    hint="pip install 'pyiceberg[pyiceberg-core]', or partition the table by columns",
                )

    def _check_types(self, columns: Iterable[pa.Field]) -> None:
        for column in columns:
            if not _is_known(_ours(column.type)):
                raise ConfigurationError(
                    f"{self._where}: Iceberg has no type for column '{column.name}', which is {column.type}",
                    hint="cast it before the sink",
                )

    def add_columns(self, table: Any, columns: Sequence[pa.Field]) -> None:
        transaction = table.transaction()
        with transaction.update_schema() as update:
            update.union_by_name(pa.schema(columns))
        if time.time() * 1000 <= table.metadata.last_updated_ms:
            # The library dates this change by the clock, but a snapshot as _in_order() says.
            with transaction.update_snapshot().fast_append():
                pass
        self._end(transaction)

    def place_of(self, table: Any) -> Place | None:
        if table is None:
            return None
        said = {ours: table.io.properties[theirs] for theirs, ours in _S3.items() if theirs in table.io.properties}
        if said.get("endpoint", "").startswith("http://"):
            said["allow_http"] = "true"
        remote = not table.location().startswith("file:")
        options = self._options or said if remote else {}
        return Place(url=f"{table.location().rstrip('/')}/data", options=options, fsync=self.fsync)

    def record(self, table: Any, identity: str = "") -> CommitRecord | None:
        name = _PROPERTY + (identity or self._opened.identity)
        text = table.properties.get(name)
        if text is None:
            return None
        try:
            said = json.loads(text)
            found, whose = CommitRecord(int(said["generation"]), int(said["epoch"])), (said["job"], said["sink"])
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptionError(
                f"{self._where}: the property {name} is {text!r:.200}, and no record of the sink",
                hint="put back what it was",
            ) from error
        if not identity and whose != (self._opened.job, self._opened.sink):
            raise ConfigurationError(
                f"{self._where}: the property {name} is the record of sink '{whose[1]}' of job '{whose[0]}'; expected "
                f"that of {self._label}",
                hint="give the sink another name: it begins anew in that table",
            )
        return found

    def in_effect(self, table: Any) -> CommitRecord | None:
        # Properties stay as they are when a table is rolled back.
        snapshot, end = table.current_snapshot(), 0
        while snapshot is not None:
            if self._is_own(snapshot.summary):
                return _said(snapshot.summary)
            end, parent = snapshot.sequence_number or 0, snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        record, snapshots = self.record(table), table.snapshots()
        own = [each for each in snapshots if self._is_own(each.summary) and _said(each.summary) == record]
        if not own:
            # It is expired.
            return record
        # A tag may keep it where later ones, up to those that the table shows, are expired. If none is, the table was
        # put back: what expires by its age takes those before it along.
        first = max(each.sequence_number or 0 for each in own)
        there = sum(first < (each.sequence_number or 0) < end for each in snapshots)
        return record if there < end - first - 1 else None

    def _is_own(self, summary: Any) -> bool:
        return summary is not None and summary[_IDENTITY] == self._opened.identity

    def knows(self, table: Any, context: SinkContext) -> bool:
        said = [text for name, text in table.properties.items() if name.startswith(_PROPERTY)]
        return any((one.get("job"), one.get("sink")) == (context.job, context.sink) for one in map(json.loads, said))

    def commit_files(
        self, table: Any, record: CommitRecord, files: Sequence[DataFile], after: Epoch | None = None
    ) -> None:
        later = [] if after is None else self._later(table, after)
        transaction = self._begin(table, record, None if after is None else self._gone)
        said = self._said(record)
        if files:
            root = table.location().rstrip("/")
            paths = [f"{root}/data/{file.path}" for file in files]
            transaction.add_files(paths, snapshot_properties=said, check_duplicate_files=False)
        elif later:
            with transaction.update_snapshot(snapshot_properties=said).overwrite() as snapshot:
                for file in later:
                    snapshot.delete_data_file(file)
        else:
            # Without rows, too: commits are compared by the snapshot that they follow.
            with transaction.update_snapshot(snapshot_properties=said).fast_append():
                pass
        self._end(transaction)

    def commit_rows(self, table: Any, record: CommitRecord, rows: pa.Table, key: Sequence[str]) -> None:
        _keep_nulls()
        transaction, said = self._begin(table, record), self._said(record)
        written = [rows]
        replaced = list(self._replaced(table, rows, key))
        if replaced:
            with transaction.update_snapshot(snapshot_properties=said).overwrite() as snapshot:
                for file, kept in replaced:
                    snapshot.delete_data_file(file)
                    written.append(kept)
        transaction.append(pa.concat_tables(written, promote_options="permissive"), snapshot_properties=said)
        self._end(transaction)

    def committed(self, table: Any) -> None:
        if not self._opened.fsync or not table.location().startswith("file:"):
            return
        # Where the table is on this machine, its library leaves it to the machine.
        table = self.load()
        snapshot = table.current_snapshot()
        written = [table.metadata_location]
        if snapshot is not None:
            own = [m for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id]
            written += [snapshot.manifest_list, *(manifest.manifest_path for manifest in own)]
        paths = [Path(unquote(urlsplit(path).path)) for path in written]
        for path in paths:
            sync_file(path)
        for directory in {path.parent for path in paths}:
            sync_directory(directory)

    def is_conflict(self, error: Exception) -> bool:
        return type(error).__name__ in _CONFLICTS or _BEHIND in str(error)

    def may_pass(self, error: Exception) -> bool:
        names = {made.__name__ for made in type(error).__mro__}
        return bool(names & _PASSING) or isinstance(error, OSError)

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
        said = {"generation": record.generation, "epoch": record.epoch, "job": run.job}
        sinks = {**(gone or {}), run.identity: run.sink}
        records = {_PROPERTY + identity: json.dumps({**said, "sink": sink}) for identity, sink in sinks.items()}
        transaction, metadata = table.transaction(), table.metadata
        made: Any = update
        # Else only another writer's snapshot is a conflict.
        transaction._stage((), (
            made.AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
            made.AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
        ))  # fmt: skip
        transaction.set_properties(records)
        return transaction

    def _end(self, transaction: Any) -> None:
        """Commit a transaction; where the catalog says that another one was faster, make sure before files go.

        The library would delete what the commit has written. But an answer that was lost on the way may have been asked
        for again below, and what says no then has met its own commit: the table would list files that are gone.
        """
        producers = list(transaction._snapshot_producers)
        for producer in producers:
            producer._clean_all_uncommitted = _leave
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

    def _said(self, record: CommitRecord) -> dict[str, str]:
        run = self._opened
        return {
            "strandline.job": run.job, "strandline.sink": run.sink, _IDENTITY: run.identity,
            _GENERATION: str(record.generation), _EPOCH: str(record.epoch),
        }  # fmt: skip

    def _later(self, table: Any, epoch: Epoch) -> list[Any]:
        """Return the files that older runs have added of later epochs."""
        record = self._later_record(table, epoch)
        if record is None:
            return []
        mine = re.compile(rf"/{self._later_paths}[^/]*$")
        files = [task.file for task in table.scan().plan_files()]
        found = [file for file in files if (match := mine.search(file.file_path)) and int(match[2]) > epoch]
        if not found:
            log.warning(
                "%s: the job goes back to epoch %d; rows of later epochs, up to %d, stay in %s", self._label, epoch,
                record.epoch, self._where,
            )  # fmt: skip
        return found

    def _replaced(self, table: Any, rows: pa.Table, key: Sequence[str]) -> Iterator[tuple[Any, pa.Table]]:
        """Return the files that hold some of these rows' keys, and what else is in each."""
        from pyiceberg import expressions
        from pyiceberg.io.pyarrow import ArrowScan

        # Its types do not say that a column's name will do.
        made: Any = expressions
        near = made.AlwaysTrue()
        for column in key:
            kind = rows.schema.field(column).type
            if not (pa.types.is_boolean(kind) or pa.types.is_binary(kind)):
                ends = pc.min_max(rows[column])
                least = made.GreaterThanOrEqual(column, ends["min"].as_py())
                near = made.And(near, least, made.LessThanOrEqual(column, ends["max"].as_py()))
        keys, names = rows.select(list(key)), list(key)
        try:
            tasks = list(table.scan(row_filter=near).plan_files())
        except OverflowError:
            # It has looked for what comes before the first date that there is, or after the last.
            tasks = list(table.scan().plan_files())
        for task in tasks:
            there = ArrowScan(table.metadata, table.io, table.schema(), made.AlwaysTrue()).to_table([task])
            there = there.cast(pa.schema([pa.field(c.name, plain_type(c.type), c.nullable) for c in there.schema]))
            numbered = there.select(names).append_column(_INDEX, pa.array(range(there.num_rows), pa.int64()))
            others = numbered.join(keys.cast(numbered.select(names).schema), names, join_type="left anti")[_INDEX]
            if len(others) < there.num_rows:
                yield task.file, there.take(others.take(pc.sort_indices(others)))


def _said(summary: Any) -> CommitRecord:
    return CommitRecord(int(summary[_GENERATION]), int(summary[_EPOCH]))


def _in_order(updates: Sequence[Any], since_ms: int) -> tuple[Any, ...]:
    """Return the updates of a transaction, with no snapshot before a time: that after the last change of the table.

    The clock may be behind that of the last writer. Where a table's log goes back by more than a minute, engines that
    use Iceberg's Java library refuse the commit, or cannot load the table any more. pyiceberg checks nothing, and
    replaces a time that is equal to the last one by the clock's.
    """
    return tuple(
        update.model_copy(update={"snapshot": snapshot.model_copy(update={"timestamp_ms": since_ms})})
        if (snapshot := getattr(update, "snapshot", None)) is not None and snapshot.timestamp_ms < since_ms
        else update
        for update in updates
    )


def _leave() -> None:
    """Leave what a commit has written."""


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
    """Have pyiceberg read and write lists and maps of structs that are null as null: it makes them empty."""
    from pyiceberg.io import pyarrow

    base: Any = pyarrow.ArrowProjectionVisitor

    class Visitor(base):  # type: ignore[misc]
        def list(self, kind: Any, given: Any, values: Any) -> Any:
            return _with_nulls_of(given, super().list(kind, given, values))

        def map(self, kind: Any, given: Any, keys: Any, values: Any) -> Any:
            return _with_nulls_of(given, super().map(kind, given, keys, values))

    pyarrow.ArrowProjectionVisitor = Visitor  # type: ignore[misc]


def _with_nulls_of(given: pa.Array | None, made: pa.Array | None) -> pa.Array | None:
    if given is None or made is None or given.null_count == made.null_count:
        return made
    # An offset that is null makes a null; to choose by it would lose the numbers of the columns within.
    is_null = pa.concat_arrays([given.is_null(), pa.array([False])])
    offsets = pc.if_else(is_null, pa.scalar(None, made.offsets.type), made.offsets)
    within = (made.keys, made.items) if pa.types.is_map(made.type) else (made.values,)
    return type(made).from_arrays(offsets, *within, type=made.type)


def _ours(kind: pa.DataType) -> pa.DataType:
    """Return a type as Iceberg has it, which knows no whole numbers of less than 32 bits."""
    kind = plain_type(kind)
    return pa.int32() if pa.types.is_signed_integer(kind) and kind.bit_width < 32 else kind


def _numbered(column: pa.Field, there: pa.Field) -> pa.Field:
    """Return a column with the numbers by which Iceberg knows it, and what is within it."""
    kind, known = column.type, there.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_numbered(inner, known.field(inner.name)) for inner in kind.fields])
    elif pa.types.is_list(kind):
        kind = pa.list_(_numbered(kind.value_field, known.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_numbered(kind.key_field, known.key_field), _numbered(kind.item_field, known.item_field))
    return pa.field(column.name, kind, column.nullable, {_NUMBER: there.metadata[_NUMBER]})


def _is_known(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_is_known(child.type) for child in kind.fields)
    if pa.types.is_list(kind):
        return _is_known(kind.value_type)
    if pa.types.is_map(kind):
        return _is_known(kind.key_type) and _is_known(kind.item_type)
    is_scalar = pa.types.is_signed_integer(kind) or pa.types.is_decimal128(kind) or pa.types.is_timestamp(kind)
    return is_scalar or kind in (pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.bool_(), pa.date32())
