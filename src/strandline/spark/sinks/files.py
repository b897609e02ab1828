"""Files in any Spark format, visible exactly once: staged for each epoch, renamed into place with the checkpoint.

Staged files lie in `{path}/_strandline/{identity}/g{generation}/epoch-{n}`, which readers pass over because of the
underscore. A committed file's name begins with its epoch and the sink's identity, so that a restore to an older
checkpoint can take back what came later.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from strandline.core import failpoints
from strandline.core.errors import CorruptionError
from strandline.core.ids import Epoch
from strandline.spark.sinks.base import Sink, SinkContext, Visibility
from strandline.spark.sinks.filesystem import FileSystem, open_filesystem

_STAGING = "_strandline"


class Committable(msgspec.Struct, frozen=True):
    """A staged epoch: its directory below the sink's path, and its files."""

    epoch: int
    directory: str
    files: list[str]


class FileSink(Sink):
    """Write rows as files of a Spark format (parquet, json, csv, orc, text) below a directory.

    With `visibility="checkpoint"` (the default) a reader never sees partial, duplicate or lost rows; they appear when
    the checkpoint after them completes. With `visibility="epoch"` they appear at once, at least once.
    """

    def __init__(
        self,
        path: str,
        *,
        format: str = "parquet",
        visibility: Visibility = "checkpoint",
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name=name, visibility=visibility)
        self.path = str(path).rstrip("/")
        self.format = format
        self.options = options
        self._fs: FileSystem | None = None
        self._staging = ""
        self._identity = ""

    def open(self, context: SinkContext) -> None:
        self._fs = open_filesystem(context.spark, self.path)
        self._identity = context.identity
        self._staging = f"{_STAGING}/{context.identity}/g{context.generation}"
        self._fs.mkdirs("")

    def write(self, df: DataFrame, epoch: Epoch) -> str | None:
        directory = f"{self._staging}/epoch-{epoch:010d}"
        df.write.format(self.format).options(**self.options).mode("overwrite").save(f"{self.path}/{directory}")
        files = [
            name
            for name, size in self._files.list(directory)
            if not name.startswith(("_", ".")) and not self._is_empty(f"{directory}/{name}", name, size)
        ]
        failpoints.hit("sink.staged")
        staged = Committable(epoch, directory, sorted(files))
        if self.visibility == "epoch":
            self._show(staged)
            return None
        if not staged.files:
            self._files.delete(directory)
            return None
        return msgspec.json.encode(staged).decode()

    def commit(self, pending: Sequence[str]) -> None:
        for text in pending:
            self._show(msgspec.json.decode(text, type=Committable))

    def recover(self, pending: Sequence[str], epoch: Epoch, *, fresh: bool) -> None:
        self.commit(pending)
        # Of no use any more: staged by runs that are over, after the checkpoint that is restored.
        self._files.delete(f"{_STAGING}/{self._identity}")
        if not fresh and self.visibility == "checkpoint":
            self._take_back(epoch)

    @property
    def _files(self) -> FileSystem:
        assert self._fs is not None
        return self._fs

    def _show(self, staged: Committable) -> None:
        for name in staged.files:
            source, target = f"{staged.directory}/{name}", self._target(staged.epoch, name)
            if not self._files.rename(source, target) and not self._files.exists(target):
                raise CorruptionError(
                    f"sink {self.path}: the staged file {source} of epoch {staged.epoch} is gone, and was never made "
                    "visible: its rows are lost",
                    hint="something outside of the job deleted it; keep away from the _strandline directory",
                )
            failpoints.hit("sink.file_shown")
        self._files.delete(staged.directory)

    def _take_back(self, epoch: Epoch) -> None:
        """Hide what was committed with checkpoints later than the restored one: its epochs are coming again."""
        pattern = re.compile(rf"part-(\d+)-{self._identity}-")
        for name, _ in self._files.list(""):
            found = pattern.match(name)
            if found and int(found[1]) > epoch:
                self._files.delete(name)

    def _target(self, epoch: int, name: str) -> str:
        return f"part-{epoch:010d}-{self._identity}-{name.removeprefix('part-')}"

    def _is_empty(self, path: str, name: str, size: int) -> bool:
        """Spark writes one file even for no rows at all; nobody needs it."""
        if not name.startswith("part-00000"):
            return False
        local = self._files.local(path)
        if self.format == "parquet" and local is not None:
            return int(pq.read_metadata(local).num_rows) == 0
        return size == 0
