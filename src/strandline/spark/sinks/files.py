"""Files in any Spark format, visible exactly once: staged for each epoch, renamed into place with the checkpoint.

Staged files lie in `{path}/_strandline/{identity}/g{generation}/epoch-{n}`, which readers pass over because of the
underscore. A committed file's name begins with its epoch and the sink's identity, so that a restore to an older
checkpoint can take back what came later.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from strandline.core import failpoints
from strandline.core.errors import CorruptionError, UnavailableError
from strandline.core.ids import Epoch
from strandline.spark.sinks.base import Sink, SinkContext, Visibility
from strandline.spark.sinks.filesystem import FileSystem, open_filesystem

_STAGING = "_strandline"


class Committable(msgspec.Struct, frozen=True):
    """A staged epoch: the sink's path then, its directory below it, and its files."""

    root: str
    generation: int
    epoch: int
    directory: str
    files: list[str]


class FileSink(Sink):
    """Write rows as files of a Spark format (parquet, json, csv, orc, text) below a directory.

    With `visibility="checkpoint"` (the default) rows appear when the checkpoint after them completes, each exactly
    once and each file in one step: a reader never sees partial, duplicate or lost rows, though it may see the files
    of one checkpoint one after the other. With `visibility="epoch"` they appear at once, at least once.
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
        # Made absolute here: Spark's JVM has a working directory of its own.
        self.path = str(path).rstrip("/") if ":" in str(path) else str(Path(path).absolute())
        self.format = format
        self.options = options
        self._fs: FileSystem | None = None
        self._context: SinkContext | None = None

    def open(self, context: SinkContext) -> None:
        self._fs = open_filesystem(context.spark, self.path)
        self._context = context
        self._fs.mkdirs("")

    def write(self, df: DataFrame, epoch: Epoch) -> str | None:
        run = self._run
        directory = f"{_STAGING}/{run.identity}/g{run.generation}/epoch-{epoch:010d}"
        where = self._files.for_spark(directory)
        df.write.format(self.format).options(**self.options).mode("overwrite").save(where)
        if not self._files.exists(directory):
            raise UnavailableError(f"sink {self.path}: Spark wrote epoch {epoch} to {where}, and it is not there")
        files = [
            name
            for name, size in self._files.list(directory)
            if not name.startswith(("_", ".")) and not self._is_empty(f"{directory}/{name}", name, size)
        ]
        failpoints.hit("sink.staged")
        staged = Committable(self.path, run.generation, epoch, directory, sorted(files))
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
        staging = f"{_STAGING}/{self._run.identity}"
        for name in self._files.directories(staging):
            if name[1:].isdigit() and int(name[1:]) < self._run.generation:
                self._files.delete(f"{staging}/{name}")
        if not fresh and self.visibility == "checkpoint":
            self._take_back(epoch)

    @property
    def _files(self) -> FileSystem:
        assert self._fs is not None
        return self._fs

    @property
    def _run(self) -> SinkContext:
        assert self._context is not None
        return self._context

    def _show(self, staged: Committable) -> None:
        files = self._files if staged.root == self.path else open_filesystem(self._run.spark, staged.root)
        if not files.exists(staged.directory):
            # Removed last: this epoch has been shown, and its files may have been consumed since.
            return
        for name in staged.files:
            source, target = f"{staged.directory}/{name}", self._target(staged, name)
            if not files.rename(source, target) and not files.exists(target):
                raise CorruptionError(
                    f"sink {self.path}: the staged file {source} of epoch {staged.epoch} is gone, and was never made "
                    "visible: its rows are lost",
                    hint="something outside of the job deleted it; keep away from the _strandline directory",
                )
            failpoints.hit("sink.file_shown")
        files.delete(staged.directory)

    def _take_back(self, epoch: Epoch) -> None:
        """Hide what older runs committed after the restored checkpoint: its epochs are coming again."""
        pattern = re.compile(rf"part-(\d+)-{self._run.identity}-g(\d+)-")
        for name, _ in self._files.list(""):
            found = pattern.match(name)
            if found and int(found[1]) > epoch and int(found[2]) < self._run.generation:
                self._files.delete(name)

    def _target(self, staged: Committable, name: str) -> str:
        run = f"{self._run.identity}-g{staged.generation}"
        return f"part-{staged.epoch:010d}-{run}-{name.removeprefix('part-')}"

    def _is_empty(self, path: str, name: str, size: int) -> bool:
        """Spark writes one file even for no rows at all; nobody needs it."""
        if not name.startswith("part-00000"):
            return False
        local = self._files.local(path)
        if self.format == "parquet" and local is not None:
            return int(pq.read_metadata(local).num_rows) == 0
        return size == 0
