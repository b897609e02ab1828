"""All partitions of one operator, restored again and again from their own snapshots, at any parallelism."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from strandline.api.states import TTL, Value
from strandline.backends.reading import file_kind, open_reader
from strandline.checkpoint.folder import folder_at
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import fetch
from strandline.core.ids import CheckpointId, Epoch, Generation, Partition
from strandline.core.keygroups import group_of, partition_of, range_of
from strandline.format.manifest import MANIFEST, Manifest, OperatorInfo, PartitionInfo
from strandline.keeper import opening
from strandline.runtime.program import Program, Restore, state_infos
from strandline.runtime.task.task import EpochTimes
from strandline.snapshot.opening.snapshot import METADATA
from strandline.snapshot.savepoints.take import Form, take_savepoint
from strandline.storage.place import Place
from tests.runtime.bench import MAX_PARALLELISM, Event, Everything, batch_of, program
from tests.runtime.clients import eventually
from tests.soak import MODE

NOW_US = 1_700_000_000_000_000
KEYS = [f"k{n}" for n in range(60)]


class Timed(Everything):
    """Everything, with a timer for each key, and a state that expires."""

    short = Value("bigint", ttl=TTL("1h"))

    def on_event(self, event: Any, ctx: Any) -> Any:
        ctx.timers.set_processing(ctx.now + dt.timedelta(days=1))
        self.short.value = event.a
        yield from super().on_event(event, ctx)

    def on_timer(self, timer: Any, ctx: Any) -> None:
        pass


class Job:
    """All partitions of one operator, restored again and again from their own snapshots."""

    def __init__(self, root: Path, storage: Place | None = None) -> None:
        """`storage` is where snapshots go, if not into a folder of `root`."""
        self.root = root
        self.storage = storage or Place(url=f"file://{root}/storage")
        self.epoch = 0
        self.generation = 0
        self.number = 0
        """Of the newest checkpoint."""
        self.mode: Any = MODE
        self.restore: Restore | None = None
        self.opened: list[opening.OpenPartition] = []

    def program(self, **run: Any) -> Program:
        """Return what partitions are told; `run` is what differs from start to start."""
        return program(Timed(), mode=self.mode, **run)

    def info(self) -> OperatorInfo:
        """Return what manifests say of the operator, without its partitions."""
        return OperatorInfo(
            uid="op", backend=self.opened[0].program.backend, parallelism=self.parallelism,
            max_parallelism=MAX_PARALLELISM, key_schema="`k` string", states=state_infos(Timed()), partitions=[],
        )  # fmt: skip

    def start(self, parallelism: int, backend: str) -> None:
        self.generation += 1
        wanted = self.program(
            store_url=self.storage.url, store_options=self.storage.options, backend=backend, parallelism=parallelism,
            generation=self.generation, restore=self.restore,
        )  # fmt: skip
        self.parallelism = parallelism
        for index in range(parallelism):
            directory = self.root / "local" / f"op-{index}"
            self.opened.append(opening.open_partition(wanted, Partition(index), directory, ""))

    def run(self, events: Sequence[Event]) -> list[tuple[Any, ...]]:
        """Process an epoch; return the answers."""
        self.epoch += 1
        batch, found = batch_of(events), []
        groups = batch.column(0).to_pylist()
        for index, opened in enumerate(self.opened):
            mine = [partition_of(group, MAX_PARALLELISM, self.parallelism) == index for group in groups]
            batches = [batch.filter(pa.array(mine, pa.bool_()))]
            for output in opened.partition.run(Epoch(self.epoch), EpochTimes(now_us=NOW_US), batches):
                found += [tuple(row.values()) for row in output.to_pylist()]
            opened.partition.commit()
        return found

    def checkpoint(self) -> None:
        self.trigger()
        self.gather()

    def trigger(self) -> None:
        """Begin a checkpoint."""
        self.number += 1
        for opened in self.opened:
            opened.snapshots.trigger(CheckpointId(self.number), Epoch(self.epoch))

    def gather(self) -> None:
        """Wait until the checkpoint is stored."""
        parts: list[PartitionInfo] = []
        for opened in self.opened:
            (report,) = eventually(opened.snapshots.reports, "a report")
            assert report.info is not None, report.failure
            parts.append(report.info)
            opened.snapshots.apply_driver_state(CheckpointId(self.number), [])
        stored = replace(self.info(), partitions=parts)
        self.restore = Restore(checkpoint=CheckpointId(self.number), epoch=Epoch(self.epoch), stored=stored)

    @property
    def stored(self) -> OperatorInfo:
        """What the newest snapshot holds."""
        assert self.restore is not None
        assert self.restore.stored is not None
        return self.restore.stored

    def manifest(self) -> Manifest:
        """Return the newest snapshot's, as a job of this one operator would publish it."""
        assert self.restore is not None
        return Manifest(
            job="job", generation=Generation(self.generation), checkpoint=self.restore.checkpoint,
            epoch=self.restore.epoch, mode="incremental", created_ms=NOW_US // 1000, triggered_ms=NOW_US // 1000,
            engine_version="0", life="0" * 32, operators=[self.stored],
        )  # fmt: skip

    def go_through_savepoint(self, form: Form) -> None:
        """Go on from a savepoint of the newest snapshot, which is gone then, with all local copies."""
        folder = f"savepoint-{self.generation}"
        target = Place(url=self.root.as_uri(), path=folder)
        take_savepoint(self.manifest(), self.place, target, form)
        shutil.rmtree(self.root / "storage")
        shutil.rmtree(self.root / "local")
        (self.root / folder).rename(self.root / f"moved-{folder}")
        self.restore_savepoint(f"moved-{folder}")

    @property
    def place(self) -> Place:
        """Where its snapshots are."""
        return replace(self.storage, path="job")

    def restore_savepoint(self, folder: str) -> None:
        """Go on from the savepoint in this folder."""
        self.restore_from(Place(url=self.root.as_uri(), path=folder))

    def restore_from(self, place: Place) -> None:
        """Go on from the savepoint that is there."""
        manifest = folder_at(place).read(METADATA, MANIFEST.decode)
        self.restore = Restore(
            checkpoint=manifest.checkpoint, epoch=manifest.epoch, stored=manifest.operators[0],
            place=place,
        )  # fmt: skip

    def stop(self) -> None:
        for opened in self.opened:
            opened.snapshots.close()
            opened.partition.task.close()
            opened.snapshots._backend.close()
        self.opened = []

    def entries(self) -> dict[str, list[tuple[bytes, bytes]]]:
        """Return all that the newest snapshot holds, by state; each partition's within its key groups."""
        assert self.restore is not None
        store = JobDirectory(self.storage.store(), "job")
        found: dict[str, list[tuple[bytes, bytes]]] = {}
        for part in self.stored.partitions:
            fetch(store, part.files, self.root / "look")
            reader = open_reader(file_kind(self.stored.backend), self.root / "look")
            groups = range_of(part.index, MAX_PARALLELISM, self.parallelism)
            for state in reader.states:
                entries = list(reader.scan(state, range(MAX_PARALLELISM)))
                assert all(group_of(key) in groups for key, _ in entries)
                found.setdefault(state, []).extend(entries)
            reader.close()
            shutil.rmtree(self.root / "look")
        return found
