"""Windows on real Spark: a pipeline of tumbling windows after a process function, and sessions, with late events."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import strandline as sl
from tests.soak import soaking
from tests.spark.harness import Case, begin_reducing, settle

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("generated_code")]

SCHEMA = "ts timestamp, user string, v bigint"
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def write(directory: Path, number: int, events: list[tuple[int, str, int]]) -> None:
    """Add one input file, an epoch, of events (second, user, v)."""
    directory.mkdir(exist_ok=True)
    lines = [
        json.dumps({"ts": (BEGIN + dt.timedelta(seconds=s)).isoformat(), "user": user, "v": v}) for s, user, v in events
    ]
    hidden = directory / f".{number}.json"
    hidden.write_text("\n".join(lines))
    # Spark reads files in the order of their times.
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
    hidden.rename(directory / f"{number:05}.json")


def seconds(row: Any, name: str) -> int:
    time = row[name]
    utc = time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time
    return round((utc - BEGIN).total_seconds())


def streams_of(spark: Any, case: Case) -> dict[str, sl.Stream]:
    """Return sums by user and window, those of a function's and built-in ones, sums of these over all users, sessions."""
    (case.root / "in").mkdir(exist_ok=True)
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(case.root / "in"))
    events = sl.stream(source).watermark("ts", delay="5s").key_by("user")
    windows = events.window(sl.Tumbling("10s"), late="late")
    folded = windows.fold("total bigint", 0, lambda total, e: total + e.v, uid="folded")
    totals = windows.agg(total=sl.agg.sum("v"), uid="totals")
    # A window of the same size takes in what the one before it gives.
    everyone = totals.with_column("all", F.lit("all")).key_by("all").window(sl.Tumbling("10s"), late="late")
    overall = everyone.agg(grand=sl.agg.sum("total"), uid="overall")

    def values(key: str, window: sl.Window, found: list[Any]) -> Any:
        assert window.end > window.start
        yield {"vs": ",".join(str(e.v) for e in sorted(found, key=lambda e: e.ts))}

    return {
        "folded": folded, "late folded": folded.side("late"), "totals": totals, "late": totals.side("late"), "overall": overall,
        "none": overall.side("late"), "sessions": events.window(sl.Session("7s")).process(values, output="vs string", uid="sessions"),
    }  # fmt: skip


@pytest.mark.parametrize("reducing", [(True, False), *soaking([(True, True), (False, False)])], ids=str)
@pytest.mark.long
def test_windows_of_a_stream_with_late_events_across_a_restart(
    spark: Any, case: Case, reducing: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it the watermark is the same; what is late comes out of the side, and further down the line nothing is."""
    streams = streams_of(spark, case)
    assert streams["late"].columns == streams["late folded"].columns == ["ts", "user", "v"]
    sinks = {name: sl.sinks.memory(name=name) for name in streams}

    def job() -> sl.Job:
        return case.job_of("windows", *(stream.to(sinks[name]) for name, stream in streams.items()))

    begin_reducing(monkeypatch, reducing[0])
    write(case.root / "in", 0, [(1, "a", 1), (4, "b", 2), (12, "b", 4), (16, "a", 8)])
    # The watermark is at 11 s: two are late, a third is in time.
    write(case.root / "in", 1, [(3, "b", 100), (9, "c", 200), (13, "a", 16)])
    with job().start(spark) as run:
        settle(run)
        assert run.status().late_rows == 3 * 2, "to each operator that reads the source"
    begin_reducing(monkeypatch, reducing[1])
    write(case.root / "in", 2, [(2, "a", 300), (19, "a", 32), (40, "a", 64)])
    with job().start(spark) as run:
        settle(run)
    for name in ("late", "late folded"):
        late = sorted((row.user, row.v, seconds(row, "ts")) for row in sinks[name].rows)
        assert late == [("a", 300, 2), ("b", 100, 3), ("c", 200, 9)], name
    for name in ("totals", "folded"):
        given = sorted((row.user, seconds(row, "window_start"), row.total) for row in sinks[name].rows)
        assert given == [("a", 0, 1), ("a", 10, 56), ("b", 0, 2), ("b", 10, 4)], name
    assert sorted((seconds(row, "window_end"), row.grand) for row in sinks["overall"].rows) == [(10, 3), (20, 60)]
    assert sinks["none"].rows == []
    sessions = sorted(
        (row.user, seconds(row, "window_start"), seconds(row, "window_end"), row.vs) for row in sinks["sessions"].rows
    )
    # b: 4, which the late event at 3 s joins, since at 11 s another may come at the very end | 12.
    assert sessions == [
        ("a", 1, 8, "1"), ("a", 13, 26, "16,8,32"), ("b", 3, 11, "100,2"), ("b", 12, 19, "4"), ("c", 9, 16, "200"),
    ]  # fmt: skip


def test_the_columns_of_results(spark: Any, case: Case) -> None:
    (case.root / "in").mkdir()
    keyed = sl.stream(spark.readStream.schema(SCHEMA).json(str(case.root / "in"))).watermark("ts").key_by("user", "v")
    window = keyed.window(sl.Tumbling("1s"), late="late")
    total = window.fold("n bigint", 0, lambda n, e: n + 1, uid="x")
    assert total.columns == ["user", "v", "window_start", "window_end", "n"]
    assert total.side("late").columns == ["ts", "user", "v"]
    assert window.reduce(max, uid="y").columns == ["user", "v", "window_start", "window_end", "ts"]
    assert keyed.window(sl.Global(count=2)).reduce(max, uid="z").columns == ["user", "v", "ts"]
