"""Drop messages that come again within an hour: an id is remembered so long, and costs nothing after that.

python -m examples.dedup
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import strandline as sl
from examples._inputs import in_temporary_directory, show, write_json

Row = dict[str, Any]
HOUR = timedelta(hours=1)
SCHEMA = "id string, at timestamp, text string"


class Once(sl.KeyedProcess):
    # It expires once the watermark is an hour on, which moves between epochs: so the function compares times by itself.
    first = sl.Value("timestamp", ttl=sl.TTL("1h", time="event"))

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Any]:
        if self.first.value is None or event.at - self.first.value > HOUR:
            self.first.value = event.at
            yield event  # an event is a row with all of its columns


def messages() -> list[Row]:
    """Messages of which every other one comes again, up to twenty minutes later; two ids are used again next day."""
    rng, start, rows = random.Random(4), datetime(2026, 1, 1, tzinfo=UTC), list[Row]()
    for n in range(60):
        at = start + timedelta(minutes=n)
        rows.append({"id": f"m{n}", "at": at.isoformat(), "text": f"text {n}"})
        if n % 2:
            rows.append({**rows[-1], "at": (at + timedelta(minutes=rng.randrange(20))).isoformat()})
    rows.sort(key=lambda row: row["at"])
    days = [{"id": id, "at": (start + timedelta(days=1)).isoformat(), "text": "new"} for id in ("m0", "m1")]
    return rows + days


def build(spark: Any, home: Path) -> sl.Job:
    df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(home / "in"))
    once = sl.stream(df).watermark("at", delay="5 min").key_by("id", order_by="at").process(Once(), SCHEMA, uid="once")
    return sl.Job(
        "dedup",
        sinks=[once.to(sl.sinks.files(str(home / "out"), format="json"))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s"),
        trigger="available-now",
    )


def expected(rows: list[Row]) -> Iterator[Row]:
    """What must come of it, in plain Python: of each id and day, the first text."""
    first: dict[tuple[str, str], Row] = {}
    for row in rows:
        first.setdefault((row["id"], row["at"][:10]), row)
    return ({"id": row["id"], "text": row["text"]} for row in first.values())


def main(home: Path) -> None:
    write_json(home / "in", messages())
    spark = sl.session("dedup")
    build(spark, home).start(spark).await_termination()
    show(home / "out")
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
