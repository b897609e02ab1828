"""The interface to a system with transactions, which holds the rows of a sink and the record of its progress.

Derive a class from `Target` for another system; `Transactional` does the rest. docs/sinks.md has an example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from strandline.core.datasets import Dataset
from strandline.core.errors import ConfigurationError, CorruptionError, UnavailableError
from strandline.ends.begins import Begin, check_branch, with_begin
from strandline.storage.place import Place


@dataclass(frozen=True)
class Writer:
    """The writer: a sink of a job, in one run of the job."""

    sink: str
    """The sink's identity in the target: unique for the job, its life and the sink."""
    generation: int
    """The run's number, which grows with each run."""
    name: str
    """The sink's name in the job."""
    job: str
    storage: Place = field(repr=False)
    """Storage for a target that cannot hold its own records: it may write anything below `{sink}/`."""
    life: str = ""
    """The life of the job, as an id."""
    has_claimed: bool = False
    """Whether an earlier run has claimed the target: without a record of it, the target may have its rows already."""
    begin: int | None = None
    """The epoch after which the run begins."""
    restored_by: int = 0
    """The generation that made the snapshot which the run has restored; 0 if there is none."""
    turns: Sequence[Begin] = ()
    """The runs in its history that went back."""

    @property
    def label(self) -> str:
        """The sink and its job, for messages."""
        return f"sink '{self.name}' of job '{self.job}'"

    @property
    def owner(self) -> str:
        """The label and the life of the job, for records."""
        return f"{self.label}, life {self.life}"

    def check_owner(self, owner: str, where: str) -> None:
        """Raise ConfigurationError if a record under this sink's identity names another owner."""
        if owner != self.owner:
            raise ConfigurationError(
                f"{self.label}: {where} has a record of {owner} under the same identity {self.sink}; expected one of "
                f"{self.owner}",
                hint="give the sink another name: it begins with a new record in that target",
            )

    def next_begins(self, begins: Sequence[Begin], where: str) -> list[Begin]:
        """Return the begins of the sink's runs, which the target keeps, with that of this run.

        Raises CorruptionError if the target has rows of another branch of the job.
        """
        if self.begin is None:
            return list(begins)
        check_branch(begins, self.restored_by, self.begin, f"{self.label}: {where}")
        return with_begin(begins, self.generation, self.begin, turns=self.turns)

    def check_claimed(self, is_claimed: bool, where: str) -> None:
        """Raise CorruptionError if the target has no claim of the sink, and an earlier run has made one."""
        if self.has_claimed and not is_claimed:
            raise CorruptionError(
                f"{self.label}: {where} has no record of the sink, and rows that the checkpoint lists may be there "
                "already: it was put back, or is another one, or prefix= of sinks.kafka or record= of a database sink "
                "now names another record",
                hint="if prefix=, record= or the target was changed between two starts, give the sink the former one; "
                "or give the sink another name and start the job with drop=[…] of the present one, which gives up all "
                "rows that wait for it",
            )


@dataclass(frozen=True)
class Rows:
    """The rows of a transaction."""

    batches: Sequence[pa.RecordBatch]
    _ids: Callable[[], list[str]]

    @property
    def ids(self) -> list[str]:
        """An id for each row, the same at each attempt: made from the job's life, the sink and the row's position."""
        return self._ids()


class Connection(ABC):
    """The connection of a lane to the target. A lane's rows are written in order, by one writer at a time."""

    @abstractmethod
    def reached(self) -> str | None:
        """Return the mark of the lane's last transaction, from the target's record; None before the first."""

    @abstractmethod
    def write(self, batches: Sequence[pa.RecordBatch], since: str | None, mark: str) -> None:
        """In one transaction: write the rows, if there are any, and set the lane's record to `mark`.

        Also check, in the same transaction, that no newer generation of the sink has claimed the target, else raise
        FencedError; and that the record still is `since`, else raise ConflictError: another task writes this lane.
        If the outcome is unknown, raise the error: the connection is closed, and the next one calls `reached`.
        """

    def write_rows(self, rows: Rows, since: str | None, mark: str) -> None:
        """Call `write`. A target that needs the rows' ids overrides this method in place of `write`."""
        self.write(rows.batches, since, mark)

    def close(self) -> None:  # noqa: B027
        """Close the connection in any state. Uncommitted rows must not become visible."""


class Target(ABC):
    """A system with transactions. Executors get a copy: it must pickle, without open connections."""

    parallel: bool = True
    """Whether lanes write at the same time, one for each partition; else there is one lane, 0."""
    on_driver: bool = False
    """Whether only the driver can reach it, such as a file on its machine: then no task writes to it."""
    passing: tuple[type[Exception], ...] = (ConnectionError, TimeoutError)
    """Temporary errors, such as while the target is down: the write is tried again, for as long as it takes."""
    refusing: tuple[type[Exception], ...] = ()
    """Errors that a row causes: with `on_error`, the job goes on without such rows."""
    destination: str = ""
    """The destination, in words that are the same at each start: they identify a sink without a name."""
    datasets: Sequence[Dataset] = ()
    """What it writes, by names of OpenLineage; () if that is not known."""
    max_rows: int = 100_000
    """The approximate limit of a transaction's rows."""
    max_bytes: int = 64 << 20
    """The approximate limit of a transaction's size in Arrow."""

    def try_out(self, columns: pa.Schema) -> None:  # noqa: B027
        """Before the job starts: raise ConfigurationError for a failure that each row would cause. Leave no traces."""

    @abstractmethod
    def claim(self, writer: Writer) -> None:
        """Record, as a run begins, that this generation is the one that writes.

        Afterwards no transaction of an older one may be committed. Raise FencedError if a newer one has claimed the
        target, ConflictError if an older one interferes: the claim is tried again.
        """

    @abstractmethod
    def connect(self, writer: Writer, lane: int) -> Connection:
        """Return a connection for one lane."""

    def may_pass(self, error: Exception) -> bool:
        """Whether another attempt may succeed after this error."""
        return isinstance(error, (UnavailableError, *self.passing))
