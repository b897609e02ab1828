"""A driver as a process of its own, for tests that kill it: python -m tests.spark.app DIRECTORY LOCAL_DIR [key=value …]

Runs the pipeline over DIRECTORY/in until DIRECTORY/stop appears and everything is processed, then takes a last
checkpoint and stops. Failpoints come through the environment. job=wide and rated run the jobs of
those modules, databased and tabled those of counting; uneven and joined are small.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql.functions import udf

import strandline as sl
from strandline.spark.keepers import exchange
from tests import jvm
from tests.spark import counting, rated, small, wide
from tests.spark.functions import Lingering, Slowly
from tests.spark.harness import Case, settle


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    directory = Path(sys.argv[1]).absolute()
    given = dict(item.split("=", 1) for item in sys.argv[3:])
    # On a cluster, nothing begins before all executors are there: else everything would be on the first.
    conf = {
        "spark.driver.memory": "1g",
        # While nothing comes, Spark looks for new files a hundred times a second otherwise.
        "spark.sql.streaming.pollingDelay": "40ms",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        # Blocks of other executors come one after the other, not all before the first row.
        "spark.reducer.maxSizeInFlight": "64k",
        **jvm.executors(),
        **wide.SESSION_CONF,
    }
    if given.get("job") == "uneven":
        # Executors have directories of their own, too.
        os.chdir(directory)
    spark = sl.session("app", given.get("master", "local[2,4]"), **conf)
    run = _job(spark, directory, Path(sys.argv[2]), given).start(spark)
    while not (directory / "stop").exists():
        run.await_termination(0.2)
        if (directory / "limit").exists():
            core: Any = spark.sparkContext._jsc.sc()  # type: ignore[attr-defined]
            assert core.requestTotalExecutors(1, 0, spark._jvm.PythonUtils.toScalaMap({}))  # type: ignore[attr-defined]
            (directory / "limit").unlink()
        # Not what the sources say: to ask them every moment costs more than the job.
        _write_status(directory, run.glance())
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
        return counting.into_postgres(spark, directory, local_dir, given["dsn"])
    if kind == "tabled":
        return counting.into_tables(spark, directory, local_dir)
    if kind == "uneven":
        # Each process has another directory there, as on machines of its own.
        return small.job(
            sl.stream(small.source(spark, directory / "in")), directory, Path("/proc/self/cwd/keepers"),
            process=Lingering(), sink=sl.sinks.noop(), settings={"parallelism": 4},
        )  # fmt: skip
    if kind == "joined":
        users = spark.range(0, 18, 1, 18).selectExpr("concat('u', id) as user").cache()
        users.count()
        slow, source = users.select(udf(Slowly(directory / "slow"))("user").alias("user")), directory / "in"
        return small.job(
            sl.stream(small.source(spark, source)).transform(lambda df: df.join(slow.hint("merge"), "user")),
            directory, local_dir, sink=sl.sinks.files(str(directory / "out"), format="json"), settings={"parallelism": 1},
            restart=sl.Restart(attempts=3, delay="50ms"),
        )  # fmt: skip
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
