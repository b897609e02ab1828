"""A job into two tables of PostgreSQL: every row of a count by user is appended to one, and the last of each is in the other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import strandline as sl
from tests.spark import small
from tests.spark.functions import Count


def build(spark: Any, root: Path, local_dir: Path, dsn: str) -> sl.Job:
    """Return the job, checkpointed often."""
    events = sl.stream(small.source(spark, root / "in"))
    counts = events.key_by("user").process(Count(), output=small.OUTPUT, uid="count")
    return sl.Job(
        "databased",
        sinks=[
            counts.to(sl.sinks.postgres(dsn, "counted", create=True, name="counted")),
            # More lanes than partitions: rows change them on their way.
            counts.to(sl.sinks.postgres(dsn, "latest", key="user", create=True, writers=3, name="latest")),
        ],
        checkpoints=sl.Checkpoints(root / "ck", every="200ms", retain=2),
        restart=sl.Restart(attempts=10, delay="50ms"),
        settings=sl.Settings(parallelism=2, local_dir=local_dir, state_memory="128MB"),
    )


def add(root: Path, number: int, users: list[str]) -> None:
    """Add one input file, an epoch of its own."""
    small.write_rows(root / "in", number, [(user, "x", 1) for user in users])


def check(db: Any, users: list[str]) -> None:
    """Assert that both tables hold what these events make."""
    wanted = small.counted(users)
    found = Counter(db.execute('select "user", n from counted').fetchall())
    assert found == wanted, (found - wanted, wanted - found)
    assert dict(db.execute('select "user", n from latest').fetchall()) == Counter(users)
