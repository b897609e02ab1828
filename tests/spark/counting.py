"""A count by user into two targets: every row is appended to one, and the last of each user is in the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

import strandline as sl
from tests.spark import small
from tests.spark.functions import Count


def into_postgres(spark: Any, root: Path, local_dir: Path, dsn: str) -> sl.Job:
    """Return the job into two tables of PostgreSQL."""
    appended = sl.sinks.postgres(dsn, "counted", create=True, name="counted")
    # More lanes than partitions: rows change them on their way.
    latest = sl.sinks.postgres(dsn, "latest", key="user", create=True, writers=3, name="latest")
    return _build("databased", spark, root, local_dir, appended, latest)


def into_tables(spark: Any, root: Path, local_dir: Path) -> sl.Job:
    """Return the job into two Delta tables."""
    appended = sl.sinks.delta(root / "counted", name="counted")
    latest = sl.sinks.delta(root / "latest", key="user", name="latest")
    return _build("tabled", spark, root, local_dir, appended, latest)


def _build(name: str, spark: Any, root: Path, local_dir: Path, *sinks: sl.sinks.Sink) -> sl.Job:
    counts = sl.stream(small.source(spark, root / "in")).key_by("user").process(Count(), small.OUTPUT, uid="count")
    return sl.Job(
        name,
        sinks=[counts.to(sink) for sink in sinks],
        checkpoints=sl.Checkpoints(root / "ck", every="200ms", retain=2),
        restart=sl.Restart(attempts=10, delay="50ms"),
        settings=sl.Settings(parallelism=2, local_dir=local_dir, state_memory="128MB"),
    )


def add(root: Path, number: int, users: list[str]) -> None:
    """Add one input file, an epoch of its own."""
    small.write_rows(root / "in", number, [(user, "x", 1) for user in users])


def check_postgres(db: Any, users: list[str]) -> None:
    """Assert that both tables hold what these events make."""
    _check(*(db.execute(f'select "user", n from {table}').fetchall() for table in ("counted", "latest")), users)


def check_tables(root: Path, users: list[str]) -> None:
    """Assert that both tables hold what these events make."""
    tables = (DeltaTable(str(root / table)).to_pyarrow_table().to_pylist() for table in ("counted", "latest"))
    _check(*([(row["user"], row["n"]) for row in table] for table in tables), users)


def _check(appended: Iterable[Any], latest: list[Any], users: list[str]) -> None:
    wanted, found = small.counted(users), Counter(appended)
    assert found == wanted, (found - wanted, wanted - found)
    assert len(latest) == len(dict(latest))
    assert dict(latest) == Counter(users)
