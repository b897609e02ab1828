"""The settings a Spark session needs for Strandline, and a session that has them."""

from __future__ import annotations

import os
import sys

from pyspark import SparkConf
from pyspark.sql import SparkSession

from strandline.spark.base.quiet import java_options, start_jvm
from strandline.spark.base.sessionchecks import check_java

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def spark_settings() -> dict[str, str]:
    """Return the core settings that must be there when a session is made.

    Only needed for a session of your own; `session()` has them.
    """
    return {
        # Tasks must follow the executor that caches their anchor, not the shuffle files.
        "spark.shuffle.reduceLocality.enabled": "false",
        "spark.sql.streaming.stopTimeout": "30s",
        # Over TCP, a Python worker gets its first rows some 40 ms late, in each stage of each epoch: the kernel of one
        # side holds small packets back, that of the other their acknowledgement.
        "spark.python.unix.domain.socket.enabled": "true",
    }


def session(app_name: str = "strandline", master: str | None = None, **conf: str) -> SparkSession:
    """Return a classic SparkSession with the right settings and a quiet log.

    `master` defaults to what spark-submit or the environment says, else to all local cores with task retries.
    Further settings are given with `_` for `.`: `spark_driver_memory="4g"`; or as a dict:
    `**{"spark.driver.memory": "4g"}`.
    Spark's own log is off; `spark_log_level="WARN"` turns it on.
    """
    check_java()
    # Spark would take the first python3 of the PATH for its workers, which need not be the one with this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = master or os.environ.get("MASTER") or f"local[{os.cpu_count() or 2},4]"
    settings = {}
    if master.startswith("local"):
        # On one machine, Spark needs no other interface than loopback.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    settings |= {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": "strandline.spark.keepers.daemon",
        **spark_settings(),
        **{name if "." in name else name.replace("_", "."): value for name, value in conf.items()},
    }
    settings[_JAVA_OPTIONS] = java_options(settings.get(_JAVA_OPTIONS, ""))
    given = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    start_jvm(given)
    return SparkSession.builder.appName(app_name).master(master).config(conf=given).getOrCreate()
