"""Windows on real Spark: a pipeline of tumbling windows after a process function, and sessions, with late events."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from tests.spark.harness import Case, settle

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
    hidden.rename(directory / f"{number:05}.json")


def seconds(row: Any, name: str) -> int:
    time = row[name]
    utc = time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time
    return round((utc - BEGIN).total_seconds())


def job(spark: Any, case: Case, sinks: dict[str, Any]) -> sl.Job:
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(case.root / "in"))
    events = sl.stream(source).watermark("ts", delay="5s")
    totals = events.key_by("user").window(sl.Tumbling("10s"), late="late").fold(
        "total bigint, n bigint", (0, 0), lambda acc, e: (acc.total + e.v, acc.n + 1), uid="totals"
    )  # fmt: skip
    # A window of the same size takes in what the one before it gives.
    overall = totals.with_column("all", _lit("all")).select("all", "total").key_by("all").window(
        sl.Tumbling("10s")
    ).fold("grand bigint", 0, lambda grand, e: grand + e.total, uid="overall")  # fmt: skip

    def values(key: str, window: sl.Window, found: list[Any]) -> Any:
        assert window.end > window.start
        yield {"vs": ",".join(str(e.v) for e in sorted(found, key=lambda e: e.ts))}

    sessions = events.key_by("user").window(sl.Session("7s")).process(values, output="vs string", uid="sessions")
    outputs = {"totals": totals, "late": totals.side("late"), "overall": overall, "sessions": sessions}
    return case.job_of("windows", *(stream.to(sinks[name]) for name, stream in outputs.items()))


def _lit(value: str) -> Any:
    from pyspark.sql import functions as F

    return F.lit(value)


def test_windows_of_a_stream_with_late_events_across_a_restart(spark: Any, case: Case) -> None:
    sinks = {name: sl.sinks.memory(name=name) for name in ("totals", "late", "overall", "sessions")}
    source = case.root / "in"
    write(source, 0, [(1, "a", 1), (4, "b", 2), (9, "a", 3), (13, "a", 4), (16, "a", 5)])
    with job(spark, case, sinks).start(spark) as run:
        run.process_all_available(60)
        # The watermark is at 11 s: the first is late, the second in time.
        write(source, 1, [(3, "b", 100), (12, "b", 6), (19, "b", 7)])
        settle(run)
    with job(spark, case, sinks).start(spark) as run:
        write(source, 2, [(60, "c", 8)])
        settle(run)
    totals = Counter((r["user"], seconds(r, "window_start"), r["total"], r["n"]) for r in sinks["totals"].rows)
    assert totals == Counter([("a", 0, 4, 2), ("b", 0, 2, 1), ("a", 10, 9, 2), ("b", 10, 13, 2)])
    assert [(r["user"], r["v"], seconds(r, "ts")) for r in sinks["late"].rows] == [("b", 100, 3)]
    overall = Counter((seconds(r, "window_end"), r["grand"]) for r in sinks["overall"].rows)
    assert overall == Counter([(10, 6), (20, 22)])
    sessions = Counter(
        (r["user"], seconds(r, "window_start"), seconds(r, "window_end"), r["vs"]) for r in sinks["sessions"].rows
    )
    # a: 1 | 9 13 16; b: 4, which the late event at 3 s joins, since at 11 s another may come at the very end | 12 19.
    assert sessions == Counter([("a", 1, 8, "1"), ("a", 9, 23, "3,4,5"), ("b", 3, 11, "100,2"), ("b", 12, 26, "6,7")])


def test_the_columns_of_results(spark: Any, case: Case) -> None:
    (case.root / "in").mkdir()
    keyed = sl.stream(spark.readStream.schema(SCHEMA).json(str(case.root / "in"))).watermark("ts").key_by("user", "v")
    window = keyed.window(sl.Tumbling("1s"), late="late")
    total = window.fold("n bigint", 0, lambda n, e: n + 1, uid="x")
    assert total.columns == ["user", "v", "window_start", "window_end", "n"]
    assert total.side("late").columns == ["ts", "user", "v"]
    assert window.reduce(max, uid="y").columns == ["user", "v", "window_start", "window_end", "ts"]
    assert keyed.window(sl.Global(count=2)).reduce(max, uid="z").columns == ["user", "v", "ts"]
