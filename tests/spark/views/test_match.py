"""MATCH_RECOGNIZE in real jobs: matches of random rows against plain Python, over epochs, restarts and rescaling."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from tests.spark.views.harness import Compared, Table
from tests.spark.views.test_bounded import EPOCHS, LAST, timed_tables

pytestmark = pytest.mark.spark
Rows = list[tuple[Any, ...]]
"""Of one key, in order: id, k, amount, at."""
BEGIN = dt.datetime(2026, 1, 1)
HOUR = dt.timedelta(hours=1)


def runs(rows: Rows) -> Iterator[tuple[Any, ...]]:
    """Rows whose amounts fall, and the first one after them that is greater than the last of them."""
    start = 0
    while start < len(rows):
        end = start + 1
        while end < len(rows) and rows[end][2] < rows[end - 1][2]:
            end += 1
        if end < len(rows) and end - start >= 2 and rows[end][2] > rows[end - 1][2]:
            down, up = rows[start:end], rows[end]
            mean = sum(row[2] for row in down) / len(down)
            yield (up[1], down[0][2], down[-1][2], up[0], len(down) + 1, mean, up[3] - down[0][3], str(up[0]))
            start = end + 1
        else:
            start += 1


RUNS = """
SELECT * FROM orders MATCH_RECOGNIZE (
    PARTITION BY k ORDER BY at
    MEASURES FIRST(DOWN.amount) AS first, LAST(DOWN.amount) AS last, UP.id AS up, COUNT(*) AS n, AVG(DOWN.amount) AS mean,
        MATCH_ROWTIME() - FIRST(DOWN.at) AS took, CAST(id AS STRING) AS text
    ONE ROW PER MATCH
    AFTER MATCH SKIP PAST LAST ROW
    PATTERN (DOWN{2,} UP)
    DEFINE DOWN AS amount < LAST(DOWN.amount, 1) OR LAST(DOWN.amount, 1) IS NULL, UP AS UP.amount > LAST(DOWN.amount)
) AS T
"""


def sums(rows: Rows) -> Iterator[tuple[Any, ...]]:
    """From each row on, as many as together have at least 6, within three hours."""
    for start, first in enumerate(rows):
        total = 0
        for count, row in enumerate(rows[start:], 1):
            if row[3] >= first[3] + 3 * HOUR:
                break
            total += row[2]
            if total >= 6:
                yield first[0], row[0], total, count - 1
                break


SUMS = """
SELECT a, b, total, n FROM (SELECT id, amount, at FROM orders WHERE k IS NOT NULL) MATCH_RECOGNIZE (
    ORDER BY at
    MEASURES FIRST(id) AS a, B.id AS b, SUM(amount) AS total, COUNT(A.id) AS n
    AFTER MATCH SKIP TO NEXT ROW
    PATTERN (A*? B) WITHIN INTERVAL '3' HOUR
    DEFINE B AS SUM(amount) >= 6
)
"""


def pairs(rows: Rows) -> Iterator[tuple[Any, ...]]:
    """A row, perhaps one of the same amount, and one that is greater than the row before it."""
    start = 0
    while start < len(rows) - 1:
        one, *rest = rows[start : start + 3]
        if len(rest) == 2 and rest[0][2] == one[2] and rest[1][2] > rest[0][2]:
            yield one[0], rest[0][0], rest[1][0], one[1]
            start += 3
        elif rest[0][2] > one[2]:
            yield one[0], None, rest[0][0], one[1]
            start += 2
        else:
            start += 1


PAIRS = """
WITH named AS (SELECT id, k, coalesce(k, '?') AS name, amount, at FROM orders)
SELECT a, b, c, k FROM named MATCH_RECOGNIZE (
    PARTITION BY name ORDER BY at, id DESC
    MEASURES A.id AS a, B.id AS b, C.id AS c, LAST(U.k) AS k
    PATTERN (A B? C) SUBSET U = (A, B)
    DEFINE B AS amount = A.amount, C AS C.amount > PREV(C.amount)
) AS m
"""


def answer(match: Callable[[Rows], Iterator[tuple[Any, ...]]], rows: Rows, *, by_key: bool) -> Counter[Any]:
    """Return the matches of all rows."""
    keys = {row[1] for row in rows} if by_key else {None}
    found = [
        each
        for key in keys
        for each in match(sorted((row for row in rows if not by_key or row[1] == key), key=lambda row: row[3]))
    ]
    return Counter(found)


def test_matches_over_restarts_and_rescaling(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    """What is given is in the answer for good, and all of it is, at the end of event time."""
    tables = {"orders": timed_tables("match", unique=True)["orders"]}
    compared = Compared(spark, tmp_path, tables, are_written=False)
    views = [compared.add(query) for query in (RUNS, SUMS, PAIRS)]
    assert all(view.appends for view in views)
    assert "an open match is kept for ever, as there is no WITHIN" in views[0].explain()
    assert "rows until the watermark is 3 hours after orders.at of a match's first row" in views[1].explain()
    assert "the last 1 of each key" in views[2].explain()
    for epoch, parallelism in enumerate((2, 3, 1, 1, 2)):
        compared.write("orders", [tables["orders"].epochs[epoch]], epoch)
        if epoch in (1, 2, EPOCHS - 1):
            compared.job(local_dir, parallelism, drain=epoch == EPOCHS - 1).start(spark).await_termination()
    rows = tables["orders"].until(EPOCHS)
    expected = {
        RUNS: answer(runs, rows, by_key=True),
        SUMS: answer(sums, [row for row in rows if row[1] is not None], by_key=False),
        PAIRS: answer(pairs, rows, by_key=True),
    }
    for query, wanted in expected.items():
        assert wanted
        assert compared.rows(query, LAST) == wanted, query
        assert len({epoch for epoch, changes in compared.changes[query].items() if changes}) > 1
        assert compared.broken_promise(query) is None


def test_rows_of_equal_times_and_late_rows(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    """Ties are in the order of ORDER BY, then of the values of the row. A late row takes no part."""
    at = [BEGIN + dt.timedelta(minutes=minute) for minute in range(200)]
    epochs = [
        [(3, "a", 1, at[9]), (1, "a", 1, at[9])],
        [(2, "a", 1, at[9])],
        [(9, "a", 1, at[100])],
        [(4, "a", 1, at[8])],
    ]
    compared = Compared(
        spark, tmp_path, {"orders": Table("id bigint, k string, amount bigint, at timestamp", epochs, delay="10 min")}
    )
    queries = {
        order: "SELECT a, b, c, d FROM orders MATCH_RECOGNIZE (ORDER BY at" + order + " MEASURES A.id AS a, B.id AS b, C.id AS c, "
        "D.id AS d PATTERN (A B C D))"
        for order in ("", ", id DESC")
    }  # fmt: skip
    for query in queries.values():
        compared.add(query)
    run = compared.job(local_dir, 1, drain=True).start(spark)
    run.await_termination()
    assert compared.rows(queries[""], LAST) == Counter({(1, 2, 3, 9): 1})
    assert compared.rows(queries[", id DESC"], LAST) == Counter({(3, 2, 1, 9): 1})
    assert run.status().late_rows == 2


def test_what_reads_matches(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    """Matches are a table as any other: they are matched again, joined, filtered and counted."""
    tables = {"orders": timed_tables("reads", unique=True)["orders"]}
    compared = Compared(spark, tmp_path, tables)
    rises = (
        "(SELECT * FROM orders) MATCH_RECOGNIZE (PARTITION BY k ORDER BY at MEASURES A.id AS a, B.id AS b, B.at AS at "
        "AFTER MATCH SKIP TO NEXT ROW PATTERN (A B) WITHIN INTERVAL '1' DAY DEFINE B AS B.amount > A.amount) AS m"
    )
    queries = {
        f"SELECT a, b FROM {rises} WHERE k = 'a'": "SELECT a, b FROM rises WHERE k = 'a'",
        f"SELECT k, count(*) AS n FROM {rises} GROUP BY k": "SELECT k, count(*) FROM rises GROUP BY k",
        f"SELECT m.b, o.amount FROM {rises} JOIN orders o ON o.id = m.b AND o.at = m.at":
        "SELECT r.b, o.amount FROM rises r JOIN orders o ON o.id = r.b",
        f"SELECT * FROM (SELECT * FROM {rises}) MATCH_RECOGNIZE (ORDER BY at MEASURES A.b AS x, B.b AS y PATTERN (A B))": "",
    }  # fmt: skip
    for query in queries:
        compared.add(query)
    assert "near-" in compared.views[[*queries][2]].explain()
    compared.job(local_dir, 2, drain=True).start(spark).await_termination()
    asked = (
        "SELECT *, lag(id) OVER (PARTITION BY k ORDER BY at) AS a, id AS b, lag(amount) OVER (PARTITION BY k ORDER BY at) AS before "
        "FROM orders QUALIFY amount > before"
    )
    spark.createDataFrame(tables["orders"].until(EPOCHS), tables["orders"].ddl).createOrReplaceTempView("orders")
    found = spark.sql(asked).drop("id")
    found.createOrReplaceTempView("rises")
    for query, expected in queries.items():
        if expected:
            assert compared.rows(query, LAST) == Counter(map(tuple, spark.sql(expected).collect())), query
    of_rises = [row.b for row in found.orderBy("at").collect()]
    twos = Counter(zip(of_rises[::2], of_rises[1::2], strict=False))
    assert compared.rows([*queries][3], LAST) == twos


VALUES = "id bigint, i int, b bigint, x double, f float, d decimal(10, 2), s string, t timestamp, a date, z boolean, at timestamp"
CONDITIONS = [
    "{B}.i < {A}.b OR {B}.x >= {A}.x AND NOT {B}.z <=> {A}.z",
    "{B}.x = {A}.x OR {A}.f <> {B}.f",
    "{B}.d + {A}.d * 2 > {A}.d - 1.5 OR {B}.d / nullif({A}.i, 0) > {A}.x",
    "{A}.s IN ({B}.s, 'b') OR {A}.s IS NULL AND {B}.i IS NOT NULL OR {A}.s > {B}.s",
    "{B}.t - {A}.t BETWEEN INTERVAL '-1' HOUR AND INTERVAL '90' MINUTE OR {A}.t + INTERVAL '10' MINUTE > {B}.t AND {A}.a <= {B}.a",
    "CASE WHEN {A}.z THEN {B}.i > {A}.i WHEN {A}.i IS NULL THEN true END OR if({B}.z, {A}.b, -{A}.i) > abs({A}.x)",
    "coalesce({A}.i, {B}.b) + {B}.i * {A}.i - 1 > 2 OR isnan({A}.x) AND {A}.f < 1",
]


def test_conditions_are_those_of_spark(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    """A row and the next one, by a condition: what keepers say of it is what Spark does."""
    rng = random.Random("conditions")
    numbers = [None, 0, 1, 2, -1]
    rows = [
        (
            number, rng.choice(numbers), rng.choice(numbers), rng.choice([None, 0.0, -0.0, 1.5, float("nan")]),
            rng.choice([None, 0.5, float("nan"), 1.0]), rng.choice([None, Decimal("0.05"), Decimal("-1.50"), Decimal("2.00")]),
            rng.choice([None, "", "a", "b", "é"]), rng.choice([None, BEGIN, BEGIN + HOUR, BEGIN + 2 * HOUR]),
            rng.choice([None, BEGIN.date(), dt.date(2026, 1, 2)]), rng.choice([None, True, False]),
            BEGIN + dt.timedelta(minutes=number),
        )
        for number in range(60)
    ]  # fmt: skip
    compared = Compared(spark, tmp_path, {"facts": Table(VALUES, [rows], delay="1 min")})
    queries = [
        "SELECT * FROM facts MATCH_RECOGNIZE (ORDER BY at MEASURES B.id AS id AFTER MATCH SKIP TO NEXT ROW PATTERN (A B) "
        f"DEFINE B AS {each.format(A='A', B='B')})"
        for each in CONDITIONS
    ]
    for query in queries:
        compared.add(query)
    compared.job(local_dir, 1, drain=True).start(spark).await_termination()
    spark.createDataFrame(rows, VALUES).createOrReplaceTempView("facts")
    pairs = "(SELECT struct(*) AS n, lag(struct(*)) OVER (ORDER BY at) AS o FROM facts)"
    for query, condition in zip(queries, CONDITIONS, strict=True):
        asked = f"SELECT n.id FROM {pairs} WHERE o IS NOT NULL AND ({condition.format(A='o', B='n')})"
        expected = Counter(map(tuple, spark.sql(asked).collect()))
        assert compared.rows(query, LAST) == expected, condition
        assert 0 < expected.total() < len(rows) - 1


def uid_of(view: sl.View) -> str:
    return view.explain().splitlines()[1].split()[0]


def test_an_operator_is_known_by_what_it_means(spark: Any, tmp_path: Path) -> None:
    """Names of variables, comments and what measures make of values do not matter; patterns and conditions do."""
    table = timed_tables("uids")["orders"]
    compared = Compared(spark, tmp_path, {"orders": table})
    text = (
        "SELECT * FROM orders MATCH_RECOGNIZE (PARTITION BY k ORDER BY at MEASURES LAST(A.id) AS a, B.id AS b "
        "PATTERN (A+ B) DEFINE B AS B.amount > LAST(A.amount))"
    )
    same = [
        text.replace("A.", "X.").replace("(A+", "(X+"),
        text.replace("LAST(A.id) AS a", "LAST(A.id) + 1 AS other").replace(" DEFINE", " /* */ DEFINE"),
        text.replace("B AS B.amount > LAST(A.amount)", "B AS amount > A.amount"),
        f"SELECT a FROM ({text}) WHERE b > 1",
    ]
    others = [
        text.replace("A+", "A*"), text.replace("A+", "A+?"), text.replace("> LAST", ">= LAST"), text.replace("LAST(A.id)", "FIRST(A.id)"),
        text.replace("(A+ B)", "(A+ B) WITHIN INTERVAL '1' HOUR"), text.replace("PATTERN", "AFTER MATCH SKIP TO NEXT ROW PATTERN"),
        text.replace("BY k", "BY amount"), text.replace("FROM orders", "FROM (SELECT * FROM orders WHERE id > 1)"),
    ]  # fmt: skip
    uid = uid_of(compared.add(text))
    assert [uid_of(compared.add(each)) for each in same] == [uid] * len(same)
    uids = [uid_of(compared.add(each)) for each in others]
    assert len({uid, *uids}) == len(others) + 1
    assert uid_of(compared.add(text, uid="mine")) == "mine"
