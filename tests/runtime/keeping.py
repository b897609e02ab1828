"""One partition in this process, whose snapshots the test takes, publishes and restores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strandline.core.ids import CheckpointId, Epoch, Partition
from strandline.core.settings import Mode
from strandline.format.manifest import PartitionInfo
from strandline.keeper import opening
from strandline.runtime.program import Restore
from tests.runtime.bench import program
from tests.runtime.clients import Counter, count_events, eventually, restore_of


class Keeping:
    """One partition in this process, and what its driver would know of it."""

    def __init__(self, root: Path, mode: Mode = "changelog", **limits: Any) -> None:
        """`limits` are those of the modes' logs, as a program has them."""
        self.root = root
        self.mode: Mode = mode
        self.limits = limits
        self.generation = self.epoch = self.checkpoint = 0
        self.confirmed: CheckpointId | None = None
        self.info: PartitionInfo | None = None
        """Of the newest published checkpoint."""
        self.restored: Restore | None = None
        self.expected: dict[str, int] = {}
        self.at_checkpoint: dict[str, int] = {}
        self.opened: opening.OpenPartition | None = None
        self.start()

    def start(self) -> None:
        self.generation += 1
        wanted = program(
            Counter(), store_url=f"file://{self.root}/storage", generation=self.generation, restore=self.restored,
            mode=self.mode, **self.limits,
        )  # fmt: skip
        self.epoch = self.restored.epoch if self.restored else 0
        self.opened = opening.open_partition(wanted, Partition(0), self.root / "local" / "op-0", "")

    @property
    def partition(self) -> opening.OpenPartition:
        assert self.opened is not None
        return self.opened

    def run(self, *keys: str) -> None:
        """Count an event of each key, and check the counts."""
        self.epoch += 1
        count_events(self.partition.partition, self.epoch, self.expected, keys)

    def take(self, *, published: bool = True) -> PartitionInfo | None:
        """Take a checkpoint; without `published`, another partition fails it. Return None if this one failed."""
        self.checkpoint += 1
        number, snapshots = CheckpointId(self.checkpoint), self.partition.snapshots
        snapshots.apply_driver_state(self.confirmed, [number])
        snapshots.trigger(number, Epoch(self.epoch))
        (report,) = eventually(snapshots.reports, "a report")
        if report.info is None:
            snapshots.apply_driver_state(self.confirmed, [])
            return None
        info: PartitionInfo = report.info
        if published:
            self.confirmed, self.info = number, info
            stored = restore_of(report, self.epoch).stored
            self.restored = Restore(checkpoint=number, epoch=Epoch(self.epoch), stored=stored)
            self.at_checkpoint = dict(self.expected)
        snapshots.apply_driver_state(self.confirmed, [])
        return info

    def go_back(self) -> None:
        """Restore the newest published checkpoint, as a new keeper does."""
        self.close()
        self.opened.partition.task.store._backend.close()
        self.expected = dict(self.at_checkpoint)
        self.start()

    def close(self) -> None:
        self.partition.snapshots.close()
        if self.partition.restoring is not None:
            # Their verification may not have begun.
            self.partition.restoring.unverified.clear()

    def wait_for_the_base(self) -> None:
        """Wait until the upload of the next base has ended."""
        self.partition.snapshots._base_uploader.submit(int).result()
