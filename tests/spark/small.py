"""A smaller job than the pipeline: one operator that counts by user, into a sink in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import strandline as sl
from tests.spark import pipeline
from tests.spark.functions import Count

OUTPUT = "user string, n bigint"


def source(spark: Any, directory: Path) -> Any:
    """Return the streaming DataFrame over a directory of JSON files, one file an epoch."""
    directory.mkdir(parents=True, exist_ok=True)
    return spark.readStream.schema(pipeline.EVENT_SCHEMA).option("maxFilesPerTrigger", 1).json(str(directory))


def write_rows(directory: Path, number: int, rows: Sequence[tuple[Any, ...]]) -> None:
    """Add one input file of exactly these rows: user, kind, v."""
    names = ("seq", "user", "kind", "v")
    pipeline.write_events(directory, number, [dict(zip(names, (i, *row), strict=True)) for i, row in enumerate(rows)])


def job(
    stream: sl.Stream,
    root: Path,
    local_dir: Path,
    *,
    sink: sl.sinks.Sink | None = None,
    process: Any = None,
    keys: Sequence[str] = ("user",),
    output: str = OUTPUT,
    uid: str = "count",
    max_parallelism: int | None = None,
    settings: dict[str, Any] | None = None,
    **given: Any,
) -> sl.Job:
    """Return the job `small`: checkpoints on demand only, never restarted, unless given otherwise."""
    out = stream.key_by(*keys).process(process or Count(), output=output, uid=uid, max_parallelism=max_parallelism)
    given.setdefault("checkpoints", sl.Checkpoints(root / "ck", retain=2))
    given.setdefault("restart", sl.Restart.never())
    return sl.Job(
        "small",
        sinks=[out.to(sink or sl.sinks.memory())],
        settings=sl.Settings(**{"parallelism": 2, "local_dir": local_dir, "state_memory": "128MB", **(settings or {})}),
        **given,
    )


def counted(users: Sequence[str]) -> Counter[tuple[str, int]]:
    """Return what Count must give for events of these users."""
    return Counter((user, i + 1) for user, n in Counter(users).items() for i in range(n))


def rows_of(sink: Any) -> Counter[tuple[Any, ...]]:
    """Return what a sink in memory shows."""
    return Counter(map(tuple, sink.rows))
