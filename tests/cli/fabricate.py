"""A checkpoint directory as a job leaves it, made through the checkpoint layer's own functions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from strandline.api.config import Checkpoints
from strandline.backends.base import LocalFile
from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.generation import claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.kinds import kind_of
from strandline.checkpoint.restore import choose
from strandline.checkpoint.source_log import upload_source
from strandline.checkpoint.upload import upload
from strandline.core.clock import SystemClock
from strandline.core.ids import CheckpointId, Epoch, Partition
from strandline.core.keygroups import range_of
from strandline.format.manifest import OperatorInfo, PartitionInfo, SinkInfo, StateInfo, TTLInfo
from strandline.storage.remote import open_store

WATERMARKS = {"watermark": 1_700_000_000_123_456, "0/": 1_700_000_010_000_000, "1/eu": 1_700_000_020_000_000}
STATES = [
    StateInfo(
        name="seen", kind="value", value_type="bigint", ttl=TTLInfo(duration_ms=90_000, refresh="read", time="event")
    ),
    StateInfo(name="by_kind", kind="map", key_type="string", value_type="array<double>"),
]


class FabricatedJob:
    """One generation of a driver of one operator `detect` with two partitions, its snapshots being random files."""

    def __init__(self, directory: Path, name: str = "alerts", *, retain: int = 2, seed: int = 0) -> None:
        self.directory = directory
        self.jobdir = JobDirectory(open_store(str(directory)), name)
        self._rng = random.Random(seed)
        self._local = directory.parent / f"local-{name}-{seed}"
        self._claim = claim(self.jobdir, SystemClock())
        choice = choose(self.jobdir, self._claim)
        restored = choice.manifest
        self._claim.set_base(CheckpointId(restored.checkpoint) if restored else None)
        self.epoch = restored.epoch if restored else 0
        plan = OperatorInfo(
            uid="detect",
            backend="rocksdb",
            parallelism=2,
            max_parallelism=128,
            key_schema="user string",
            states=STATES,
            partitions=[],
        )
        self.coordinator = Coordinator(
            self.jobdir, self._claim, Checkpoints(directory, every=0, retain=retain), SystemClock(),
            choice.next_id, restored, [plan], lambda _: None,
        )  # fmt: skip

    def checkpoint(self) -> CheckpointId:
        """Take a checkpoint; the one before it is its base."""
        self.epoch += 10
        checkpoint = self.coordinator.trigger(Epoch(self.epoch))
        assert checkpoint is not None
        for partition in range(2):
            self.coordinator.report("detect", partition, checkpoint, self._snapshot(partition, checkpoint))
        confirmed = self.coordinator.confirmed
        source = upload_source(
            self.jobdir, {"metadata": b"{}", "sources/0/9.compact": bytes(200_000)}, checkpoint, self.epoch,
            confirmed.source if confirmed else None, ["clicks", "orders"],
        )  # fmt: skip
        self.coordinator.add_source(checkpoint, source)
        sinks = [SinkInfo(name="out", pending=["epoch-1", "epoch-2"])]
        self.coordinator.add_sinks(checkpoint, sinks, WATERMARKS)
        assert self.coordinator.advance() == checkpoint
        return checkpoint

    def leave_garbage(self) -> Path:
        """Upload a file for a checkpoint that is never published; return where it is."""
        before = set(self.files())
        self._snapshot(0, CheckpointId(999), names=["lost.sst"])
        (path,) = set(self.files()) - before
        return path

    def files(self) -> list[Path]:
        """Return every shared file on disk."""
        return [path for path in (self.directory / self.jobdir.job / "shared").rglob("*") if path.is_file()]

    def path_of(self, checkpoint: CheckpointId, partition: int) -> Path:
        """Return a file of a partition that this checkpoint alone has brought."""
        manifest = self.coordinator.confirmed
        files = manifest.operators[0].partitions[partition].files
        ref = next(f for f in files if f.name == f"{partition}-{checkpoint}.sst")
        return self.directory / self.jobdir.job / ref.path

    def _snapshot(self, partition: int, checkpoint: CheckpointId, names: list[str] | None = None) -> PartitionInfo:
        confirmed = self.coordinator.confirmed
        before = confirmed.operators[0].partitions[partition].files if confirmed and names is None else []
        base = {ref.name: ref for ref in before if ref.shared}
        files = [LocalFile(ref.name, self._local / ref.name, ref.size, shared=True) for ref in base.values()]
        files += [self._file(name, 5000, True) for name in names or [f"{partition}-{checkpoint}.sst"]]
        if names is None:
            files.append(self._file("CURRENT", 16, False))
        refs, uploaded_bytes = upload(self.jobdir, files, checkpoint, base, kind_of("incremental"))
        groups = range_of(Partition(partition), 128, 2)
        return PartitionInfo(
            index=partition, first_key_group=groups[0], last_key_group=groups[-1], files=refs,
            sync_ms=1.5, async_ms=40.0, uploaded_bytes=uploaded_bytes,
        )  # fmt: skip

    def _file(self, name: str, size: int, shared: bool) -> LocalFile:
        self._local.mkdir(parents=True, exist_ok=True)
        (self._local / name).write_bytes(self._rng.randbytes(size))
        return LocalFile(name, self._local / name, size, shared)


@pytest.fixture
def alerts(tmp_path: Path) -> FabricatedJob:
    """A job with three checkpoints, of which two are retained; its files are no real state."""
    job = FabricatedJob(tmp_path / "ck")
    for _ in range(3):
        job.checkpoint()
    return job
