"""The job whose classes are archived: python -m tests.warm DIRECTORY

Not a test. What most tests do: files that are read, an operator of the user, windows, a sink of files, a checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import SparkContext

import strandline as sl
from tests.spark import timed

# What executors and Spark's small cluster load beyond what a driver does.
_OF_A_CLUSTER = (
    "org.apache.spark.deploy.master.Master",
    "org.apache.spark.deploy.worker.Worker",
    "org.apache.spark.deploy.worker.ExecutorRunner",
    "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    "org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend",
    "org.apache.spark.scheduler.cluster.StandaloneSchedulerBackend",
    "org.apache.spark.network.netty.NettyBlockRpcServer",
)


def main() -> None:
    """Run the job, and wait until the JVM has written what it was told to write."""
    root = Path(sys.argv[1])
    spark = sl.session("warm", "local[2,4]", **{"spark.driver.memory": "1g"})
    events = timed.Input(root, seed=1)
    for _ in range(3):
        events.add()
    run = timed.build(spark, root, root / "l").start(spark)
    run.process_all_available(120)
    run.checkpoint(120)
    run.stop()
    counts = (
        sl.stream(spark.readStream.schema(timed.SCHEMA).json(str(root / "in")))
        .watermark("ts", delay="10 min")
        .key_by("user")
        .window(sl.Tumbling("10 min"))
        .agg(uid="windows", n=sl.agg.count(), total=sl.agg.sum("v"))
    )
    windows = sl.Job(
        "windows",
        sinks=[counts.to(sl.sinks.memory())],
        checkpoints=sl.Checkpoints(root / "ck-windows"),
        settings=sl.Settings(parallelism=2, local_dir=root / "l", state_memory="64MB"),
        trigger="available-now",
    )
    assert windows.start(spark).await_termination(120)
    gateway = SparkContext._gateway
    for name in _OF_A_CLUSTER:
        gateway.jvm.java.lang.Class.forName(name)
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    assert gateway.proc.wait(120) == 0


if __name__ == "__main__":
    main()
