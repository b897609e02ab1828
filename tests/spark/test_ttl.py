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

    expected: Counter[tuple[Any, ...]] = Counter()
    with start() as run:
        # Each file is an epoch: its watermark is the newest time before it.
        for rows, counted in (
            ([("a", 100), ("b", 100)], [("a", 1), ("b", 1)]),
            ([("a", 105)], [("a", 2)]),
            ([("c", 112)], [("c", 1)]),
            ([("b", 112)], [("b", 1)]),
        ):
            add(*rows)
            settle(run)
            expected.update(counted)
            assert small.rows_of(sink) == expected
        done = run.checkpoint(60)
    data = (case.root / "ck" / "small" / f"chk-{done.checkpoint}" / "_metadata").read_bytes()
    states = {state.name: state for state in MANIFEST.decode(data, "test").operators[0].states}
    assert sorted(states) == ["seen", "ttl.event", "ttl.processing"]
    assert states["seen"].ttl.duration_ms == 10_000
    with start() as run:
        add(("a", 114))
        settle(run)
        expected.update([("a", 3)])
        assert small.rows_of(sink) == expected
        add(("c", 200))
        settle(run)
        add(("a", 200), ("c", 209))
        settle(run)
        expected.update([("c", 1 + 1), ("a", 1), ("c", 3)])
        assert small.rows_of(sink) == expected
