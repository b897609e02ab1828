"""Join orders with their payments, and tell of orders that are not paid within half an hour.

python -m examples.unpaid_orders
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
PATIENCE = timedelta(minutes=30)


class Paid(sl.KeyedCoProcess):
    """Keyed by order. Within an epoch, order and payment may come in either order: both wait for the other one."""

    ordered = sl.Value("timestamp")
    paid = sl.Value("timestamp")

    def on_left(self, order: Any, ctx: sl.Context) -> Iterator[Row]:
        self.ordered.value = order.at
        ctx.timers.set(order.at + PATIENCE)
        yield from self.matched(ctx)

    def on_right(self, payment: Any, ctx: sl.Context) -> Iterator[Row]:
        self.paid.value = payment.at
        yield from self.matched(ctx)

    def matched(self, ctx: sl.Context) -> Iterator[Row]:
        ordered, paid = self.ordered.value, self.paid.value
        if ordered is not None and paid is not None and paid <= ordered + PATIENCE:
            ctx.timers.delete(ordered + PATIENCE)
            self.ordered.clear()
            yield {"id": ctx.key, "said": f"paid after {(paid - ordered).seconds // 60} min"}

    def on_timer(self, timer: sl.Timer, ctx: sl.Context) -> Iterator[Row]:
        self.ordered.clear()
        yield {"id": ctx.key, "said": "not paid"}


def orders_and_payments() -> tuple[list[Row], list[Row]]:
    rng, start = random.Random(6), datetime(2026, 1, 1, tzinfo=UTC)
    orders: list[Row] = [{"id": n, "at": (start + timedelta(minutes=n)).isoformat()} for n in range(90)]
    paid_after = {n: timedelta(minutes=rng.randrange(45)) for n in range(90) if rng.random() < 0.8}
    payments = [{"id": n, "at": (start + timedelta(minutes=n) + after).isoformat()} for n, after in paid_after.items()]
    return orders, sorted(payments, key=lambda payment: str(payment["at"]))


def build(spark: Any, home: Path) -> sl.Job:
    files = spark.readStream.schema("id int, at timestamp").option("maxFilesPerTrigger", 1)
    orders = sl.stream(files.json(str(home / "orders")), name="orders").watermark("at", delay="1 min")
    payments = sl.stream(files.json(str(home / "payments")), name="payments").watermark("at", delay="1 min")
    said = orders.key_by("id").connect(payments.key_by("id")).process(Paid(), "id int, said string", uid="paid")
    return sl.Job(
        "unpaid-orders",
        sinks=[said.to(sl.sinks.files(str(home / "out"), format="json"))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s"),
        trigger="available-now",
        drain=True,  # nothing comes any more: time runs out for the last orders, too
    )


def expected(orders: list[Row], payments: list[Row]) -> Iterator[Row]:
    """What must come of it, in plain Python."""
    paid = {row["id"]: datetime.fromisoformat(row["at"]) for row in payments}
    for order in orders:
        after = paid.get(order["id"], datetime.max.replace(tzinfo=UTC)) - datetime.fromisoformat(order["at"])
        said = f"paid after {after.seconds // 60} min" if after <= PATIENCE else "not paid"
        yield {"id": order["id"], "said": said}


def main(home: Path) -> None:
    orders, payments = orders_and_payments()
    write_json(home / "orders", orders)
    write_json(home / "payments", payments)
    spark = sl.session("unpaid-orders")
    build(spark, home).start(spark).await_termination()
    show(home / "out")
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
