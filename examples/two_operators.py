"""Two keyed operators, one behind the other: customers rise to levels, and each level counts its customers.

    python -m examples.two_operators

Each operator has a uid and a state of its own; between them the rows are shuffled to new keys within the same epoch. A
checkpoint holds both as of the same epoch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import strandline as sl
from examples._inputs import in_temporary_directory, write_json

LEVELS = {100: "silver", 500: "gold"}


class Levels(sl.KeyedProcess):
    """Keyed by customer: gives a row whenever the customer's spending reaches a level."""

    spent = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Any]:
        before = self.spent.value
        self.spent.value = before + event.amount
        for threshold, level in LEVELS.items():
            if before < threshold <= self.spent.value:
                yield {"customer": ctx.key, "level": level}


class Members(sl.KeyedProcess):
    """Keyed by level: numbers its members as they come."""

    members = sl.Value("int", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Any]:
        self.members.value += 1
        yield (ctx.key, self.members.value)


def orders() -> list[dict[str, Any]]:
    rng = random.Random(2)
    return [{"customer": f"c{rng.randrange(40)}", "amount": rng.randrange(1, 60)} for _ in range(600)]


def build(spark: Any, home: Path) -> sl.Job:
    df = spark.readStream.schema("customer string, amount bigint").json(str(home / "in"))
    rises = sl.stream(df).key_by("customer").process(Levels(), output="customer string, level string", uid="levels")
    members = rises.key_by("level").process(Members(), output="level string, members int", uid="members")
    return sl.Job(
        "two-operators",
        sinks=[
            rises.to(sl.sinks.files(str(home / "rises"), format="json")),
            members.to(sl.sinks.files(str(home / "members"), format="json")),
        ],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s"),
        trigger="available-now",
    )


def main(home: Path) -> None:
    write_json(home / "in", orders())
    spark = sl.session("two-operators")
    build(spark, home).start(spark).await_termination()
    spark.read.json(str(home / "members")).groupBy("level").max("members").show()
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
