"""Which rows are late, as Spark computes it, and dead letters: each comes once."""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import strandline as sl
from strandline.api.windows import windows_of
from strandline.plan.columns import Columns
from strandline.plan.graph import LateNode
from strandline.runtime.rowlayout import FIRED, TIME
from strandline.spark.lower.nodes import late_rows
from tests.spark.harness import Case, fired, keepers_armed, settle
from tests.spark.test_windows import SCHEMA, seconds, write

pytestmark = pytest.mark.spark

WINDOWS = [
    (sl.Tumbling("10s"), "0s"),
    (sl.Tumbling("10s", offset="3s"), "4s"),
    (sl.Sliding("10s", every="4s"), "0s"),
    (sl.Sliding("4s", every="10s", offset="1s"), "2s"),
]


@pytest.mark.parametrize(("kind", "lateness"), WINDOWS)
def test_late_is_what_is_too_late_for_every_window(spark: Any, kind: Any, lateness: str) -> None:
    rows = spark.range(-30, 60).selectExpr(f"id * 1000000L as {TIME}", f"id % 2 = 0 as {FIRED}")
    nothing = spark.sql(f"select cast(null as bigint) {TIME}, cast(null as boolean) {FIRED}")
    node = LateNode(Columns.of("k int"), None, kind, int(lateness[:-1]) * 1_000_000)
    moves = (None, None), (17, None), (17, 2), (20, 14)
    asked = [
        late_rows(node, rows.union(nothing), *(None if second is None else second * 1_000_000 for second in move))
        for move in moves
    ]
    tagged = [df.select(F.lit(at).alias("move"), TIME) for at, df in enumerate(asked)]
    found = reduce(DataFrame.union, tagged).collect()
    for at, (watermark, before) in enumerate(moves):
        wanted = set()
        for second in range(-30, 60):
            ends = [window.end_us // 1_000_000 for window in windows_of(kind, second * 1_000_000)]
            reached = before if second % 2 == 0 else watermark
            if ends and reached is not None and all(end + int(lateness[:-1]) <= reached for end in ends):
                wanted.add(second)
        times = [row[TIME] for row in found if row.move == at]
        assert {time // 1_000_000 for time in times if time is not None} == wanted
        assert times.count(None) == 1


class Strict(sl.KeyedProcess):
    """Counts and adds up what it can; fails, when it has written, for what is negative."""

    n = sl.Value("bigint", default=0)
    seen = sl.List("bigint")

    def on_event(self, event: Any, ctx: sl.Context) -> Any:
        self.n.value += 1
        self.seen.append(event.v)
        yield ctx.key, self.n.value, sum(self.seen)
        if event.v < 0:
            raise ValueError("negative")


@pytest.mark.long
def test_dead_letters_come_once_though_keepers_die(spark: Any, case: Case) -> None:
    """Of what fails and of what has no key; state and output know nothing of them."""
    inputs = case.root / "in"
    inputs.mkdir()
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(inputs))
    strict = sl.stream(source).watermark("ts").key_by("user", order_by="ts")
    counted = strict.process(Strict(), "user string, n bigint, total bigint", uid="strict", on_error="dead-letter")
    good, dead = sl.sinks.memory(name="good"), sl.sinks.memory(name="dead")
    outputs = counted.to(good), counted.dead_letters.where("operator = 'strict'").to(dead)
    directory = case.root / "fired"
    with pytest.raises(sl.errors.ConfigurationError, match="'strict': on_error is 'dead-letter', and its dead letters"):
        case.job_of("strict", counted.to(sl.sinks.memory())).start(spark)
    armed = "keeper.epoch.middle=kill@2;keeper.applied=kill@2"
    with (
        keepers_armed(spark, directory, armed),
        case.job_of("strict", *outputs, restart=sl.Restart(delay="10ms")).start(spark) as run,
    ):
        for number in range(3):
            rows: list[Any] = [(10 * number + at, user, at + 1) for at, user in enumerate("abc")]
            write(inputs, number, [*rows, (10 * number + 5, "a", -number - 1), (10 * number + 6, None, number)])
            settle(run)
        assert fired(directory) == {"keeper.epoch.middle", "keeper.applied"}
        status = run.status()
        assert status.restarts >= 1
        assert 0 < status.failed_events <= 6
        assert sum(keeper.metrics["failed_events"] for keeper in status.keepers) >= 0
    assert sorted(row.n for row in good.rows) == sorted([1, 2, 3] * 3)
    assert {(row.user, row.total) for row in good.rows if row.n == 3} == {("a", 3), ("b", 6), ("c", 9)}
    found = [
        (row.step, row.reason, row.key, json.loads(row.event)["v"], seconds(row, "event_time")) for row in dead.rows
    ]
    failed = [("on_event", "ValueError: negative", '"a"', -number - 1, 10 * number + 5) for number in range(3)]
    keyless = [("key_by", "the key column 'user' is null", None, number, 10 * number + 6) for number in range(3)]
    assert sorted(found, key=str) == sorted(failed + keyless, key=str)
    assert all("in on_event" in row.traceback for row in dead.rows if row.step == "on_event")
