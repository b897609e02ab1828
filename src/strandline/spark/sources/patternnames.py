"""Refuses input files whose names Spark takes for patterns: it would read rows more than once. And names with a ':'.

For each path of an epoch that looks like a pattern, Spark 4 reads all files of the epoch once more
(`DataSource.checkAndGlobPathIfNecessary` without globbing). Spark lists files in partition directories, as `day=1/`, by
directory, and reads them once. It also reads a single file of an epoch once; that file is refused too, since it depends
on timing which files are in an epoch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import SparkSession

from strandline.checkpoint.source_log import read_offsets
from strandline.core.errors import ConfigurationError
from strandline.core.ids import CheckpointId
from strandline.spark.sources.filechecks import FileSource, check_planned, qualified
from strandline.spark.sources.log import LoggedFile, UnreadableLogError, files_read, last_step

_PATTERN = set("{}[]*?\\")
"""The characters that make a path a pattern for Hadoop."""
_TO_RENAME = (
    "rename the file or the directory, and start the job again: it continues from its last checkpoint, and reads the "
    "file"
)
_PARTITION = re.compile("/[^/=]+=[^/]*/")


class PatternNames:
    """Checks the files of each epoch before it is processed, and those that Spark has planned for the next ones."""

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        sources: Iterable[FileSource],
        files: Mapping[str, bytes],
        batch: int,
    ) -> None:
        """`directory` is the query's; `files` is Spark's log as of `batch`, the last one before the start."""
        self._spark = spark
        self._directory = directory
        self._steps = {source: source.reached(files, batch) for source in sources}

    def begin(self, batch: int, is_over: Callable[[], bool]) -> None:
        """Raise ConfigurationError if the next epoch has such a name, UnavailableError if a file is missing."""
        if not self._steps:
            return
        offsets = read_offsets(self._directory, batch, is_over)
        for source, before in list(self._steps.items()):
            with suppress(UnreadableLogError):
                reached = source.reached(offsets, batch)
                if reached > before:
                    self._steps[source] = reached
                    logs = self._logs(source, before, reached)
                    read = list(files_read(logs, source.number, before, reached))
                    check_planned(self._spark, source, read)
                    self._check(source, read)

    def captured(self, checkpoint: CheckpointId, batch: int, files: Mapping[str, bytes]) -> None:
        """Check, as `begin` does, files that Spark has planned after a checkpoint: a restore would need their names."""
        for source in self._steps:
            with suppress(UnreadableLogError):
                reached, last = source.reached(files, batch), last_step(files, source.number)
                self._check(source, files_read(files, source.number, reached, last))

    def _logs(self, source: FileSource, above: int, up_to: int) -> dict[str, bytes]:
        """Read the log files of some steps of a source: single ones, or else the compacted ones."""
        folder = self._directory / f"sources/{source.number}"
        names = (name for step in range(above + 1, up_to + 1) for name in (f"{step}", f"{step}.compact"))
        return self._read(folder / name for name in names) or self._read(folder.glob("*.compact"))

    def _read(self, paths: Iterable[Path]) -> dict[str, bytes]:
        """Read those of these files that exist."""
        files = {}
        for path in paths:
            with suppress(FileNotFoundError):
                files[path.relative_to(self._directory).as_posix()] = path.read_bytes()
        return files

    def _check(self, source: FileSource, read: Iterable[LoggedFile]) -> None:
        paths = [unquote(file.path) for file in read]
        if colon := next((path for path in paths if path.startswith("file:") and ":" in path.rpartition("/")[2]), None):
            raise ConfigurationError(
                f"{source.text}: Spark cannot read the input file {colon}: Hadoop reads no local file with ':' in its "
                "name",
                hint=_TO_RENAME,
            )
        pattern = next((path for path in paths if _PATTERN & set(path)), None)
        if pattern is None or self._is_read_once(source, paths):
            return
        raise ConfigurationError(
            f"{source.text}: Spark takes the name of the input file {pattern} for a pattern, since it has one of the "
            f"characters {' '.join(sorted(_PATTERN))}; it would read rows of files in the same epoch more than once",
            hint=_TO_RENAME,
        )

    def _is_read_once(self, source: FileSource, paths: Iterable[str]) -> bool:
        """Whether Spark lists files recursively, or by partition directories below a root that is not a pattern."""
        options = source.relation.options
        if options.get("recursivefilelookup", "false").lower() == "true":
            return True
        root = options.get("path", "*")
        if _PATTERN & set(root):
            return False
        root_length = len(unquote(qualified(self._spark, root)))
        return any(_PARTITION.search(path, root_length) for path in paths)
