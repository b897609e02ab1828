"""What an output directory holds of other lives: of the job before it began anew, or of other jobs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from strandline.core.errors import ConfigurationError
from strandline.spark.base.filesystem import FileSystem
from strandline.spark.sinks.base import SinkContext
from strandline.spark.sinks.visibility_log import Owner, VisibilityLog

OURS = "_strandline"
_SPARKS = "_spark_metadata"
_SHOWN = re.compile(r"part-(\d{10})-([0-9a-f]{32})-g\d+-")


@dataclass(frozen=True)
class Other:
    """A sink of another life."""

    identity: str
    owner: Owner | None
    """Whose it is, if a record says so."""
    files: list[str]
    """What is visible of it; of a life that the run goes on from, after the epoch with which it does."""
    epoch: int
    """Up to which its rows are on record as shown, whether or not they are still there; 0: none to come again."""
    is_gone_on_from: bool
    """Whether the run begins with a snapshot of that life."""

    def text(self, job: str) -> str:
        """Return what there is of it in words, for a job that begins."""
        many, taken = len(self.files), f"the record of rows up to epoch {self.epoch}, since taken away,"
        what = f"{many} file{'s' * (many > 1)}" if many else taken
        if self.owner is None:
            return f"{what} of a job that has left no record"
        return f"{what} of {'an earlier life of ' if self.owner.job == job else ''}job '{self.owner.job}'"


def find_others(files: FileSystem, root: str, run: SinkContext) -> list[Other]:
    """Return what is below `root` of other lives than the run's; what its other sinks have there is its own."""
    visible: dict[str, list[tuple[int, str]]] = {identity: [] for identity in files.directories(OURS)}
    for name, _ in files.list(""):
        if found := _SHOWN.match(name):
            visible.setdefault(found[2], []).append((int(found[1]), name))
    others = []
    for identity, names in sorted(visible.items()):
        newest = VisibilityLog(files, root, f"{OURS}/{identity}").newest
        owner = newest.owner or None
        if identity == run.identity or (run.life and owner is not None and owner.life == run.life):
            continue
        is_gone_on_from = owner is not None and owner.life == run.from_life
        after = run.from_epoch if is_gone_on_from else -1
        reached = max([newest.epoch, *(staged.epoch for staged in newest.intent)])
        again = sorted(name for epoch, name in names if epoch > after)
        others.append(Other(identity, owner, again, reached if reached > after else 0, is_gone_on_from))
    return others


def check_others(files: FileSystem, root: str, run: SinkContext) -> None:
    """Raise ConfigurationError if a sink begins where rows of another life are, or were those of its own job."""
    if run.life and VisibilityLog(files, root, f"{OURS}/{run.identity}").are_there:
        return
    found = [
        other
        for other in find_others(files, root, run)
        if other.files or (other.epoch and other.owner is not None and other.owner.job == run.job)
    ]
    if found:
        raise ConfigurationError(
            f"sink '{run.sink}': {root} holds {', '.join(other.text(run.job) for other in found)}, and job '{run.job}' "
            f"{run.begins or 'begins there'}: its rows would come beside them, and those of the same events twice",
            hint="give another directory; or existing='keep' to have both, existing='replace' to delete the other rows "
            "when the job starts; or, if it was to go on where it was, the job name and checkpoint directory of then",
        )


def check_not_sparks(files: FileSystem, root: str, run: SinkContext) -> None:
    """Raise ConfigurationError where Spark's own file sink has written: its readers see nothing else."""
    if files.exists(_SPARKS):
        raise ConfigurationError(
            f"sink '{run.sink}': {root} has a folder {_SPARKS}, of Spark's own streaming file sink: Spark reads the "
            "files that are listed there, and none of the job's",
            hint=f"give another directory, or move {_SPARKS} away if nobody needs it",
        )
