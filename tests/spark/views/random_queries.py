"""Random queries as views, against Spark: python -m tests.spark.views.random_queries --seed N --queries M

Twenty queries are a job over the same tables. A job that fails is tried with half of its queries, down to one. What
Spark refuses is left out, and what sl.sql refuses is listed by its reason.
"""

from __future__ import annotations

import argparse
import datetime as dt
import random
import re
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

import strandline as sl
from tests import jvm
from tests.spark.views.grammar import TABLES, Grammar
from tests.spark.views.harness import Compared, Row, Table

EPOCHS = 3
_BATCH = 20
_BEGIN = dt.datetime(2026, 1, 1)


def random_tables(seed: int | str, *, change: bool = False) -> dict[str, Table]:
    """Return tables with nulls, NaN, zeros of both signs, rows that are equal, and epochs without rows.

    `change`: rows are replaced and deleted by key.
    """
    rng = random.Random(seed)
    number = 0

    def order() -> Row:
        nonlocal number
        number += 1
        return (
            number, rng.choice([1, 2, 3, None]), rng.choice(["a", "b", "", "é'\n", "b#7", None]),
            Decimal(rng.choice([100, 250, 550, 1000])) / 100, _BEGIN + dt.timedelta(minutes=30 * rng.randrange(12)),
            (_BEGIN + dt.timedelta(days=rng.randrange(3))).date(), rng.choice([0.0, -0.0, 1.5, float("nan"), None]),
            rng.choice([None, [], ["x"], ["x", "a", None], ["x", "x"]]), rng.choice([None, (1, "p"), (2, None)]),
        )  # fmt: skip

    def customer() -> Row:
        return (
            rng.choice([1, 2, 3, 4, None]), rng.choice(["a", "NO", "SE"]), rng.choice(["x", "b", "zz", None]),
            rng.choice([0.0, -0.0, 1.5, float("nan"), None]),
        )  # fmt: skip

    def item() -> Row:
        price = rng.choice([None, Decimal("2.50"), Decimal("5.50")])
        return rng.choice([1, 2, 3, None]), rng.randrange(1, 9), price, rng.choice(["a", "x", "b#7", None])

    def epochs(make: Any, most: int) -> list[list[Row]]:
        return [[make() for _ in range(rng.randint(0, most))] for _ in range(EPOCHS)]

    def versions(table: Table, key: str, at: int) -> Table:
        """Return what replaces or deletes rows besides."""
        seen: list[Any] = []
        found = []
        for rows in table.epochs:
            seen += [row[at] for row in rows if row[at] is not None]
            again = [(*row[:at], rng.choice(seen), *row[at + 1 :]) for row in rows if seen and rng.random() < 0.7]
            kept = [(*row, rng.random() < 0.25) for row in (*rows, *again) if row[at] is not None]
            found.append(rng.sample(kept, len(kept)))
        return Table(table.ddl, found, key)

    tables = {
        "orders": Table(
            "id bigint, customer bigint, shop string, amount decimal(10,2), at timestamp, day date, x double, "
            "tags array<string>, pair struct<a:int,b:string>",
            epochs(order, 6),
        ),
        "customers": Table("customer bigint, country string, name string, score double", epochs(customer, 4)),
        "items": Table("number bigint, id bigint, price decimal(10,2), what string", epochs(item, 4)),
    }
    if not change:
        return tables
    keys = {"orders": ("id", 0), "customers": ("customer", 0), "items": ("id", 1)}
    return {name: versions(table, *keys[name]) for name, table in tables.items()}


@dataclass
class Found:
    """What became of random queries."""

    right: int = 0
    by_spark: Counter[str] = field(default_factory=Counter)
    """Spark's reasons to refuse, or to fail."""
    refused: dict[str, list[str]] = field(default_factory=dict)
    """The queries that sl.sql refuses, by its reason."""
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        refused = "".join(f"\n  {len(queries)} {why}\n      {queries[0]}" for why, queries in self.refused.items())
        faults = "".join(f"\n  {fault}" for fault in self.faults)
        spark = "".join(f"\n  {n} {why}" for why, n in self.by_spark.most_common())
        return f"{self.right} right; refused:{refused}\nby Spark:{spark}\n{len(self.faults)} faults:{faults}"


def try_queries(
    spark: Any, seed: int | str, queries: Sequence[str], found: Found, parallelism: int = 1, *, change: bool = False
) -> None:
    """Run queries as views of one job over the tables of a seed."""
    with compared_in(spark, random_tables(seed, change=change)) as (compared, local_dir):
        known = [query for query in queries if answered(compared, query, found)]
        for query in known:
            plan(compared, query, found)
        if not compared.views:
            return
        try:
            compared.run(local_dir, parallelism)
        except Exception as error:
            failed = list(compared.views)
            if len(failed) == 1:
                found.faults.append(f"fails: {error!r:.1000}: {failed[0]}")
                return
            half = len(failed) // 2
        else:
            for query in compared.views:
                fault = compared.wrong(query) or compared.broken_promise(query)
                found.right += fault is None
                if fault is not None:
                    found.faults.append(f"{fault}: {query}")
            return
    for part in (failed[:half], failed[half:]):
        try_queries(spark, seed, part, found, parallelism, change=change)


def answered(compared: Compared, query: str, found: Found) -> bool:
    """Whether Spark answers a query over each epoch's rows."""
    try:
        for epoch in range(1, compared.epochs + 1):
            compared.expected(query, epoch)
    except PySparkException as error:
        found.by_spark[error.getCondition() or str(error)[:80]] += 1
        return False
    return True


def plan(compared: Compared, query: str, found: Found) -> None:
    """Make a query a view, unless it is refused."""
    try:
        compared.add(query).changes()
    except sl.errors.ConfigurationError as error:
        compared.views.pop(query, None)
        found.refused.setdefault(re.sub(r"\W\d+", "", str(error).splitlines()[0])[:200], []).append(query)
    except Exception as error:
        compared.views.pop(query, None)
        frames = [each for each in traceback.extract_tb(error.__traceback__) if "strandline" in each.filename]
        message = str(error).replace("\n", " ")[:200]
        found.faults.append(f"cannot be planned: {frames[-1].name}: {type(error).__name__}: {message}: {query}")


class compared_in:
    """The directories of a job, for as long as it needs them."""

    def __init__(self, spark: Any, tables: dict[str, Table], *, are_written: bool = True) -> None:
        self._spark, self._tables, self._are_written = spark, tables, are_written

    def __enter__(self) -> tuple[Compared, Path]:
        self._root, self._local = (Path(tempfile.mkdtemp(prefix=prefix)) for prefix in ("views-", "sl-"))
        return Compared(self._spark, self._root, self._tables, are_written=self._are_written), self._local

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._root)
        shutil.rmtree(self._local, ignore_errors=True)


def batches(seed: int, queries: int) -> Iterator[tuple[str, list[str]]]:
    """Return queries in jobs, each with the seed of its tables."""
    for first in range(0, queries, _BATCH):
        of_batch = f"{seed}.{first // _BATCH}"
        made = [Grammar(f"{of_batch}.{number}").query().sql for number in range(min(_BATCH, queries - first))]
        # Not those that read only VALUES.
        yield of_batch, [query for query in made if any(re.search(rf"\b{name}\b", query) for name in TABLES)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.views.random_queries")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--queries", type=int, default=_BATCH)
    parser.add_argument("--query", help="a query, over the tables of --tables")
    parser.add_argument("--tables", help="the seed of tables, as the output has it")
    parser.add_argument("--change", action="store_true", help="rows of the tables are replaced and deleted")
    given = parser.parse_args()
    jvm.use()
    spark = sl.session("random", "local[2]", **{"spark.sql.streaming.pollingDelay": "40ms"})
    spark.sparkContext.setLogLevel("OFF")
    total = Found()
    try:
        if given.query:
            try_queries(spark, given.tables or str(given.seed), [given.query], total, change=given.change)
        else:
            for number, (seed, queries) in enumerate(batches(given.seed, given.queries)):
                before = len(total.faults)
                try_queries(spark, seed, queries, total, 1 + number % 2, change=given.change)
                print(f"tables {seed}: {total.right} right, faults:", *total.faults[before:], sep="\n  ", flush=True)
        print(total)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
