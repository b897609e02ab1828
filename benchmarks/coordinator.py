"""What a checkpoint costs the driver as partitions become more, of which a fixed number has changed.

No Spark and no keepers: the product's coordinator on a store in memory gets reports of 10 to 10,000 partitions with two
files each, of which ten have a new file in each checkpoint. Measured are the reports, the publication with all that
follows it, the size of the manifest, and the choice of a checkpoint by the next driver.
"""

from __future__ import annotations

import argparse
import gc
import time
from statistics import median

from msgspec import structs

from benchmarks._harness import emit, progress
from strandline.api.config import Checkpoints
from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.generation import claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path, shared_path
from strandline.checkpoint.restore import choose
from strandline.core.clock import SystemClock
from strandline.core.ids import CheckpointId, Epoch
from strandline.format.manifest import FileRef
from strandline.storage.remote import open_store
from tests.checkpoint.helpers import part_of, plan, shared_ref

BENCHMARK = "coordinator"
CHANGED = 10
_DATA = b"12345678"


def new_file(jobdir: JobDirectory) -> FileRef:
    """Store a file, as a keeper does."""
    path = shared_path()
    jobdir.put(path, _DATA)
    # As long as the names that RocksDB gives.
    return structs.replace(shared_ref(path, _DATA), name=path[-8:])


def measure(partitions: int, checkpoints: int) -> None:
    """Take checkpoints, and print what one costs."""
    jobdir, clock = JobDirectory(open_store("memory://"), f"job-{partitions}"), SystemClock()
    owned = claim(jobdir, clock)
    choose(jobdir, owned)
    owned.set_base(None)
    operator = plan("count", partitions)
    coordinator = Coordinator(
        jobdir,
        owned,
        Checkpoints("unused", every="0s"),
        clock,
        CheckpointId(1),
        None,
        [operator],
        lambda manifest: None,
    )
    files = {index: [new_file(jobdir), new_file(jobdir)] for index in range(partitions)}
    report_s, advance_s, size_bytes = [], [], 0
    for number in range(checkpoints):
        for at in range(min(CHANGED, partitions)):
            index = (number * CHANGED + at) % partitions
            files[index] = [files[index][1], new_file(jobdir)]
        parts = [part_of(operator, index, files[index]) for index in range(partitions)]
        gc.collect()
        checkpoint = coordinator.trigger(Epoch(number + 1))
        assert checkpoint is not None
        begun = time.perf_counter()
        for part in parts:
            coordinator.report("count", part.index, checkpoint, part)
        reported = time.perf_counter()
        coordinator.add_source(checkpoint, None)
        coordinator.add_sinks(checkpoint, [])
        assert coordinator.advance() == checkpoint
        ended = time.perf_counter()
        report_s.append(reported - begun)
        advance_s.append(ended - reported)
        size_bytes = jobdir.head(manifest_path(checkpoint)).size_bytes
    begun = time.perf_counter()
    found = choose(jobdir).manifest
    chosen_s = time.perf_counter() - begun
    assert found is not None
    assert found.checkpoint == checkpoints
    subject = f"{partitions}-partitions"
    emit(BENCHMARK, subject, "report_ms", round(median(report_s[1:]) * 1000, 2))
    emit(BENCHMARK, subject, "publish_ms", round(median(advance_s[1:]) * 1000, 2))
    emit(BENCHMARK, subject, "choose_ms", round(chosen_s * 1000, 2))
    emit(BENCHMARK, subject, "manifest_bytes", size_bytes)


def main() -> None:
    """Measure jobs of 10 to 10,000 partitions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--checkpoints", type=int, default=20)
    given = parser.parse_args()
    for partitions in given.partitions:
        progress(f"{partitions} partitions, {given.checkpoints} checkpoints …")
        measure(partitions, given.checkpoints)


if __name__ == "__main__":
    main()
