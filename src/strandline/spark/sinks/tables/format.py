"""The interface of table formats: load a table, change it in one transaction, and load it again."""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import pyarrow as pa

from strandline.core.errors import AccessError, ConflictError, SinkError, StrandlineError, UnavailableError
from strandline.core.ids import Epoch
from strandline.ends.begins import Begin
from strandline.ends.tables.datafiles import DataFile, FileLayout, StagedFiles
from strandline.ends.tables.errors import is_access_error
from strandline.spark.sinks.base import Sink, SinkContext
from strandline.spark.sinks.tables.undo import Change
from strandline.storage.place import Place

T = TypeVar("T")

NewColumns = Literal["refuse", "add"]
"""The treatment of the job's columns that the table does not have."""

ExistingRows = Literal["refuse", "keep"]
"""The treatment of a job that begins anew in a table with rows of its earlier life."""

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 2.0
_CONFLICTS = 4
"""Up to this number of conflicts, an attempt may exceed its patience."""
_TOO_LONG = re.compile("File name too long|KeyTooLong")
"""In errors of disks and of S3, which otherwise look temporary."""


@dataclass(frozen=True, order=True)
class CommitRecord:
    """The table has all rows that `generation` or an older one staged up to `epoch`. No newer one has claimed it."""

    generation: int
    epoch: int
    begin: Epoch | None = field(default=None, compare=False)
    """In the record with which a run claims the table: the epoch after which it began."""
    first: Epoch | None = field(default=None, compare=False)
    """The first epoch of the rows that are added with the record, if there are some."""

    def covers(self, staged: StagedFiles) -> bool:
        """Whether these rows are or were in the table."""
        return staged.generation <= self.generation and staged.epoch <= self.epoch


class TableFormat(Sink):
    """A sink's access to a table. `table` is an object of the format's library, loaded for one attempt."""

    _where: str
    """The sink and its table, for messages."""
    _context: SinkContext | None = None

    @abstractmethod
    def load(self) -> Any:
        """Return the present table; None if there is none."""

    @abstractmethod
    def create(self, columns: pa.Schema) -> None:
        """Create the table, unless another writer creates it at the same time."""

    @abstractmethod
    def layout(self, table: Any, columns: pa.Schema, key: Sequence[str]) -> tuple[FileLayout, list[pa.Field]]:
        """Return the layout for rows of these columns, merged by key or added, and the columns that the table lacks.

        Raises ConfigurationError if the table cannot hold the rows.
        """

    @abstractmethod
    def check_creatable(self, columns: pa.Schema) -> None:
        """Raise ConfigurationError if a table with these columns cannot be created."""

    @abstractmethod
    def add_columns(self, table: Any, columns: Sequence[pa.Field]) -> None:
        """Add columns to the table."""

    @abstractmethod
    def place_of(self, table: Any) -> Place | None:
        """Return the place of the table's files; None if it is unknown until the table exists."""

    @abstractmethod
    def record(self, table: Any, identity: str = "") -> CommitRecord | None:
        """Return the table's record of this sink, or of the sink with another identity."""

    @abstractmethod
    def begins(self, table: Any, identity: str = "") -> list[Begin]:
        """Return the begins of the sink's runs; those of `record.begin` are added to them in `commit_files`."""

    @abstractmethod
    def in_effect(self, table: Any) -> CommitRecord | None:
        """Return the record that matches the table's rows: an older one, or None, if only the rows were put back."""

    @abstractmethod
    def knows(self, table: Any, context: SinkContext) -> bool:
        """Whether a sink of this name of a job of this name has written to the table, in any life."""

    @abstractmethod
    def commit_files(
        self, table: Any, record: CommitRecord, files: Sequence[DataFile], after: Epoch | None = None
    ) -> None:
        """In one transaction: add the files, and replace the loaded record.

        With `after`, remove the files of later epochs that older runs of this sink have added. Fails with a conflict if
        another transaction has changed the record since the table was loaded.
        """

    @abstractmethod
    def commit_rows(
        self,
        table: Any,
        record: CommitRecord,
        rows: pa.Table,
        gone: pa.Table,
        key: Sequence[str],
        *,
        goes_back: bool = False,
    ) -> None:
        """In one transaction: replace rows with the same key, delete those with the keys of `gone`, and the record.

        No key is there twice. Keys are equal as in GROUP BY, where null is equal to null. `goes_back`: it takes back
        transactions, also of removed sinks, whose records it replaces as well.
        """

    @abstractmethod
    def changes_after(self, table: Any, epoch: Epoch) -> Iterator[Change]:
        """Yield the changes of later transactions of this sink and of removed ones, the newest first.

        Raises NotUndoableError if they are not known any more, or if one of them has rows of earlier epochs, too.
        """

    @abstractmethod
    def is_conflict(self, error: Exception) -> bool:
        """Whether another writer was faster: another attempt on the reloaded table may succeed."""

    @abstractmethod
    def may_pass(self, error: Exception) -> bool:
        """Whether the table is unavailable, so that another attempt may succeed."""

    @abstractmethod
    def words(self, error: Exception) -> str:
        """Return a library's error as one line, without secrets."""

    def next_step(self, error: Exception) -> str:
        """Return the hint for an error that does not pass."""
        return "waiting rows stay staged"

    def committed(self, table: Any) -> None:
        """After a transaction: make it durable, and compact small files."""

    def _attempt(self, act: Callable[[Any], T], patience_s: float) -> T:
        """Call `act` with the loaded table until it succeeds or fails for good, or raise UnavailableError in the end.

        If the answer to a transaction is lost, the record tells whether it was committed.
        """
        delay_s, until, conflicts = _FIRST_DELAY_S, time.monotonic() + patience_s, 0
        while True:
            try:
                return act(self.load())
            except ConflictError as error:
                reason, conflicts = error.message, conflicts + 1
            except UnavailableError as error:
                reason = error.message
            except StrandlineError:
                raise
            except Exception as error:
                reason = self.words(error)
                if is_access_error(error):
                    raise AccessError(
                        f"{self._where}: access was refused: {reason}", hint="check storage and catalog credentials"
                    ) from None
                if self.is_conflict(error):
                    conflicts += 1
                elif _TOO_LONG.search(str(error)):
                    raise SinkError(
                        f"{self._where}: the text of a partition column is too long for a path: {reason}",
                        hint="waiting rows stay staged; partition the table by another column",
                    ) from error
                elif not self.may_pass(error):
                    raise SinkError(f"{self._where}: {reason}", hint=self.next_step(error)) from error
            # After a conflict the table is available, however slow it is.
            if time.monotonic() + delay_s > until and not 0 < conflicts <= _CONFLICTS:
                raise UnavailableError(f"{self._where}: {reason}")
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    @property
    def _label(self) -> str:
        return f"sink '{self._opened.sink}' of job '{self._opened.job}'"

    @property
    def fsync(self) -> bool:
        """Whether written files must survive a power failure of this machine."""
        return self._context is None or self._context.fsync

    @property
    def _opened(self) -> SinkContext:
        assert self._context is not None, "the sink was not opened"
        return self._context
