"""Data files of tables: tasks write rows as Parquet, in files that readers ignore until the table lists them."""

from __future__ import annotations

import base64
import datetime
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.checkpoint.folder import Folder, folder_at
from strandline.core import failpoints
from strandline.core.errors import ConfigurationError, UserCodeError
from strandline.core.ids import Epoch, Generation
from strandline.ends.committables import JsonCommittable, TaskAttempt
from strandline.storage.place import Place
from strandline.types.columns import check_readable, from_arrow_type

_GROUP_BYTES = 32 << 20
"""The size of a row group in Arrow."""
_HELD_BYTES = 256 << 20
"""The limit of a task's memory for open files; above it, the task finishes the largest file early."""
_OPEN_FILES = 64
_STATISTICS_COLUMNS = 32
"""Statistics are for the first columns only, as in Delta."""
_LONGEST_TEXT = 64
_INDEX = "__index__"


class DataFile(msgspec.Struct, frozen=True, array_like=True):
    """A data file."""

    path: str
    """Below the table's root."""
    rows: int
    bytes: int
    partition: list[str | None] = []
    """The values of the partition columns that the file does not have, as text."""
    statistics: str = ""
    """Statistics of its columns, as JSON, with which readers skip files."""


class StagedFiles(JsonCommittable, frozen=True, array_like=True, tag="files"):
    """The files that one task has staged in an epoch: a committable."""

    generation: Generation
    epoch: Epoch
    task: int
    files: list[DataFile]
    key: list[str]
    """The key of the merge; empty if the table adopts the files as they are."""
    columns: str
    """The columns of its rows, in the format of `columns_text`: the table may change before the commit."""
    split: list[tuple[str, str]]
    """The `split` of the layout."""
    delete: str = ""
    """The boolean column that marks rows to delete by their keys; empty if there is none."""

    @property
    def form(self) -> tuple[list[str], str, str]:
        """Key, columns and marker, equal for all rows of a transaction: an older program may have had others."""
        return self.key, self.columns, self.delete

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        return pa.ipc.read_schema(pa.py_buffer(zlib.decompress(base64.b64decode(self.columns))))

    def has_layout(self, layout: FileLayout) -> bool:
        """Whether its files have this layout."""
        return self.split == list(layout.split) and self.schema.equals(layout.schema, check_metadata=True)

    def read(self, folder: Folder, file: DataFile) -> pa.Table:
        """Read a file's rows, with the partition columns."""
        rows, schema = pq.read_table(pa.BufferReader(folder.get(file.path))), self.schema
        if file.partition:
            for (name, _), text in zip(self.split, file.partition, strict=True):
                value = pa.scalar(text, pa.string()).cast(schema.field(name).type)
                rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        return rows.select(schema.names)


def columns_text(schema: pa.Schema) -> str:
    """Return columns as text: the schema in Arrow's format, compressed, in base64."""
    return base64.b64encode(zlib.compress(schema.serialize().to_pybytes())).decode()


class TableMark(JsonCommittable, frozen=True, array_like=True, tag="reached"):
    """The record in the table at a checkpoint: the table must not have an older one later."""

    sink: str
    generation: Generation
    epoch: Epoch


COMMITTABLES: msgspec.json.Decoder[StagedFiles | TableMark] = msgspec.json.Decoder(StagedFiles | TableMark)


@dataclass(frozen=True)
class FileLayout:
    """The layout of a table's files."""

    schema: pa.Schema
    """The job's columns, in the table's types and order."""
    split: Sequence[tuple[str, str]] = ()
    """Columns that are equal within a file, each with the unit of time up to which it is, or with ""."""
    leaves_out: bool = False
    """Whether files do not have the columns that they are split by."""
    statistics: bool = False

    def in_file(self) -> pa.Schema:
        """Return the columns of files."""
        out = {name for name, _ in self.split} if self.leaves_out else set()
        return pa.schema([column for column in self.schema if column.name not in out])


@dataclass(frozen=True)
class WriteDataFiles:
    """The task that writes a partition's rows of an epoch, called by `write_tasks`."""

    place: Place
    folder: str
    generation: Generation
    epoch: Epoch
    layout: FileLayout
    target_bytes: int
    key: Sequence[str] = ()
    delete: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch], attempt: TaskAttempt) -> str:
        staged = StagedFiles(
            self.generation, self.epoch, attempt.partition, self.write(batches, attempt), list(self.key),
            columns_text(self.layout.schema), list(self.layout.split), self.delete,
        )  # fmt: skip
        failpoints.hit("sink.rows_staged")
        return staged.text

    def write(self, batches: Iterable[pa.RecordBatch], attempt: TaskAttempt) -> list[DataFile]:
        """Write rows; return their files."""
        files = _OpenFiles(self, folder_at(self.place), f"{self.epoch:012}-{attempt.partition:05}-{attempt.name}")
        for batch in batches:
            rows = cast_rows(batch, self.layout.schema)
            refuse_unreadable(rows)
            files.add(rows)
        return files.finish()


def cast_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return rows in a table's types."""
    columns = []
    for wanted in schema:
        column = batch[wanted.name]
        if not wanted.nullable and column.null_count:
            raise ConfigurationError(
                f"column '{wanted.name}' of the table takes no nulls, and {column.null_count} rows have none there",
                hint="set a value, or allow nulls in the table's column",
            )
        columns.append(column if column.type == wanted.type else column.cast(wanted.type))
    return pa.Table.from_arrays([pa.chunked_array([column]) for column in columns], schema=schema)


def cast_table(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table's rows in these columns and types."""
    return pa.concat_tables([schema.empty_table(), *(cast_rows(batch, schema) for batch in rows.to_batches())])


def refuse_unreadable(rows: pa.Table) -> None:
    """Refuse invalid UTF-8 and times after the year 9999: a table's metadata and readers cannot handle them."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            for chunk in column.chunks:
                check_readable(chunk, from_arrow_type(column.type))
        except UserCodeError as error:
            raise ConfigurationError(
                f"column '{name}' cannot be written into a table: {error.message}",
                hint=f'drop such rows before the sink, texts as with where("is_valid_utf8({name})"), or fix them',
                discreet=f"column '{name}' has a value that cannot be written into a table",
            ) from None


class _OpenFiles:
    """The open files of one attempt."""

    def __init__(self, task: WriteDataFiles, folder: Folder, name: str) -> None:
        self._task = task
        self._folder = folder
        self._name = name
        self._open: dict[tuple[Any, ...], ParquetFile] = {}
        self._done: list[DataFile] = []

    def add(self, rows: pa.Table) -> None:
        layout = self._task.layout
        for values, part in split_rows(rows, layout.split):
            if values not in self._open:
                self._open[values] = ParquetFile(layout.in_file())
            file = self._open[values]
            file.add(part.select(layout.in_file().names))
            if file.size_bytes() >= self._task.target_bytes:
                self._put(values)
        while len(self._open) > _OPEN_FILES or sum(file.held_bytes for file in self._open.values()) > _HELD_BYTES:
            self._put(max(self._open, key=lambda values: self._open[values].held_bytes))

    def finish(self) -> list[DataFile]:
        for values in list(self._open):
            self._put(values)
        return self._done

    def _put(self, values: tuple[Any, ...]) -> None:
        file = self._open.pop(values)
        data = file.finish()
        path = f"{self._task.folder}/g{self._task.generation}/{self._name}-{len(self._done)}.parquet"
        self._folder.put(path, data)
        layout = self._task.layout
        partition = [partition_text(value) for value in values] if layout.leaves_out else []
        statistics = statistics_of(data) if layout.statistics else ""
        self._done.append(DataFile(path, file.rows, len(data), partition, statistics))


@dataclass
class ParquetFile:
    """One Parquet file, in memory until it is complete."""

    schema: pa.Schema
    codec: str = "snappy"
    rows: int = 0
    held_bytes: int = 0
    _waiting: list[pa.Table] = field(default_factory=list)
    _waiting_bytes: int = 0

    def __post_init__(self) -> None:
        self._out = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._out, self.schema, compression=self.codec)

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        self.rows += rows.num_rows
        self.held_bytes = self._waiting_bytes + self._out.tell()
        if self._waiting_bytes >= _GROUP_BYTES:
            self._write()

    def size_bytes(self) -> int:
        """Return the file's present size, with the rows that wait for their row group uncompressed."""
        return int(self._out.tell()) + self._waiting_bytes

    def finish(self) -> bytes:
        self._write()
        self._writer.close()
        return bytes(self._out.getvalue())

    def _write(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._waiting, self._waiting_bytes = [], 0
        self.held_bytes = self._out.tell()


def split_rows(rows: pa.Table, split: Sequence[tuple[str, str]]) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Yield the rows for each combination of the split's values, with these values."""
    if not split:
        yield (), rows
        return
    keys = [rows[name] if not unit else pc.floor_temporal(rows[name], unit=unit) for name, unit in split]
    names = [f"k{at}" for at in range(len(keys))]
    index = pa.array(range(rows.num_rows), pa.int64())
    groups = pa.table([*keys, index], names=[*names, _INDEX]).group_by(names).aggregate([(_INDEX, "list")])
    for at in range(groups.num_rows):
        values = tuple(groups[name][at].as_py() for name in names)
        yield values, rows.take(groups[f"{_INDEX}_list"][at].values)


def partition_text(value: Any) -> str | None:
    """Return the value of a partition column as text, for the table's metadata: an empty text counts as null."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def statistics_of(data: bytes) -> str:
    """Return Delta's statistics of a file: its number of rows, and the least and greatest value of each column.

    Without floating point, since Parquet's statistics ignore NaN, which is the greatest value; and without decimals,
    since JSON parsers round them.
    """
    metadata = pq.read_metadata(pa.BufferReader(data))
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for at in range(min(metadata.num_columns, _STATISTICS_COLUMNS)):
        name = metadata.schema.column(at).path
        if metadata.schema.column(at).max_repetition_level or "." in name:
            continue
        groups = [metadata.row_group(group).column(at).statistics for group in range(metadata.num_row_groups)]
        if not groups or any(one is None or not one.has_null_count for one in groups):
            continue
        nulls[name] = sum(one.null_count for one in groups)
        valued = [one for one in groups if one.has_min_max]
        if not valued or any(not one.has_min_max and one.num_values for one in groups):
            continue
        low, high = _json_value(min(one.min for one in valued)), _json_value(max(one.max for one in valued))
        if low is not None and high is not None:
            least[name], greatest[name] = low, high
    result = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return msgspec.json.encode(result).decode()


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
