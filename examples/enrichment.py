"""Ask a service about each click, twenty at a time and in order, and count clicks by what it answers.

python -m examples.enrichment
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import strandline as sl
from examples._inputs import in_temporary_directory, show, write_json

Row = dict[str, Any]


async def country_of(address: str) -> str:
    """Answer as a service would, after a while."""
    await asyncio.sleep(0.01)
    return ["Norway", "Sweden", "Denmark"][int(address.rpartition(".")[2]) % 3]


async def located(click: Any) -> Row | None:
    if click.address.startswith("10."):
        return None  # our own
    return {"page": click.page, "country": await country_of(click.address)}


def clicks() -> list[Row]:
    rng = random.Random(11)
    return [
        {"page": f"/page/{rng.randrange(4)}", "address": f"{rng.choice([10, 81, 92])}.0.0.{rng.randrange(250)}"}
        for _ in range(150)
    ]


def build(spark: Any, home: Path) -> sl.Job:
    df = spark.readStream.schema("page string, address string").option("maxFilesPerTrigger", 1)
    counts = (
        sl.stream(df.json(str(home / "in")))
        .map_async(located, output="page string, country string", concurrency=20, timeout="10s")
        .key_by("country")
        .agg(clicks=sl.agg.count(), pages=sl.agg.count_distinct("page"), uid="clicks")
    )
    return sl.Job(
        "enrichment",
        sinks=[counts.to(sl.sinks.files(str(home / "out"), format="json"))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s"),
        trigger="available-now",
    )


def expected(rows: list[Row]) -> Iterator[Row]:
    """What must come of it, in plain Python: the last result of each country."""
    located = [
        (["Norway", "Sweden", "Denmark"][int(row["address"].rpartition(".")[2]) % 3], row["page"])
        for row in rows
        if not row["address"].startswith("10.")
    ]
    for country, clicks in Counter(country for country, _ in located).items():
        yield {
            "country": country,
            "clicks": clicks,
            "pages": len({page for where, page in located if where == country}),
        }


def main(home: Path) -> None:
    write_json(home / "in", clicks())
    spark = sl.session("enrichment")
    build(spark, home).start(spark).await_termination()
    show(home / "out")
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
