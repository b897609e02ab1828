"""A data source of PySpark for the tables of a snapshot, with a task for each partition of the state, or file.

Spark calls it in separate Python processes: next to the driver for the columns and the plan, on executors for rows. A
`Split` has all that an executor needs: it does not search for the snapshot again.

No filter is pushed down: up to Spark 4.3, all uses of a DataFrame read the splits of the last plan with filters, and
uses with other filters, or none, would miss rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from strandline.checkpoint.folder import folder_at
from strandline.checkpoint.pins import renew
from strandline.core.errors import ConfigurationError
from strandline.format.manifest import OperatorInfo
from strandline.snapshot.opening.snapshot import pin_snapshot, pinned_snapshot
from strandline.snapshot.tables.metadata import metadata, metadata_schema
from strandline.snapshot.tables.reader import StateReader
from strandline.snapshot.tables.table import Table, find_table
from strandline.spark.base.ddl import spark_type
from strandline.storage.place import Place
from strandline.types.columns import from_arrow_type

FORMAT = "strandline"
STORAGE = "storage."
"""The prefix of options of the storage."""
_KNOWN = ("url", "table", "metadata")


@dataclass(frozen=True)
class Options:
    """Valid options. Either `table` or `metadata` is ""."""

    url: str = field(repr=False)
    table: str
    metadata: str
    storage: dict[str, str] = field(repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Options:
        """Check the options that Spark passes. Errors quote no values, which may be secrets."""
        storage = {name[len(STORAGE) :]: value for name, value in options.items() if name.startswith(STORAGE)}
        rest = {name: value for name, value in options.items() if not name.startswith(STORAGE)}
        unknown = sorted(set(rest).difference(_KNOWN))
        if unknown:
            raise ConfigurationError(
                f'format("{FORMAT}"): unknown option {", ".join(unknown)}',
                hint=f"known are {', '.join(_KNOWN)}, and options of the storage as {STORAGE}NAME",
            )
        if not rest.get("url") or bool(rest.get("table")) == bool(rest.get("metadata")):
            raise ConfigurationError(
                f'format("{FORMAT}"): expected the options url, and either table or metadata; got '
                f"{', '.join(sorted(rest)) or 'none'}",
                hint='.option("url", "s3://…/job").option("table", "uid.state")',
            )
        return cls(rest["url"], rest.get("table", ""), rest.get("metadata", ""), storage)


class StrandlineSource(DataSource):
    """`spark.read.format("strandline")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        options = Options.of(self.options)
        columns = metadata_schema(options.metadata) if options.metadata else _schema(options)
        # Not as DDL: in DDL, the session's settings define the type of a timestamp.
        return StructType([StructField(field.name, spark_type(from_arrow_type(field.type))) for field in columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.of(self.options)
        return MetadataReader(options) if options.metadata else TableReader(options)


@dataclass(frozen=True)
class Split(InputPartition):
    """The part of a table that one task reads: a range of key groups."""

    place: Place
    metadata: str
    operator: OperatorInfo
    """The operator with only the partitions and files of the range."""
    state: str
    name: str
    """The table's name."""
    now_us: int | None
    watermark_us: int | None
    groups: range

    def table(self) -> Table:
        """Return the table, without reading the snapshot."""
        state = next(state for state in self.operator.states if state.name == self.state)
        folder = folder_at(self.place)
        return Table(folder, self.metadata, self.operator, state, self.name, self.now_us, self.watermark_us)


class TableReader(DataSourceReader):
    """Reads the rows of a state."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        # The pin stays for the tasks, which renew it while they read.
        snapshot = pin_snapshot(self._options.url, self._options.storage)
        if snapshot.pin:
            renew(snapshot.folder, snapshot.pin)
        table = find_table(snapshot, self._options.table)
        split = _whole(table, self._options)
        return [
            replace(split, operator=_part(table.operator, table, groups), groups=groups) for groups in table.splits()
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Split):
            # If there are no partitions, Spark passes one of its own.
            return
        table = partition.table()
        with table.renewing(), StateReader() as reader:
            for batch in reader.rows(table, partition.groups):
                if batch.num_rows:
                    yield batch


class MetadataReader(DataSourceReader):
    """Reads metadata of the manifest."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        options = self._options
        with pinned_snapshot(options.url, options.storage) as snapshot:
            yield from metadata(snapshot, options.metadata, options.storage).to_batches()


def _schema(options: Options) -> pa.Schema:
    with pinned_snapshot(options.url, options.storage) as snapshot:
        return find_table(snapshot, options.table).schema


def _whole(table: Table, options: Options) -> Split:
    place = table.folder.place(options.storage, fsync=False)
    return Split(
        place, table.metadata, table.operator, table.state.name, table.name, table.now_us, table.watermark_us,
        table.groups,
    )  # fmt: skip


def _part(operator: OperatorInfo, table: Table, groups: range) -> OperatorInfo:
    """Return an operator with only the partitions or files that a range of key groups of a table needs."""

    def is_needed(first: int, last: int) -> bool:
        return table.is_broadcast or (first < groups.stop and last >= groups.start)

    if table.files is None:
        parts = [part for part in table.partitions if is_needed(part.first_key_group, part.last_key_group)]
        return msgspec.structs.replace(operator, partitions=parts)
    files = [file for file in table.files if is_needed(file.first_key_group, file.last_key_group)]
    return msgspec.structs.replace(operator, tables={table.state.name: files})
