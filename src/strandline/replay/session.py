"""A replay of recorded epochs: reads their input again, runs them, and compares the result with what is recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.errors import ConfigurationError, StrandlineError, UserCodeError
from strandline.core.scratch import Scratch
from strandline.format.epochs import EpochRecord
from strandline.plan.graph import Node
from strandline.plan.parallelism import Parallelism
from strandline.plan.pipeline import Operator
from strandline.plan.upgrade import Upgrade
from strandline.replay.breaks import Breaks
from strandline.replay.comparison import StateDifference, compare_snapshots, compare_with_checkpoint
from strandline.replay.engine import EpochOutput, ReplayRun
from strandline.replay.frames import Steps, shuffled
from strandline.replay.keys import rows_of_key
from strandline.replay.reading import BatchReader
from strandline.replay.recorded import Recorded
from strandline.runtime.task.unsaved import Finding
from strandline.snapshot.opening.snapshot import open_folder
from strandline.spark.job.compat import check_compatible
from strandline.spark.job.job import Job
from strandline.spark.sources.filechecks import file_sources
from strandline.testing.nodes import Rows


class Input(Protocol):
    """The rows of recorded epochs."""

    def rows(self, record: EpochRecord, steps: Steps) -> Mapping[Node, Rows]:
        """Return the rows of the nodes in `steps.front`, of an epoch with a batch."""
        ...

    def close(self) -> None:
        """Release what was opened."""


class SourceInput:
    """The rows of epochs, read from the job's sources again."""

    def __init__(self, job: Job, recorded: Recorded) -> None:
        sources = self._sources = job._plan.sources
        names = recorded.names or sources.names
        unknown = sorted(set(names) ^ set(sources.names))
        if unknown:
            raise ConfigurationError(
                f"the program and the job differ in the source '{unknown[0]}'",
                hint="replay with the program that the job ran",
            )
        source = sources.query(names)
        files = file_sources(source, names, ())
        self._reader = BatchReader(source, recorded.files, files, recorded.tasks)
        before, offsets = {}, recorded.files.get(f"offsets/{recorded.origin.batch}", b"").decode()
        for record in recorded.epochs:
            if record.batch >= 0:
                before[record.batch], offsets = offsets, record.offsets
        self._before: Mapping[int, str] = before

    def rows(self, record: EpochRecord, steps: Steps) -> Mapping[Node, Rows]:
        """Return the rows of the nodes in `steps.front`, of an epoch with a batch."""
        return self._read(record, lambda sources: steps.read(sources, record))

    def source_rows(self, record: EpochRecord, steps: Steps) -> Mapping[Node, Rows]:
        """Return the rows of the sources themselves, of an epoch with a batch."""
        return self._read(record, steps.read_sources)

    def _read(
        self, record: EpochRecord, use: Callable[[Mapping[Node, DataFrame]], Mapping[Node, Rows]]
    ) -> Mapping[Node, Rows]:
        split = self._sources.split
        return self._reader.read(record, self._before[record.batch], lambda df: use(split(df)))

    def close(self) -> None:
        """Remove the logs of the batches."""
        self._reader.close()


class KeptInput:
    """The rows of epochs, which are read from the sources once for several replays, and kept in a directory."""

    def __init__(self, source: SourceInput) -> None:
        self._source = source
        self._scratch = Scratch("why")

    def rows(self, record: EpochRecord, steps: Steps) -> Mapping[Node, Rows]:
        """Return the rows of the nodes in `steps.front`, of an epoch with a batch: the same nodes in each replay."""
        paths = [self._scratch.path / f"{record.epoch}-{at}.arrow" for at in range(len(steps.front))]
        if not all(path.exists() for path in paths):
            rows = self._source.rows(record, steps)
            for node, path in zip(steps.front, paths, strict=True):
                _write(path, rows[node])
            return rows
        return {node: _read(path) for node, path in zip(steps.front, paths, strict=True)}

    def source_rows(self, record: EpochRecord, steps: Steps) -> Mapping[Node, Rows]:
        """Return the rows of the sources themselves."""
        return self._source.source_rows(record, steps) if record.batch >= 0 else {}

    def close(self) -> None:
        """Keep the rows for the next replay."""

    def __enter__(self) -> KeptInput:
        return self

    def __exit__(self, *error: Any) -> None:
        self._source.close()
        self._scratch.__exit__(*error)


@dataclass(frozen=True)
class Unequal:
    """Something that differs between two runs of the same epochs, with the reason if it is known."""

    what: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class EpochReplay:
    """One epoch that was run again."""

    record: EpochRecord
    rows_in: int
    output: EpochOutput | None
    """None if it failed."""
    error: StrandlineError | None = None
    differences: tuple[StateDifference, ...] | None = None
    """Between the recorded checkpoint of this epoch and the replay; None if there is no such checkpoint."""
    unequal: tuple[Unequal, ...] = ()
    """What a second run of the epoch gave otherwise."""


@dataclass
class Replay:
    """Runs recorded epochs in order. With `check`, a second run beside it gets the same, and both are compared."""

    job: Job
    recorded: Recorded
    breaks: Breaks = field(default_factory=lambda: Breaks(None))
    check: bool = False
    source: Input | None = None
    """The rows; None: the job's sources."""
    key: str = ""
    """The only key whose rows run; no state is compared then, since that of other keys stays as it was."""
    also: Callable[[Sequence[Operator]], Collection[Node]] = lambda operators: ()
    """Returns the nodes whose rows are wanted in an epoch's output, beside those that are needed."""
    report: Callable[[int, int], object] = lambda done, total: None
    """Called with the number of epochs that have run, and that of all."""
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._close = ExitStack()
        try:
            self.operators = settle(self.job, self.recorded)
            self._input = self.source or SourceInput(self.job, self.recorded)
            self._close.callback(self._input.close)
            self.run = self._open(self.breaks.loaded)
            self.breaks.check()
            # Other orders of the rows of different partitions are possible in a cluster, too.
            self._others = {"again": self._open(), "order": self._open()} if self.check else {}
            self.findings = self.run.findings
        except BaseException:
            self.close()
            raise

    def _open(self, loaded: Callable[..., None] = lambda *_: None) -> ReplayRun:
        run = ReplayRun(
            self.job._plan, self.operators, self.recorded.origin, self.job.settings.backend, loaded,
            also=self.also(self.operators),
        )  # fmt: skip
        self._close.callback(run.close)
        return run

    def operator(self, uid: str) -> Operator:
        """Return the operator with a uid."""
        return next(each for each in self.operators if each.uid == uid)

    def __iter__(self) -> Iterator[EpochReplay]:
        """Run one epoch after the other; the first that fails is the last."""
        self.report(0, len(self.recorded.epochs))
        for number, record in enumerate(self.recorded.epochs, 1):
            result = self._run(record, self.rows(record))
            yield result
            if result.output is None or self.breaks.has_quit:
                return
            self.report(number, len(self.recorded.epochs))

    def rows(self, record: EpochRecord) -> Mapping[Node, Rows]:
        """Return the rows that an epoch begins with."""
        rows = self._input.rows(record, self.run.steps) if record.batch >= 0 else {}
        if not self.key:
            return rows
        return {
            node: rows_of_key(node, each, self.job._plan.pipeline.operators, self.key) for node, each in rows.items()
        }

    def run_once(self, record: EpochRecord, rows: Mapping[Node, Rows]) -> EpochOutput:
        """Run an epoch alone, without the commit; after an error it is forgotten."""
        self.breaks.begin(record.epoch)
        try:
            return self.run.run(record, rows)
        except BaseException:
            self.run.abort()
            raise

    def _run(self, record: EpochRecord, rows: Mapping[Node, Rows]) -> EpochReplay:
        count = sum(each.num_rows for each in rows.values())
        while True:
            try:
                output = self.run_once(record, rows)
            except (StrandlineError, BaseException) as error:
                if self.breaks.has_target():
                    continue
                if not isinstance(error, UserCodeError):
                    raise
                return EpochReplay(record, count, None, error)
            if self.breaks.has_target():
                self.run.abort()
                continue
            break
        self.run.commit()
        unequal = tuple(self._compare(record, rows, output))
        manifest = self.recorded.checkpoints.get(record.epoch)
        differences = None
        if manifest is not None and not self.key:
            differences = tuple(
                compare_with_checkpoint(self.run.snapshots(), manifest, self.recorded.origin.jobdir)
            )  # fmt: skip
        return EpochReplay(record, count, output, None, differences, unequal)

    def _compare(self, record: EpochRecord, rows: Mapping[Node, Rows], output: EpochOutput) -> Iterator[Unequal]:
        """Run the epoch in the other runs, and name what differs; a run that differs is compared no more."""
        for name, other in list(self._others.items()):
            again = other.run(record, rows if name == "again" else {n: shuffled(each) for n, each in rows.items()})
            other.commit()
            uids = list(_unequal(output, again, self.operators, sort=name == "order"))
            states: list[StateDifference] = []
            if uids or record.epoch in self.recorded.checkpoints or record is self.recorded.epochs[-1]:
                infos = [operator.info(self.job.settings.backend) for operator in self.run.operators]
                states = compare_snapshots(infos, self.run.snapshots(), other.snapshots())
            if not (uids or states):
                continue
            del self._others[name]
            why = "a second run of the same rows" if name == "again" else "the rows of other partitions first"
            uids += [each.operator for each in states]
            for uid in uids[:1]:
                details = [str(each) for each in states if each.operator == uid]
                yield Unequal(f"operator '{uid}' ({self._function(uid)}) is not repeatable: {why} gave", tuple(details))

    def _function(self, uid: str) -> str:
        return next(operator.node.name for operator in self.operators if operator.uid == uid)

    def close(self) -> None:
        """Close the runs and the input."""
        self._close.close()

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def _unequal(one: EpochOutput, other: EpochOutput, operators: Sequence[Operator], *, sort: bool) -> Iterator[str]:
    """Yield the uids of operators whose output differs, in the order of the pipeline."""
    for operator in operators:
        ours, theirs = (_plain(each.operators[operator.uid], sort=sort) for each in (one, other))
        if ours != theirs:
            yield operator.uid


def _plain(rows: Rows, *, sort: bool) -> list[str]:
    plain = [repr(tuple(row.values())[:-1]) for row in rows.to_pylist()]
    return sorted(plain) if sort else plain


def settle(job: Job, recorded: Recorded) -> list[Operator]:
    """Return the operators as they ran in recorded epochs; raise ConfigurationError if the program has others."""
    numbers = next((record.parallelism for record in recorded.epochs if record.parallelism), {})
    unknown = sorted(set(numbers) ^ {node.uid for node in job._plan.pipeline.operators})
    if unknown:
        raise ConfigurationError(
            f"the program and the recorded epochs differ in the operator '{unknown[0]}'",
            hint="replay with the program that the job ran; `strandline test` runs another one",
        )
    return upgraded(job, recorded)[0]


def upgraded(
    job: Job, recorded: Recorded, drop: Sequence[str] = (), from_now: Sequence[str] = ()
) -> tuple[list[Operator], Upgrade | None]:
    """Return a program's operators as they continue from the snapshot, with the changes of its state.

    Raises IncompatibleStateError with all reasons if they cannot. `drop` and `from_now` are those of `Job.start`.
    """
    manifest, pipeline = recorded.origin.manifest, job._plan.pipeline
    numbers = next((record.parallelism for record in recorded.epochs if record.parallelism), {})
    known = {node.uid: numbers[node.uid] for node in pipeline.operators if node.uid in numbers}
    stored = manifest.operators if manifest is not None else ()
    settled = pipeline.settle(Parallelism(default=1, overrides=known), stored)
    if manifest is None:
        return settled, None
    sinks = {name: sink for name, sink, _ in job._plan.sinks}
    upgrade = check_compatible(
        manifest, settled, sinks, job._plan.sources.names, drop, url=recorded.origin.url, fork=True, from_now=from_now
    )
    return [replace(operator, migration=upgrade.migrations[operator.uid]) for operator in settled], upgrade


def jobdir_of(job: Job) -> JobDirectory:
    """Return the directory of a job's checkpoints, without creating it."""
    ck = job.checkpoints
    return JobDirectory(open_folder(str(ck.directory), ck.storage_options, fsync=False).store, job.name)


def _write(path: Path, rows: Rows) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_batch(rows)


def _read(path: Path) -> Rows:
    with pa.OSFile(str(path), "rb") as file:
        return pa.ipc.open_file(file).get_batch(0)
