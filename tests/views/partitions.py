"""All partitions of an operator of a view, restored again and again at any parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.core.ids import Epoch
from strandline.core.keygroups import partition_of
from strandline.format.manifest import OperatorInfo
from strandline.runtime.program import Program, state_infos
from strandline.runtime.task.task import EpochTimes
from tests.runtime.bench import MAX_PARALLELISM, program
from tests.runtime.rescaling import Job
from tests.views.operators import KEY, Shape, evict_all

Rows = list[tuple[Any, ...]]


class Partitions(Job):
    """All partitions of an operator."""

    def __init__(self, root: Path, shape: Shape) -> None:
        super().__init__(root)
        self.shape = shape

    def program(self, **run: Any) -> Program:
        return program(self.shape.process, mode=self.mode, **self.shape.program(), **run)

    def info(self) -> OperatorInfo:
        return OperatorInfo(
            uid="op", backend=self.opened[0].program.backend, parallelism=self.parallelism,
            max_parallelism=MAX_PARALLELISM, key_schema=f"`{KEY}` {self.shape.key_type}",
            states=state_infos(self.shape.process), partitions=[],
        )  # fmt: skip

    def epoch_of(self, batches: Sequence[Sequence[tuple[Any, ...]]], times: EpochTimes | None = None) -> Rows:
        """Process an epoch; return the output of all partitions."""
        found = self.attempt(batches, times=times)
        self.commit()
        return found

    def attempt(
        self,
        batches: Sequence[Sequence[tuple[Any, ...]]],
        *,
        most: int | None = None,
        times: EpochTimes | None = None,
        fired: Sequence[tuple[Any, ...]] = (),
    ) -> Rows:
        """Process an epoch, which is to be committed or aborted; stop after so many batches of output, if given.

        `fired`: rows that timers of an operator before give.
        """
        made = [self.shape.batch(fired, fired=True)] * bool(fired) + [self.shape.batch(rows) for rows in batches]
        found: Rows = []
        for index, opened in enumerate(self.opened):
            mine = [batch.filter(self._of(index, batch.column(0))) for batch in made]
            output = opened.partition.run(Epoch(self.epoch + 1), times or EpochTimes(), mine)
            for number, batch in enumerate(output):
                if number == most:
                    break
                found += [tuple(row.values()) for row in batch.to_pylist()]
            output.close()
        return found

    def _of(self, index: int, groups: pa.Array) -> pa.Array:
        mine = [partition_of(group, MAX_PARALLELISM, self.parallelism) == index for group in groups.to_pylist()]
        return pa.array(mine, pa.bool_())

    def commit(self) -> None:
        """Keep the epoch."""
        self.epoch += 1
        for opened in self.opened:
            opened.partition.commit()

    def abort(self) -> None:
        """Forget the epoch."""
        for opened in self.opened:
            opened.partition.abort()

    def write_behind(self) -> None:
        """Have the changes so far written to the backends."""
        for opened in self.opened:
            opened.snapshots._write_behind_bytes = 0
            opened.snapshots.write_behind(opened.partition.version)

    def keep_nothing_in_memory(self, really: bool) -> None:
        """Have the caches of states evicted, or not."""
        for opened in self.opened:
            evict_all(opened.partition.task.store, really=really)

    def go_back(self) -> None:
        """Be what the newest checkpoint has; start() follows."""
        self.epoch = 0 if self.restore is None else int(self.restore.epoch)
