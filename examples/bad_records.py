"""Payments of which some are bad: lines that are no JSON, amounts that are no numbers, payments of nobody.

What is good is added up; each bad record is a row of its own, with what was wrong and the record itself.

    python -m examples.bad_records
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import strandline as sl
from examples._inputs import in_temporary_directory

LETTERS = ("read", "parsed", "limited")


class Limited(sl.KeyedProcess):
    """Adds up a customer's payments; nobody pays more than 1000.00 in all."""

    paid = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Any:
        self.paid.value += event.cents  # taken back, if the call fails
        if self.paid.value > 100_000:
            raise ValueError(f"{ctx.key} would have paid {self.paid.value / 100:.2f}")
        yield {"customer": ctx.key, "paid": self.paid.value}


def parsed(row: Any) -> Any:
    return {"customer": row.customer, "cents": round(100 * float(row.amount))}


def lines() -> list[str]:
    rng = random.Random(7)
    found = []
    for _ in range(300):
        customer = rng.choice(["ann", "bob", "cid", None])
        amount = rng.choice(["12.50", "80.00", "a lot", "7.99"])
        line = json.dumps({"customer": customer, "amount": amount})
        found.append(line[: len(line) // 2] if rng.random() < 0.05 else line)
    return found


def build(spark: Any, home: Path) -> sl.Job:
    schema = "customer string, amount string"
    read = sl.files_source(home / "in", schema=schema, spark=spark, max_files_per_epoch=1, on_error="dead-letter")
    payments = read.map(parsed, output="customer string, cents bigint", on_error="dead-letter")
    limited = payments.key_by("customer").process(
        Limited(),
        output="customer string, paid bigint",
        uid="limited",
        # 500 bad payments a minute are no bad records: something is broken, and the job ends.
        on_error=sl.OnError("dead-letter", at_most=500, per="1 min"),
    )
    good = limited.to(sl.sinks.files(str(home / "out"), format="json", name="out"))
    # All have the same columns: sinks may share a directory.
    bad = [
        stream.dead_letters.to(sl.sinks.files(str(home / "dead"), format="json", name=f"dead-{name}"))
        for name, stream in zip(LETTERS, (read, payments, limited), strict=True)
    ]
    return sl.Job(
        "bad-records",
        sinks=[good, *bad],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s"),
        trigger="available-now",
    )


def write_lines(directory: Path, given: list[str]) -> None:
    directory.mkdir(parents=True)
    for number in range(2):
        (directory / f"{number}.json").write_text("".join(f"{line}\n" for line in given[number::2]))


def main(home: Path) -> None:
    write_lines(home / "in", lines())
    spark = sl.session("bad-records")
    build(spark, home).start(spark).await_termination()
    spark.read.json(str(home / "dead")).groupBy("operator", "step", "reason").count().show(20, truncate=60)
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
