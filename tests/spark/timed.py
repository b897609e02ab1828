"""A pipeline in event time, with a chain of timers, and what it must give: a plain-Python oracle.

Nothing is late, so what comes out does not depend on how the events are cut into epochs.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import strandline as sl

SCHEMA = "ts timestamp, user string, v bigint"
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
HOUR = dt.timedelta(hours=1)


class PerMinute(sl.KeyedProcess):
    """Keyed by user: sums each minute of event time, and gives it when the minute is over."""

    sums = sl.Map("timestamp", "bigint")

    def on_event(self, event: Any, ctx: sl.Context) -> None:
        if event.v < 0:
            ctx.emit("negative", {"user": ctx.key, "v": event.v})
            return
        assert ctx.timestamp == event.ts
        end = floor(event.ts, MINUTE) + MINUTE
        self.sums[end] = self.sums.get(end, 0) + event.v
        ctx.timers.set(end)

    def on_timer(self, timer: sl.Timer, ctx: sl.Context) -> Iterable[Any]:
        assert ctx.watermark is not None
        assert timer.timestamp < ctx.watermark
        yield {"user": ctx.key, "minute": timer.timestamp, "total": self.sums.pop(timer.timestamp)}


class PerHour(sl.KeyedProcess):
    """Keyed by hour, behind PerMinute: how many rows came, and their total, once the hour is over for everyone."""

    rows = sl.Value("bigint", default=0)
    total = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> None:
        # Were it too late, the timer would have fired without it.
        assert not ctx.is_late
        self.rows.value += 1
        self.total.value += event.total
        ctx.timers.set(ctx.key + HOUR)

    def on_timer(self, timer: sl.Timer, ctx: sl.Context) -> Iterable[Any]:
        yield ctx.key, self.rows.value, self.total.value
        self.rows.clear()
        self.total.clear()


def floor(time: dt.datetime, unit: dt.timedelta) -> dt.datetime:
    return time - (time - BEGIN) % unit


def build(spark: Any, root: Path, local_dir: Path, **given: Any) -> sl.Job:
    """Return the job: minutes, hours, and what was sent aside."""
    (root / "in").mkdir(exist_ok=True)
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(root / "in"))
    minutes = (
        sl.stream(events)
        .watermark("ts", delay="10 min")
        .select("user", "v", "ts")
        .key_by("user")
        .process(
            PerMinute(),
            output="user string, minute timestamp, total bigint",
            sides={"negative": "user string, v bigint"},
            uid="minutes",
        )
    )
    # The minute's time is its end, which belongs to the hour that it ends in.
    hours = (
        minutes.select_expr("*", "date_trunc('HOUR', minute - interval 1 second) as hour")
        .key_by("hour")
        .process(PerHour(), output="hour timestamp, n bigint, total bigint", uid="hours")
    )
    given.setdefault("checkpoints", sl.Checkpoints(root / "ck", every="200ms", retain=2))
    given.setdefault("restart", sl.Restart(attempts=10, delay="50ms"))
    return sl.Job(
        "timed",
        sinks=[
            minutes.to(sl.sinks.files(str(root / "minutes"), format="json", name="minutes")),
            minutes.side("negative").to(sl.sinks.files(str(root / "negative"), format="json", name="negative")),
            hours.to(sl.sinks.files(str(root / "hours"), format="json", name="hours")),
        ],
        settings=sl.Settings(parallelism=2, local_dir=local_dir, state_memory="128MB"),
        **given,
    )


class Input:
    """Files of events, each up to ten minutes out of order, and what they must give."""

    def __init__(self, root: Path, seed: int) -> None:
        self._directory = root / "in"
        self._random = random.Random(seed)
        self._at = BEGIN
        self._files = 0
        self.events: list[tuple[dt.datetime, str, int]] = []

    def add(self, rows: int = 60) -> None:
        """Add a file that goes on for half an hour."""
        found = []
        for _ in range(rows):
            self._at += dt.timedelta(seconds=self._random.randint(0, 60))
            time = self._at - dt.timedelta(seconds=self._random.randint(0, 599))
            value = self._random.randint(-1, 9)
            found.append((max(time, BEGIN), f"user-{self._random.randrange(7)}", value))
        self._write(found)

    def end(self) -> None:
        """Add an event so much later that everything before it is over."""
        self._at += dt.timedelta(hours=3)
        self._write([(self._at, "last", 0)])

    def _write(self, events: list[tuple[dt.datetime, str, int]]) -> None:
        self.events += events
        self._directory.mkdir(exist_ok=True)
        path = self._directory / f"_{self._files:04}.json"
        lines = [json.dumps({"ts": ts.isoformat(), "user": user, "v": v}) for ts, user, v in events]
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + self._files, 1_700_000_000 + self._files))
        path.rename(path.with_name(path.name[1:]))
        self._files += 1

    def expected(self) -> dict[str, Counter[tuple[Any, ...]]]:
        """Return what the sinks must show once `end` was processed: all but the last event's own minute and hour."""
        sums: Counter[tuple[str, dt.datetime]] = Counter()
        for ts, user, v in self.events[:-1]:
            if v >= 0:
                sums[user, floor(ts, MINUTE) + MINUTE] += v
        hours: Counter[dt.datetime] = Counter()
        rows: Counter[dt.datetime] = Counter()
        for (_, minute), total in sums.items():
            hour = floor(minute - dt.timedelta(seconds=1), HOUR)
            rows[hour] += 1
            hours[hour] += total
        return {
            "minutes": Counter((user, minute, total) for (user, minute), total in sums.items()),
            "hours": Counter((hour, n, hours[hour]) for hour, n in rows.items()),
            "negative": Counter((user, v) for _, user, v in self.events if v < 0),
        }


def shown(root: Path) -> dict[str, Counter[tuple[Any, ...]]]:
    """Return what the sinks show."""
    names = {"minutes": ("user", "minute", "total"), "hours": ("hour", "n", "total"), "negative": ("user", "v")}
    found = {}
    for sink, columns in names.items():
        rows = [
            json.loads(line) for path in sorted((root / sink).glob("part-*")) for line in path.read_text().splitlines()
        ]
        found[sink] = Counter(tuple(_value(name, row[name]) for name in columns) for row in rows)
    return found


def _value(name: str, value: Any) -> Any:
    return dt.datetime.fromisoformat(value).astimezone(dt.UTC) if name in ("minute", "hour") else value
