"""Files in any Spark format, visible exactly once: staged for each epoch, renamed into place with the checkpoint.

Staged files are in `{path}/_strandline/{identity}/g{generation}/epoch-{n}`, which readers skip because of the
underscore. A visible file's name begins with its epoch and the sink's identity, so that a restore to an older
checkpoint can delete later files. The record of shown epochs is beside the staged files (`visibility_log.py`), since
consumers may move visible files at any time.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from strandline.core import failpoints
from strandline.core.datasets import Dataset
from strandline.core.errors import BEGIN_ANEW, ConfigurationError, CorruptionError, UnavailableError
from strandline.core.ids import Epoch
from strandline.ends.committables import decode_committables
from strandline.spark.base.filesystem import FileSystem, ObjectFiles, absolute, open_filesystem
from strandline.spark.sinks.base import Sink, SinkContext, Visibility
from strandline.spark.sinks.foreign_outputs import check_foreign, check_format, check_spark_metadata
from strandline.spark.sinks.objects import ObjectFormat, stage
from strandline.spark.sinks.output_directory import OutputDirectory
from strandline.spark.sinks.visibility_log import COMMITTABLES, Committable

_WRITE_ALL = ("json", "parquet", "orc")
"""Formats that write columns of all ordinary types."""
_ORDINARY = (
    StringType, BinaryType, BooleanType, IntegralType, FractionalType, DateType, TimestampType, TimestampNTZType,
)  # fmt: skip
_NO_OPTIONS = ("partitionby", "bucketby", "sortby", "clusterby", "mode", "path")
"""Settings of Spark's writer that are not options, without underscores."""
_TRIED: set[tuple[int, str, str, str]] = set()
log = logging.getLogger(__name__)

Existing = Literal["refuse", "keep", "replace"]
"""The treatment of rows of another life that exist when a job begins."""
_NOTHING_BESIDE = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
"""The sink shows only files with rows."""
_NO_CHECKSUMS = {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}
"""The sink shows no checksum files. With this class, Hadoop starts no `chmod` process for each file."""


class FileSink(Sink):
    """Write rows as files of a Spark format (parquet, json, csv, orc, text) below a directory.

    With `visibility="checkpoint"` (the default) rows appear when the checkpoint after them completes, each exactly
    once and each file in one step: a reader never sees partial, duplicate or lost rows, though it may see the files
    of one checkpoint one after the other. With `visibility="epoch"` they appear immediately, at least once.

    Readers may move or delete visible files at any time. The `_strandline` folder belongs to the job.
    A job is refused if it begins in a directory with rows of another life: its own before it began anew, or another
    job's. `existing="keep"` leaves them beside its rows; `existing="replace"` deletes them when the job begins, but not
    when it goes on. Other files stay in any case. The jobs' files in a directory have one format: a start with another
    one is refused.

    While the job is stopped, the directory may be moved as a whole, and its new path set here. Another path may also be
    set without a move, as long as the old directory exists at the next start.

    In object storage (`s3://`, `gs://`, `az://`, or any url with `storage_options`) the job's tasks write parquet,
    json, csv, orc or text, and the sink shows a staged object by a copy within the storage. `storage_options` are those
    of checkpoints (`endpoint`, `access_key_id`, …); missing ones come from the environment.
    """

    destination = "the directories that committables name"

    def __init__(
        self,
        path: str,
        *,
        format: str = "parquet",
        visibility: Visibility = "checkpoint",
        existing: Existing = "refuse",
        name: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name=name, visibility=visibility)
        if existing not in ("refuse", "keep", "replace"):
            raise ConfigurationError(f"existing is {existing!r}, expected 'refuse', 'keep' or 'replace'")
        for option in options:
            if option.lower().replace("_", "") in _NO_OPTIONS:
                raise ConfigurationError(
                    f"sinks.files({path!r}): '{option}' is no option of a file format, and would be ignored: the sink "
                    "itself divides rows into files, each with rows of one epoch",
                    hint="leave it out; for one directory per value, use one sink per value, with stream.where(…)",
                )
        self.existing = existing
        self.path = absolute(path)
        self.datasets = [Dataset.at(self.path)]
        self.format = format
        self.options = options
        self._storage = dict(storage_options or {})
        self._opened: OutputDirectory | None = None
        self._hadoop: dict[str, str] = {}

    def try_out(self, empty: DataFrame) -> None:
        spark = empty.sparkSession
        files = open_filesystem(spark, self.path, options=self._storage)
        files.check_writable()
        columns = empty.schema
        if isinstance(files, ObjectFiles):
            self._object_format.check(f"sink {self.path}", empty)
            return
        if self.format in _WRITE_ALL and not self.options and all(map(_is_ordinary, columns.fields)):
            return
        # For each session: sessions may have different formats.
        tried = id(spark.sparkContext), self.format, repr(sorted(self.options.items())), columns.json()
        if tried in _TRIED:
            return
        with tempfile.TemporaryDirectory(prefix="strandline-try-") as scratch:
            # Let Spark write no rows: formats have their own checks.
            empty.write.format(self.format).options(**self.options).mode("overwrite").save(f"file://{scratch}/out")
        _TRIED.add(tried)

    def check(self, context: SinkContext) -> None:
        files = open_filesystem(context.spark, self.path, options=self._storage)
        check_spark_metadata(files, self.path, context)
        if self.existing == "refuse":
            check_foreign(files, self.path, context)
        if "extension" not in map(str.lower, self.options):
            check_format(files, self.path, context, self.format, replaces=self.existing == "replace")

    def open(self, context: SinkContext) -> None:
        place = OutputDirectory(context, self.path, self._storage)
        place.files.mkdirs("")
        self._opened = place
        self._hadoop = {**_NOTHING_BESIDE, **(_NO_CHECKSUMS if place.files.local("") else {})}

    def write(self, df: DataFrame, epoch: Epoch) -> str | None:
        place = self._place
        files, directory = place.files, place.staging(epoch)
        if isinstance(files, ObjectFiles):
            names = stage(df, self._object_format, files.place(), directory)
        else:
            names = self._save(df, files, directory, epoch)
        if not names:
            files.delete(directory)
            return None
        # Spark does not sync: after a power failure, a checkpoint could list lost rows.
        files.sync(directory, names)
        failpoints.hit("sink.staged")
        staged = Committable(self.path, place.run.generation, epoch, directory, names)
        if self.visibility == "epoch":
            place.show_now(staged)
            return None
        return msgspec.json.encode(staged).decode()

    def commit(self, pending: Sequence[str]) -> None:
        places = {self.path: self._place}
        by_root: dict[str, list[Committable]] = {}
        for staged in decode_committables(pending, COMMITTABLES, f"sink {self.path}"):
            by_root.setdefault(self._find(staged, places), []).append(staged)
        for root, epochs in by_root.items():
            places[root].show(epochs)

    def recover(self, pending: Sequence[str], epoch: Epoch, *, fresh: bool) -> None:
        place = self._place
        if fresh:
            place.check_fresh(epoch)
        elif self.visibility == "checkpoint":
            place.check_branch(epoch)
        # 0. Delete files of other lives, if the job begins here with existing="replace".
        for other in place.delete_foreign() if self.existing == "replace" else ():
            log.warning("sink %s: existing='replace': deleted %s", self.path, other.text(place.run.job))
        # 1. Show the epochs that the checkpoint lists, unless they were shown before.
        self.commit(pending)
        # 2. Delete epochs that older runs have staged after the checkpoint.
        place.delete_staged()
        # 3. Take back epochs that were shown after the checkpoint: they come again.
        if not fresh and self.visibility == "checkpoint":
            place.take_back(epoch)
        # 4. Record the begin of the run.
        place.begin(epoch)

    def _save(self, df: DataFrame, files: FileSystem, directory: str, epoch: Epoch) -> list[str]:
        """Let Spark write an epoch's rows into a directory; return the names of the files."""
        where = files.for_spark(directory)
        df.write.format(self.format).options(**{**self._hadoop, **self.options}).mode("overwrite").save(where)
        if not files.exists(directory):
            raise UnavailableError(f"sink {self.path}: Spark wrote epoch {epoch} to {where}, and it is not there")
        return sorted(
            name
            for name, size in files.list(directory)
            if not name.startswith(("_", ".")) and not self._is_empty(files.local(f"{directory}/{name}"), name, size)
        )

    @cached_property
    def _object_format(self) -> ObjectFormat:
        return ObjectFormat(self.format, {key.lower(): _text_of(value) for key, value in self.options.items()})

    def tidy(self, epoch: Epoch) -> None:
        self._place.clean_removed(epoch)

    @property
    def _place(self) -> OutputDirectory:
        assert self._opened is not None
        return self._opened

    def _find(self, staged: Committable, places: dict[str, OutputDirectory]) -> str:
        """Return the root of an epoch. Staged files and records move with their directory."""
        place = self._place
        if place.knows(staged):
            return self.path
        # The path was changed, and the old directory was not moved.
        if staged.root not in places:
            places[staged.root] = OutputDirectory(place.run, staged.root, self._storage)
        if places[staged.root].knows(staged):
            return staged.root
        place.records.check_sole_writer()
        elsewhere = f", nor below {staged.root}, where it was staged" if staged.root != self.path else ""
        raise CorruptionError(
            f"sink {self.path}: {staged.directory} of epoch {staged.epoch}, whose rows are to be shown, is missing, "
            f"or the record of the run that staged it, and no record says that they were shown{elsewhere}",
            hint="bring the directory back, or move it as a whole, with its _strandline folder, and set the new path; "
            f"without it, {BEGIN_ANEW}",
        )

    def _is_empty(self, local: Path | None, name: str, size: int) -> bool:
        """Whether this is the file that Spark writes even for no rows."""
        if not name.startswith("part-00000"):
            return False
        if self.format == "parquet" and local is not None:
            return int(pq.read_metadata(local).num_rows) == 0
        return size == 0


def _text_of(option: Any) -> str:
    """Return an option's value as text for Spark."""
    return str(option).lower() if isinstance(option, bool) else str(option)


def sink_for_pending(name: str, pending: Sequence[str], others: Iterable[Sink] = ()) -> FileSink | None:
    """Return a sink that shows the pending epochs of a file sink which the program no longer has.

    It gets the storage options of one of the others that is in the same storage. None for committables of another kind
    of sink.
    """
    try:
        staged = [msgspec.json.decode(text, type=Committable) for text in pending]
    except msgspec.DecodeError:
        return None
    if not staged:
        return None
    root = staged[-1].root
    files = [other for other in others if isinstance(other, FileSink)]
    storage = (other._storage for other in files if urlsplit(other.path)[:2] == urlsplit(root)[:2])
    return FileSink(root, name=name, storage_options=next(storage, None))


def _is_ordinary(field: StructField) -> bool:
    """Whether all data formats support the type of a column."""
    return _is_known(field.dataType)


def _is_known(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(map(_is_ordinary, kind.fields)) and bool(kind.fields)
    if isinstance(kind, ArrayType):
        return _is_known(kind.elementType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and _is_known(kind.valueType)
    return isinstance(kind, _ORDINARY)
