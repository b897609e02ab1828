"""Refuses input files whose rows Spark would read more than once: those whose names it takes for patterns.

When an epoch has several files, Spark 4 looks for patterns in their paths, and for each path that looks like one it
reads all files of the epoch once more (`DataSource.checkAndGlobPathIfNecessary` without globbing). Files in
partition directories, as `day=1/`, are listed by directory, and read once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import SparkSession

from strandline.core.errors import ConfigurationError
from strandline.core.ids import CheckpointId
from strandline.spark.sources.filechecks import FileSource, qualified
from strandline.spark.sources.log import LoggedFile, UnreadableLogError, files_read, last_step, reached_steps

_PATTERN = set("{}[]*?\\")
"""What makes a path a pattern for Hadoop."""
_PARTITION = re.compile("/[^/=]+=[^/]*/")


class PatternNames:
    """Looks at the files of each epoch before it is processed, and at those that Spark has planned to read next."""

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        sources: Iterable[FileSource],
        files: Mapping[str, bytes],
        batch: int,
        numbers: Sequence[int],
    ) -> None:
        """`directory` is the query's; `files` are Spark's as of a batch, with which the sources begin."""
        self._spark = spark
        self._directory = directory
        self._numbers = numbers
        self._steps = {source: self._reached(source, files, batch) if batch >= 0 else -1 for source in sources}

    def begin(self, batch: int) -> None:
        """Raise ConfigurationError if rows of an epoch, which is about to be processed, would come more than once."""
        if not self._steps:
            return
        offsets = {f"offsets/{batch}": (self._directory / f"offsets/{batch}").read_bytes()}
        for source, before in list(self._steps.items()):
            with suppress(UnreadableLogError):
                reached = self._reached(source, offsets, batch)
                if reached > before:
                    self._check(source, files_read(self._logs(source, before, reached), source.number, before, reached))
                    self._steps[source] = reached

    def captured(self, checkpoint: CheckpointId, batch: int, files: Mapping[str, bytes]) -> None:
        """Raise as `begin` does for a step behind a checkpoint: once that has it, renaming the file would not help."""
        for source in self._steps:
            with suppress(UnreadableLogError):
                first = self._reached(source, files, batch)
                for step in range(first, last_step(files, source.number)):
                    self._check(source, files_read(files, source.number, step, step + 1))

    def _reached(self, source: FileSource, files: Mapping[str, bytes], batch: int) -> int:
        return reached_steps(files, batch, [source.number], self._numbers)[source.number]

    def _logs(self, source: FileSource, above: int, up_to: int) -> dict[str, bytes]:
        """Read the files of a source's log that have some steps: each, or one that has them compacted."""
        folder = self._directory / f"sources/{source.number}"
        single = [folder / name for step in range(above + 1, up_to + 1) for name in (f"{step}", f"{step}.compact")]
        found = {}
        for path in single if any(map(Path.exists, single)) else folder.glob("*.compact"):
            with suppress(FileNotFoundError):
                found[f"sources/{source.number}/{path.name}"] = path.read_bytes()
        return found

    def _check(self, source: FileSource, read: Iterable[LoggedFile]) -> None:
        paths = [unquote(file.path) for file in read]
        pattern = next((path for path in paths if _PATTERN & set(path)), None)
        if pattern is None or len(paths) == 1 or self._are_partitioned(source, paths):
            return
        raise ConfigurationError(
            f"{source.text}: Spark takes the name of the input file {pattern} for a pattern, since it has one of the "
            f"characters {' '.join(sorted(_PATTERN))}; it would read rows of {len(paths)} files more than once",
            hint="rename the file or the directory; the job goes on from its last checkpoint, and reads it then",
        )

    def _are_partitioned(self, source: FileSource, paths: Iterable[str]) -> bool:
        """Whether Spark finds partition directories below what the source reads, which is no pattern itself."""
        root = source.relation.options.get("path", "*")
        if _PATTERN & set(root):
            return False
        above = len(unquote(qualified(self._spark, root)))
        return any(_PARTITION.search(path, above) for path in paths)
