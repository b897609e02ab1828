"""How fast a savepoint for a job that is yet to begin is made of a DataFrame, beside `cp` of the same bytes.

10,000,000 keys × 100 random bytes, in Parquet files that Spark reads. `sl.state.write`, from the call to its return:
Spark reads and shuffles the rows, tasks check and sort them and write the savepoint's files. Each round is a process of
its own, whose session has run a job of Spark before. All keys are counted in the savepoint, and a sample of the values
is compared.
"""

from __future__ import annotations

import argparse
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import strandline as sl
from benchmarks._harness import Result, add_subject_options, emit, measure_in_turn, median_of, progress, report_result

BENCHMARK = "bootstrap"
SUBJECT = "dataframe"
_WANTED_KEYS_PER_SECOND = 500_000
_VALUE_BYTES = 100
_FILES = 8


@dataclass(frozen=True, slots=True)
class Scale:
    """How many keys, and how often."""

    keys: int = 10_000_000
    rounds: int = 3
    checked_keys: int = 100_000


FULL = Scale()
QUICK = Scale(keys=200_000, rounds=1, checked_keys=10_000)


class Keep(sl.KeyedProcess):
    """The program: a state of 100 bytes a key."""

    held = sl.Value("binary")

    def on_event(self, event: Any, ctx: sl.Context) -> None:
        self.held.value = event.data


def make_rows(directory: Path, keys: int) -> None:
    """Write the keys and their values, in no order."""
    directory.mkdir()
    rng = np.random.default_rng(7)
    ids = rng.permutation(keys)
    for number, part in enumerate(np.array_split(ids, _FILES)):
        size = len(part) * _VALUE_BYTES
        offsets = pa.py_buffer(np.arange(0, size + 1, _VALUE_BYTES, dtype=np.int32))
        values = pa.Array.from_buffers(pa.binary(), len(part), [None, offsets, pa.py_buffer(rng.bytes(size))])
        pq.write_table(pa.table({"id": part, "value": values}), directory / f"{number}.parquet", compression="none")


def check(savepoint: Path, rows: Path, scale: Scale) -> None:
    """End the benchmark unless the savepoint has all rows, and the sample's values."""
    made = pq.read_table(savepoint / "data", columns=["id", "value"])
    if made.num_rows != scale.keys or len(made["id"].unique()) != scale.keys:
        raise SystemExit(f"the savepoint has {made.num_rows:,} rows, expected one of each of {scale.keys:,} keys")
    wanted = pq.read_table(rows / "0.parquet").slice(0, scale.checked_keys)
    at = pc.index_in(wanted["id"], made["id"].combine_chunks())
    if not made["value"].take(at).combine_chunks().equals(wanted["value"].combine_chunks()):
        raise SystemExit("a key of the sample has another value in the savepoint")


def run(directory: Path, scale: Scale) -> Result:
    """Make a savepoint once."""
    rows, savepoint = directory / "rows", directory / "savepoint"
    make_rows(rows, scale.keys)
    spark = sl.session("bootstrap", spark_driver_memory="2g", spark_sql_shuffle_partitions="4")
    stream = sl.stream(spark.readStream.schema("id bigint, data binary").parquet(str(directory)))
    out = stream.key_by("id").process(Keep(), output="id bigint", uid="keep")
    job = sl.Job("bootstrap", sinks=[out.to(sl.sinks.memory())], checkpoints=sl.Checkpoints(directory / "ck"))
    spark.read.parquet(str(rows)).selectExpr("max(id)").collect()
    started = time.perf_counter()
    made = sl.state.write(job, savepoint, {"keep.held": spark.read.parquet(str(rows))})
    write_s = time.perf_counter() - started
    started = time.perf_counter()
    shutil.copytree(savepoint, directory / "copy")
    cp_s = time.perf_counter() - started
    check(savepoint, rows, scale)
    spark.stop()
    return {"write_s": write_s, "cp_s": cp_s, "keys_per_second": scale.keys / write_s, "bytes": made.total_bytes}


def main() -> None:
    """Measure, or be the subject that is measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bootstrap", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few keys: shows that it works, measures nothing")
    add_subject_options(parser)
    given = parser.parse_args()
    scale = QUICK if given.quick else FULL
    if given.subject:
        report_result(given.result, run(given.scratch, scale))
        return
    progress(f"{BENCHMARK}: {scale.keys:,} keys, {scale.rounds} rounds")
    options = ["--quick"] if given.quick else []
    results = measure_in_turn("benchmarks.bootstrap", [SUBJECT], scale.rounds, options)[SUBJECT]
    emit(
        BENCHMARK, SUBJECT, "keys_per_second", round(median_of(results, "keys_per_second")),
        state_bytes=results[-1]["bytes"], rounds=[round(r["keys_per_second"]) for r in results],
        wanted_at_least=_WANTED_KEYS_PER_SECOND,
    )  # fmt: skip
    emit(
        BENCHMARK, SUBJECT, "write_seconds", round(median_of(results, "write_s"), 3),
        peer="cp", peer_value=round(median_of(results, "cp_s"), 3),
    )  # fmt: skip


if __name__ == "__main__":
    main()
