"""Thread that sends a partition's rows of an epoch to its keeper, with a proof that none is missing."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from strandline.core.errors import KeeperError
from strandline.keeper import protocol as p
from strandline.keeper.protocol import Connection
from strandline.keeper.rowproof import RowCounter
from strandline.runtime.rowlayout import split_end


class Feeder(threading.Thread):
    """Sends a partition's rows to its keeper while the output comes back, and END after the last row.

    In a replay, the keeper already has the rows and gets only the proof. Without the end row (see `exchange.py`), no
    END is sent, and the keeper discards the rows.
    """

    def __init__(
        self,
        connection: Connection,
        first: pa.RecordBatch,
        rest: Iterator[pa.RecordBatch],
        epoch: int,
        *,
        is_replay: bool,
    ) -> None:
        super().__init__(name="strandline-feed", daemon=True)
        self._connection = connection
        self._batches = itertools.chain([first], rest)
        self._epoch = epoch
        self._is_replay = is_replay
        self._error: Exception | None = None

    def run(self) -> None:
        """Send the rows; an error closes the connection, so that the keeper and the receiving thread fail, too."""
        try:
            counter = RowCounter()
            for rows in self._rows():
                counter.add(rows.column(0))
                if not self._is_replay:
                    self._send(p.ROWS, rows.serialize())
            self._send(p.END, counter.proof)
        except _GoneError:
            # The keeper is dead or has sent a FAILED frame: the receiving thread raises the error.
            pass
        except Exception as error:
            self._error = error
            self._connection.close()

    def raise_error(self) -> None:
        """Raise the error that ended this thread, if there is one."""
        if self._error is not None:
            raise self._error

    def _rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows without the end row; raise an error if the end row is missing or not the last."""
        has_ended = False
        for batch in self._batches:
            rows, ends = split_end(batch)
            if rows.num_rows and (has_ended or (ends and rows.column(0).null_count)):
                raise KeeperError(f"epoch {self._epoch}: rows came after the row that marks their end")
            has_ended = has_ended or ends
            if rows.num_rows:
                yield rows
        if not has_ended:
            raise KeeperError(
                f"epoch {self._epoch}: the rows of a partition broke off: the row that marks their end did not come",
                hint="Spark failed while it gave them, and runs the task again: its log says why; if it did not fail, "
                "something else in the session has changed how Spark plans the shuffle",
            )

    def _send(self, kind: int, payload: Any) -> None:
        try:
            self._connection.send(kind, payload)
        except OSError as error:
            raise _GoneError from error


class _GoneError(Exception):
    """The connection to the keeper is closed."""
