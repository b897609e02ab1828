"""What a sink is to the engine: it stages an epoch, commits with a checkpoint, and recovers after a restore."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import DataFrame, SparkSession

from strandline.control.status import SinkStatus
from strandline.core.errors import ConfigurationError
from strandline.core.ids import Epoch, Generation
from strandline.storage.place import Place

Visibility = Literal["checkpoint", "epoch"]

Committables = str | list[str] | None
"""What a sink has staged of an epoch: one for all of it, one from each task, or nothing that waits for a commit."""


@dataclass(frozen=True)
class SinkContext:
    """The run a sink works for."""

    spark: SparkSession
    job: str
    life: str
    """Names the job's life from its very first start: a job made anew in the same place has another."""
    generation: Generation
    sink: str
    fsync: bool = True
    """Whether what is staged and shown must outlast a power failure of this machine."""
    begins: str = ""
    """Where the run begins, in words behind the job's name: "starts afresh in …", "goes on from checkpoint 17 of …"."""
    from_life: str = ""
    """Where a snapshot is restored: the life that it is of. What that life had shown by then does not come again."""
    from_epoch: int = 0
    """Of which epoch the snapshot is."""
    staging: Place | None = None
    """Where rows may wait until they are delivered: all machines of the job reach it."""
    beside: frozenset[str] | None = None
    """The names of all of the job's sinks that write to this sink's path, its own among them; None: not known."""
    gone: frozenset[str] = frozenset()
    """Where the job goes back: the names of sinks that wrote to this destination since, and do not any more."""

    @property
    def identity(self) -> str:
        """Names this sink of this job among all that write to the same place."""
        return self.identity_of(self.sink)

    def identity_of(self, sink: str) -> str:
        """Return what names another sink of this life of the job."""
        return hashlib.sha256(f"{self.life}\n{self.job}\n{sink}".encode()).hexdigest()[:32]


class Sink(ABC):
    """A place for results. Derive from it to write your own; every step may be repeated and must be idempotent."""

    patience_s: float = 5.0
    """For how long a commit may wait for what rows go to, where a sink waits at all: the job's next checkpoint does."""
    start_patience_s: float = 30.0
    """And for how long a start may."""
    takes_back = True
    """Whether `recover` takes back what later checkpoints have shown; if not, a warning says so."""
    reads_once = True
    """False: `write` may read its DataFrame more than once, so the engine keeps the rows for it."""
    destination: str = ""
    """Where rows go, in words that are the same at each start: what a sink without a name is compared by."""

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
        """Before the job starts: raise ConfigurationError for what would fail in each epoch.

        `empty` has the columns that `write` will be given, and no rows. Nothing may be left of what is tried.
        """

    def _begin_anew(self) -> None:  # noqa: B027
        """A program starts the job, with this object: what earlier runs of the process knew does not count."""

    def check(self, context: SinkContext) -> None:  # noqa: B027
        """Raise ConfigurationError if the sink cannot begin, touching nothing: whatever runs is not disturbed by it.

        The run has no generation yet, and no `life` if a new one begins with it. What is new since may be seen in
        `recover`.
        """

    def open(self, context: SinkContext) -> None:  # noqa: B027
        """Get ready for a run, the first or one after a failure."""

    @abstractmethod
    def write(self, df: DataFrame, epoch: Epoch) -> Committables:
        """Write an epoch's rows; return what `commit` needs to make them visible: nothing if they already are.

        No two that a checkpoint lists may be the same. `write_tasks` gathers one from each task that writes on an
        executor. An epoch may be written again in the same run: what was staged of it before is in no checkpoint.
        """

    def commit(self, pending: Sequence[str]) -> Sequence[str] | None:
        """Make staged rows visible, in this order. Called once the checkpoint that lists them is published.

        Those that cannot be shown now, since what they go to is away, may be returned: they are listed by the next
        checkpoints, too, and come again.

        Committables may come again, here and in `recover`. Runs in another thread than `write`, and at the same time.
        """
        if pending:
            raise NotImplementedError(f"{type(self).__name__} stages rows and does not define commit")
        return None

    def recover(self, pending: Sequence[str], epoch: Epoch, *, fresh: bool) -> Sequence[str] | None:
        """After a restore: commit what the checkpoint lists as pending, forget everything later than `epoch`.

        The last of `pending` is what `reached` gave, if it gave anything.

        What older generations have staged besides is in no checkpoint: only now, since a run that ends does not know
        whether its last one was published. Nothing that they do from now on may show.
        `fresh`: there was no checkpoint of this life; the job begins, behind `epoch` where it begins with a snapshot of
        another job, and nothing that is visible belongs to it. A start that has come this far may come again.
        What cannot be shown now may be returned, as by `commit`: the run goes on with it.
        """
        return self.commit(pending)

    def reached(self) -> str | None:
        """Return how far the sink has come in what it writes to, in any thread: each checkpoint lists it for `recover`.

        What it writes to may be put back to an older state, and what is missing then is in no checkpoint any more.
        """
        return None

    def tidy(self, epoch: Epoch) -> None:  # noqa: B027
        """Every sink of the job has recovered: take back what others, which it has no more, have shown after `epoch`.

        The job goes on, and a sink that was renamed, or taken out, is not there to do it.
        """

    def status(self) -> SinkStatus | None:
        """Return what is delivered and what waits, in any thread; None if that says nothing of this sink."""
        return None

    def close(self) -> None:  # noqa: B027
        """Let go of what the run held, if it was opened."""


def kind_of(sink: Sink) -> str:
    """Return which of the package's sinks it is, or is derived from: committables of another kind are not its own."""
    ours = next(each for each in type(sink).__mro__ if each.__module__.startswith("strandline."))
    return ours.__name__.removesuffix("Sink").lower()


def committables_of(sink: str, written: Committables) -> list[str]:
    """Return what a sink's `write` gave as a list; raise ConfigurationError if it is something else."""
    found = written if isinstance(written, list) else [] if written is None else [written]
    if not all(isinstance(text, str) for text in found):
        raise ConfigurationError(f"sink '{sink}': write gave {found!r:.300}, expected strings")
    return found
