"""Count each user's visits, and forget who has not come for thirty days: state that expires.

python -m examples.visit_counter
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import strandline as sl
from examples._inputs import in_temporary_directory, show, write_json

Row = dict[str, Any]


class Visits(sl.KeyedProcess):
    count = sl.Value("bigint", default=0, ttl=sl.TTL("30 days"))  # after the last visit, by the clock

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Row]:
        self.count.value += 1
        yield {"user": ctx.key, "visit": self.count.value, "greeting": "hello" if self.count.value == 1 else "again"}


def visits() -> list[Row]:
    rng = random.Random(1)
    return [{"user": f"user-{rng.randrange(12)}"} for _ in range(60)]


def build(spark: Any, home: Path) -> sl.Job:
    came = spark.readStream.schema("user string").option("maxFilesPerTrigger", 1).json(str(home / "in"))
    counted = (
        sl.stream(came)
        .key_by("user")
        .process(Visits(), output="user string, visit bigint, greeting string", uid="visits")
    )
    return sl.Job(
        "visit-counter",
        sinks=[counted.to(sl.sinks.files(str(home / "out"), format="json"))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s"),
        trigger="available-now",  # process what is there and end; leave it out to go on for ever
    )


def expected(rows: list[Row]) -> Iterator[Row]:
    """What must come of it, in plain Python."""
    seen: Counter[str] = Counter()
    for row in rows:
        seen[row["user"]] += 1
        n = seen[row["user"]]
        yield {"user": row["user"], "visit": n, "greeting": "hello" if n == 1 else "again"}


def main(home: Path) -> None:
    write_json(home / "in", visits())
    spark = sl.session("visit-counter")
    build(spark, home).start(spark).await_termination()
    show(home / "out")
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
