"""A bootstrap as a process of its own, for tests that kill it: python -m tests.spark.bootstrapped DIRECTORY LOCAL_DIR"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

import strandline as sl
from tests import jvm
from tests.spark import paying, small

USERS, EACH = 20, 50


def job(spark: Any, root: Path, local_dir: Path) -> tuple[sl.Job, Any]:
    """The job, which counts users without event time, and its sink."""
    sink = sl.sinks.memory()
    stream, restart = sl.stream(small.source(spark, root / "in")), sl.Restart(attempts=1, delay="20ms")
    return small.job(stream, root, local_dir, sink=sink, process=paying.Ascending(), restart=restart), sink


def bootstrap(spark: Any, root: Path, local_dir: Path, **given: Any) -> None:
    """Give each user as many events, which lie in no order."""
    history = (
        spark.range(USERS * EACH)
        .selectExpr("id as seq", f"concat('u', id % {USERS}) as user", "'a' as kind", "id as v")
        .orderBy("user", F.rand(1))
    )
    begun, _ = job(spark, root, local_dir)
    given.setdefault("rows_per_epoch", USERS * EACH // 3 + 1)
    begun.bootstrap(spark, savepoint=root / "begun", history=history, order_by="seq", **given)


if __name__ == "__main__":
    jvm.use()
    bootstrap(sl.session("app", "local[2,4]"), Path(sys.argv[1]), Path(sys.argv[2]))
