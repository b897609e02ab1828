"""Views whose state is bounded by watermarks: what they give is what spark.sql answers, and is given once it is final."""

from __future__ import annotations

import datetime as dt
import random
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest

import strandline as sl
from strandline.spark.job import attempt, sourcewatch
from tests.spark.views.harness import Compared, Table
from tests.spark.views.random_queries import random_tables

pytestmark = pytest.mark.spark

needs_asof = pytest.mark.skipif(pyspark.__version__ < "4.3", reason="Spark parses ASOF JOIN from 4.3 on")
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
KEPT = [
    f"SELECT o.id, p.id AS p, s.id AS s FROM {TUMBLED.format('orders')} o JOIN {TUMBLED.format('pays')} p ON o.w = p.w "
    "JOIN ships s ON s.at BETWEEN o.at AND o.at + INTERVAL 20 MINUTES",
    "SELECT o.id, p.id AS p, s.id AS s, q.id AS q FROM orders o JOIN pays p ON p.at BETWEEN o.at AND o.at + INTERVAL 30 MINUTES "
    "JOIN ships s ON s.at BETWEEN o.at AND o.at + INTERVAL 25 MINUTES "
    "JOIN pays q ON q.at BETWEEN p.at AND p.at + INTERVAL 5 MINUTES",
    "SELECT o.id, p.id AS p, q.id AS q FROM (SELECT *, at + INTERVAL 1 MINUTE AS later FROM orders) o "
    "LEFT JOIN pays p ON p.at BETWEEN o.at AND o.at + INTERVAL 15 MINUTES "
    "LEFT JOIN pays q ON q.at BETWEEN o.later AND o.later + INTERVAL 10 MINUTES",
]
"""Joins by one time of rows that were kept by another time of theirs."""
LAST_PAY = "(SELECT * FROM pays p WHERE {0} ORDER BY at DESC LIMIT 1)"
AS_OF = {
    "SELECT o.id, p.id AS p, p.at FROM orders o LEFT ASOF JOIN pays p MATCH_CONDITION (o.at >= p.at) ON o.k = p.k":
    f"SELECT o.id, p.id, p.at FROM orders o LEFT JOIN LATERAL {LAST_PAY.format('o.k = p.k AND o.at >= p.at')} p",
    "SELECT o.id, p.id AS p FROM orders o ASOF JOIN pays p ON o.at > p.at AND o.k = p.k":
    f"SELECT o.id, p.id FROM orders o JOIN LATERAL {LAST_PAY.format('o.k = p.k AND o.at > p.at')} p",
    "SELECT o.id, p.* FROM orders o ASOF JOIN pays p MATCH_CONDITION (o.at - INTERVAL 20 MINUTES >= p.at)":
    f"SELECT o.id, p.* FROM orders o JOIN LATERAL {LAST_PAY.format('o.at - INTERVAL 20 MINUTES >= p.at')} p",
    "SELECT o.id, p.amount FROM orders o LEFT JOIN pays FOR SYSTEM_TIME AS OF o.at AS p ON o.k = p.k WHERE o.amount > 1":
    f"SELECT o.id, p.amount FROM orders o LEFT JOIN LATERAL {LAST_PAY.format('o.k = p.k AND o.at >= p.at')} p "
    "WHERE o.amount > 1",
    "SELECT o.id, p.id AS p, s.id AS s FROM orders o JOIN pays FOR SYSTEM_TIME AS OF o.at p ON o.k = p.k "
    "LEFT JOIN ships s ON s.k = o.k AND s.at BETWEEN o.at AND o.at + INTERVAL 45 MINUTES":
    f"SELECT o.id, p.id, s.id FROM orders o JOIN LATERAL {LAST_PAY.format('o.k = p.k AND o.at >= p.at')} p "
    "LEFT JOIN ships s ON s.k = o.k AND s.at BETWEEN o.at AND o.at + INTERVAL 45 MINUTES",
}  # fmt: skip
"""By a view's query, what spark.sql answers."""


def timed_tables(seed: int | str, *, unique: bool = False, in_order: bool = False) -> dict[str, Table]:
    """Return tables with watermarks, in which no row is late; with `in_order`, epochs do not overlap."""
    rng = random.Random(seed)
    number = 0
    minutes, most_minutes = (10, 10) if in_order else (60, 119)

    def row(epoch: int) -> tuple[Any, ...]:
        nonlocal number
        number += 1
        at = _BEGIN + dt.timedelta(minutes=minutes * epoch + rng.randrange(0, most_minutes))
        if unique:
            at += dt.timedelta(microseconds=number)
        return number, rng.choice(["a", "b", None]), rng.randrange(6), at

    ddl, delay = "id bigint, k string, amount bigint, at timestamp", "0 s" if in_order else "1 h"
    return {
        name: Table(ddl, [[row(epoch) for _ in range(rng.randint(1, most))] for epoch in range(EPOCHS)], delay=delay)
        for name, most in (("orders", 7), ("pays", 7), ("ships", 4))
    }


def check_final(compared: Compared, queries: Mapping[str, str], local_dir: Path, operator: str = "near-") -> None:
    """Check that what is given is in Spark's answer, for good; and that all of it is, at the end of event time."""
    for query in queries:
        view = compared.add(query)
        assert f"  {operator}" in view.explain()
        assert "  join-" not in view.explain()
        assert view.appends or " GROUP BY o.amount" in query
    job = compared.job(local_dir, 2, drain=True)
    job.start(compared.spark).await_termination()
    for query, asked in queries.items():
        for epoch in range(1, compared.epochs + 1):
            # Versions that have not come yet may still be the right ones.
            if operator == "near-":
                assert not compared.rows(query, epoch) - compared.expected(asked, epoch), (query, epoch)
        assert compared.rows(query, LAST) == compared.expected(asked, compared.epochs), query
        assert compared.broken_promise(query) is None


def check_changes(compared: Compared, queries: Mapping[str, str], local_dir: Path) -> None:
    for query in queries:
        compared.add(query, emit="changes")
    compared.run(local_dir, 2)
    for query, asked in queries.items():
        for epoch in range(1, compared.epochs + 1):
            assert compared.rows(query, epoch) == compared.expected(asked, epoch), (query, epoch)
        assert compared.broken_promise(query) is None


def test_joins_by_interval_are_final(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    compared = Compared(spark, tmp_path, timed_tables("near"))
    check_final(compared, dict(zip(JOINS, JOINS, strict=True)), local_dir)


def test_other_bounds_are_final(spark: Any, tmp_path: Path, local_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Epochs for timers alone do not wait for Spark's next rows, as when it is slow.
    monkeypatch.setattr(attempt, "_IDLE_S", 0.0)
    monkeypatch.setattr(sourcewatch, "_LOOK_TIMEOUT_S", 0.0)
    compared = Compared(spark, tmp_path, timed_tables("bounds"))
    check_final(compared, dict(zip(OTHERS, OTHERS, strict=True)), local_dir)


def test_rows_that_were_kept_by_another_time(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    """A row that comes when its partner does is older by all of its times: it is not late for the next operator."""
    compared = Compared(spark, tmp_path, timed_tables("kept", in_order=True))
    check_final(compared, dict(zip(KEPT, KEPT, strict=True)), local_dir)


def test_intervals_where_clocks_are_changed(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    """Spark adds days of the calendar, and takes differences of what clocks show: not so many microseconds."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Oslo")
    try:
        # The night of the 29th of March has 23 hours.
        hours = {"orders": (11.0, 24.5, 200.0), "pays": (25.7, 33.5, 34.5, 47.0, 200.0)}
        night = dt.datetime(2026, 3, 28, tzinfo=dt.UTC)
        tables = {
            name: Table("id bigint, at timestamp", [[(at, night + dt.timedelta(hours=each))] for at, each in enumerate(some)], delay="0 s")
            for name, some in hours.items()
        }  # fmt: skip
        compared = Compared(spark, tmp_path, tables)
        ends = (
            "p.at <= o.at + INTERVAL 1 DAY",
            "p.at <= timestampadd(HOUR, 24, o.at)",
            "p.at <= timestampadd(DAY, 1, o.at)",
            "p.at - o.at <= INTERVAL 2 HOURS",
            "p.at <= o.at + INTERVAL 23 HOURS",
        )
        queries = [f"SELECT o.id, p.id AS p FROM orders o JOIN pays p ON p.at >= o.at AND {end}" for end in ends]
        check_final(compared, dict(zip(queries, queries, strict=True)), local_dir)
        assert len({frozenset(compared.rows(query, LAST)) for query in queries}) > 2
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_joins_by_interval_that_change(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    queries = [*JOINS, *OTHERS[1:7]]
    check_changes(Compared(spark, tmp_path, timed_tables("near")), dict(zip(queries, queries, strict=True)), local_dir)


@needs_asof
def test_as_of_joins_are_final(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    compared = Compared(spark, tmp_path, timed_tables("as of", unique=True))
    check_final(compared, AS_OF, local_dir, "asof-")


@needs_asof
def test_as_of_joins_that_change(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    queries = dict([*AS_OF.items()][:4])
    check_changes(Compared(spark, tmp_path, timed_tables("as of", unique=True)), queries, local_dir)


@pytest.mark.soak
@needs_asof
def test_bounded_joins_go_on_at_another_parallelism(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    """A job that is stopped after each epoch, and started with more or fewer partitions, gives what one job does."""
    tables = timed_tables("restarts", unique=True)
    queries = {query: query for query in (JOINS[8], OTHERS[3])} | dict([*AS_OF.items()][4:])
    changes: dict[str, Any] = defaultdict(dict)
    uids = []
    for number, read in enumerate((range(2), range(2, 4), range(4, EPOCHS))):
        compared = Compared(spark, tmp_path, tables, changes=changes, are_written=False)
        for name, table in tables.items():
            compared.write(name, [table.epochs[epoch] for epoch in read], read[0])
        uids.append([part.uid for query in queries for part in compared.add(query)._relation.parts])
        job = compared.job(local_dir, (2, 3, 1)[number], drain=number == 2)
        job.start(spark).await_termination()
    assert all(each == uids[0] for each in uids)
    for query, asked in queries.items():
        assert compared.rows(query, LAST) == compared.expected(asked, EPOCHS), query


@needs_asof
def test_a_table_as_it_was_at_the_time_of_a_row(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    """All versions of a table count, those that delete a row, too, and not the newest alone."""
    tables, rng = timed_tables("versions", unique=True), random.Random("versions")
    rates = tables["pays"]
    versions = [[(*row, rng.random() < 0.3) for row in rows if row[1] is not None] for rows in rates.epochs]
    tables["pays"] = Table(rates.ddl, versions, key="k", delay="1 h")
    compared = Compared(spark, tmp_path, tables)
    query = "SELECT o.id, p.id AS p, p.* FROM orders o LEFT JOIN pays FOR SYSTEM_TIME AS OF o.at AS p ON o.k = p.k"
    view = compared.add(query)
    assert view.columns == ["id", "p", "id", "k", "amount", "at"]
    compared.job(local_dir, 2, drain=True).start(spark).await_termination()
    rows = [row for epoch in versions for row in epoch]
    spark.createDataFrame(rows, f"{rates.ddl}, gone boolean").createOrReplaceTempView("versions")
    newest = "SELECT * FROM versions v WHERE v.k = o.k AND v.at <= o.at ORDER BY at DESC LIMIT 1"
    asked = (
        "SELECT o.id, p.id, p.id, p.k, p.amount, p.at FROM orders o "
        f"LEFT JOIN LATERAL (SELECT * FROM ({newest}) WHERE NOT gone) p"
    )
    assert compared.rows(query, LAST) == compared.expected(asked, compared.epochs)


TTL = [
    "SELECT shop, count(*) AS n, sum(amount) AS total FROM orders GROUP BY shop",
    "SELECT DISTINCT shop, x FROM orders",
    "SELECT shop, percentile(amount, 0.5) AS m FROM orders GROUP BY shop",
    "SELECT n, count(*) AS c FROM (SELECT shop, max(customer) AS n FROM orders GROUP BY shop) GROUP BY n",
    # Not QUALIFY: Spark 4.1 has none.
    "SELECT * FROM (SELECT shop, id, row_number() OVER (PARTITION BY shop ORDER BY amount DESC, id) AS n FROM orders) "
    "WHERE n <= 2",
    "SELECT o.id, c.name FROM orders o JOIN customers c USING (customer)",
    "SELECT o.id, c.name FROM orders o FULL JOIN customers c ON o.customer = c.customer AND o.amount > length(c.name)",
    "SELECT * FROM orders o WHERE NOT EXISTS (SELECT 1 FROM customers c WHERE c.customer = o.customer)",
    "SELECT a.shop, a.n, c.name FROM (SELECT shop, max(customer) AS n FROM orders GROUP BY shop) a "
    "LEFT JOIN customers c ON a.n = c.customer",
]


@pytest.mark.parametrize("change", [False, True], ids=["rows-come", "rows-change"])
def test_within_their_time_to_live_views_are_right(spark: Any, tmp_path: Path, local_dir: Path, change: bool) -> None:
    compared = Compared(spark, tmp_path, random_tables("ttl", change=change))
    for query in TTL:
        view = compared.add(query, state_ttl="1 day")
        assert "by state_ttl: the promise holds for what is younger" in view.explain()
        assert "kept for ever" not in view.explain()
        by_row = not change and "orders o" in query
        assert ("left rows are forgotten after 24 hours" in view.explain()) == by_row
    compared.run(local_dir, 2)
    compared.check()


def test_hints_of_tables_and_aliases(spark: Any, tmp_path: Path) -> None:
    compared = Compared(spark, tmp_path, random_tables("ttl"))
    query = "SELECT {} o.id, c.name FROM orders o LEFT JOIN customers c ON o.customer = c.customer"
    plain = compared.add(query.format(""))
    assert "kept for ever" in plain.explain()
    hinted = compared.add(query.format("/*+ STATE_TTL('o'='1d', 'Customers' = '2 days') */"))
    assert "left rows are forgotten after 24 hours, right rows are forgotten after 48 hours" in hinted.explain()
    same = compared.add(query.format(""), state_ttl={"orders": "24h", "customers": "48 h"})
    assert same.explain() == hinted.explain()
    # A hint is more than what is set for all.
    other = compared.add(query.format("/*+ BROADCAST(c), STATE_TTL('c'='2d') */"), state_ttl="1 day")
    assert other.explain() == hinted.explain()
    # Rows of the one side for ever, and so pairs.
    half = compared.add(query.format("/*+ STATE_TTL('o'='1d') */"))
    assert "kept for ever" in half.explain()
    with pytest.raises(sl.errors.ConfigurationError, match="STATE_TTL is of 'x', which is no table of the query"):
        compared.add(query.format("/*+ STATE_TTL('x'='1d') */"))
