"""Files in object storage, written by tasks of ours: Spark's own writers would need Hadoop's clients.

What is written is what Spark writes: JSON and CSV are made by Spark's own functions, in the JVM, and only their text
comes here; Parquet and ORC by Arrow.
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
"""At about how many bytes a file ends: it is in memory until then."""
_PARQUET_CODECS = ("snappy", "zstd", "gzip", "none")
_TEXT_CODECS = ("none", "gzip")
_BYTES = {"linesep": "\n", "encoding": "utf-8", "charset": "utf-8"}
"""Options of JSON and CSV that say of which bytes files are, and what they may say."""

_headers: dict[tuple[Any, ...], str] = {}
"""By columns and options: Spark is asked once, not for each epoch."""


class OpenFile(Protocol):
    """A file in memory."""

    def add(self, rows: pa.Table) -> None:
        """Add rows."""

    def size_bytes(self) -> int:
        """Return how large it is by now, or a little more."""
        ...

    def finish(self) -> tuple[bytes, int]:
        """Return its bytes, and how many rows it has."""
        ...


@dataclass(frozen=True)
class ObjectFormat:
    """How rows become files. It goes to the executors."""

    name: str
    options: Mapping[str, str]
    """By their names in lower case: Spark makes no difference."""

    def check(self, where: str, empty: DataFrame) -> None:
        """Raise ConfigurationError if rows of these columns cannot be written so."""
        if self.name not in FORMATS:
            raise ConfigurationError(
                f"{where}: format is '{self.name}'; in object storage there are {', '.join(FORMATS)}",
                hint="take one of them; or give a url of a scheme that Spark's Hadoop clients have",
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
            if (given := self.options.get(name, only)).lower() != only:
                raise ConfigurationError(
                    f"{where}: {name} is {given!r}; in object storage, {self.name} is lines of UTF-8, each with a "
                    "line feed at its end",
                    hint="leave the option out",
                )
        columns = arrow_schema(self.shaped(empty).schema)
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

    def shaped(self, df: DataFrame) -> DataFrame:
        """Return rows as tasks want them: those of JSON and CSV as Spark's own text."""
        if self.name not in ("json", "csv"):
            return df
        columns = [F.col(quoted(name)) for name in df.columns]
        if self.name == "csv" and len(columns) == 1 and not self._is("quoteall"):
            # Of a row that is nothing, Spark's files have no line; its function fails, but for another column's sake.
            more = F.lit("x").alias("more")
            nothing = replace(self, options={**self.options, "nullvalue": ""})._text([F.lit(None).cast("string"), more])
            df = df.where(self._text([*columns, more]) != nothing)
        return df.select(self._text(columns))

    def _is(self, option: str) -> bool:
        return self.options.get(option, "false").lower() == "true"

    def _text(self, columns: Sequence[Column]) -> Column:
        options = {key: value for key, value in self.options.items() if key not in ("compression", "header")}
        make = F.to_json if self.name == "json" else F.to_csv
        return make(F.struct(*columns), options).alias("value")

    def in_file(self, columns: pa.Schema) -> pa.Schema:
        """Return these columns in the types that files have."""
        return pa.schema([pa.field(column.name, plain_type(column.type)) for column in columns])

    def header(self, df: DataFrame) -> str:
        """Return the line that each file begins with, if one does."""
        if self.name != "csv" or not self._is("header"):
            return ""
        wanted = tuple(df.columns), tuple(sorted(self.options.items()))
        if (made := _headers.get(wanted)) is None:
            names = [F.lit(name).alias(f"c{at}") for at, name in enumerate(df.columns)]
            (line,) = df.sparkSession.sql("select 1").select(self._text(names)).collect()
            made = _headers[wanted] = f"{line.value}\n"
        return made

    def open(self, schema: pa.Schema, header: str = "") -> OpenFile:
        """Return an empty file."""
        if self.name == "parquet":
            return ParquetFile(schema, codec=self._codec)
        return _OrcFile(schema) if self.name == "orc" else _TextFile(header, self._codec)

    @property
    def suffix(self) -> str:
        """Return how names of files end, as Spark has them."""
        kind = {"text": "txt"}.get(self.name, self.name)
        if self.name == "parquet":
            return f"{'gz' if self._codec == 'gzip' else self._codec}.{kind}" if self._codec != "none" else kind
        return f"{kind}.gz" if self._codec == "gzip" else kind

    @property
    def _codec(self) -> str:
        return self.options.get("compression", "snappy" if self.name == "parquet" else "none").lower()


def stage(df: DataFrame, form: ObjectFormat, place: Place, directory: str) -> list[str]:
    """Write an epoch's rows into a folder; return the names of those files that count."""
    shaped = form.shaped(df)
    schema = form.in_file(arrow_schema(shaped.schema))
    found = write_tasks(shaped, _WriteFiles(form, place, directory, schema, form.header(df)))
    return sorted(name for names in found for name in msgspec.json.decode(names, type=list[str]))


@dataclass(frozen=True)
class _WriteFiles:
    """Writes a partition's rows of an epoch: what `write_tasks` calls."""

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
            folder.put(f"{self.directory}/{name}", file.finish()[0])
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
        self._size, self._rows = len(header), 0

    def add(self, rows: pa.Table) -> None:
        # As bytes: Spark's strings need not be UTF-8, and its own files have them as they are.
        lines = rows.column(0).cast(pa.binary()).to_pylist()
        part = b"".join([b"\n" if line is None else line + b"\n" for line in lines])
        self._parts.append(part)
        self._size += len(part)
        self._rows += len(lines)

    def size_bytes(self) -> int:
        return self._size

    def finish(self) -> tuple[bytes, int]:
        data = b"".join(self._parts)
        return gzip.compress(data, 6) if self._codec == "gzip" else data, self._rows


class _OrcFile:
    """Rows as ORC."""

    def __init__(self, schema: pa.Schema) -> None:
        # Not every build of Arrow has it.
        from pyarrow import orc

        self._out = pa.BufferOutputStream()
        self._writer: Any = orc.ORCWriter(self._out)
        self._writer.write(schema.empty_table())
        self._rows = self._bytes = 0

    def add(self, rows: pa.Table) -> None:
        self._writer.write(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes

    def size_bytes(self) -> int:
        return max(int(self._out.tell()), self._bytes // 4)

    def finish(self) -> tuple[bytes, int]:
        self._writer.close()
        return self._out.getvalue().to_pybytes(), self._rows
