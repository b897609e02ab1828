"""What it costs that local checkpoint storage outlives a power cut: every operation with fsync and without.

Both stores are on the same disk (`TMPDIR` says where), in one process, and take turns with every single operation. Then
a small checkpoint through the real layers: two partitions upload files, the manifest is published and the checkpoint
before it is deleted. What a job pays is less: uploads do not hold up its epochs.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._harness import emit, end_on_sigterm, progress, scratch
from strandline.api.config import Checkpoints
from strandline.backends.base import LocalFile
from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.generation import claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.kinds import kind_of
from strandline.checkpoint.restore import choose
from strandline.checkpoint.upload import upload
from strandline.core.clock import SystemClock
from strandline.core.ids import Epoch, Partition
from strandline.format.manifest import OperatorInfo, PartitionInfo
from strandline.storage.base import ObjectStore
from strandline.storage.remote import open_store

BENCHMARK = "durability"
WITH, WITHOUT = "fsync", "no-fsync"
PARTITIONS = 2
_PREFIXES = 256
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Scale:
    """How often each thing is done."""

    small: int = 300
    lists: int = 20
    files: int = 20
    large_files: int = 6
    checkpoints: int = 60
    large_bytes: int = 64 * _MIB


FULL = Scale()
QUICK = Scale(small=5, lists=2, files=2, large_files=1, checkpoints=3, large_bytes=8 * _MIB)

Step = Callable[[int], object]


class Job:
    """One driver and its keepers, as far as checkpoints go: each has two new files a partition and keeps three old."""

    def __init__(self, store: ObjectStore, directory: Path) -> None:
        clock = SystemClock()
        self._jobdir = JobDirectory(store, "job")
        self._directory = directory
        directory.mkdir()
        owned = claim(self._jobdir, clock)
        choice = choose(self._jobdir, owned)
        owned.set_base(None)
        plan = OperatorInfo(
            uid="operator",
            backend="rocksdb",
            parallelism=PARTITIONS,
            max_parallelism=128,
            key_schema="k string",
            states=[],
            partitions=[],
        )
        self._coordinator = Coordinator(
            self._jobdir, owned, Checkpoints(directory, every="0s"), clock, choice.next_id, None, [plan],
            lambda manifest: None,
        )  # fmt: skip

    def checkpoint(self, number: int) -> None:
        checkpoint = self._coordinator.trigger(Epoch(number + 1))
        assert checkpoint is not None
        confirmed = self._coordinator.confirmed
        for partition in map(Partition, range(PARTITIONS)):
            base = confirmed.operators[0].partitions[partition].files if confirmed else []
            refs, _ = upload(
                self._jobdir, self._snapshot(number, partition), checkpoint,
                {file.name: file for file in base}, kind_of("incremental"),
            )  # fmt: skip
            info = PartitionInfo(index=partition, first_key_group=0, last_key_group=127, files=refs)
            self._coordinator.report("operator", partition, checkpoint, info)
        self._coordinator.add_source(checkpoint, None)
        self._coordinator.add_sinks(checkpoint, [], {})
        assert self._coordinator.advance() == checkpoint

    def _snapshot(self, number: int, partition: int) -> list[LocalFile]:
        files = []
        for at in range(2 * number, 2 * number + 5):
            path = self._directory / f"{partition}-{at}.sst"
            if not path.exists():
                path.write_bytes(random.Random(at).randbytes(_MIB // 4))
            files.append(LocalFile(path.name, path, path.stat().st_size, shared=True))
        return files


def in_turn(what: str, steps: dict[str, Step], times: int, **extra: Any) -> None:
    """Do a thing with both stores in turn, so often after a first time, and print the medians and their ratio."""
    costs: dict[str, list[float]] = {subject: [] for subject in steps}
    for number in range(times + 1):
        # Who comes second may wait for what the first has left to the disk.
        for subject in sorted(steps, reverse=number % 2 == 0):
            started = time.perf_counter()
            steps[subject](number)
            costs[subject].append((time.perf_counter() - started) * 1000)
    medians = {subject: median(done[1:]) for subject, done in costs.items()}
    for subject, value in medians.items():
        slowest = round(max(costs[subject][1:]), 3)
        emit(BENCHMARK, subject, f"{what}_ms", round(value, 3), slowest=slowest, times=times, **extra)
    emit(BENCHMARK, WITH, f"{what}_ratio", round(medians[WITH] / medians[WITHOUT], 2), peer=WITHOUT)
    progress("  ".join([f"{what:<16}", *(f"{subject} {value:.2f} ms" for subject, value in medians.items())]))


def measure(directory: Path, scale: Scale) -> None:
    """Do all of it and print the results."""
    stores = {
        WITH: open_store(str(directory / WITH)),
        WITHOUT: open_store(str(directory / WITHOUT), fsync=False),
    }

    def each(step: Callable[[ObjectStore, int], object]) -> dict[str, Step]:
        return {subject: partial(step, store) for subject, store in stores.items()}

    small = random.Random(1).randbytes(4096)
    names = [f"shared/{n % _PREFIXES:02x}/{n}" for n in range(max(_PREFIXES, scale.small + 1))]
    in_turn("put", each(lambda store, n: store.put(names[n], small)), scale.small, bytes=len(small))
    for store in stores.values():
        for name in names:
            store.put(name, small)
    in_turn("create", each(lambda store, n: store.create(f"chk-{n}/_metadata", small)), scale.small, bytes=len(small))
    in_turn("get", each(lambda store, n: store.get(f"chk-{n}/_metadata")), scale.small, bytes=len(small))
    in_turn("list", each(lambda store, n: [*store.list("shared")]), scale.lists, directories=_PREFIXES)
    in_turn("delete", each(lambda store, n: store.delete([f"chk-{n}/_metadata"])), scale.small)
    source = directory / "source"
    for what, size, times in (("file", 4 * _MIB, scale.files), ("large_file", scale.large_bytes, scale.large_files)):
        source.write_bytes(random.Random(size).randbytes(size))
        # Over itself, so that little room is needed.
        in_turn(f"put_{what}", each(lambda store, n: store.put_file("file", source)), times, bytes=size)
    jobs = {subject: Job(store, directory / f"files-of-{subject}") for subject, store in stores.items()}
    in_turn(
        "checkpoint", {subject: job.checkpoint for subject, job in jobs.items()}, scale.checkpoints,
        partitions=PARTITIONS, files=2 * PARTITIONS, bytes=2 * PARTITIONS * _MIB // 4,
    )  # fmt: skip


def main() -> None:
    """Measure both stores in turn."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.durability", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few of each: shows that it works, measures nothing")
    given = parser.parse_args()
    end_on_sigterm()
    with scratch(BENCHMARK) as directory:
        measure(directory, QUICK if given.quick else FULL)


if __name__ == "__main__":
    main()
