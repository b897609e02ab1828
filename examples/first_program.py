"""A first program, on a small input that ends: every third event of a producer is reported.

python -m examples.first_program
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import strandline as sl
from examples._inputs import in_temporary_directory, write_json


class Detect(sl.KeyedProcess):
    seen = sl.Value("bigint", default=0)  # state: declared, typed by Spark DDL, named by the attribute
    history = sl.List("struct<ts: timestamp, v: int>")
    by_type = sl.Map("string", "bigint")

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Any]:  # columns are attributes of the event
        self.seen.value += 1
        self.by_type[event.evt_type] = self.by_type.get(event.evt_type, 0) + 1
        if self.seen.value % 3 == 0:
            yield {"producer": event.producer, "seen": self.seen.value}


def events() -> list[dict[str, Any]]:
    rng = random.Random(1)
    return [
        {"producer": f"p{rng.randrange(10)}", "evt_type": rng.choice(["on", "off", "blink"]), "v": rng.randrange(-1, 5)}
        for _ in range(300)
    ]


def build(spark: Any, home: Path) -> sl.Job:
    df = spark.readStream.schema("producer string, evt_type string, v int").json(str(home / "in"))
    alerts = (
        sl.stream(df)  # any Structured Streaming DataFrame
        .where("v > 0")  # stateless steps stay Spark
        .key_by("producer")
        .process(Detect(), output="producer string, seen bigint", uid="detect")
    )
    return sl.Job(
        "first-program",
        sinks=[alerts.to(sl.sinks.files(str(home / "out"), format="parquet"))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s", retain=2),
        trigger="available-now",  # process what is there, take a last checkpoint, end; leave it out to go on for ever
    )


def main(home: Path) -> None:
    write_json(home / "in", events())
    spark = sl.session("first-program")
    build(spark, home).start(spark).await_termination()
    spark.read.parquet(str(home / "out")).orderBy("producer", "seen").show(50)
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
