"""The tables of a snapshot as a data source of PySpark: a task for each partition of the state, or file.

Spark asks in Python processes of its own: for the columns and the plan beside the driver, for rows on executors. What
these are told is all that they need: they do not look for the snapshot again.

No filter decides what is read: up to Spark 4.3, all uses of a DataFrame read what the last plan with filters says, and
those with other filters, or none, would miss rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from strandline.checkpoint.folder import folder_at
from strandline.checkpoint.pins import renew
from strandline.format.manifest import OperatorInfo
from strandline.snapshot.opening.snapshot import pin_snapshot, pinned_snapshot
from strandline.snapshot.tables.metadata import metadata, metadata_schema
from strandline.snapshot.tables.reader import StateReader
from strandline.snapshot.tables.table import Table, find_table
from strandline.spark.base.ddl import spark_type
from strandline.spark.tables.options import FORMAT, Options
from strandline.storage.place import Place
from strandline.types.columns import from_arrow_type


class StrandlineSource(DataSource):
    """`spark.read.format("strandline")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        options = Options.of(self.options)
        columns = metadata_schema(options.metadata) if options.metadata else _schema(options)
        # Not as text, of which it depends on the session what a timestamp is.
        return StructType([StructField(field.name, spark_type(from_arrow_type(field.type))) for field in columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.of(self.options)
        return MetadataReader(options) if options.metadata else TableReader(options)


@dataclass(frozen=True)
class Split(InputPartition):
    """What one task reads: a range of key groups."""

    place: Place
    metadata: str
    operator: OperatorInfo
    """With the partitions and files alone that the range needs."""
    state: str
    name: str
    """The table's."""
    now_us: int | None
    watermark_us: int | None
    groups: range

    def table(self) -> Table:
        """Return the table, without a look at the snapshot."""
        state = next(state for state in self.operator.states if state.name == self.state)
        folder = folder_at(self.place)
        return Table(folder, self.metadata, self.operator, state, self.name, self.now_us, self.watermark_us)


class TableReader(DataSourceReader):
    """Reads a state."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        # It stays pinned for the tasks, which renew the pin while they read.
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
            # Where there are none to read, Spark makes one of its own.
            return
        table = partition.table()
        with table.renewing(), StateReader() as reader:
            for batch in reader.rows(table, partition.groups):
                if batch.num_rows:
                    yield batch


class MetadataReader(DataSourceReader):
    """Reads what the manifest says."""

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
    """Return an operator with nothing but what a range of key groups of a table needs."""

    def wanted(first: int, last: int) -> bool:
        return table.is_broadcast or (first < groups.stop and last >= groups.start)

    if table.files is None:
        parts = [part for part in table.partitions if wanted(part.first_key_group, part.last_key_group)]
        return msgspec.structs.replace(operator, partitions=parts)
    files = [file for file in table.files if wanted(file.first_key_group, file.last_key_group)]
    return msgspec.structs.replace(operator, tables={table.state.name: files})
