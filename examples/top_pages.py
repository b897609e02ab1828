"""The three most viewed pages of each minute: counts in windows, and the best of each window's counts.

python -m examples.top_pages
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import strandline as sl
from examples._inputs import in_temporary_directory, show, write_json

Row = dict[str, Any]
TOP = 3


def best(site: str, window: Any, pages: list[Any]) -> Iterator[Row]:
    in_order = sorted(pages, key=lambda page: (-page.views, page.page))
    for rank, page in enumerate(in_order[:TOP], 1):
        yield {"minute": f"{window.start:%H:%M}", "rank": rank, "page": page.page, "views": page.views}


def views() -> list[Row]:
    rng, at, rows = random.Random(5), datetime(2026, 1, 1, tzinfo=UTC), []
    for _ in range(400):
        at += timedelta(milliseconds=rng.randrange(2000))
        page = f"/page/{min(rng.randrange(8), rng.randrange(8))}"
        rows.append({"site": rng.choice(["shop", "blog"]), "page": page, "at": at.isoformat()})
    return rows


def build(spark: Any, home: Path) -> sl.Job:
    df = spark.readStream.schema("site string, page string, at timestamp").option("maxFilesPerTrigger", 1)
    viewed = sl.stream(df.json(str(home / "in"))).watermark("at", delay="5s")
    # Built-in aggregates are partly computed by Spark, before anything is shuffled.
    counts = viewed.key_by("site", "page").window(sl.Tumbling("1 min")).agg(views=sl.agg.count(), uid="counts")
    top = (
        counts.select("site", "page", "views")  # a count's event time is the last moment of its window
        .key_by("site")
        .window(sl.Tumbling("1 min"))
        .process(best, output="minute string, rank int, page string, views bigint", uid="top")
    )
    return sl.Job(
        "top-pages",
        sinks=[top.to(sl.sinks.files(str(home / "out"), format="json"))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s"),
        trigger="available-now",
        drain=True,  # nothing comes any more: the last minute is complete
    )


def expected(rows: list[Row]) -> Iterator[Row]:
    """What must come of it, in plain Python."""
    minutes: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        minutes[row["site"], row["at"][11:16]][row["page"]] += 1
    for (site, minute), pages in minutes.items():
        for rank, (page, n) in enumerate(sorted(pages.items(), key=lambda p: (-p[1], p[0]))[:TOP], 1):
            yield {"site": site, "minute": minute, "rank": rank, "page": page, "views": n}


def main(home: Path) -> None:
    write_json(home / "in", views())
    spark = sl.session("top-pages")
    build(spark, home).start(spark).await_termination()
    show(home / "out")
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
