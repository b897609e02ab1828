"""A driver as a process of its own, for tests that kill it: python -m tests.spark.app DIRECTORY LOCAL_DIR [key=value …]

Runs the pipeline over DIRECTORY/in until DIRECTORY/stop appears and everything is processed, then takes a last
checkpoint and stops. Failpoints come through the environment.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import strandline as sl
from strandline.spark.exchange import PARTITION, Exchange, prepare_session
from tests.conftest import LIGHT_JVM
from tests.spark.harness import Case, settle


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    directory = Path(sys.argv[1])
    given = dict(item.split("=", 1) for item in sys.argv[3:])
    # On a cluster, nothing begins before all executors are there: else everything would be on the first.
    conf = {
        "spark.driver.memory": "1g",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        **LIGHT_JVM,
    }
    spark = sl.session("app", given.get("master", "local[2,4]"), **conf)
    case = Case(directory, Path(sys.argv[2]))
    if "executors" in given:
        _write_executors(directory, spark)
    run = case.job(spark, settings={"backend": given.get("backend", "rocksdb")}).start(spark)
    while not (directory / "stop").exists():
        run.await_termination(0.05)
        _write_status(directory, run.status())
    settle(run)
    status = run.status()
    run.stop()
    _write_status(directory, status)
    spark.stop()


def _write_executors(directory: Path, spark: Any) -> None:
    """Write which executor each of two partitions came to in several epochs, with much data, little and none."""
    exchange = Exchange(spark, 2)
    session = spark.newSession()
    prepare_session(session)

    def executor(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from strandline.spark.worker import _executor_pid

        partitions = {p for batch in batches for p in batch.column(0).to_pylist()}
        (partition,) = partitions
        yield pa.RecordBatch.from_pydict({"name": [str(partition)], "pid": [_executor_pid()]})

    found = []
    for users in (1000, 1, 0, 1000, 0):
        rows = session.range(users).selectExpr("cast(id as string) as user")
        routed = exchange.route(rows, ["user"], 128).select(PARTITION)
        found.append(dict(routed.mapInArrow(executor, "name string, pid bigint").collect()))
    exchange.close()
    (directory / "executors.json").write_text(json.dumps(found))


def _write_status(directory: Path, status: sl.Status) -> None:
    said = {
        "state": status.state,
        "epoch": status.epoch,
        "epoch_ms": status.last_epoch_ms,
        "restarts": status.restarts,
        "restored_from": status.restored_from,
        "keepers": {f"{keeper.uid}/{keeper.partition}": keeper.pid for keeper in status.keepers},
    }
    (directory / "status.tmp").write_text(json.dumps(said))
    (directory / "status.tmp").rename(directory / "status.json")


if __name__ == "__main__":
    main()
