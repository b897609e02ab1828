"""Balances in a database: each account has one row, which changes with it and goes when it is closed.

    python -m examples.balances

The database is a file of SQLite's, so that nothing has to be installed. With a server, `sinks.postgres("postgresql://…",
…)` takes the place of `sinks.sqlite(path, …)`, and the rest stays as it is.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import strandline as sl
from examples._inputs import in_temporary_directory, write_json


class Account(sl.KeyedProcess):
    """Keyed by account: gives its row anew with each event, and says so when it is closed."""

    balance = sl.Value("bigint", default=0)
    events = sl.Value("int", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Any]:
        self.balance.value += event.amount
        self.events.value += 1
        yield (ctx.key, self.balance.value, self.events.value, event.closes)
        if event.closes:
            self.balance.clear()
            self.events.clear()


def movements() -> list[dict[str, Any]]:
    rng = random.Random(6)
    return [
        {"n": n, "account": f"a{rng.randrange(40)}", "amount": rng.randrange(-50, 100), "closes": rng.random() < 0.05}
        for n in range(600)
    ]


def build(spark: Any, home: Path) -> sl.Job:
    df = spark.readStream.schema("n int, account string, amount bigint, closes boolean").json(str(home / "in"))
    accounts = (
        sl.stream(df)
        .key_by("account", order_by="n")
        .process(Account(), output="account string, balance bigint, events int, closed boolean", uid="accounts")
    )
    return sl.Job(
        "balances",
        sinks=[accounts.to(sl.sinks.sqlite(home / "bank.db", "balances", key="account", delete="closed", create=True))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s"),
        trigger="available-now",
    )


def main(home: Path) -> None:
    write_json(home / "in", movements())
    spark = sl.session("balances")
    build(spark, home).start(spark).await_termination()
    spark.stop()
    with closing(sqlite3.connect(home / "bank.db")) as db:
        for row in db.execute("select account, balance, events from balances order by balance desc limit 10"):
            print(*row)


if __name__ == "__main__":
    in_temporary_directory(main)
