"""What a row costs a view's join when its key has many rows already, in microseconds of processor time.

    python -m benchmarks.join_growth [--keys 200] [--epochs 50]

One partition of `orders JOIN customers USING (customer)`, without Spark, on RocksDB. The customers come first, then
epochs of 20,000 orders of any of them; each gives its pair. `epoch` is the thread of the epochs, `write` the
background's, with RocksDB's flushes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks._harness import emit, progress
from benchmarks._partition import RUN, run_epoch, write
from strandline.core.ids import Epoch, Partition
from strandline.keeper.opening import open_task
from strandline.runtime.operators.views.bags import Numbers
from strandline.runtime.operators.views.joins import Joining
from strandline.runtime.partition import OperatorPartition
from strandline.runtime.program import Program, pickle_process
from strandline.runtime.task.task import EpochTimes
from strandline.types.columns import arrow_schema
from strandline.types.datatypes import parse_schema

BENCHMARK = "join_growth"
_ROWS = 20_000
_ORDERS, _CUSTOMERS = "id bigint, amount bigint, note string", "name string"
_INPUT = f"left struct<{_ORDERS}>, right struct<{_CUSTOMERS}>, key struct<customer: bigint>"
_SCHEMA = pa.schema([pa.field("key_group", pa.int32()), *arrow_schema(parse_schema(_INPUT))])


def program() -> Program:
    """Return the join."""
    output = f"{_ORDERS}, {_CUSTOMERS}"
    process = Joining("inner", parse_schema(_ORDERS), parse_schema(_CUSTOMERS), parse_schema(output))
    return Program(
        job=BENCHMARK, uid="join", name="join", process=pickle_process(process, "join"), key_columns=["key"],
        input_schema=_INPUT, output_schema=f"{output}, __strandline_weight bigint", parallelism=1, max_parallelism=128,
        mode="incremental",
        partition_memory_bytes=256 << 20, **RUN,
    )  # fmt: skip


def rows(customers: Numbers, side: str, columns: list[pa.Array]) -> list[pa.RecordBatch]:
    """Return rows of one side as a keeper receives them."""
    half = pa.StructArray.from_arrays(columns, fields=list(_SCHEMA.field(side).type))
    halves = [half if name == side else pa.nulls(len(half), _SCHEMA.field(name).type) for name in ("left", "right")]
    key = pa.StructArray.from_arrays([pa.array(customers)], fields=list(_SCHEMA.field("key").type))
    groups = pa.array((customers % 128).astype(np.int32))
    return [pa.RecordBatch.from_arrays([groups, *halves, key], schema=_SCHEMA)]


def main() -> None:
    """Add orders, and print what they cost."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{BENCHMARK}", description=__doc__)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=50)
    given = parser.parse_args()
    progress(f"{BENCHMARK}: {given.epochs} epochs of {_ROWS:,} rows, {given.keys:,} keys")
    rng, loaded = np.random.default_rng(1), program()
    with tempfile.TemporaryDirectory() as scratch:
        backend, task = open_task(loaded, loaded.load(), Partition(0), Path(scratch) / "partition")
        partition = OperatorPartition(task, Epoch(0))
        everybody = np.arange(given.keys)
        run_epoch(partition, EpochTimes(None, 0), rows(everybody, "right", [pa.array(everybody).cast(pa.string())]))
        for epoch in range(1, given.epochs + 1):
            columns = [pa.array(rng.integers(0, 1 << 40, _ROWS)) for _ in range(2)]
            orders = rows(rng.integers(0, given.keys, _ROWS), "left", [*columns, pa.array(["by hand"] * _ROWS)])
            seconds = run_epoch(partition, EpochTimes(None, epoch * 1000), orders), write(backend, partition)
            if epoch in (1, given.epochs) or epoch % 10 == 0:
                for metric, spent in zip(("epoch", "write"), seconds, strict=True):
                    emit(
                        BENCHMARK, "inner", metric, round(spent / _ROWS * 1e6, 2),
                        unit="µs of processor time a row", rows_of_a_key=epoch * _ROWS // given.keys,
                    )  # fmt: skip
        backend.close()


if __name__ == "__main__":
    main()
