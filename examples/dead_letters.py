"""Add up amounts of which some are no numbers: bad records go to a place of their own, and the job goes on.

python -m examples.dead_letters
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import strandline as sl
from examples._inputs import in_temporary_directory, show, write_json

Row = dict[str, Any]


class Totals(sl.KeyedProcess):
    cents = sl.Value("bigint", default=0)
    payments = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Row]:
        self.payments.value += 1  # taken back, if what follows fails
        self.cents.value += int(100 * Decimal(event.amount))
        yield {"customer": ctx.key, "payments": self.payments.value, "cents": self.cents.value}


def payments() -> list[Row]:
    rng = random.Random(10)
    amounts = ["12.50", "3.99", "100", "n/a", "7,50"]
    return [{"customer": rng.choice(["ann", "bob", "eve", None]), "amount": rng.choice(amounts)} for _ in range(90)]


def build(spark: Any, home: Path) -> sl.Job:
    df = spark.readStream.schema("customer string, amount string").option("maxFilesPerTrigger", 1)
    totals = (
        sl.stream(df.json(str(home / "in")))
        .key_by("customer")
        .process(
            Totals(), output="customer string, payments bigint, cents bigint", uid="totals", on_error="dead-letter"
        )
    )
    return sl.Job(
        "dead-letters",
        sinks=[
            totals.to(sl.sinks.files(str(home / "out"), format="json")),
            totals.dead_letters.to(sl.sinks.files(str(home / "bad"), format="json")),
        ],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s"),
        trigger="available-now",
    )


def expected(rows: list[Row]) -> tuple[dict[str, tuple[int, int]], int]:
    """What must come of it, in plain Python: each customer's last totals, and how many records are bad."""
    good = [row for row in rows if row["customer"] and row["amount"] not in ("n/a", "7,50")]
    number, cents = Counter(row["customer"] for row in good), Counter[str]()
    for row in good:
        cents[row["customer"]] += int(100 * Decimal(row["amount"]))
    return {name: (number[name], cents[name]) for name in number}, len(rows) - len(good)


def main(home: Path) -> None:
    write_json(home / "in", payments())
    spark = sl.session("dead-letters")
    build(spark, home).start(spark).await_termination()
    show(home / "out")
    show(home / "bad", "step", "reason", "key", "event")
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
