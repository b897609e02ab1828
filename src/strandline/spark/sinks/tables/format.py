"""What each table format is to its sink: a table that is loaded, changed in one transaction, and loaded again."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import pyarrow as pa

from strandline.core.errors import AccessError, ConflictError, SinkError, StrandlineError, UnavailableError
from strandline.core.ids import Epoch
from strandline.ends.tables.datafiles import DataFile, Layout, StagedFiles
from strandline.ends.tables.errors import is_access_error
from strandline.spark.sinks.base import Sink, SinkContext
from strandline.storage.place import Place

T = TypeVar("T")

NewColumns = Literal["refuse", "add"]
"""What becomes of columns of the job that the table does not have."""

ExistingRows = Literal["refuse", "keep"]
"""What becomes of a job that begins anew where an earlier life of it has left rows."""


_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 2.0
_CONFLICTS = 4
"""How often another writer may be faster before it matters how long all that took."""


@dataclass(frozen=True, order=True)
class CommitRecord:
    """In the table: what `generation` or an older one staged up to `epoch` is in it. Newer ones have not claimed it."""

    generation: int
    epoch: int

    def covers(self, staged: StagedFiles) -> bool:
        """Whether this is in the table, or was."""
        return staged.generation <= self.generation and staged.epoch <= self.epoch


class TableFormat(Sink):
    """A sink's way into a table. `table` is the format's own object, loaded for one attempt."""

    _where: str
    """The sink and its table, in words."""
    _context: SinkContext | None = None

    @abstractmethod
    def load(self) -> Any:
        """Return the table as it is now; None if there is none."""

    @abstractmethod
    def create(self, columns: pa.Schema) -> None:
        """Make the table, if nobody else does at the same time."""

    @abstractmethod
    def layout(self, table: Any, columns: pa.Schema, key: Sequence[str]) -> tuple[Layout, list[pa.Field]]:
        """Return how the table wants rows of these columns, merged by a key or added, and which it must be given first.

        Raises ConfigurationError if it cannot have them.
        """

    @abstractmethod
    def check_creatable(self, columns: pa.Schema) -> None:
        """Raise ConfigurationError if a table with these columns cannot be made."""

    @abstractmethod
    def add_columns(self, table: Any, columns: Sequence[pa.Field]) -> None:
        """Give the table columns that it does not have."""

    @abstractmethod
    def place_of(self, table: Any) -> Place | None:
        """Return where the table's files are, or will be; None if that is known only when it is made."""

    @abstractmethod
    def record(self, table: Any, identity: str = "") -> CommitRecord | None:
        """Return what the table says of this sink, or of one of another life."""

    @abstractmethod
    def in_effect(self, table: Any) -> CommitRecord | None:
        """Return the record that goes with the table's rows: an older one, or none, if only these were put back."""

    @abstractmethod
    def knows(self, table: Any, context: SinkContext) -> bool:
        """Whether a sink of this name of a job of this name has written to the table, in any life."""

    @abstractmethod
    def commit_files(
        self, table: Any, record: CommitRecord, files: Sequence[DataFile], after: Epoch | None = None
    ) -> None:
        """In one transaction: add the files, put the record in place of the one that was loaded.

        With `after`, take away what older runs of this sink have added of later epochs. It fails with a conflict if
        another transaction has changed the record since the table was loaded.
        """

    @abstractmethod
    def commit_rows(self, table: Any, record: CommitRecord, rows: pa.Table, key: Sequence[str]) -> None:
        """In one transaction: put rows in the place of those with the same key, and the record."""

    @abstractmethod
    def is_conflict(self, error: Exception) -> bool:
        """Whether another writer was faster: from the table as it is now, the same may succeed."""

    @abstractmethod
    def may_pass(self, error: Exception) -> bool:
        """Whether the table is away, so that it is worth trying again."""

    @abstractmethod
    def words(self, error: Exception) -> str:
        """Return what a library says in one line, without secrets."""

    def committed(self, table: Any) -> None:
        """After a transaction: make it outlast a power failure, hold small files together."""

    def _attempt(self, act: Callable[[Any], T], patience_s: float) -> T:
        """Do something with the table as it is, until it succeeds or cannot, or patience ends.

        Raises UnavailableError then. What became of a transaction whose answer was lost, the record says.
        """
        delay_s, until, conflicts = _FIRST_DELAY_S, time.monotonic() + patience_s, 0
        while True:
            try:
                return act(self.load())
            except ConflictError as error:
                why, conflicts = error.message, conflicts + 1
            except UnavailableError as error:
                why = error.message
            except StrandlineError:
                raise
            except Exception as error:
                why = self.words(error)
                if is_access_error(error):
                    raise AccessError(
                        f"{self._where}: access was refused: {why}", hint="check who the job is to storage and catalog"
                    ) from None
                if self.is_conflict(error):
                    conflicts += 1
                elif not self.may_pass(error):
                    raise SinkError(f"{self._where}: {why}", hint="rows that wait stay staged") from error
            # Where others are faster, the table answers, however slow it is.
            if time.monotonic() + delay_s > until and not 0 < conflicts <= _CONFLICTS:
                raise UnavailableError(f"{self._where}: {why}")
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    @property
    def _label(self) -> str:
        return f"sink '{self._opened.sink}' of job '{self._opened.job}'"

    @property
    def fsync(self) -> bool:
        """Whether what is written must outlast a power failure of this machine."""
        return self._context is None or self._context.fsync

    @property
    def _opened(self) -> SinkContext:
        assert self._context is not None, "the sink was not opened"
        return self._context
