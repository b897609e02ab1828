"""Value each trade at the price that was valid when it was made: an as-of join with a stream of prices.

python -m examples.prices_as_of
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
SHARES = ["ABC", "DEF", "XYZ"]


def made(seed: int, number: int, each: timedelta, what: str, most: int) -> list[Row]:
    rng, at, rows = random.Random(seed), datetime(2026, 1, 1, tzinfo=UTC), []
    for _ in range(number):
        at += rng.random() * each
        rows.append({"share": rng.choice(SHARES), what: rng.randrange(1, most), "at": at.isoformat()})
    return rows


def trades() -> list[Row]:
    return made(7, 90, timedelta(seconds=20), "pieces", 50)


def prices() -> list[Row]:
    return made(8, 45, timedelta(seconds=40), "price", 200)


def build(spark: Any, home: Path) -> sl.Job:
    read = spark.readStream.option("maxFilesPerTrigger", 1)
    traded = read.schema("share string, pieces int, at timestamp").json(str(home / "trades"))
    quoted = spark.readStream.option("maxFilesPerTrigger", 1).schema("share string, price int, at timestamp")
    trades = sl.stream(traded, name="trades").watermark("at", delay="5s").key_by("share")
    prices = sl.stream(quoted.json(str(home / "prices")), name="prices").watermark("at", delay="5s").key_by("share")
    valued = trades.as_of_join(prices, uid="valued", how="left", prefixes=("", "quoted_")).select_expr(
        "share", "at", "pieces * quoted_price AS worth"
    )
    return sl.Job(
        "prices-as-of",
        sinks=[valued.to(sl.sinks.files(str(home / "out"), format="json"))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s"),
        trigger="available-now",
        drain=True,  # nothing comes any more: no trade waits for a price
    )


def expected(trades: list[Row], prices: list[Row]) -> Iterator[Row]:
    """What must come of it, in plain Python; JSON has no nulls."""
    for trade in trades:
        known = [price for price in prices if price["share"] == trade["share"] and price["at"] <= trade["at"]]
        yield {"share": trade["share"]} | ({"worth": trade["pieces"] * known[-1]["price"]} if known else {})


def main(home: Path) -> None:
    write_json(home / "trades", trades())
    write_json(home / "prices", prices())
    spark = sl.session("prices-as-of")
    build(spark, home).start(spark).await_termination()
    show(home / "out")
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
