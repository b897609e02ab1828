"""Files in any Spark format, visible exactly once: staged for each epoch, renamed into place with the checkpoint.

Staged files lie in `{path}/_strandline/{identity}/g{generation}/epoch-{n}`, which readers pass over because of the
underscore. A committed file's name begins with its epoch and the sink's identity, so that a restore to an older
checkpoint can take back what came later. What was shown is on record beside the staged files (`visibility_log.py`): a
consumer may take visible files at any moment.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
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
from strandline.core.errors import BEGIN_ANEW, ConfigurationError, CorruptionError, UnavailableError
from strandline.core.ids import Epoch
from strandline.ends.committables import decode_committables
from strandline.spark.base.filesystem import FileSystem, absolute, open_filesystem
from strandline.spark.base.objectfiles import ObjectFiles
from strandline.spark.sinks.base import Sink, SinkContext, Visibility
from strandline.spark.sinks.foreign_outputs import check_not_sparks, check_others
from strandline.spark.sinks.objects import ObjectFormat, stage
from strandline.spark.sinks.output_directory import OutputDirectory
from strandline.spark.sinks.visibility_log import LISTED, Committable

_WRITE_ALL = ("json", "parquet", "orc")
"""Formats that write columns of every type which programs have with them, whatever their rows."""
_ORDINARY = (
    StringType, BinaryType, BooleanType, IntegralType, FractionalType, DateType, TimestampType, TimestampNTZType,
)  # fmt: skip
_NO_OPTIONS = ("partitionby", "bucketby", "sortby", "clusterby", "mode", "path")
"""What Spark's writer is told in other ways than by options, without the underscores."""
_TRIED: set[tuple[int, str, str, str]] = set()
log = logging.getLogger(__name__)

Existing = Literal["refuse", "keep", "replace"]
"""What becomes of rows of another life that are there when a job begins."""
_NOTHING_BESIDE = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
"""Only rows are ever shown."""
_NO_CHECKSUMS = {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}
"""Files of checksums are not shown either; for each file that it makes here, Hadoop starts a process, `chmod`."""


class FileSink(Sink):
    """Write rows as files of a Spark format (parquet, json, csv, orc, text) below a directory.

    With `visibility="checkpoint"` (the default) rows appear when the checkpoint after them completes, each exactly
    once and each file in one step: a reader never sees partial, duplicate or lost rows, though it may see the files
    of one checkpoint one after the other. With `visibility="epoch"` they appear at once, at least once.

    Visible files are the reader's: it may move or delete them at any time. The `_strandline` folder is the job's.
    A job that begins in a directory that holds rows of another life, its own before it began anew or another job's, is
    refused. `existing="keep"` leaves them beside its own; `existing="replace"` deletes them when it starts, and does
    nothing when it goes on. What is not Strandline's stays in any case.

    While the job is stopped, the directory may be moved as a whole, and its new path given; or another path alone,
    as long as the old directory is there at the next start.

    In object storage (`s3://`, `gs://`, `az://`, or any url with `storage_options`) tasks of ours write parquet, json,
    csv, orc or text, and a staged object is shown by a copy within the storage. `storage_options` are as for
    checkpoints (`endpoint`, `access_key_id`, …); what is missing comes from the environment.
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
                    "itself says which files there are, each with rows of one epoch",
                    hint="leave it out; for a directory a value, send stream.where(…) to a sink for each",
                )
        self.existing = existing
        self.path = absolute(path)
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
        # Of a session, since it may know other formats than another.
        tried = id(spark.sparkContext), self.format, repr(sorted(self.options.items())), columns.json()
        if tried in _TRIED:
            return
        with tempfile.TemporaryDirectory(prefix="strandline-try-") as scratch:
            # Where a format wants no rows at all, it has its own ideas of what to look at: Spark itself is asked.
            empty.write.format(self.format).options(**self.options).mode("overwrite").save(f"file://{scratch}/out")
        _TRIED.add(tried)

    def check(self, context: SinkContext) -> None:
        files = open_filesystem(context.spark, self.path, options=self._storage)
        check_not_sparks(files, self.path, context)
        if self.existing == "refuse":
            check_others(files, self.path, context)

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
        # Spark does not: without it, a checkpoint could outlast the rows that it lists.
        files.sync(directory, names)
        failpoints.hit("sink.staged")
        staged = Committable(self.path, place.run.generation, epoch, directory, names)
        if self.visibility == "epoch":
            place.show_at_once(staged)
            return None
        return msgspec.json.encode(staged).decode()

    def commit(self, pending: Sequence[str]) -> None:
        places = {self.path: self._place}
        found: dict[str, list[Committable]] = {}
        for staged in decode_committables(pending, LISTED, f"sink {self.path}"):
            found.setdefault(self._find(staged, places), []).append(staged)
        for root, epochs in found.items():
            places[root].show(epochs)

    def recover(self, pending: Sequence[str], epoch: Epoch, *, fresh: bool) -> None:
        place = self._place
        if fresh:
            place.check_fresh(epoch)
        # 0. The job begins here: what others have left is not to be there, if that is wanted.
        for other in place.replace_others() if self.existing == "replace" else ():
            log.warning("sink %s: existing='replace': deleted %s", self.path, other.text(place.run.job))
        # 1. What the checkpoint lists is shown, unless it was before.
        self.commit(pending)
        # 2. Staged by runs that are over, after the checkpoint: never to be shown.
        place.forget_staged()
        # 3. Shown after the checkpoint: to be shown again.
        if not fresh and self.visibility == "checkpoint":
            place.take_back(epoch)
        # 4. From here on the run's own epochs count.
        place.begin(epoch)

    def _save(self, df: DataFrame, files: FileSystem, directory: str, epoch: Epoch) -> list[str]:
        """Have Spark write an epoch's rows into a directory; return the names of the files."""
        where = files.for_spark(directory)
        df.write.format(self.format).options(**{**self._hadoop, **self.options}).mode("overwrite").save(where)
        if not files.exists(directory):
            raise UnavailableError(f"sink {self.path}: Spark wrote epoch {epoch} to {where}, and it is not there")
        return sorted(
            name
            for name, size in files.list(directory)
            if not name.startswith(("_", ".")) and not self._is_empty(files.local(f"{directory}/{name}"), name, size)
        )

    @property
    def _object_format(self) -> ObjectFormat:
        return ObjectFormat(self.format, {key.lower(): _text_of(value) for key, value in self.options.items()})

    def tidy(self, epoch: Epoch) -> None:
        self._place.forget_gone(epoch)

    @property
    def _place(self) -> OutputDirectory:
        assert self._opened is not None
        return self._opened

    def _find(self, staged: Committable, places: dict[str, OutputDirectory]) -> str:
        """Return the root below which an epoch is; staged files and records move along with their directory."""
        place = self._place
        if place.knows(staged):
            return self.path
        # Another path was given, and the old directory left where it was.
        if staged.root not in places:
            places[staged.root] = OutputDirectory(place.run, staged.root, self._storage)
        if places[staged.root].knows(staged):
            return staged.root
        place.records.check_alone()
        elsewhere = f", nor below {staged.root}, where it was staged" if staged.root != self.path else ""
        raise CorruptionError(
            f"sink {self.path}: {staged.directory} of epoch {staged.epoch}, whose rows are to be shown, is not there, "
            f"and nothing on record says that they were{elsewhere}",
            hint="bring the directory back, or move it as a whole, with its _strandline folder, and give the new path; "
            f"without it, {BEGIN_ANEW}",
        )

    def _is_empty(self, local: Path | None, name: str, size: int) -> bool:
        """Spark writes one file even for no rows at all; nobody needs it."""
        if not name.startswith("part-00000"):
            return False
        if self.format == "parquet" and local is not None:
            return int(pq.read_metadata(local).num_rows) == 0
        return size == 0


def _text_of(option: Any) -> str:
    """Return an option's value as Spark takes it."""
    return str(option).lower() if isinstance(option, bool) else str(option)


def left_by(name: str, pending: Sequence[str], others: Iterable[Sink] = ()) -> FileSink | None:
    """Return a sink that shows what a file sink has left to be shown, which the program does not have any more.

    It reaches its storage as those of the others that are in the same one. None if it was another sink's: only that one
    knows what to do with it.
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
    """Whether a column is of a type that all formats for data know."""
    return _is_known(field.dataType)


def _is_known(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(map(_is_ordinary, kind.fields)) and bool(kind.fields)
    if isinstance(kind, ArrayType):
        return _is_known(kind.elementType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and _is_known(kind.valueType)
    return isinstance(kind, _ORDINARY)
