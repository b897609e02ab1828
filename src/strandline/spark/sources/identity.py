"""Checks, before a checkpoint is published, that its rows are of the topics and tables that its positions are in."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from strandline.core.errors import UnavailableError

log = logging.getLogger(__name__)

_RETRY_S = 0.5
"""The pause between checks while a source's system does not answer."""

Comparison = Callable[[int, Mapping[str, bytes]], None]
"""Compares the ids that Spark's files as of a batch have with the present ones. Raises ConfigurationError or
ConflictError if one has changed, and UnavailableError if it is not known yet."""


class IdentityChecks:
    """Runs comparisons of ids in a thread, once for each batch.

    A topic or table that is deleted and recreated has another id, and positions in the old one mean other rows. If the
    id is equal after the batch was read, it was equal while it was read, since ids are not used again.
    """

    def __init__(self, comparisons: Sequence[Comparison]) -> None:
        self._comparisons = comparisons
        self._checked = -1
        self._pending: tuple[int, Future[None]] | None = None
        self._is_closed = threading.Event()

    def check(self, batch: int, files: Mapping[str, bytes]) -> bool:
        """Whether the rows up to a batch are of what a checkpoint with these files names.

        Returns False until the thread has an answer. Raises ConfigurationError or ConflictError if a topic or table
        was recreated; the job restarts after the latter.
        """
        if batch <= self._checked or not self._comparisons:
            return True
        if self._pending is None or self._pending[0] != batch:
            self._pending = batch, Future()
            thread = threading.Thread(target=self._run, args=(*self._pending, files), daemon=True)
            thread.name = "strandline-source-ids"
            thread.start()
        _, answer = self._pending
        if not answer.done():
            return False
        self._pending = None
        answer.result()
        self._checked = batch
        return True

    def close(self) -> None:
        """End the thread's requests."""
        self._is_closed.set()

    def _run(self, batch: int, answer: Future[None], files: Mapping[str, bytes]) -> None:
        is_logged = False
        # The result is not needed if the checkpoint has failed meanwhile.
        while not self._is_closed.is_set() and self._pending == (batch, answer):
            try:
                for compare in self._comparisons:
                    compare(batch, files)
                answer.set_result(None)
                return
            except UnavailableError as error:
                if not is_logged:
                    log.warning("a checkpoint waits: %s", error)
                is_logged = True
                self._is_closed.wait(_RETRY_S)
            except BaseException as error:
                answer.set_exception(error)
                return
