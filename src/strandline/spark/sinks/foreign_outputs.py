"""Earlier files in an output directory: of other lives (the job's own or other jobs'), and of other formats."""

from __future__ import annotations

import re
from dataclasses import dataclass

from strandline.core.errors import ConfigurationError
from strandline.spark.base.filesystem import FileSystem
from strandline.spark.sinks.base import SinkContext
from strandline.spark.sinks.visibility_log import SinkOwner, VisibilityLog

FOLDER = "_strandline"
_SPARKS = "_spark_metadata"
_VISIBLE = re.compile(r"part-(\d{10})-([0-9a-f]{32})-g\d+-")
_FORMATS = {"parquet": "parquet", "json": "json", "csv": "csv", "orc": "orc", "txt": "text", "avro": "avro"}
"""Formats of files, by the part of their names that says so; a codec's name may be before or behind it."""


@dataclass(frozen=True)
class ForeignOutput:
    """The output of a sink of another life."""

    identity: str
    owner: SinkOwner | None
    """Its owner, if a record names one."""
    files: list[str]
    """Its visible files; if the run begins with a snapshot of that life, those of epochs after the snapshot."""
    epoch: int
    """The last shown epoch on record, whether or not its files still exist; 0 if no rows would come again."""
    is_base: bool
    """Whether the run begins with a snapshot of that life."""

    def text(self, job: str) -> str:
        """Return a description, for the message to a job that begins."""
        count, record = len(self.files), f"the record of rows up to epoch {self.epoch}, which were moved away,"
        what = f"{count} file{'s' * (count > 1)}" if count else record
        if self.owner is None:
            return f"{what} of a job that has left no record"
        return f"{what} of {'an earlier life of ' if self.owner.job == job else ''}job '{self.owner.job}'"


def find_foreign(files: FileSystem, root: str, run: SinkContext) -> list[ForeignOutput]:
    """Return the outputs below `root` of other lives. The run's other sinks are of its own life."""
    visible: dict[str, list[tuple[int, str]]] = {identity: [] for identity in files.directories(FOLDER)}
    for name, _ in files.list(""):
        if match := _VISIBLE.match(name):
            visible.setdefault(match[2], []).append((int(match[1]), name))
    others = []
    for identity, names in sorted(visible.items()):
        newest = VisibilityLog(files, root, f"{FOLDER}/{identity}").newest
        owner = newest.owner or None
        if identity == run.identity or (run.life and owner is not None and owner.life == run.life):
            continue
        is_base = owner is not None and owner.life == run.from_life
        after = run.from_epoch if is_base else -1
        reached = max([newest.epoch, *(staged.epoch for staged in newest.intent)])
        again = sorted(name for epoch, name in names if epoch > after)
        others.append(ForeignOutput(identity, owner, again, reached if reached > after else 0, is_base))
    return others


def check_foreign(files: FileSystem, root: str, run: SinkContext) -> None:
    """Raise ConfigurationError if a sink begins beside rows of another life, or after an earlier life of its job."""
    if _has_begun(files, root, run):
        return
    outputs = [
        other
        for other in find_foreign(files, root, run)
        if other.files or (other.epoch and other.owner is not None and other.owner.job == run.job)
    ]
    if outputs:
        raise ConfigurationError(
            f"sink '{run.sink}': {root} holds {', '.join(other.text(run.job) for other in outputs)}, and job "
            f"'{run.job}' {run.begins or 'begins there'}: its rows would be added, those of the same events twice",
            hint="choose another directory; or set existing='keep' to have both, or existing='replace' to "
            "delete the other rows at the start; or, to continue the former job, use its name and checkpoint directory",
        )


def check_format(files: FileSystem, root: str, run: SinkContext, format: str, *, replaces: bool) -> None:
    """Raise ConfigurationError if files that stay in the directory are of another format: no reader reads both.

    With `replaces`, the sink deletes those of other lives when it begins.
    """
    if format.lower() not in _FORMATS.values():
        return
    others = find_foreign(files, root, run) if replaces and not _has_begun(files, root, run) else []
    to_delete = {name for other in others for name in other.files}
    for name, _ in files.list(""):
        match = _VISIBLE.match(name)
        if match is None or name in to_delete:
            continue
        # The sink takes back what it has shown after the snapshot.
        if match[2] == run.identity and run.from_life and int(match[1]) > run.from_epoch:
            continue
        parts = name[match.end() :].split(".")[1:]
        existing = next((_FORMATS[part] for part in parts if part in _FORMATS), None)
        if existing not in (None, format.lower()):
            raise ConfigurationError(
                f"sink '{run.sink}': {root} holds files of format '{existing}', such as {name}, and the sink's format "
                f"is '{format}': readers of a directory expect files of one format",
                hint=f"set format='{existing}' again, choose another directory, or move the files out of this one",
            )


def _has_begun(files: FileSystem, root: str, run: SinkContext) -> bool:
    """Whether the sink has a record there, of the run's life."""
    return bool(run.life) and VisibilityLog(files, root, f"{FOLDER}/{run.identity}").exist


def check_spark_metadata(files: FileSystem, root: str, run: SinkContext) -> None:
    """Raise ConfigurationError if Spark's streaming file sink has written here: Spark then reads only its files."""
    if files.exists(_SPARKS):
        raise ConfigurationError(
            f"sink '{run.sink}': {root} has a folder {_SPARKS}, of Spark's own streaming file sink: Spark reads the "
            "files that are listed there, and none of the job's",
            hint=f"choose another directory, or move {_SPARKS} away if it is not needed",
        )
