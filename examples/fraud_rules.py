"""Flag payments by rules that come as a stream of their own: every partition knows the newest rule of each country.

python -m examples.fraud_rules
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import strandline as sl
from examples._inputs import in_temporary_directory, show, write_json

Row = dict[str, Any]
NO_RULE = 1000


class Flag(sl.KeyedBroadcastProcess):
    """Keyed by card: an amount beyond its country's limit is flagged, and so is every payment of the card after it."""

    limits = sl.Broadcast("string", "int")
    flagged = sl.Value("int", default=0)

    def on_broadcast(self, rule: Any, ctx: sl.Context) -> None:
        self.limits[rule.country] = rule.limit

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Row]:
        if event.amount > self.limits.get(event.country, NO_RULE):
            self.flagged.value += 1
        if self.flagged.value:
            yield {"id": event.id, "card": ctx.key, "suspicions": self.flagged.value}


def rules() -> list[Row]:
    limits = [("NO", 300), ("SE", 500), ("DK", 900), ("NO", 800)]
    return [{"country": country, "limit": limit, "version": n} for n, (country, limit) in enumerate(limits)]


def payments() -> list[Row]:
    rng, countries = random.Random(3), ["NO", "SE", "DK", "FI"]
    return [
        {"id": n, "card": f"card-{rng.randrange(30)}", "country": rng.choice(countries), "amount": rng.randrange(950)}
        for n in range(120)
    ]


def build(spark: Any, home: Path) -> sl.Job:
    paid = spark.readStream.schema("id int, card string, country string, amount int").option("maxFilesPerTrigger", 1)
    ruled = spark.readStream.schema("country string, limit int, version int")
    suspicious = (
        sl.stream(paid.json(str(home / "in")), name="payments")  # several sources of a job have names
        .key_by("card", order_by="id")
        .broadcast(sl.stream(ruled.json(str(home / "rules")), name="rules"), order_by="version")
        .process(Flag(), output="id int, card string, suspicions int", uid="flag")
    )
    return sl.Job(
        "fraud-rules",
        sinks=[suspicious.to(sl.sinks.files(str(home / "out"), format="json"))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s"),
        trigger="available-now",
    )


def expected(payments: list[Row], rules: list[Row]) -> Iterator[Row]:
    """What must come of it, in plain Python."""
    limits, suspicions = {rule["country"]: rule["limit"] for rule in rules}, dict[str, int]()
    for paid in payments:
        over = paid["amount"] > limits.get(paid["country"], NO_RULE)
        found = suspicions[paid["card"]] = suspicions.get(paid["card"], 0) + over
        if found:
            yield {"id": paid["id"], "card": paid["card"], "suspicions": found}


def main(home: Path) -> None:
    write_json(home / "rules", rules(), files=1)
    write_json(home / "in", payments())
    spark = sl.session("fraud-rules")
    build(spark, home).start(spark).await_termination()
    show(home / "out")
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
