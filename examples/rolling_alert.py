"""Raise an alert when a reading is far above the average of the sensor's last ten.

python -m examples.rolling_alert
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import strandline as sl
from examples._inputs import in_temporary_directory, show, write_json

Row = dict[str, Any]
LAST, TOO_HIGH = 10, 1.5


class Alert(sl.KeyedProcess):
    last = sl.Value("array<int>")  # read and written as a whole: for a few elements. What grows is a List or a Map

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Row]:
        last = self.last.value or []
        if len(last) == LAST and event.heat > TOO_HIGH * sum(last) / LAST:
            yield {"n": event.n, "sensor": ctx.key, "heat": event.heat, "usually": sum(last) / LAST}
        self.last.value = [*last, event.heat][-LAST:]


def readings() -> list[Row]:
    rng = random.Random(9)
    return [
        {"n": n, "sensor": rng.randrange(5), "heat": rng.randrange(18, 25) + rng.choice([0] * 9 + [20])}
        for n in range(300)
    ]


def build(spark: Any, home: Path) -> sl.Job:
    df = spark.readStream.schema("n int, sensor int, heat int").option("maxFilesPerTrigger", 1)
    alerts = (
        sl.stream(df.json(str(home / "in")))
        .key_by("sensor", order_by="n")  # without order_by, the order within an epoch is the shuffle's
        .process(Alert(), output="n int, sensor int, heat int, usually double", uid="alert")
    )
    return sl.Job(
        "rolling-alert",
        sinks=[alerts.to(sl.sinks.files(str(home / "out"), format="json"))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s"),
        trigger="available-now",
    )


def expected(rows: list[Row]) -> Iterator[Row]:
    """What must come of it, in plain Python."""
    readings: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        before = readings[row["sensor"]][-LAST:]
        if len(before) == LAST and row["heat"] > TOO_HIGH * sum(before) / LAST:
            yield {**row, "usually": sum(before) / LAST}
        readings[row["sensor"]].append(row["heat"])


def main(home: Path) -> None:
    write_json(home / "in", readings())
    spark = sl.session("rolling-alert")
    build(spark, home).start(spark).await_termination()
    show(home / "out")
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
