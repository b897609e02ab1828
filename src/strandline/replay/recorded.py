"""Records of a job for a replay: the snapshot with which it begins, and the epochs after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from strandline.checkpoint.catalog import Catalog, read_catalog
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.jobdir import GENERATIONS, JobDirectory, failed_generation, failed_path, manifest_path
from strandline.checkpoint.restore import choose
from strandline.checkpoint.source_log import read_source
from strandline.checkpoint.start import Start, load_start, start_files
from strandline.core.errors import ConfigurationError, CorruptionError, NotFoundError, StrandlineError
from strandline.core.ids import CheckpointId, Epoch
from strandline.format.epochs import FAILED_RUN, EpochRecord, FailedRun, unpack_epochs
from strandline.format.manifest import Manifest
from strandline.plan.pipeline import Operator
from strandline.snapshot.opening.snapshot import Snapshot, open_folder, open_snapshot
from strandline.testing.stored import Restoring, restoring_from

START = "start"
"""The name, in place of a snapshot's, of the job's first start."""


@dataclass(frozen=True)
class Origin:
    """The snapshot from which a replay begins."""

    manifest: Manifest | None
    """None: the job's first start, without state."""
    folder: Folder
    """The folder of the snapshot's files."""
    jobdir: JobDirectory
    url: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the storage of `folder`."""

    def restoring(self, operators: Sequence[Operator]) -> Restoring:
        """Return how partitions of operators restore it."""
        if self.manifest is None:
            return lambda program, partition, database: None
        return restoring_from(self.manifest, self.folder.place(self.options, fsync=False), operators)

    @property
    def epoch(self) -> Epoch:
        """The last epoch that its state has."""
        return Epoch(0) if self.manifest is None else self.manifest.epoch

    @property
    def batch(self) -> int:
        """The last batch that was read; -1: none."""
        source = self.manifest.source if self.manifest is not None else None
        return -1 if source is None else source.batch


@dataclass(frozen=True)
class Recorded:
    """A snapshot, and what is known of the epochs after it."""

    origin: Origin
    epochs: list[EpochRecord]
    """Consecutive ones, from the one after the snapshot on."""
    tasks: int
    """Spark's default number of tasks at that time."""
    files: Mapping[str, bytes]
    """Files of Spark's log of the sources, with the steps of all epochs."""
    names: list[str]
    """The sources' names, in the order of their numbers in Spark's log."""
    checkpoints: Mapping[Epoch, Manifest]
    """The job's checkpoints after the snapshot, by epoch: the state that a replay must reach."""
    failure: FailedRun | None
    """The end of the job's last run, if that failed."""

    @property
    def failed(self) -> Epoch | None:
        """The epoch that failed, if it is one of these."""
        return self.failure.failed if self.failure is not None else None


def find_origin(jobdir: JobDirectory, start: str, options: Mapping[str, str], *, of_snapshot: bool = False) -> Origin:
    """Return where a replay begins, with the directory of the job whose epochs follow.

    That is `jobdir`, or with `of_snapshot` the directory of the job that took a snapshot which is named by its path or
    url, if it is there. Raises NotFoundError for a snapshot that does not exist.
    """
    if is_url(start):
        snapshot = open_snapshot(start, options, fsync=False)
        jobdir = (_directory_of(snapshot, options) if of_snapshot else None) or jobdir
        return Origin(snapshot.manifest, snapshot.folder, jobdir, snapshot.url, options)
    catalog = read_catalog(jobdir)
    return replace(_origin(jobdir, catalog, _newest_failure(jobdir, catalog), start), options=options)


def is_url(start: str) -> bool:
    """Whether a replay begins with a snapshot that is named by its path or url."""
    return bool(start) and start != START and not start.isdigit()


def _directory_of(snapshot: Snapshot, options: Mapping[str, str]) -> JobDirectory | None:
    """Return the directory of the job that a snapshot is of, if it is known and is there."""
    source = snapshot.manifest.source
    if isinstance(snapshot.folder, JobDirectory) and next(snapshot.folder.list(GENERATIONS), None) is not None:
        return snapshot.folder
    if source is None or not source.directory:
        return None
    try:
        return JobDirectory(open_folder(source.directory, options, fsync=False).store, snapshot.manifest.job, folder="")
    except StrandlineError:
        return None


def find_recorded(
    jobdir: JobDirectory, start: str, to: int | None, options: Mapping[str, str], *, of_snapshot: bool = False
) -> Recorded:
    """Return the epochs after a snapshot: a checkpoint's number, a path or url, "start", or "" for the best one.

    That is the last one before the failure, or the last but one; `of_snapshot` as for `find_origin`. Raises
    NotFoundError for a snapshot that does not exist, and ConfigurationError if the epochs after it are not recorded.
    """
    origin = find_origin(jobdir, start, options, of_snapshot=of_snapshot)
    jobdir = origin.jobdir
    catalog = read_catalog(jobdir)
    failure = _newest_failure(jobdir, catalog)
    by_epoch: dict[Epoch, EpochRecord] = {}
    tasks = 0
    sources = [each for each in (failure.epochs if failure else None,) if each]
    later = {i: each for i, each in catalog.live.items() if each.epoch >= origin.epoch}
    for packed in [*sources, *(each.epochs for each in later.values() if each.epochs)]:
        records = unpack_epochs(packed, jobdir.url)
        tasks = records.tasks or tasks
        by_epoch |= {record.epoch: record for record in records.epochs}
    files, names = _files_of(jobdir, origin, list(later.values()), failure)
    epochs = _after(origin, by_epoch, to, files)
    last = epochs[-1].epoch
    checkpoints = {each.epoch: each for each in later.values() if origin.epoch < each.epoch <= last}
    if failure is not None and failure.failed > last:
        failure = None
    return Recorded(origin, epochs, tasks, files, names, checkpoints, failure)


def _newest_failure(jobdir: JobDirectory, catalog: Catalog) -> FailedRun | None:
    """Return the record of the job's last failure, if no later run has published a checkpoint."""
    generations = [g for path in catalog.objects if (g := failed_generation(path)) is not None]
    newest = max((manifest.generation for manifest in catalog.live.values()), default=0)
    if not generations or max(generations) < newest:
        return None
    try:
        return jobdir.read(failed_path(max(generations)), FAILED_RUN.decode)
    except CorruptionError as error:
        hint = "nothing else reads this file: delete it, and a replay goes up to the job's last checkpoint"
        raise CorruptionError(error.message, hint=error.hint or hint) from error


def _origin(jobdir: JobDirectory, catalog: Catalog, failure: FailedRun | None, start: str) -> Origin:
    live = catalog.live
    if start == START:
        return Origin(None, jobdir, jobdir, jobdir.url)
    if not start:
        newest = max((each.epoch for each in live.values()), default=Epoch(0))
        before = [number for number, each in live.items() if failure is not None or each.epoch < newest]
        if not before and not (live and min(live) > 1):
            return Origin(None, jobdir, jobdir, jobdir.url)
        start = str(max(before or live))
    number = CheckpointId(int(start))
    if number not in live:
        why = catalog.void.get(number) or catalog.damaged.get(number) or "there is none of this number"
        raise NotFoundError(
            f"{jobdir.url}/{manifest_path(number)}: a replay cannot begin with checkpoint {number}: {why}",
            hint=f"it can begin with {', '.join(map(str, live))}; Checkpoints(retain=…) keeps more of them"
            if live
            else f"the job has none: give --from {START}, or a savepoint",
        )
    return Origin(live[number], jobdir, jobdir, f"{jobdir.url}/chk-{number}")


def _files_of(
    jobdir: JobDirectory, origin: Origin, later: list[Manifest], failure: FailedRun | None
) -> tuple[dict[str, bytes], list[str]]:
    """Return Spark's log of the sources from the origin to the newest epoch, and the sources' names."""
    files: dict[str, bytes] = {}
    names: list[str] = []
    start: Start | None = None
    if origin.manifest is not None and origin.manifest.source is not None:
        files |= read_source(origin.folder, origin.manifest.source)
        names = origin.manifest.source.names or []
    elif (start := load_start(jobdir, choose(jobdir).restored)) is not None:
        files |= start_files(start)
        names = start.names
    for manifest in later[-1:]:
        if manifest.source is not None:
            files |= read_source(jobdir, manifest.source)
            names = names or manifest.source.names or []
    if failure is not None:
        files |= failure.files
    return files, list(names)


def _after(
    origin: Origin, by_epoch: Mapping[Epoch, EpochRecord], to: int | None, files: Mapping[str, bytes]
) -> list[EpochRecord]:
    """Return the records of the epochs after an origin, up to `to` or the last one."""
    newest = max(by_epoch, default=Epoch(0))
    last = newest if to is None else to
    if newest <= origin.epoch:
        raise ConfigurationError(
            f"{origin.url}: no epoch after epoch {origin.epoch} is recorded",
            hint="a replay needs an older checkpoint, which Checkpoints(retain=2) keeps, or a run that failed after "
            "this one",
        )
    if not origin.epoch < last <= newest:
        raise ConfigurationError(
            f"--to {last}: the recorded epochs after {origin.url} are {origin.epoch + 1} to {newest}",
            hint="give one of these, or leave --to out for all",
        )
    epochs = []
    for epoch in range(origin.epoch + 1, last + 1):
        record = by_epoch.get(Epoch(epoch))
        if record is not None and record.batch >= 0 and not record.offsets:
            # Spark had not written them yet when the record was stored.
            record = structs.replace(record, offsets=files.get(f"offsets/{record.batch}", b"").decode())
        if record is None or (record.batch >= 0 and not record.offsets):
            raise ConfigurationError(
                f"{origin.url}: what epoch {epoch} has read is not recorded",
                hint="checkpoints keep the records of the last epochs: begin with a later one",
            )
        epochs.append(record)
    return epochs
