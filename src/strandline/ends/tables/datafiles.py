"""Data files of tables: each task writes its rows as Parquet, in files that nobody reads until the table lists them."""

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
"""How much, as Arrow has it, becomes a row group."""
_HELD_BYTES = 256 << 20
"""How much a task holds in memory for all of its files; then the largest is finished early."""
_OPEN_FILES = 64
_STATISTICS = 32
"""Of how many columns: the first ones, as tables have it."""
_LONGEST_TEXT = 64
_INDEX = "__index__"


class DataFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of rows."""

    path: str
    """Below the table's root."""
    rows: int
    bytes: int
    partition: list[str | None] = []
    """The values of the partition's columns that the file leaves out, as text."""
    statistics: str = ""
    """What its columns hold, as JSON, for readers that can do without the file then."""


class StagedFiles(JsonCommittable, frozen=True, array_like=True, tag="files"):
    """What one task has staged of an epoch: a committable."""

    generation: Generation
    epoch: Epoch
    task: int
    files: list[DataFile]
    key: list[str]
    """By which its rows are merged; none if the files are to be the table's own."""
    columns: str
    """The columns of its rows, as `columns_text` has them: the table's may be others by the time it is committed."""
    split: list[tuple[str, str]]
    """How its rows are divided into files, as `Layout` has it."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        return pa.ipc.read_schema(pa.py_buffer(zlib.decompress(base64.b64decode(self.columns))))

    def is_laid_out(self, layout: Layout) -> bool:
        """Whether its files are as a table with this layout wants them."""
        return self.split == list(layout.split) and self.schema.equals(layout.schema, check_metadata=True)

    def read(self, folder: Folder, file: DataFile) -> pa.Table:
        """Read a file's rows, with the columns that it leaves out."""
        rows, schema = pq.read_table(pa.BufferReader(folder.get(file.path))), self.schema
        if file.partition:
            for (name, _), text in zip(self.split, file.partition, strict=True):
                value = pa.scalar(text, pa.string()).cast(schema.field(name).type)
                rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        return rows.select(schema.names)


def columns_text(schema: pa.Schema) -> str:
    """Return columns as text: Arrow's bytes of a schema, compressed, in base64."""
    return base64.b64encode(zlib.compress(schema.serialize().to_pybytes())).decode()


class ReachedRecord(JsonCommittable, frozen=True, array_like=True, tag="reached"):
    """What the table had on record at a checkpoint: it may not be less again."""

    sink: str
    generation: Generation
    epoch: Epoch


LISTED: msgspec.json.Decoder[StagedFiles | ReachedRecord] = msgspec.json.Decoder(StagedFiles | ReachedRecord)


@dataclass(frozen=True)
class Layout:
    """How a table wants its rows."""

    schema: pa.Schema
    """Every column that the job gives, in the table's types and order."""
    split: Sequence[tuple[str, str]] = ()
    """Which rows may be in one file: those for which these columns are equal, "" or as far as a unit of time."""
    leaves_out: bool = False
    """Whether the files do without the columns that they are split by."""
    statistics: bool = False

    def in_file(self) -> pa.Schema:
        """Return the columns of files."""
        out = {name for name, _ in self.split} if self.leaves_out else set()
        return pa.schema([column for column in self.schema if column.name not in out])


@dataclass(frozen=True)
class WriteDataFiles:
    """Writes a partition's rows of an epoch: what `write_tasks` calls."""

    place: Place
    folder: str
    generation: Generation
    epoch: Epoch
    layout: Layout
    target_bytes: int
    key: Sequence[str] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch], attempt: TaskAttempt) -> str:
        staged = StagedFiles(
            self.generation, self.epoch, attempt.partition, self.write(batches, attempt), list(self.key),
            columns_text(self.layout.schema), list(self.layout.split),
        )  # fmt: skip
        failpoints.hit("sink.rows_staged")
        return staged.text

    def write(self, batches: Iterable[pa.RecordBatch], attempt: TaskAttempt) -> list[DataFile]:
        """Write rows; return their files."""
        files = _Files(self, folder_at(self.place), f"{self.epoch:012}-{attempt.partition:05}-{attempt.name}")
        for batch in batches:
            rows = fitted(batch, self.layout.schema)
            refuse_unreadable(rows)
            files.add(rows)
        return files.finish()


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return rows in the types of a table."""
    columns = []
    for wanted in schema:
        column = batch[wanted.name]
        if not wanted.nullable and column.null_count:
            raise ConfigurationError(
                f"column '{wanted.name}' of the table takes no nulls, and {column.null_count} rows have none there",
                hint="give them a value, or let the table's column be null",
            )
        columns.append(column if column.type == wanted.type else column.cast(wanted.type))
    return pa.Table.from_arrays([pa.chunked_array([column]) for column in columns], schema=schema)


def refuse_unreadable(rows: pa.Table) -> None:
    """Refuse strings that are no UTF-8, and times after the year 9999: a table's lists and readers fail at them."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            for chunk in column.chunks:
                check_readable(chunk, from_arrow_type(column.type))
        except UserCodeError as error:
            raise ConfigurationError(
                f"column '{name}' cannot be written into a table: {error.message}",
                hint=f'drop such rows before the sink, texts as with where("is_valid_utf8({name})"), or mend them',
                discreet=f"column '{name}' holds what cannot be written into a table",
            ) from None


class _Files:
    """The files that one attempt has open."""

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
        data, rows = self._open.pop(values).finish()
        path = f"{self._task.folder}/g{self._task.generation}/{self._name}-{len(self._done)}.parquet"
        self._folder.put(path, data)
        layout = self._task.layout
        partition = [as_text(value) for value in values] if layout.leaves_out else []
        statistics = statistics_of(data) if layout.statistics else ""
        self._done.append(DataFile(path, rows, len(data), partition, statistics))


@dataclass
class ParquetFile:
    """One Parquet file, in memory until it is whole."""

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
        """Return how large the file is by now; what waits for its row group counts in full."""
        return int(self._out.tell()) + self._waiting_bytes

    def finish(self) -> tuple[bytes, int]:
        self._write()
        self._writer.close()
        return self._out.getvalue().to_pybytes(), self.rows

    def _write(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._waiting, self._waiting_bytes = [], 0
        self.held_bytes = self._out.tell()


def split_rows(rows: pa.Table, split: Sequence[tuple[str, str]]) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Return rows by what they are split by, with the values."""
    if not split:
        yield (), rows
        return
    keys = [rows[name] if not unit else pc.floor_temporal(rows[name], unit=unit) for name, unit in split]
    names = [f"k{at}" for at in range(len(keys))]
    index = pa.array(range(rows.num_rows), pa.int64())
    found = pa.table([*keys, index], names=[*names, _INDEX]).group_by(names).aggregate([(_INDEX, "list")])
    for at in range(found.num_rows):
        values = tuple(found[name][at].as_py() for name in names)
        yield values, rows.take(found[f"{_INDEX}_list"][at].values)


def as_text(value: Any) -> str | None:
    """Return the value of a partition's column as tables have it in their lists: none is none, and so is no text."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def statistics_of(data: bytes) -> str:
    """Return how many rows a file has, and the least and greatest values of its columns, as Delta has them.

    Only what says the same in JSON: not floating point, whose NaN is greater than all that Parquet counts, and no
    decimals, which JSON's readers round.
    """
    metadata = pq.read_metadata(pa.BufferReader(data))
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for at in range(min(metadata.num_columns, _STATISTICS)):
        name = metadata.schema.column(at).path
        if metadata.schema.column(at).max_repetition_level or "." in name:
            continue
        found = [metadata.row_group(group).column(at).statistics for group in range(metadata.num_row_groups)]
        if not found or any(one is None or not one.has_null_count for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        valued = [one for one in found if one.has_min_max]
        if not valued or any(not one.has_min_max and one.num_values for one in found):
            continue
        low, high = _in_json(min(one.min for one in valued)), _in_json(max(one.max for one in valued))
        if low is not None and high is not None:
            least[name], greatest[name] = low, high
    said = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return msgspec.json.encode(said).decode()


def _in_json(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
