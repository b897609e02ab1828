"""One operator partition, epoch by epoch: the only code that drives a task. Keepers use it, the harness, and tests."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

import pyarrow as pa

from strandline.core.errors import UserCodeError
from strandline.core.ids import Epoch
from strandline.runtime.state.lookups import LookupEntries, LookupRequest
from strandline.runtime.task.task import EpochTimes, Task


class OperatorPartition:
    """A task, and the version of its state: the last epoch that it has kept.

    An epoch is `run` to the end of its output and then kept by `commit`, or forgotten by `abort` wherever it stopped.
    If one of these two raises, the state is of no epoch.
    """

    def __init__(self, task: Task, version: Epoch) -> None:
        self.task = task
        self.version = version
        self._running = version

    def run(
        self, epoch: Epoch, times: EpochTimes, rows: Iterable[pa.RecordBatch]
    ) -> Generator[pa.RecordBatch, None, None]:
        """Give what an epoch's rows and timers give, in batches that are not empty. Close it before `abort`."""
        task, self._running = self.task, epoch
        # 1. What is due comes before the epoch's rows, unless rows that timers gave further up come before that.
        task.begin(epoch, times)
        try:
            yield from _not_empty(task.fire())
            # 2. The rows.
            for batch in rows:
                yield from _not_empty(task.process(batch))
                task.store.evict()
            # 3. What was only gathered so far.
            yield from _not_empty(task.finish())
        except UserCodeError as error:
            # The function may have failed at what it made of state that could not be read. For memory, it has a hint.
            if not isinstance(error.__cause__, MemoryError):
                task.store.check_reads()
            raise
        # 4. Whatever could refuse the epoch has to do so now.
        task.store.check()
        task.look_for_unsaved()

    def commit(self) -> None:
        """Keep the epoch that has run."""
        with self.task.store.turns.writing():
            self.task.commit()
            self.version = self._running
        self.task.store.tidy()

    def abort(self) -> None:
        """Forget the epoch that runs, or has run: the state is that of `version`."""
        with self.task.store.turns.writing():
            self.task.abort()

    def look_up(self, request: LookupRequest) -> LookupEntries | None:
        """Return what the last kept epoch left of some keys. In any thread, also while an epoch runs.

        None: the state changed whenever it was tried. In the thread that runs the epochs it never does.
        """
        return self.task.store.turns.read(lambda: self.task.look_up(request, self.version))


def _not_empty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch for batch in batches if batch.num_rows)
