"""Pattern rules with state, and their alerts summed in windows of event time: the program of the talk, in Python.

    python -m examples.critical_alerts

Lines are parsed, keyed by producer, and run through rules that remember what the producer did before. Of the alerts
that come of it, the CRITICAL ones are keyed by message and summed in windows of ten seconds. The original, in Scala on
Flink:

    env.addSource(…).map(bytes => Event.parse(bytes))
       .keyBy("producer").mapWithState { (event: Event, state: Option[Int]) => /* pattern rules */ }
       .filter(alert => alert.msg.contains("CRITICAL"))
       .keyBy("msg").timeWindow(Time.seconds(10)).sum("count")
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import strandline as sl
from examples._inputs import in_temporary_directory

LOGIN, FAILURE, TRANSFER, LOGOUT = 1, 2, 3, 4
FAILURES_BEFORE_ALARM = 3

EVENT = "producer string, evt_type int, msg string, ts timestamp"
ALERT = "msg string, count bigint"


def parse(line: Any) -> dict[str, Any]:
    """A line of the source: producer|type|message|time."""
    producer, evt_type, msg, ts = line.value.split("|")
    return {"producer": producer, "evt_type": int(evt_type), "msg": msg, "ts": dt.datetime.fromisoformat(ts)}


class PatternRules(sl.KeyedProcess):
    """Failures in a row are remembered; a transfer soon after many of them is critical."""

    failures = sl.Value("int", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Any]:
        if event.evt_type == FAILURE:
            self.failures.value += 1
            if self.failures.value == FAILURES_BEFORE_ALARM:
                yield {"msg": f"WARNING: {event.msg}", "count": 1}
        elif event.evt_type == TRANSFER and self.failures.value >= FAILURES_BEFORE_ALARM:
            yield {"msg": f"CRITICAL: {event.msg}", "count": 1}
        elif event.evt_type == LOGIN:
            self.failures.clear()


def build(spark: Any, home: Path, **given: Any) -> sl.Job:
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(home / "in"))
    totals = (
        sl.stream(lines)
        .map(parse, EVENT)
        .watermark("ts", delay="5s")
        .key_by("producer", order_by="ts")
        .process(PatternRules(), output=ALERT, uid="rules")
        .where("msg like '%CRITICAL%'")
        .key_by("msg")
        .window(sl.Tumbling("10s"))
        .agg(count=sl.agg.sum("count"), uid="totals")
    )
    given = {"trigger": "available-now", "checkpoints": sl.Checkpoints(home / "checkpoints", every="10s"), **given}
    return sl.Job("critical-alerts", sinks=[totals.to(sl.sinks.files(str(home / "out"), format="json"))], **given)


def events(seed: int = 7, number: int = 3000) -> list[str]:
    """Lines in the order of their times; the last one is so late that every window before it is complete."""
    rng = random.Random(seed)
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    messages = ["card", "account", "limit"]
    lines = []
    for _ in range(number):
        at += dt.timedelta(milliseconds=rng.randrange(1, 200))
        kind = rng.choices([LOGIN, FAILURE, TRANSFER, LOGOUT], [2, 6, 5, 1])[0]
        lines.append(f"p{rng.randrange(20)}|{kind}|{rng.choice(messages)}|{at.isoformat()}")
    return [*lines, f"end|{LOGOUT}|end|{(at + dt.timedelta(minutes=1)).isoformat()}"]


def write(directory: Path, lines: list[str], files: int = 5) -> None:
    """Write lines as files that a source reads in this order, each whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    each = -(-len(lines) // files)
    for number in range(files):
        write_file(directory, number, lines[number * each : (number + 1) * each])


def write_file(directory: Path, number: int, lines: list[str]) -> None:
    """Write one file."""
    hidden = directory / f"_{number:03d}.txt"
    hidden.write_text("\n".join(lines))
    # A file source reads files by age, and these may all be made within one tick of the clock.
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
    hidden.rename(directory / f"{number:03d}.txt")


def main(home: Path) -> None:
    write(home / "in", events())
    spark = sl.session("critical-alerts")
    build(spark, home).start(spark).await_termination()
    rows = [
        json.loads(line) for path in sorted((home / "out").glob("part-*")) for line in path.read_text().splitlines()
    ]
    for row in sorted(rows, key=lambda row: (row["window_start"], row["msg"]))[:12]:
        print(f"{row['window_start']}  {row['msg']:<18} {row['count']}")
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
