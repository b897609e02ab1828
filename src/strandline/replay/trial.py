"""A trial: a program runs on a snapshot's state with the input of recorded epochs, or of files.

The program need not be the one that the job ran: its state is upgraded as at a start, and its watermarks follow from
its own rows. The rows of its sinks and its state are written into a directory, in which two trials are compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs
from pyspark.sql import DataFrame

from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.errors import ConfigurationError, NotFoundError, UserCodeError
from strandline.core.ids import Epoch
from strandline.core.times import END_US, as_datetime
from strandline.format.epochs import EpochRecord
from strandline.plan.graph import Node
from strandline.replay.engine import EpochOutput, ReplayRun
from strandline.replay.frames import Steps
from strandline.replay.recorded import Recorded, find_origin, find_recorded, is_url
from strandline.replay.session import Input, SourceInput, jobdir_of, upgraded
from strandline.runtime.task.task import EpochTimes
from strandline.runtime.watermarks import Watermarks
from strandline.snapshot.tools.diff import SnapshotDiff
from strandline.spark.base.empty import no_rows
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.job.job import Job
from strandline.spark.keepers.exchange import clone_session
from strandline.storage.remote import open_store
from strandline.testing.nodes import Rows
from strandline.testing.stored import save
from strandline.types.jsonforms import to_json

STATE = "state"
"""The savepoint of the state at the end, below a trial's directory."""
COMPARED = "state-at-checkpoint"
"""The savepoint of the state at the epoch of the job's newest checkpoint."""
_MOST_TICKS = 1000
_SECOND_US = 1_000_000
_FORMATS = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".parquet": "parquet", ".orc": "orc"}


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a trial, beside the rows and the state in its directory."""

    job: str = ""
    snapshot: str = ""
    first: Epoch = Epoch(0)
    last: Epoch = Epoch(0)
    """The first and the last epoch that have run; none has if `last` is smaller."""
    rows_in: int = 0
    failed: Epoch | None = None
    """The epoch in which a function raised `failure`."""
    failure: str = ""
    failed_in_job: Epoch | None = None
    """The epoch in which the job failed, if it is one of these."""
    sinks: dict[str, dict[str, str]] = {}
    """By sink, the types of its columns."""
    checkpoint: str = ""
    """The url of the job's newest checkpoint among these epochs; "" if there is none."""
    states: SnapshotDiff | None = None
    """The differences between the checkpoint's state and that of the trial, if they were asked for."""
    changes: list[dict[str, Any]] = []
    """The changes of the stored state, as `Upgrade.to_rows` gives them."""
    notes: list[str] = []
    error: str = ""
    """The reason why there is no trial."""


class FileInput:
    """Rows of files in place of the sources: the first file of each source is the first epoch, and so on."""

    def __init__(self, job: Job, files: Mapping[str, Sequence[str]]) -> None:
        """`files` are by the name of the source, "" for the only one."""
        nodes = job._plan.sources.nodes
        by_name = {node.name: node for node in nodes}
        for name in files:
            if name not in by_name and not (name == "" and len(nodes) == 1):
                raise ConfigurationError(
                    f"--input: the program has no source '{name}'"
                    if name
                    else "--input: the program has several sources",
                    hint=f"write --input SOURCE=FILE; its sources are {', '.join(map(repr, by_name))}",
                )
        self._files = {by_name.get(name, nodes[0]): [Path(path) for path in some] for name, some in files.items()}
        self._sources = nodes
        # A session of its own: its settings are changed.
        self._session = clone_session(job._plan.sources.session)

    def records(self, recorded: Recorded, now_us: int) -> list[EpochRecord]:
        """Return an epoch for each file of a source; the clock is the snapshot's, and a second later in each."""
        if not any(self._files.values()):
            raise ConfigurationError("--input: there are no files", hint="name files, or folders that have some")
        count, first = max(map(len, self._files.values()), default=0), recorded.origin.epoch + 1
        return [
            EpochRecord(epoch=Epoch(first + at), batch=at, now_us=now_us + (at + 1) * _SECOND_US)
            for at in range(count)
        ]  # fmt: skip

    def rows(self, record: EpochRecord, steps: Steps) -> Mapping[Node, Rows]:
        """Return the rows of the nodes in `steps.front`, of an epoch with a batch."""
        frames: dict[Node, DataFrame] = {node: self._frame(node, record.batch) for node in self._sources}
        try:
            with suppress_error_logs():
                return steps.read(frames, record)
        except Exception as error:
            names = ", ".join(str(some[record.batch]) for some in self._files.values() if record.batch < len(some))
            raise ConfigurationError(
                f"{names}: its rows cannot be read as those of the source: {unwrap_error(error)}",
                hint="give rows with the columns of the DataFrame that sl.stream() is given",
            ) from None

    def _frame(self, node: Any, number: int) -> DataFrame:
        spark, schema, files = self._session, node.df.schema, self._files.get(node, [])
        if number >= len(files):
            return no_rows(spark, schema)
        path = files[number]
        kind = _FORMATS.get(path.suffix.lower())
        if kind is None:
            raise ConfigurationError(f"--input {path}: expected a file that ends with {', '.join(_FORMATS)}")
        options = {"mode": "FAILFAST", **({"header": "true"} if kind == "csv" else {})}
        return spark.read.schema(schema).options(**options).format(kind).load(str(path))

    def close(self) -> None:
        """Release nothing."""


@dataclass(frozen=True)
class TrialOptions:
    """Options of a trial: the state that it may lose, and the input that it runs."""

    drop: Sequence[str] = ()
    from_now: Sequence[str] = ()
    epochs: int | None = None
    """The number of recorded epochs to run; None: all."""
    files: Mapping[str, Sequence[str]] | None = None
    """By source, files to read in place of recorded epochs."""


def recorded_for(job: Job, start: str, options: Mapping[str, str], *, epochs: bool) -> Recorded:
    """Return a snapshot, and with `epochs` the recorded ones after it, of the job that took it.

    The program's own checkpoint directory need not be there if `start` is a path or url.
    """
    try:
        jobdir = jobdir_of(job)
    except NotFoundError:
        if not is_url(start):
            raise
        jobdir = JobDirectory(open_store("memory://"), job.name)
    if epochs:
        return find_recorded(jobdir, start, None, options, of_snapshot=True)
    origin = find_origin(jobdir, start, options)
    if origin.manifest is None:
        raise ConfigurationError(
            "rows of files need a snapshot to begin with", hint="give it: a checkpoint's number, a path or a url"
        )
    return Recorded(origin, [], 0, {}, [], {}, None)


def run_trial(
    job: Job,
    recorded: Recorded,
    options: TrialOptions,
    folder: Path,
    report: Callable[[int, int], object] = lambda done, total: None,
) -> TrialResult:
    """Run a trial, and write its rows and its state into a new folder; `report` gets the numbers of epochs.

    Raises IncompatibleStateError if the job could not start with the snapshot, and ConfigurationError for input that
    cannot be read. An error of a function ends the trial, and is part of its result.
    """
    with ExitStack() as close:
        trial = _Trial(job, recorded, options, close)
        (folder / "rows").mkdir(parents=True)
        return trial.run(folder, report)


class _Trial:
    def __init__(self, job: Job, recorded: Recorded, options: TrialOptions, close: ExitStack) -> None:
        manifest = recorded.origin.manifest
        self._job = job
        self._operators, upgrade = upgraded(job, recorded, options.drop, options.from_now)
        self._changes = [] if upgrade is None else upgrade.to_rows()
        self._recorded = recorded = _first_of(recorded, options.epochs)
        self._records = recorded.epochs
        if options.files is None:
            self._input: Input = SourceInput(job, recorded)
        else:
            assert manifest is not None
            files = FileInput(job, options.files)
            self._records = files.records(recorded, (manifest.triggered_ms or manifest.created_ms) * 1000)
            self._input = files
        self._until_idle = options.files is not None
        close.callback(self._input.close)
        self._run = ReplayRun(job._plan, self._operators, recorded.origin, job.settings.backend, follows=False)
        close.callback(self._run.close)
        self._pipeline = job._plan.pipeline
        stored = {} if manifest is None else manifest.watermarks
        self._watermarks = Watermarks(self._pipeline.watermarks, stored, self._records[0].now_us)
        self._notes: list[str] = []

    def run(self, folder: Path, report: Callable[[int, int], object]) -> TrialResult:
        """Run all epochs, and write what came of them."""
        origin, checkpoints = self._recorded.origin, self._recorded.checkpoints
        result = TrialResult(
            job=self._job.name, snapshot=origin.url, first=Epoch(origin.epoch + 1), last=origin.epoch,
            failed_in_job=self._recorded.failed, changes=self._changes,
            sinks={name: dict(node.columns.types) for name, _, node in self._job._plan.sinks},
        )  # fmt: skip
        newest, rows_in = max(checkpoints, default=None), 0
        files = {name: (folder / "rows" / f"{number}.jsonl").open("w") for number, name in enumerate(result.sinks)}
        try:
            for number, record in enumerate(self._epochs()):
                report(number, max(number, len(self._records)))
                rows = self._input.rows(record, self._run.steps) if record.batch >= 0 else {}
                try:
                    output = self._run.run(record, rows)
                except UserCodeError as error:
                    self._run.abort()
                    result = structs.replace(result, failed=record.epoch, failure=str(error))
                    break
                self._run.commit()
                self._observe(record)
                rows_in += sum(each.num_rows for each in rows.values())
                result = structs.replace(result, last=record.epoch, rows_in=rows_in)
                self._write(output, files)
                if record.epoch == newest:
                    self._save(folder / COMPARED, record)
                    url = f"{origin.jobdir.url}/chk-{checkpoints[record.epoch].checkpoint}"
                    result = structs.replace(result, checkpoint=url)
                last = record
        finally:
            for file in files.values():
                file.close()
        if result.last >= result.first:
            self._save(folder / STATE, last)
        outside = {str(finding.error) for finding in self._run.findings}
        return structs.replace(result, notes=[*self._notes, *sorted(outside)])

    def _epochs(self) -> Iterator[EpochRecord]:
        """Yield the epochs with the watermarks of this program; behind files, more until no timer is due."""
        for record in self._records:
            yield self._timed(record)
        last = self._records[-1]
        for number in range(1, _MOST_TICKS if self._until_idle else 0):
            tick = structs.replace(last, epoch=Epoch(last.epoch + number), batch=-1)
            times = EpochTimes(self._watermarks.advance(tick.now_us), tick.now_us, self._watermarks.fired_us)
            if not any(each.is_due(times) for each in self._run.partitions.values()):
                return
            yield self._timed(tick)

    def _timed(self, record: EpochRecord) -> EpochRecord:
        if record.watermark_us == END_US:
            self._watermarks.end()
        reached = self._watermarks.advance(record.now_us)
        if record.watermark_us != reached and record.offsets and not self._notes:
            was, now = (None if us is None else str(as_datetime(us)) for us in (record.watermark_us, reached))
            self._notes.append(f"the watermark of epoch {record.epoch} was {was} in the job, and is {now} here")
        return structs.replace(record, watermark_us=reached, fired_us=self._watermarks.fired_us)

    def _observe(self, record: EpochRecord) -> None:
        self._watermarks.fired_us = record.watermark_us
        for each in self._run.partitions.values():
            for index, newest_us in self._pipeline.moved(each.node.uid, each.newest_us).items():
                self._watermarks.observe(index, newest_us, record.now_us)

    def _write(self, output: EpochOutput, files: Mapping[str, Any]) -> None:
        for name, rows in output.sinks.items():
            lines = ([output.record.epoch, to_json(row)] for row in rows.to_pylist())
            files[name].writelines(json.dumps(line, sort_keys=True) + "\n" for line in lines)

    def _save(self, folder: Path, record: EpochRecord) -> None:
        self._watermarks.advance(record.now_us)
        snapshots = {uid: files for uid, (_, files) in self._run.snapshots().items()}
        infos = [operator.info(self._job.settings.backend) for operator in self._operators]
        save(
            self._job.name, record.epoch, infos, snapshots, folder,
            now_us=record.now_us, watermarks=self._watermarks.stored(),
        )  # fmt: skip


def _first_of(recorded: Recorded, epochs: int | None) -> Recorded:
    """Return the first of the recorded epochs; raise ConfigurationError if there are not so many."""
    if epochs is None:
        return recorded
    if not 0 < epochs <= len(recorded.epochs):
        raise ConfigurationError(
            f"--epochs {epochs}: {len(recorded.epochs)} epochs after {recorded.origin.url} are recorded",
            hint="give so many, or leave --epochs out for all; an older snapshot has more epochs after it",
        )
    some = recorded.epochs[:epochs]
    last = some[-1].epoch
    checkpoints = {epoch: each for epoch, each in recorded.checkpoints.items() if epoch <= last}
    failure = recorded.failure if recorded.failed is not None and recorded.failed <= last else None
    return replace(recorded, epochs=some, checkpoints=checkpoints, failure=failure)
