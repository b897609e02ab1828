"""A job into two Delta tables: every row of a count by user is appended to one, and the last of each is in the other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

import strandline as sl
from tests.spark import small
from tests.spark.functions import Count


def build(spark: Any, root: Path, local_dir: Path) -> sl.Job:
    """Return the job, checkpointed often."""
    counts = sl.stream(small.source(spark, root / "in")).key_by("user").process(Count(), small.OUTPUT, uid="count")
    return sl.Job(
        "tabled",
        sinks=[
            counts.to(sl.sinks.delta(root / "counted", name="counted")),
            counts.to(sl.sinks.delta(root / "latest", key="user", name="latest")),
        ],
        checkpoints=sl.Checkpoints(root / "ck", every="200ms", retain=2),
        restart=sl.Restart(attempts=10, delay="50ms"),
        settings=sl.Settings(parallelism=2, local_dir=local_dir, state_memory="128MB"),
    )


def check(root: Path, users: list[str]) -> None:
    """Assert that both tables hold what these events make."""
    wanted = small.counted(users)
    found = Counter(_pairs(root / "counted"))
    assert found == wanted, (found - wanted, wanted - found)
    latest = _pairs(root / "latest")
    assert len(latest) == len(dict(latest))
    assert dict(latest) == Counter(users)


def _pairs(path: Path) -> list[tuple[str, int]]:
    return [(row["user"], row["n"]) for row in DeltaTable(str(path)).to_pyarrow_table().to_pylist()]
