"""A job in miniature: snapshots are small random files, checkpoints go through the real layers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from strandline.api.config import Checkpoints
from strandline.backends.base import LocalFile
from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.generation import Claim, claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.kinds import kind_of
from strandline.checkpoint.restore import Choice, choose
from strandline.checkpoint.retention import Holds
from strandline.checkpoint.source_log import upload_source
from strandline.checkpoint.upload import upload
from strandline.core.clock import Clock, SystemClock
from strandline.core.ids import CheckpointId, Epoch, Generation, Partition
from strandline.core.keygroups import range_of
from strandline.core.settings import Mode
from strandline.format.manifest import FileRef, Manifest, OperatorInfo, PartitionInfo, SinkInfo, StateInfo
from strandline.storage.base import ObjectStore
from tests.clock import ManualClock

HOUR_MS = 3_600_000
LIFE = "0123456789abcdef" * 2


def late_clock() -> ManualClock:
    """A clock for which everything just written is two hours old."""
    return ManualClock(SystemClock().now_ms() + 2 * HOUR_MS)


def every_epoch(**given: Any) -> Checkpoints:
    """Each epoch ends with a checkpoint. Where they lie is said by the job's directory that a test gives."""
    return Checkpoints("unused", every="0s", **given)


def plan(uid: str = "detect", parallelism: int = 2) -> OperatorInfo:
    return OperatorInfo(
        uid=uid, backend="rocksdb", parallelism=parallelism, max_parallelism=max(128, parallelism),
        key_schema="producer string",
        states=[StateInfo(name="seen", kind="value", value_type="bigint")], partitions=[],
    )  # fmt: skip


def part_of(operator: OperatorInfo, index: int, files: list[FileRef], **more: Any) -> PartitionInfo:
    groups = range_of(Partition(index), operator.max_parallelism, operator.parallelism)
    return PartitionInfo(
        index=Partition(index), first_key_group=groups.start, last_key_group=groups.stop - 1, files=files, **more
    )


def shared_ref(path: str, data: bytes = b"") -> FileRef:
    return FileRef(name=path, size=len(data), sha256=hashlib.sha256(data).hexdigest(), path=path, shared=True)


def manifest(
    checkpoint: int, files: list[FileRef] = [], generation: int = 1, job: str = "job", epoch: int = 0  # noqa: B006
) -> Manifest:  # fmt: skip
    partition = PartitionInfo(index=Partition(0), first_key_group=0, last_key_group=127, files=files)
    operator = OperatorInfo(
        uid="detect", backend="rocksdb", parallelism=1, max_parallelism=128, key_schema="k string", states=[],
        partitions=[partition],
    )  # fmt: skip
    return Manifest(
        job=job, generation=Generation(generation), checkpoint=CheckpointId(checkpoint),
        epoch=Epoch(epoch or checkpoint * 10), mode="incremental", created_ms=1_700_000_000_000, engine_version="0.1.0", life=LIFE, operators=[operator],
    )  # fmt: skip


class Run:
    """One run of a driver with its keepers: claims, restores, and takes checkpoints with real files."""

    def __init__(
        self,
        store: ObjectStore,
        tmp: Path,
        clock: Clock,
        *,
        config: Checkpoints | None = None,
        operators: list[OperatorInfo] | None = None,
        seed: int = 0,
        name: str = "job",
        first_id: int = 0,
        source_bytes: int = 200_000,
        holds: Holds | None = None,
    ) -> None:
        self.jobdir = JobDirectory(store, name)
        self.rng = random.Random(seed)
        self.tmp = tmp / f"run-{self.rng.getrandbits(64):x}"
        self.config = config or every_epoch()
        self.operators = operators or [plan()]
        self.claim: Claim = claim(self.jobdir, clock)
        restored, own, depends_on = self.restore()
        self.committed: list[int] = []
        if own is not None:
            self.committed.append(own.checkpoint)
        next_id = CheckpointId(max(self.choice.next_id, first_id))
        self.coordinator = Coordinator(
            self.jobdir, self.claim, self.config, clock, next_id, own, self.operators, self.commit_sinks, depends_on,
            holds or Holds(),
        )  # fmt: skip
        self.epoch = restored.epoch if restored else 0
        self.files: dict[tuple[str, int], dict[str, bytes]] = {
            (p.uid, i): {} for p in self.operators for i in range(p.parallelism)
        }
        self.numbers = 0
        self.source = {
            "metadata": b"{" + b" " * (source_bytes // 700) + b"}",
            "sources/0/9.compact": self.rng.randbytes(source_bytes),
        }

    def restore(self) -> tuple[Manifest | None, Manifest | None, str]:
        """Choose, and record the choice; return what is restored, the same if it is the job's own, or where it is."""
        self.choice: Choice = choose(self.jobdir, self.claim)
        restored = self.choice.manifest
        self.claim.set_base(CheckpointId(restored.checkpoint) if restored else None)
        return restored, restored, ""

    def commit_sinks(self, manifest: Manifest) -> None:
        self.committed.append(manifest.checkpoint)

    def change(self, uid: str, partition: int) -> None:
        """Let the state change: some files are compacted away, some are new."""
        files = self.files[uid, partition]
        for name in [n for n in files if self.rng.random() < 0.3]:
            del files[name]
        for _ in range(self.rng.randint(1, 3)):
            self.numbers += 1
            # As a backend's names, whatever the seed: no name ever has two contents.
            files[f"{self.numbers:06d}-{self.claim.generation}.sst"] = self.rng.randbytes(self.rng.randint(1, 400))

    def local_files(self, uid: str, partition: int) -> list[LocalFile]:
        directory = self.tmp / f"{uid}-{partition}-{self.rng.getrandbits(64):x}"
        directory.mkdir(parents=True)
        files = {**self.files[uid, partition], "CURRENT": b"MANIFEST-%d" % self.epoch}
        for name, data in files.items():
            (directory / name).write_bytes(data)
        return [LocalFile(n, directory / n, len(d), n.endswith(".sst")) for n, d in files.items()]

    def base_of(self, uid: str, partition: int) -> dict[str, FileRef]:
        confirmed = self.coordinator.confirmed
        if confirmed is None:
            return {}
        return {
            f.name: f
            for o in confirmed.operators if o.uid == uid
            for p in o.partitions if p.index == partition
            for f in p.files
        }  # fmt: skip

    def snapshot(self, uid: str, partition: int, checkpoint: CheckpointId, mode: Mode = "incremental") -> PartitionInfo:
        refs, uploaded_bytes = upload(
            self.jobdir, self.local_files(uid, partition), checkpoint, self.base_of(uid, partition), kind_of(mode)
        )
        (operator,) = (one for one in self.operators if one.uid == uid)
        return part_of(operator, partition, refs, sync_ms=1.0, async_ms=2.0, uploaded_bytes=uploaded_bytes)

    def trigger(self) -> CheckpointId | None:
        self.epoch += 1
        return self.coordinator.trigger(Epoch(self.epoch))

    def begin(self) -> CheckpointId:
        """Trigger a checkpoint, which begins."""
        checkpoint = self.trigger()
        assert checkpoint is not None
        return checkpoint

    @property
    def confirmed(self) -> Manifest:
        """The newest checkpoint that is complete; there is one."""
        assert self.coordinator.confirmed is not None
        return self.coordinator.confirmed

    @property
    def restored(self) -> Manifest:
        """What it was begun with."""
        assert self.choice.manifest is not None
        return self.choice.manifest

    def deliver(self, checkpoint: CheckpointId) -> None:
        for uid, partition in self.files:
            self.change(uid, partition)
            info = self.snapshot(uid, partition, checkpoint, self.config.mode)
            self.coordinator.report(uid, Partition(partition), checkpoint, info)
        self.deliver_rest(checkpoint)

    def deliver_rest(self, checkpoint: CheckpointId) -> None:
        self.source["sources/0/9.compact"] += self.rng.randbytes(len(self.source["metadata"]) * 100)
        confirmed = self.coordinator.confirmed
        base = confirmed.source if confirmed else None
        source = upload_source(self.jobdir, self.source, checkpoint, self.epoch, base)
        self.coordinator.add_source(checkpoint, source)
        sinks = [SinkInfo(name="out", pending=[f"epoch-{self.epoch}"])]
        self.coordinator.add_sinks(checkpoint, sinks, {"watermark": self.epoch * 1000})

    def checkpoint(self) -> CheckpointId:
        """Take one checkpoint, all the way."""
        checkpoint = self.begin()
        self.deliver(checkpoint)
        assert self.coordinator.advance() == checkpoint
        return checkpoint


def stored(jobdir: JobDirectory) -> set[str]:
    return {info.path for info in jobdir.list() if not info.path.startswith("generations/")}


def assert_restorable(jobdir: JobDirectory, manifest: Mapping[str, bytes] | Manifest) -> None:
    """Every file the manifest references is there with the right bytes."""
    assert isinstance(manifest, Manifest)
    for file in manifest.files():
        data = file.inline if file.inline is not None else jobdir.get(file.path)
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size, file.sha256), file


def damage_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the read of each file that is sent to a store give one other byte than reads before it."""
    real = Folder.put_file

    def put_file(self: Folder, path: str, source: Path) -> str:
        data = source.read_bytes()
        source.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        return real(self, path, source)

    monkeypatch.setattr(Folder, "put_file", put_file)
