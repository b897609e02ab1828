"""Visits by user, on Kubernetes: the driver is a pod of a Deployment, which asks for executors as pods."""

import os
from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

import strandline as sl


class Visits(sl.KeyedProcess):
    count = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        self.count.value += 1
        yield ctx.key, self.count.value


def session() -> SparkSession:
    return sl.session(
        "visits",
        "k8s://https://kubernetes.default.svc:443",
        **{
            "spark.kubernetes.namespace": os.environ["NAMESPACE"],
            "spark.kubernetes.container.image": os.environ["IMAGE"],
            "spark.kubernetes.authenticate.serviceAccountName": "visits-driver",
            # Executors end with the driver's pod, and find it by the name of a headless Service.
            "spark.kubernetes.driver.pod.name": os.environ["POD"],
            "spark.driver.host": f"visits-driver.{os.environ['NAMESPACE']}.svc",
            "spark.driver.bindAddress": "0.0.0.0",
            "spark.driver.port": "7078",
            "spark.driver.blockManager.port": "7079",
            "spark.kubernetes.executor.podTemplateFile": "/opt/config/executor.yaml",
            "spark.executor.instances": "2",
            "spark.executor.cores": "2",
            # Beside Spark's own memory: the keepers' state_memory, and 100 MB for each keeper and worker.
            "spark.executor.memory": "2g",
            "spark.executor.memoryOverhead": "3g",
        },
    )


def build(spark: SparkSession) -> sl.Job:
    clicks = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
    visits = (
        sl.stream(clicks.selectExpr("concat('user-', value % 1000) AS user"))
        .key_by("user")
        .process(Visits(), output="user string, visits bigint", uid="visits")
    )
    return sl.Job(
        "visits",
        sinks=[visits.to(sl.sinks.noop())],
        checkpoints=sl.Checkpoints(os.environ["CHECKPOINTS"], every="10s", retain=3),
        # In a container, the default, a quarter of the machine's memory, is not what there is.
        settings=sl.Settings(parallelism=4, state_memory="2GB", local_dir="/data"),
    )


if __name__ == "__main__":
    build(session()).start().await_termination()
