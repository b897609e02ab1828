"""Views whose state is bounded by watermarks: what they give is what spark.sql answers, and is given once it is final."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import pytest

from tests.spark.views.harness import Compared, Table

pytestmark = pytest.mark.spark

EPOCHS = 5
_BEGIN = dt.datetime(2026, 1, 1)
LAST = 1000
"""An epoch after all others."""

NEAR = "p.k = o.k AND p.at BETWEEN o.at - INTERVAL 20 MINUTES AND o.at + INTERVAL 1 HOUR"
JOINS = [
    f"SELECT o.id, p.id AS p FROM orders o JOIN pays p ON {NEAR}",
    f"SELECT o.id, p.id AS p FROM orders o LEFT JOIN pays p ON {NEAR}",
    f"SELECT o.id, p.id AS p FROM orders o RIGHT JOIN pays p ON {NEAR}",
    f"SELECT o.id, p.id AS p, p.at FROM orders o FULL JOIN pays p ON {NEAR}",
    f"SELECT * FROM orders o LEFT SEMI JOIN pays p ON {NEAR}",
    f"SELECT * FROM orders o LEFT ANTI JOIN pays p ON {NEAR}",
    f"SELECT o.id, EXISTS (SELECT 1 FROM pays p WHERE {NEAR}) AS e FROM orders o",
    f"SELECT o.id, p.id AS p FROM orders o LEFT JOIN pays p ON {NEAR} AND o.amount < p.amount",
    f"SELECT o.id, p.id AS p FROM orders o FULL JOIN pays p ON {NEAR} AND o.amount < p.amount AND p.amount > 2",
    f"SELECT o.id FROM orders o WHERE NOT EXISTS (SELECT 1 FROM pays p WHERE {NEAR} AND o.amount < p.amount)",
]
TUMBLED = "(SELECT *, window(at, '1 hour') AS w FROM {0})"
SLID = "(SELECT *, window(at, '1 hour', '20 minutes') AS w FROM {0})"
OTHERS = [
    "SELECT o.id, p.id AS p FROM orders o JOIN pays p ON p.at - o.at <= INTERVAL '1' HOUR AND o.at < p.at",
    "SELECT o.id, p.id AS p FROM orders o LEFT JOIN pays p "
    "ON o.k = p.k AND timestampadd(MINUTE, 30, o.at) > p.at AND p.at >= o.at - make_interval(0, 0, 0, 1)",
    "SELECT o.id, p.id AS p FROM orders o LEFT JOIN pays p ON o.at = p.at",
    f"SELECT o.id, p.id AS p FROM {TUMBLED.format('orders')} o FULL JOIN {TUMBLED.format('pays')} p ON o.k = p.k AND o.w = p.w",
    f"SELECT o.id, p.id AS p, o.w.end FROM {SLID.format('orders')} o JOIN {SLID.format('pays')} p ON o.w.start = p.w.start",
    f"SELECT o.id, o.w FROM {SLID.format('orders')} o LEFT ANTI JOIN {SLID.format('pays')} p ON o.k = p.k AND o.w = p.w",
    "SELECT o.id, p.id AS p FROM orders o JOIN orders p ON o.k = p.k AND o.id < p.id AND p.at BETWEEN o.at AND o.at + INTERVAL 1 HOUR",
    "SELECT o.amount, sum(p.amount) AS s FROM orders o JOIN orders p ON o.k = p.k AND o.id < p.id AND "
    "p.at BETWEEN o.at AND o.at + INTERVAL 1 HOUR GROUP BY o.amount",
    f"SELECT o.id, p.id AS p, s.id AS s FROM orders o JOIN pays p ON {NEAR} "
    "JOIN ships s ON s.k = o.k AND s.at BETWEEN p.at AND p.at + INTERVAL 45 MINUTES",
    f"SELECT o.id, p.id AS p, s.id AS s FROM orders o LEFT JOIN pays p ON {NEAR} "
    "LEFT JOIN ships s ON s.k = o.k AND s.at BETWEEN o.at AND o.at + INTERVAL 45 MINUTES",
    "SELECT a.w, a.n, b.m FROM (SELECT window(at, '1 hour') AS w, count(*) AS n FROM orders GROUP BY 1) a "
    "FULL JOIN (SELECT window(at, '1 hour') AS w, sum(amount) AS m FROM pays WHERE k = 'a' GROUP BY 1) b ON a.w = b.w",
]


def timed_tables(seed: int | str) -> dict[str, Table]:
    """Return tables with watermarks, in which no row is late."""
    rng = random.Random(seed)
    number = 0

    def row(epoch: int) -> tuple[Any, ...]:
        nonlocal number
        number += 1
        at = _BEGIN + dt.timedelta(minutes=60 * epoch + rng.randrange(0, 119))
        return number, rng.choice(["a", "b", None]), rng.randrange(6), at

    ddl = "id bigint, k string, amount bigint, at timestamp"
    return {
        name: Table(ddl, [[row(epoch) for _ in range(rng.randint(1, most))] for epoch in range(EPOCHS)], delay="1 h")
        for name, most in (("orders", 7), ("pays", 7), ("ships", 4))
    }


def check_final(compared: Compared, queries: list[str], local_dir: Path) -> None:
    """Check that what is given is in Spark's answer, for good; and that all of it is, at the end of event time."""
    for query in queries:
        view = compared.add(query)
        assert "  near-" in view.explain()
        assert "  join-" not in view.explain()
        assert view.appends or " GROUP BY o.amount" in query
    job = compared.job(local_dir, 2, drain=True)
    job.start(compared.spark).await_termination()
    for query in queries:
        for epoch in range(1, compared.epochs + 1):
            assert not compared.rows(query, epoch) - compared.expected(query, epoch), (query, epoch)
        assert compared.rows(query, LAST) == compared.expected(query, compared.epochs), query
        assert compared.broken_promise(query) is None


def check_changes(compared: Compared, queries: list[str], local_dir: Path) -> None:
    for query in queries:
        compared.add(query, emit="changes")
    compared.run(local_dir, 2)
    compared.check()


def test_joins_by_interval_are_final(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    compared = Compared(spark, tmp_path, timed_tables("near"))
    check_final(compared, JOINS, local_dir)


def test_other_bounds_are_final(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    compared = Compared(spark, tmp_path, timed_tables("bounds"))
    check_final(compared, OTHERS, local_dir)


def test_joins_by_interval_that_change(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    check_changes(Compared(spark, tmp_path, timed_tables("near")), JOINS, local_dir)
