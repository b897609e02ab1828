"""A bootstrap as a process of its own, for tests that kill it: python -m tests.spark.bootstrapped DIRECTORY LOCAL_DIR"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import strandline as sl
from tests import jvm
from tests.spark import small

USERS, EACH = 20, 50


def job(spark: Any, root: Path, local_dir: Path) -> tuple[sl.Job, Any]:
    """The job, which counts users without event time, and its sink."""
    sink = sl.sinks.memory()
    restart = sl.Restart(attempts=1, delay="20ms")
    return small.job(sl.stream(small.source(spark, root / "in")), root, local_dir, sink=sink, restart=restart), sink


def bootstrap(spark: Any, root: Path, local_dir: Path) -> None:
    """Give each user as many events."""
    history = spark.range(USERS * EACH).selectExpr(
        "id as seq", f"concat('u', id % {USERS}) as user", "'a' as kind", "id as v"
    )
    job(spark, root, local_dir)[0].bootstrap(spark, savepoint=root / "begun", history=history, rows_per_epoch=300)


if __name__ == "__main__":
    jvm.use()
    bootstrap(sl.session("app", "local[2,4]"), Path(sys.argv[1]), Path(sys.argv[2]))
