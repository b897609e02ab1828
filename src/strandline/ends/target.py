"""What another system with transactions is to a sink: where its rows go, and where it says how far they have come.

Derive from `Target` to write for a system of your own; `Transactional` does the rest. docs/sinks.md has an example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from strandline.core.errors import ConfigurationError, UnavailableError
from strandline.storage.place import Place


@dataclass(frozen=True)
class Writer:
    """Who writes: a sink of a job, in one run of it."""

    sink: str
    """Names the sink of this life of the job among all that write to the target."""
    generation: int
    """The run's number: it grows."""
    name: str
    """The sink's own."""
    job: str
    storage: Place = field(repr=False)
    """Where a target may keep records that it has no better place for: below `{sink}/`, at will."""
    life: str = ""
    """The life of the job."""

    @property
    def label(self) -> str:
        """For people: which sink, and of which job."""
        return f"sink '{self.name}' of job '{self.job}'"

    @property
    def owner(self) -> str:
        """For records: the label, and the life of the job."""
        return f"{self.label}, life {self.life}"

    def check_owner(self, found: str, where: str) -> None:
        """Raise ConfigurationError if a record under this sink's identity names another owner."""
        if found != self.owner:
            raise ConfigurationError(
                f"{self.label}: {where} has a record of {found} under the same identity {self.sink}; expected one of "
                f"{self.owner}",
                hint="give the sink another name: it begins anew in that target",
            )


@dataclass(frozen=True)
class Rows:
    """Rows on their way into a target."""

    batches: Sequence[pa.RecordBatch]
    _ids: Callable[[], list[str]]

    @property
    def ids(self) -> list[str]:
        """A name for each row, the same however often it comes: of the job's life, the sink and the row."""
        return self._ids()


class Connection(ABC):
    """A lane's way into the target. What is written in a lane comes in one order, and by one writer at a time."""

    @abstractmethod
    def reached(self) -> str | None:
        """Return the mark of the lane's last transaction, as the target has it on record; None before the first."""

    @abstractmethod
    def write(self, batches: Sequence[pa.RecordBatch], since: str | None, mark: str) -> None:
        """In one transaction: write the rows, if there are any, and put `mark` on the lane's record.

        And find, in the same transaction, that no newer generation of the sink has claimed the target, else raise
        FencedError; and that the record still is `since`, else ConflictError: another task writes this lane.
        If its outcome is unknown, raise what says so: the connection is closed, and the next one asks `reached`.
        """

    def write_rows(self, rows: Rows, since: str | None, mark: str) -> None:
        """Do what `write` does, which this calls, where a target wants the rows' names."""
        self.write(rows.batches, since, mark)

    def close(self) -> None:  # noqa: B027
        """Let go of it, whatever state it is in: what was not committed shall not show."""


class Target(ABC):
    """A system with transactions. It is sent to the executors: it must pickle, and connects where it is asked to."""

    parallel: bool = True
    """Whether lanes write at the same time, one for each partition; else there is one lane, 0."""
    on_driver: bool = False
    """Whether only the driver can reach it, as a file on its machine: no task writes to it."""
    passing: tuple[type[Exception], ...] = (ConnectionError, TimeoutError)
    """Errors that may pass, as when the target is down: writing is tried again, for as long as it takes."""
    refusing: tuple[type[Exception], ...] = ()
    """Errors that a row is to blame for: with `on_error`, the job goes on without those that cause them."""
    destination: str = ""
    """Where rows go, in words that are the same at each start: what a sink without a name is compared by."""
    max_rows: int = 100_000
    """At about how many rows a transaction ends."""
    max_bytes: int = 64 << 20
    """At about how many bytes a transaction ends, as Arrow has them."""

    def try_out(self, columns: pa.Schema) -> None:  # noqa: B027
        """Before the job starts: raise ConfigurationError for what would fail with each row. Leave nothing behind."""

    @abstractmethod
    def claim(self, writer: Writer) -> None:
        """Have it on record that this generation is the one that writes, as a run begins.

        From then on no transaction of an older one may be committed. Raise FencedError if a newer one has claimed it,
        ConflictError if an older one was faster: it is tried again.
        """

    @abstractmethod
    def connect(self, writer: Writer, lane: int) -> Connection:
        """Connect for one lane."""

    def may_pass(self, error: Exception) -> bool:
        """Whether it is worth trying again after this error."""
        return isinstance(error, (UnavailableError, *self.passing))
