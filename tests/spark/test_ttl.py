"""State that expires, in a job: by event time, across a restart, and told in the manifest."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import strandline as sl
from strandline.format.manifest import MANIFEST
from tests.spark import small
from tests.spark.functions import CountRecent
from tests.spark.harness import Case, settle

pytestmark = pytest.mark.spark


def test_state_expires_with_the_watermark_and_stays_so_after_a_restart(spark: Any, case: Case) -> None:
    sink = sl.sinks.memory()
    files = iter(range(100))

    def add(*rows: tuple[str, int]) -> None:
        small.write_rows(case.root / "in", next(files), [(user, "", second) for user, second in rows])

    def start() -> sl.Run:
        rows = sl.stream(small.source(spark, case.root / "in")).select_expr("user", "timestamp_seconds(v) ts")
        return small.job(rows.watermark("ts"), case.root, case.local_dir, sink=sink, process=CountRecent()).start(spark)

    # Each file is an epoch: its watermark is the newest time before it.
    add(("a", 100), ("b", 100))
    add(("a", 105), ("c", 112))
    add(("b", 112))
    with start() as run:
        settle(run)
        done = run.checkpoint(60)
    expected = Counter([("a", 1), ("b", 1), ("a", 2), ("c", 1), ("b", 1)])
    assert small.rows_of(sink) == expected
    data = (case.root / "ck" / "small" / f"chk-{done.checkpoint}" / "_metadata").read_bytes()
    states = {state.name: state for state in MANIFEST.decode(data, "test").operators[0].states}
    assert sorted(states) == ["seen", "ttl.event", "ttl.processing"]
    assert states["seen"].ttl.duration_ms == 10_000
    add(("a", 114), ("c", 200))
    add(("a", 200), ("c", 209))
    with start() as run:
        settle(run)
    assert small.rows_of(sink) == expected + Counter([("a", 3), ("c", 2), ("a", 1), ("c", 3)])
