"""A job over a source that begins at "now": which "now" it was can be told from its first row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import strandline as sl
from tests.spark import pipeline

_KEYS = 5
FIRST = 0
"""The value of the row that comes with the beginning; each after it is one more."""


class Counted(sl.KeyedProcess):
    """Counts by key, and passes each row on."""

    seen = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        self.seen.value += 1
        yield (ctx.key, self.seen.value, event.value, event.at_ms)


def build(spark: Any, root: Path, local_dir: Path) -> sl.Job:
    """Return the job, checkpointed often."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
    steps = sl.stream(rows).select_expr("value", f"value % {_KEYS} as k", "unix_millis(timestamp) as at_ms")
    out = steps.key_by("k").process(Counted(), output="k bigint, n bigint, value bigint, at_ms bigint", uid="counted")
    return sl.Job(
        "rated",
        sinks=[out.to(sl.sinks.files(str(root / "rated"), format="json"))],
        checkpoints=sl.Checkpoints(root / "ck", every="300ms", retain=2),
        settings=sl.Settings(parallelism=2, local_dir=local_dir, state_memory="128MB"),
    )


def shown(root: Path) -> list[dict[str, Any]]:
    """Return what the sink shows."""
    return pipeline.read_json(root / "rated")


def check(root: Path) -> None:
    """Assert that every row since the beginning is there, once, and was counted once."""
    rows = shown(root)
    assert sorted(row["value"] for row in rows) == list(range(len(rows)))
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for row in rows:
        counts[row["k"]][row["n"]] += 1
    for found in counts.values():
        assert sorted(found.elements()) == list(range(1, len(found) + 1))
