"""Which sessions are refused before anything starts, and which Javas, each with what to do instead."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from strandline.core.errors import ConfigurationError

_OLDEST_JAVA = 17
_BATCHES_TO_RETAIN = "spark.sql.streaming.minBatchesToRetain"
_LEAST_BATCHES = 3


def check_session(spark: Any) -> None:
    """Refuse sessions that cannot run keepers."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise ConfigurationError(
            "this is a Spark Connect session, which Strandline does not support: it needs the driver's own JVM",
            hint="make a classic session: strandline.session(), or SparkSession.builder.master(…) without remote(…)",
        )
    if not isinstance(spark, SparkSession):
        raise ConfigurationError(f"start() was given {spark!r}, expected a SparkSession")
    if spark.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        raise ConfigurationError(
            "spark.speculation is true: a second attempt of a running task would end the keeper's conversation with "
            "the first",
            hint="make the session without it: an epoch's tasks are bound to their keepers",
        )
    retained = spark.conf.get(_BATCHES_TO_RETAIN)
    if int(retained or 0) < _LEAST_BATCHES:
        raise ConfigurationError(
            f"{_BATCHES_TO_RETAIN} is {retained}, expected {_LEAST_BATCHES} or more: a checkpoint takes Spark's log of "
            "its last two batches along, while Spark already plans the next one",
            hint=f"leave it at Spark's default of 100: spark.conf.unset('{_BATCHES_TO_RETAIN}')",
        )


def session_warnings(spark: SparkSession) -> list[str]:
    """Return what is wrong with a session in which a job works, but not well."""
    sc = spark.sparkContext
    conf, master = sc.getConf(), sc.master or ""
    on_one_machine = master.startswith("local[") or master == "local"
    found = []
    if not on_one_machine and conf.get("spark.shuffle.reduceLocality.enabled", "true").lower() == "true":
        found.append(
            "spark.shuffle.reduceLocality.enabled is not false: with few executors, tasks will move away from their "
            "state and the job will be restored often"
        )
    if conf.get("spark.python.unix.domain.socket.enabled", "false").lower() != "true":
        found.append("spark.python.unix.domain.socket.enabled is not true: each operator makes an epoch 40 ms longer")
    how = (
        "Set it when the session is made: strandline.session() does, and strandline.spark_settings() gives the settings"
    )
    return [f"{what}. {how}" for what in found]


def retained_batches(spark: SparkSession) -> int:
    """Return of how many batches Spark keeps its log."""
    return int(spark.conf.get("spark.sql.streaming.minBatchesToRetain", "100") or 100)


def check_java() -> str:
    """Return the path of a Java that Spark can use, or say what to install."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    hint = "install Java 17 or 21 (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
    if not java or not Path(java).exists():
        where = f"JAVA_HOME is {home}, and there is no bin/java in it" if home else "there is no 'java' on the PATH"
        raise ConfigurationError(f"Spark needs Java, and none was found: {where}", hint=hint)
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if not found or int(found[1]) < _OLDEST_JAVA:
        first = said.strip().splitlines()[0] if said.strip() else "it says nothing"
        raise ConfigurationError(f"Spark needs Java {_OLDEST_JAVA} or newer; {java} is: {first}", hint=hint)
    return java
