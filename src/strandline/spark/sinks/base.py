"""The interface of sinks: they stage an epoch, commit with a checkpoint, and recover after a restore."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from pyspark.sql import DataFrame, SparkSession

from strandline.control.status import SinkStatus
from strandline.core.datasets import Dataset
from strandline.core.errors import ConfigurationError
from strandline.core.ids import Epoch, Generation
from strandline.ends.begins import Begin
from strandline.storage.place import Place

Visibility = Literal["checkpoint", "epoch"]

Committables = str | list[str] | None
"""The staged parts of an epoch: one for all rows, one from each task, or None if nothing needs a commit."""


@dataclass(frozen=True)
class SinkContext:
    """The run that a sink works for."""

    spark: SparkSession
    job: str
    life: str
    """The id of the job's life, from its first start: a job that begins anew in the same place has another."""
    generation: Generation
    sink: str
    fsync: bool = True
    """Whether staged and visible files must survive a power failure of this machine."""
    begins: str = ""
    """The begin of the run, in words after the job's name: "starts afresh in …", "goes on from checkpoint 17 of …"."""
    from_life: str = ""
    """The life of the restored snapshot, if any, or of the one before its history (`Manifest.output_position`). Rows
    that it had shown by then do not come again."""
    from_epoch: int = 0
    """The epoch of that snapshot."""
    staging: Place | None = None
    """Storage for rows that wait for delivery, which all machines of the job reach."""
    beside: frozenset[str] | None = None
    """The names of all the job's sinks that write to this sink's path, with this sink's; None if unknown."""
    gone: frozenset[str] = frozenset()
    """If the job goes back: the names of sinks that wrote to this destination since, and no longer exist."""
    restored_by: int = 0
    """The generation that made the restored snapshot; 0 if there is none."""
    turns: Sequence[Begin] = ()
    """The runs in its history that went back, with this one, each with the epoch to which."""

    @property
    def identity(self) -> str:
        """The id of this sink of this job, unique in its destination."""
        return self.identity_of(self.sink)

    def identity_of(self, sink: str) -> str:
        """Return the id of another sink of this life of the job."""
        return hashlib.sha256(f"{self.life}\n{self.job}\n{sink}".encode()).hexdigest()[:32]


class Sink(ABC):
    """A destination of results. Derive a class for another one. Steps may be repeated: make each idempotent."""

    patience_s: float = 5.0
    """Time for which a commit may wait for an unavailable destination. The job's next checkpoint waits as well."""
    start_patience_s: float = 30.0
    """Time for which a start may wait."""
    takes_back = True
    """Whether `recover` takes back rows that later checkpoints have shown; if not, the job logs a warning."""
    reads_once = True
    """False: `write` may read its DataFrame more than once, so the engine keeps the rows for it."""
    is_behind = False
    """Whether rows of an earlier sink of the job wait for their destination: set before each `commit` and `recover`."""
    destination: str = ""
    """The destination, in words that are the same at each start: they identify a sink without a name."""

    datasets: Sequence[Dataset] = ()
    """What it writes, by names of OpenLineage; () if that is not known."""

    def __init__(self, *, name: str | None = None, visibility: Visibility = "epoch") -> None:
        if visibility not in ("checkpoint", "epoch"):
            raise ConfigurationError(f"visibility is {visibility!r}, expected 'checkpoint' or 'epoch'")
        if name is not None and (not isinstance(name, str) or not name.strip()):
            raise ConfigurationError(
                f"the sink's name is {name!r:.200}, expected a text",
                hint="write it like name='alerts', or leave it out",
            )
        self.name = name
        self.visibility: Visibility = visibility

    def try_out(self, empty: DataFrame) -> None:  # noqa: B027
        """Before the job starts: raise ConfigurationError for a failure that each epoch would cause.

        `empty` has the columns of later epochs, and no rows. Leave no traces.
        """

    def _begin_anew(self) -> None:  # noqa: B027
        """A program starts the job with this object: forget the state of earlier runs in this process."""

    def check(self, context: SinkContext) -> None:  # noqa: B027
        """Raise ConfigurationError if the sink cannot begin. Change nothing: another driver may still run.

        The run has no generation yet, and no `life` if a new one begins with it. Rows of that driver may still come
        before `recover`.
        """

    def open(self, context: SinkContext) -> None:  # noqa: B027
        """Prepare for a run, the first or one after a failure."""

    @abstractmethod
    def write(self, df: DataFrame, epoch: Epoch) -> Committables:
        """Write an epoch's rows; return the committables with which `commit` shows them: None if they are visible.

        Committables must be unique. `write_tasks` gathers one from each task that writes on an executor. An epoch may
        be written again in the same run: no checkpoint lists what was staged before.
        """

    def commit(self, pending: Sequence[str]) -> Sequence[str] | None:
        """Make staged rows visible, in this order. Called once the checkpoint that lists them is published.

        May return committables that cannot be shown now, since the destination is unavailable: the next checkpoints
        list them as well, and they come again.

        Committables may come again, here and in `recover`. Runs in another thread than `write`, and at the same time.
        """
        if pending:
            raise NotImplementedError(f"{type(self).__name__} stages rows and does not define commit")
        return None

    def recover(self, pending: Sequence[str], epoch: Epoch, *, fresh: bool) -> Sequence[str] | None:
        """After a restore: commit the pending committables of the checkpoint, and forget all epochs after `epoch`.

        The last of `pending` is the result of `reached`, if it was not None.

        Delete all else that older generations have staged: no checkpoint lists it. A run cannot do that when it ends,
        since it does not know whether its last checkpoint was published. Older generations must not show rows any more.
        `fresh`: there was no checkpoint of this life; the job begins, after `epoch` if it begins with a snapshot of
        another job, and no visible rows belong to it. A start may fail after this call, and come again.
        May return committables that cannot be shown now, as `commit` does: the run goes on with them.
        """
        return self.commit(pending)

    def reached(self) -> str | None:
        """Return the sink's progress in its destination, in any thread: each checkpoint lists it for `recover`.

        With it, `recover` detects a destination that was put back to an older state, and lacks rows for good.
        """
        return None

    def tidy(self, epoch: Epoch) -> None:  # noqa: B027
        """After all sinks have recovered: take back rows of renamed or removed sinks of the job after `epoch`."""

    def status(self) -> SinkStatus | None:
        """Return the counts of delivered and waiting rows, in any thread; None for sinks without them."""
        return None

    def close(self) -> None:  # noqa: B027
        """Release the run's resources, if the sink was opened."""


class KeyedSink(Sink):
    """A sink in which rows may replace each other by key, and a marked row deletes that of its key."""

    @property
    @abstractmethod
    def key(self) -> tuple[str, ...]:
        """The columns by which rows are replaced; () if they are appended."""

    @abstractmethod
    def deleting(self, column: str, nullable: Sequence[str] = ()) -> tuple[Self, str]:
        """Return a sink that also deletes rows, and its boolean column of those; `column`, if it has none.

        `nullable` are the columns of the key that may be null: equal as in GROUP BY. Raises ConfigurationError if no
        destination of this kind can have such keys.
        """


def kind_of(sink: Sink) -> str:
    """Return the kind of a sink, from its first class in this package: other kinds have other committables."""
    kind = next(each for each in type(sink).__mro__ if each.__module__.startswith("strandline."))
    return kind.__name__.removesuffix("Sink").lower()


def committables_of(sink: str, written: Committables) -> list[str]:
    """Return the result of a sink's `write` as a list; raise ConfigurationError if it is something else."""
    texts = written if isinstance(written, list) else [] if written is None else [written]
    if not all(isinstance(text, str) for text in texts):
        raise ConfigurationError(f"sink '{sink}': write returned {texts!r:.300}, expected strings")
    return texts
