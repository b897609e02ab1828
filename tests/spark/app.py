"""A driver as a process of its own, for tests that kill it: python -m tests.spark.app DIRECTORY LOCAL_DIR [key=value …]

Runs the pipeline over DIRECTORY/in until DIRECTORY/stop appears and everything is processed, then takes a last
checkpoint and stops. Failpoints come through the environment. job=wide, rated, databased and tabled run the jobs of those modules.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import strandline as sl
from strandline.runtime.rowlayout import PARTITION
from strandline.spark.keepers import exchange
from strandline.spark.keepers.exchange import Exchange, prepare_session
from tests import jvm
from tests.spark import databased, rated, tabled, wide
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
        # Blocks of other executors come one after the other, not all before the first row.
        "spark.reducer.maxSizeInFlight": "64k",
        **jvm.executors(),
        **wide.SESSION_CONF,
    }
    spark = sl.session("app", given.get("master", "local[2,4]"), **conf)
    if "executors" in given:
        _write_executors(directory, spark)
    run = _job(spark, directory, Path(sys.argv[2]), given).start(spark)
    while not (directory / "stop").exists():
        run.await_termination(0.05)
        if (directory / "shrink").exists():
            (directory / "shrink").unlink()
            core: Any = spark.sparkContext._jsc.sc()  # type: ignore[attr-defined]
            core.killExecutor(core.getExecutorIds().head())
        _write_status(directory, run.status())
    if given.get("job") == "rated":
        # It always has more.
        run.stop(checkpoint=True)
    else:
        settle(run)
    status = run.status()
    run.stop()
    _write_status(directory, status)
    spark.stop()


def _job(spark: Any, directory: Path, local_dir: Path, given: dict[str, str]) -> sl.Job:
    kind = given.get("job", "pipeline")
    if kind == "rated":
        return rated.build(spark, directory, local_dir)
    if kind == "databased":
        return databased.build(spark, directory, local_dir, given["dsn"])
    if kind == "tabled":
        return tabled.build(spark, directory, local_dir)
    if kind == "wide":
        wide.use_small_batches(exchange.SESSION_CONF.__setitem__)
        return wide.Wide(directory, 0).build(spark, local_dir, parallelism=1)
    settings: dict[str, Any] = {"backend": given.get("backend", "rocksdb")}
    if "follow" in given:
        settings["parallelism"] = sl.FollowExecutors(after=given["follow"])
    kinds = int(given["kinds"]) if "kinds" in given else None
    case = Case(directory, local_dir)
    # On a cluster, whatever is asked of keepers is a job of Spark's.
    checkpoints = case.checkpoints("1s" if "master" in given else "200ms")
    return case.job(spark, settings=settings, kinds_parallelism=kinds, checkpoints=checkpoints)


def _write_executors(directory: Path, spark: Any) -> None:
    """Write which executor each of two partitions came to in several epochs, with much data, little and none."""
    placing = Exchange(spark, 2)
    session = spark.newSession()
    prepare_session(session)

    def executor(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from strandline.spark.keepers.worker import _executor_pid

        partitions = {p for batch in batches for p in batch.column(0).to_pylist()}
        (partition,) = partitions
        yield pa.RecordBatch.from_pydict({"name": [str(partition)], "pid": [_executor_pid()]})

    found = []
    for users in (1000, 1, 0, 1000, 0):
        rows = session.range(users).selectExpr("cast(id as string) as user")
        routed = placing.route(rows, ["user"], 128).select(PARTITION)
        found.append(dict(routed.mapInArrow(executor, "name string, pid bigint").collect()))
    placing.close()
    (directory / "executors.json").write_text(json.dumps(found))


def _write_status(directory: Path, status: sl.Status) -> None:
    said = {
        "state": status.state,
        "epoch": status.epoch,
        "parallelism": status.parallelism,
        "epoch_ms": status.last_epoch_ms,
        "restarts": status.restarts,
        "restored_from": status.restored_from,
        "keepers": {f"{keeper.uid}/{keeper.partition}": keeper.pid for keeper in status.keepers},
    }
    (directory / "status.tmp").write_text(json.dumps(said))
    (directory / "status.tmp").rename(directory / "status.json")


if __name__ == "__main__":
    main()
