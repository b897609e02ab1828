"""Files in object storage, written by this package's tasks: Spark's writers would need Hadoop's clients.

The files have the same content as Spark's: Spark's functions convert rows to JSON and CSV, in the JVM, and Arrow
writes Parquet and ORC.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from strandline.checkpoint.folder import folder_at
from strandline.core import failpoints
from strandline.core.errors import ConfigurationError
from strandline.ends.committables import TaskAttempt
from strandline.ends.tables.columns import plain_type
from strandline.ends.tables.datafiles import ParquetFile, cast_rows
from strandline.plan.columns import quoted
from strandline.spark.base.ddl import arrow_schema
from strandline.spark.sinks.tasks import write_tasks
from strandline.storage.place import Place

FORMATS = ("parquet", "json", "csv", "orc", "text")
_FILE_BYTES = 64 << 20
"""The approximate size of a file, which is in memory until it is complete."""
_PARQUET_CODECS = ("snappy", "zstd", "gzip", "none")
_TEXT_CODECS = ("none", "gzip")
_TEXT = StructType([StructField("value", StringType())])
_BYTES = {"linesep": "\n", "encoding": "utf-8", "charset": "utf-8"}
"""Options of JSON and CSV for the encoding of files, with their only possible values."""

_headers: dict[tuple[Any, ...], str] = {}
"""By columns and options: Spark computes a header once, not for each epoch."""


class OpenFile(Protocol):
    """A file in memory."""

    def add(self, rows: pa.Table) -> None:
        """Add rows."""

    def size_bytes(self) -> int:
        """Return the present size, or a little more."""
        ...

    def finish(self) -> bytes:
        """Return its content."""
        ...


@dataclass(frozen=True)
class ObjectFormat:
    """The format of files, with its options. Executors get a copy."""

    name: str
    options: Mapping[str, str]
    """By their names in lower case, since Spark ignores case."""

    def check(self, where: str, empty: DataFrame) -> None:
        """Raise ConfigurationError if rows of these columns cannot be written in this format."""
        if self.name not in FORMATS:
            raise ConfigurationError(
                f"{where}: format is '{self.name}'; in object storage there are {', '.join(FORMATS)}",
                hint="choose one of them; or a url with a scheme of Spark's Hadoop clients",
            )
        codecs = _PARQUET_CODECS if self.name == "parquet" else ("none",) if self.name == "orc" else _TEXT_CODECS
        if self._codec not in codecs:
            raise ConfigurationError(
                f"{where}: compression is '{self._codec}'; for {self.name} in object storage there are "
                f"{', '.join(codecs)}"
            )
        unknown = sorted(set(self.options) - {"compression"}) if self.name in ("parquet", "orc", "text") else []
        if unknown:
            raise ConfigurationError(
                f"{where}: options that {self.name} in object storage does not have: {', '.join(unknown)}"
            )
        for name, only in _BYTES.items():
            if (value := self.options.get(name, only)).lower() != only:
                raise ConfigurationError(
                    f"{where}: {name} is {value!r}; in object storage, {self.name} is lines of UTF-8, each with a "
                    "line feed at its end",
                    hint="leave the option out",
                )
        columns = arrow_schema(self.columns_of(empty))
        if self.name == "text" and columns.types != [pa.string()]:
            raise ConfigurationError(
                f"{where}: format 'text' takes one column of text, not {', '.join(columns.names)}",
                hint="select it, or write json",
            )
        try:
            self.open(self.in_file(columns)).finish()
        except (pa.ArrowException, NotImplementedError, ImportError) as error:
            raise ConfigurationError(
                f"{where}: the columns cannot be written as {self.name}: {error}", hint="cast them before the sink"
            ) from None

    def shape(self, df: DataFrame) -> DataFrame:
        """Return the rows for the tasks: for JSON and CSV, one column with Spark's text."""
        if self.name not in ("json", "csv"):
            return df
        columns = [F.col(quoted(name)) for name in df.columns]
        if self.name == "csv" and len(columns) == 1 and not self._is("quoteall"):
            # Spark's files omit rows whose only value is null. Its function fails for them without another column.
            more = F.lit("x").alias("more")
            null = replace(self, options={**self.options, "nullvalue": ""})._text([F.lit(None).cast("string"), more])
            df = df.where(self._text([*columns, more]) != null)
        return df.select(self._text(columns))

    def columns_of(self, df: DataFrame) -> StructType:
        """Return the schema of the rows for the tasks."""
        return _TEXT if self.name in ("json", "csv") else df.schema

    def _is(self, option: str) -> bool:
        return self.options.get(option, "false").lower() == "true"

    def _text(self, columns: Sequence[Column]) -> Column:
        options = {key: value for key, value in self.options.items() if key not in ("compression", "header")}
        make = F.to_json if self.name == "json" else F.to_csv
        return make(F.struct(*columns), options).alias("value")

    def in_file(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns in the types of files."""
        return pa.schema([pa.field(column.name, plain_type(column.type)) for column in columns])

    def header(self, df: DataFrame) -> str:
        """Return the header line of each file, or an empty text."""
        if self.name != "csv" or not self._is("header"):
            return ""
        key = tuple(df.columns), tuple(sorted(self.options.items()))
        if (header := _headers.get(key)) is None:
            names = [F.lit(name).alias(f"c{at}") for at, name in enumerate(df.columns)]
            (line,) = df.sparkSession.sql("select 1").select(self._text(names)).collect()
            header = _headers[key] = f"{line.value}\n"
        return header

    def open(self, schema: pa.Schema, header: str = "") -> OpenFile:
        """Return an empty file."""
        if self.name == "parquet":
            return ParquetFile(schema, codec=self._codec)
        return _OrcFile(schema) if self.name == "orc" else _TextFile(header, self._codec)

    @property
    def suffix(self) -> str:
        """Return the suffix of file names, as in Spark."""
        kind = {"text": "txt"}.get(self.name, self.name)
        if self.name == "parquet":
            return f"{'gz' if self._codec == 'gzip' else self._codec}.{kind}" if self._codec != "none" else kind
        return f"{kind}.gz" if self._codec == "gzip" else kind

    @property
    def _codec(self) -> str:
        return self.options.get("compression", "snappy" if self.name == "parquet" else "none").lower()


def stage(df: DataFrame, form: ObjectFormat, place: Place, directory: str) -> list[str]:
    """Write an epoch's rows into a folder; return the names of the files, without those of failed attempts."""
    schema = form.in_file(arrow_schema(form.columns_of(df)))
    lists = write_tasks(df, _WriteFiles(form, place, directory, schema, form.header(df)), form.shape)
    return sorted(name for names in lists for name in msgspec.json.decode(names, type=list[str]))


@dataclass(frozen=True)
class _WriteFiles:
    """The task that writes a partition's rows of an epoch, called by `write_tasks`."""

    form: ObjectFormat
    place: Place
    directory: str
    schema: pa.Schema
    header: str

    def __call__(self, batches: Iterator[pa.RecordBatch], attempt: TaskAttempt) -> str:
        folder = folder_at(self.place)
        names: list[str] = []
        file: OpenFile | None = None

        def put(file: OpenFile) -> None:
            name = f"part-{attempt.partition:05}-{attempt.name}-c{len(names):03}.{self.form.suffix}"
            folder.put(f"{self.directory}/{name}", file.finish())
            names.append(name)

        for batch in batches:
            file = file or self.form.open(self.schema, self.header)
            file.add(cast_rows(batch, self.schema))
            if file.size_bytes() >= _FILE_BYTES:
                put(file)
                file = None
        if file is not None:
            put(file)
        failpoints.hit("sink.rows_staged")
        return msgspec.json.encode(names).decode()


class _TextFile:
    """Lines of text."""

    def __init__(self, header: str, codec: str) -> None:
        self._codec = codec
        self._parts = [header.encode()] if header else []
        self._size = len(header)

    def add(self, rows: pa.Table) -> None:
        # As bytes: Spark's strings may be invalid UTF-8, and its files have them unchanged.
        lines = rows.column(0).cast(pa.binary()).to_pylist()
        part = b"".join([b"\n" if line is None else line + b"\n" for line in lines])
        self._parts.append(part)
        self._size += len(part)

    def size_bytes(self) -> int:
        return self._size

    def finish(self) -> bytes:
        data = b"".join(self._parts)
        return gzip.compress(data, 6) if self._codec == "gzip" else data


class _OrcFile:
    """Rows as ORC."""

    def __init__(self, schema: pa.Schema) -> None:
        # Some builds of Arrow lack it.
        from pyarrow import orc

        self._out = pa.BufferOutputStream()
        self._writer: Any = orc.ORCWriter(self._out)
        self._writer.write(schema.empty_table())
        self._bytes = 0

    def add(self, rows: pa.Table) -> None:
        self._writer.write(rows)
        self._bytes += rows.nbytes

    def size_bytes(self) -> int:
        return max(int(self._out.tell()), self._bytes // 4)

    def finish(self) -> bytes:
        self._writer.close()
        return bytes(self._out.getvalue())
