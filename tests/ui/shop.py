"""A job to look at, as a process of its own: python tests/ui/shop.py DIRECTORY LOCAL_DIR

Two sources with a watermark per shop (one shop is far behind), an operator with every kind of state and dead letters,
and windows with late events. It ends when DIRECTORY/stop appears.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import strandline as sl
from tests import jvm

SHOPS = ("oslo", "bergen", "lima", "kyoto")
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_COLUMNS = "customer string, shop string, amount double, at timestamp"


class Score(sl.KeyedProcess):
    """Scores the orders of a customer."""

    total = sl.Value("struct<orders: bigint, last: timestamp>")
    recent = sl.List("double")
    shops = sl.Map("string", "bigint")

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[dict[str, Any]]:
        if event.amount < 0:
            raise ValueError("negative")
        orders = self.total.value.orders + 1 if self.total.exists() else 1
        self.total.value = (orders, event.at)
        self.recent.append(event.amount)
        self.shops[event.shop] = self.shops.get(event.shop, 0) + 1
        if event.shop == "oslo":
            ctx.timers.set(event.at + timedelta(hours=6))
        if event.amount > 950:
            ctx.emit("alerts", {"customer": ctx.key, "amount": event.amount})
        yield {"customer": ctx.key, "shop": event.shop, "amount": event.amount, "at": event.at}

    def on_timer(self, timer: sl.Timer, ctx: sl.Context) -> None:
        self.recent.clear()


def write(directory: Path, rng: random.Random, number: int, rows: int) -> None:
    """Add one file of input; every third customer is one and the same, and Kyoto's events are 40 minutes behind."""
    at = _BEGIN + timedelta(seconds=20 * number)
    lines = []
    for n in range(rows):
        shop = rng.choice(SHOPS[: 4 if number % 4 == 0 else 3])
        late = timedelta(minutes=40) if shop == "kyoto" else timedelta(hours=3) if rng.random() < 0.004 else timedelta()
        customer = "c-0" if n % 3 == 0 else f"c-{rng.randrange(20_000)}"
        amount = -1.0 if rng.random() < 0.002 else round(rng.random() * 960, 2)
        when = (at + timedelta(milliseconds=n) - late).isoformat()
        lines.append(json.dumps({"customer": customer, "shop": shop, "amount": amount, "at": when}))
    (directory / f".{number}").write_text("\n".join(lines))
    (directory / f".{number}").rename(directory / f"{number:06}.json")


def build(spark: Any, home: Path, local_dir: Path) -> sl.Job:
    def source(name: str) -> sl.Stream:
        (home / name).mkdir(parents=True, exist_ok=True)
        read = spark.readStream.schema(_COLUMNS).option("maxFilesPerTrigger", 2).json(str(home / name))
        return sl.stream(read, name=name).watermark("at", delay="10s", per="shop", idle="10 min")

    orders = source("web").union(source("till"))
    scored = orders.transform(lambda df: df.where("customer is not null")).key_by("customer").process(
        Score(), output=_COLUMNS, uid="score", on_error="dead-letter",
        sides={"alerts": "customer string, amount double"},
    )  # fmt: skip
    windows = scored.key_by("shop").window(sl.Tumbling("5 min"))
    totals = windows.agg(orders=sl.agg.count(), revenue=sl.agg.sum("amount"), uid="revenue")

    def out(name: str) -> sl.sinks.Sink:
        return sl.sinks.files(str(home / "out" / name), format="json", name=name)

    return sl.Job(
        "shop",
        sinks=[
            totals.to(out("revenue")), scored.side("alerts").to(out("alerts")), scored.dead_letters.to(out("failed")),
        ],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="2s", retain=6),
        settings=sl.Settings(local_dir=str(local_dir), parallelism=2),
        restart=sl.Restart(attempts=3, delay="1s"),
    )  # fmt: skip


def main() -> None:
    home, local_dir = Path(sys.argv[1]).absolute(), Path(sys.argv[2])
    home.mkdir(parents=True, exist_ok=True)
    spark = sl.session("shop", "local[2]", **jvm.executors())
    job = build(spark, home, local_dir)
    over = threading.Event()

    def feed() -> None:
        rng = random.Random(7)
        # After a restart it goes on: a file of a name that was read is not read again.
        for number in range(sum(1 for name in ("web", "till") for _ in (home / name).glob("*.json")), 100_000):
            write(home / ("web" if number % 3 else "till"), rng, number, 800)
            if over.wait(0.5):
                return

    run = job.start(spark)
    # A replay of this program ends here, and adds no files.
    run.await_termination(0)
    threading.Thread(target=feed, daemon=True).start()
    while not (home / "stop").exists() and not run.await_termination(0.2):
        time.sleep(0)
    over.set()
    run.stop(checkpoint=True)
    spark.stop()


if __name__ == "__main__":
    main()
