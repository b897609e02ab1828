"""One operator partition in this process, without Spark, as a keeper runs it on RocksDB."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.backends.base import Backend
from strandline.core.ids import Epoch, Partition
from strandline.keeper.opening import open_task
from strandline.plan.parallelism import Parallelism
from strandline.plan.pipeline import Pipeline
from strandline.runtime.partition import OperatorPartition
from strandline.runtime.task.task import EpochTimes

RUN: dict[str, Any] = {
    "generation": 1, "store_url": "memory://", "backend": "rocksdb", "limit_bytes": 1 << 20, "lease_ms": 0,
}  # fmt: skip


def open_partition(
    job: str, end: Any, directory: Path, *, mode: str = "full", memory_bytes: int = 256 << 20
) -> tuple[Backend, OperatorPartition]:
    """Return the only operator of a stream as a partition that is ready for epochs, and its backend."""
    (operator,) = Pipeline([end._node]).settle(Parallelism(default=1))
    program = operator.program(job=job, mode=mode, partition_memory_bytes=memory_bytes, **RUN)
    backend, task = open_task(program, program.load(), Partition(0), directory)
    return backend, OperatorPartition(task, Epoch(0))


def run_epoch(partition: OperatorPartition, times: EpochTimes, rows: Sequence[pa.RecordBatch]) -> float:
    """Run and keep one more epoch; return the processor seconds it took."""
    started = time.process_time()
    for _ in partition.run(Epoch(partition.version + 1), times, rows):
        pass
    partition.commit()
    return time.process_time() - started


def write(backend: Backend, partition: OperatorPartition) -> float:
    """Write the changes since the last time; return the processor seconds it took."""
    started = time.process_time()
    frozen = partition.task.store.freeze()
    backend.write(frozen.changes())
    frozen.release()
    return time.process_time() - started
