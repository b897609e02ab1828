"""Views of all kinds of queries: after every epoch what spark.sql answers, in streams, tables and files."""

from __future__ import annotations

import gc
import sqlite3
import weakref
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from tests.soak import soaking
from tests.spark.views.harness import Compared, normal
from tests.spark.views.random_queries import Found, batches, random_tables, try_queries

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]

QUICK = [
    "SELECT id, upper(shop) AS s FROM orders WHERE amount > 3",
    "SELECT shop, count(*) AS n, sum(amount) AS total, count(DISTINCT customer) AS c FROM orders GROUP BY shop",
    "SELECT o.id, c.name FROM orders o FULL JOIN customers c ON o.customer = c.customer AND o.amount > length(c.name)",
    "SELECT id, sum(amount) OVER (PARTITION BY x ORDER BY at, id) AS s FROM orders",
    "SELECT shop FROM orders ORDER BY amount DESC, id LIMIT 2 OFFSET 1",
    "SELECT shop FROM orders WHERE customer NOT IN (SELECT customer FROM customers WHERE country = 'NO')",
]
JOINS = [
    "SELECT o.id, c.name FROM orders o JOIN customers c USING (customer)",
    "SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer <=> c.customer",
    "SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON o.x = c.score",
    "SELECT o.id, c.name FROM orders o RIGHT JOIN customers c ON o.customer = c.customer",
    "SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON o.customer = c.customer AND o.shop > c.name",
    "SELECT o.id, c.name FROM orders o FULL JOIN customers c ON struct(o.x) = struct(c.score)",
    "SELECT o.id, c.name FROM orders o FULL JOIN customers c ON array(o.shop) = array(c.country)",
    "SELECT count(*) AS n FROM orders CROSS JOIN customers",
    "SELECT o.id, c.name FROM orders o JOIN customers c ON o.shop < c.name",
    "SELECT o.id, p.id AS other FROM orders o JOIN orders p ON o.shop = p.shop AND o.amount < p.amount",
    "SELECT a.shop, sum(a.amount) AS s FROM orders a JOIN orders b ON a.shop = b.shop WHERE a.id > b.id GROUP BY a.shop",
    "SELECT a.shop, sum(b.amount) AS s FROM orders a JOIN orders b ON a.shop = b.shop WHERE a.id > b.id GROUP BY a.shop",
    "SELECT a.shop, sum(a.amount) AS s FROM orders a JOIN orders b ON a.shop = b.shop WHERE a.id < b.id GROUP BY a.shop",
    "SELECT a.shop, max(a.id) AS m, max(b.id) AS n FROM orders a JOIN orders b USING (shop) WHERE a.id < b.id GROUP BY 1",
    "SELECT a.name FROM (SELECT * FROM customers) a LEFT JOIN customers b ON a.country = b.country AND a.name < b.name",
    "SELECT * FROM orders o LEFT SEMI JOIN customers c ON o.customer = c.customer AND c.country = 'SE'",
    "SELECT * FROM orders o LEFT ANTI JOIN customers c ON o.customer = c.customer",
    "SELECT k, n, id FROM VALUES (1, 'one'), (7, 'two') v(k, n) LEFT JOIN orders ON k = customer",
    "SELECT n, count(*) AS c FROM orders JOIN VALUES (1, 'uno') v(k, n) ON k = customer GROUP BY n",
    "SELECT n, count(*) AS c FROM orders JOIN VALUES (1, 'one') v(k, n) ON k = customer GROUP BY n",
    "SELECT a.shop, a.n, b.m FROM (SELECT shop, customer, count(*) AS n FROM orders GROUP BY ALL) a "
    "LEFT JOIN (SELECT customer, count(*) AS m FROM customers GROUP BY customer) b ON a.customer = b.customer",
    "SELECT a.x, a.n, i.what FROM (SELECT x, count(*) AS n FROM orders GROUP BY x) a JOIN items i ON a.n = i.number",
    "SELECT c.name, t.id FROM customers c, "
    "LATERAL (SELECT id FROM orders o WHERE o.customer = c.customer ORDER BY id DESC LIMIT 2) t",
]
AGGREGATES = [
    "SELECT x, count(*) AS n FROM orders GROUP BY x",
    "SELECT array(x) AS a, count(*) AS n FROM orders GROUP BY array(x)",
    "SELECT DISTINCT pair, tags FROM orders",
    "SELECT shop, count(DISTINCT customer) AS c, sum(DISTINCT amount) AS d, count(*) FILTER (WHERE amount > 3) AS f "
    "FROM orders GROUP BY ROLLUP(shop)",
    "SELECT shop, x, count(*) AS n, grouping_id() AS g FROM orders GROUP BY GROUPING SETS ((shop), (x), ())",
    "SELECT shop, max(x) AS a, min(x) AS b, avg(x) AS c, max(at) AS d, min(shop) AS e FROM orders GROUP BY shop",
    "SELECT shop, sort_array(collect_list(amount)) AS l, percentile(amount, 0.5) AS p, stddev(amount) AS s, "
    "max_by(id, struct(amount, id)) AS m FROM orders GROUP BY shop HAVING count(*) > 1",
    "SELECT count(name) AS n, max(name) AS m FROM customers WHERE country > name",
    "SELECT max(n) AS m, avg(n) AS a FROM (SELECT shop, count(*) AS n FROM orders GROUP BY shop)",
    "SELECT shop, sum(amount) + (SELECT max(price) FROM items) AS s FROM orders GROUP BY shop",
    "SELECT reverse(array('x', null)) AS k, min(price) AS p FROM items GROUP BY reverse(array('x', null))",
    "SELECT shop, window(at, '1 hour') AS w, count(*) AS n FROM orders GROUP BY shop, window(at, '1 hour')",
    "SELECT shop, window.end AS e, avg(amount) AS a FROM orders GROUP BY shop, window(at, '1 hour', '30 minutes')",
    "SELECT shop, session_window(at, '1 hour') AS w, count(*) AS n FROM orders GROUP BY shop, session_window(at, '1 hour')",
    "SELECT k, count(*) AS n FROM (SELECT CASE WHEN id > 3 THEN 1 ELSE 2 END AS k FROM orders) GROUP BY k",
    "SELECT k, count(*) AS n FROM (SELECT CASE WHEN id > 3 THEN '1' ELSE '2' END AS k FROM orders) GROUP BY k",
    "SELECT * FROM (SELECT id, shop, amount FROM orders) PIVOT (sum(amount) FOR shop IN ('a', 'b'))",
    "FROM orders |> WHERE amount > 2 |> AGGREGATE sum(amount) AS s GROUP BY shop",
]
OTHERS = [
    "SELECT shop FROM orders UNION SELECT country FROM customers",
    "SELECT shop FROM orders UNION ALL VALUES ('one'), ('one')",
    "SELECT x FROM orders INTERSECT SELECT score FROM customers",
    "SELECT shop FROM orders INTERSECT ALL SELECT name FROM customers",
    "SELECT x FROM orders EXCEPT ALL SELECT score FROM customers",
    "SELECT array(x) AS a FROM orders EXCEPT SELECT array(score) FROM customers",
    "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY shop ORDER BY amount DESC, id) AS n FROM orders) WHERE n <= 2",
    "SELECT id, lag(x) OVER (PARTITION BY shop ORDER BY id) AS l FROM orders",
    "SELECT id, lag(x) IGNORE NULLS OVER (PARTITION BY shop ORDER BY id) AS l FROM orders",
    "SELECT id, count(*) OVER (PARTITION BY pair ORDER BY id RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS n FROM orders",
    "SELECT id, percent_rank() OVER (ORDER BY amount) AS p FROM orders",
    "SELECT * FROM (SELECT id, shop FROM orders ORDER BY id LIMIT 5) OFFSET 2",
    "SELECT id + 1 AS j FROM orders ORDER BY amount DESC, id LIMIT 3",
    "SELECT * FROM (SELECT count(*) AS a FROM orders UNION ALL SELECT count(*) FROM customers) ORDER BY a LIMIT 5",
    "SELECT id, (SELECT max(name) FROM customers) AS a, (SELECT min(country) FROM customers) AS b FROM orders",
    "SELECT id, (SELECT count(*) FROM customers c WHERE c.customer = o.customer) AS n FROM orders o",
    "SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM items i WHERE i.id = o.id AND i.price < o.amount) OR amount > 5",
    "SELECT id FROM orders WHERE amount = (SELECT max(amount) FROM orders o WHERE o.shop = orders.shop)",
    "SELECT o.id, t.w FROM orders o LATERAL VIEW OUTER explode(o.tags) t AS w",
    "WITH t AS (SELECT shop, sum(amount) AS s FROM orders GROUP BY shop) SELECT a.shop, b.s FROM t a JOIN t b ON a.s < b.s",
    "SELECT 1 AS a, 'x' AS b FROM orders",
    "SELECT count(*) AS n FROM orders WHERE shop = '#5'",
    "SELECT count(*) AS n FROM orders WHERE shop = 'b#7'",
]
ODD = [
    "SELECT id AS `a.b`, shop AS `c d`, amount AS `é``x` FROM orders WHERE id > 1",
    "SELECT `a.b`, count(*) AS `n n` FROM (SELECT shop AS `a.b` FROM orders) GROUP BY `a.b`",
    "SELECT DISTINCT named_struct('a b', id, 'C', shop) AS s FROM orders",
    "SELECT * FROM orders FULL JOIN customers USING (customer)",
    "SELECT o.id, o.m, c.name FROM (SELECT id, customer, map('a', x, 'b', 1) AS m FROM orders) o "
    "LEFT JOIN customers c ON o.customer = c.customer",
    "SELECT cast(shop AS binary) AS b, count(*) AS n FROM orders GROUP BY 1",
    "SELECT id, customer NOT IN (SELECT customer FROM customers) AS e FROM orders",
    "SELECT o.id, pos, col FROM orders o LATERAL VIEW posexplode(tags) t AS pos, col",
    "SELECT s.* FROM orders LATERAL VIEW stack(2, id, shop, id + 1, upper(shop)) s AS n, t",
    "SELECT k, label, id FROM VALUES (1, 'one'), (7, 'two') v(k, label) FULL JOIN orders ON k = customer",
    "SELECT count(*) AS n FROM orders o WHERE (customer, shop) IN (SELECT customer, country FROM customers)",
    "SELECT id, sum(id) OVER (PARTITION BY customer ORDER BY at RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW) "
    "AS s FROM orders",
    "SELECT shop, count(DISTINCT shop) AS a, count(DISTINCT customer) FILTER (WHERE id > 2) AS b, "
    "count(DISTINCT customer) AS c, sum(amount) FILTER (WHERE id > 1) AS d FROM orders GROUP BY shop",
    "SELECT count(DISTINCT customer, shop) AS a, sum(DISTINCT customer) AS b, max(shop) AS c FROM orders",
    "SELECT count(DISTINCT tags) AS a, count(DISTINCT pair) AS b, count(DISTINCT x) AS c FROM orders",
    "SELECT sum(s) AS t FROM (SELECT CASE WHEN id = 1 THEN -9223372036854775807 - 1 ELSE 0 END AS s FROM orders)",
]
REFUSED = {
    "SELECT * FROM orders ORDER BY amount": "ORDER BY without LIMIT: a result that changes has no order",
    "SELECT * FROM orders LIMIT 5": "LIMIT without ORDER BY: which rows they are is not defined",
    "SELECT rand() AS r FROM orders": "which is not the same each time",
    "SELECT id FROM orders WHERE at > now() - interval 1 hour": "the query has the present time",
    "SELECT id FROM orders TABLESAMPLE (10 PERCENT)": "TABLESAMPLE: each epoch would draw other rows",
    "SELECT DISTINCT shop, NULL AS n FROM orders": "which is VOID: no state has this type",
    "SELECT name COLLATE UTF8_LCASE AS k, count(*) AS n FROM customers GROUP BY 1": "no state has this type",
    "SELECT shp FROM orders": "the query is refused by Spark: .* name `shp` cannot be resolved",
    "SELECT id FROM orders WHERE (id": "the query is refused by Spark: Syntax error",
}


@pytest.fixture
def compared(spark: Any, tmp_path: Path) -> Compared:
    """Queries over three tables."""
    return Compared(spark, tmp_path, random_tables("views"))


def check(compared: Compared, queries: list[str], local_dir: Path, parallelism: int = 2) -> None:
    for query in queries:
        compared.add(query)
    compared.run(local_dir, parallelism)
    compared.check()


def test_views_are_what_spark_answers(compared: Compared, local_dir: Path) -> None:
    check(compared, QUICK, local_dir)
    appends = {query for query, view in compared.views.items() if view.appends}
    assert appends == {QUICK[0]}
    assert compared.views[QUICK[1]].key == ("shop",)


@pytest.mark.long
@pytest.mark.parametrize("queries", [JOINS, AGGREGATES, OTHERS, ODD], ids=["joins", "aggregates", "others", "odd"])
def test_many_views_are_what_spark_answers(compared: Compared, local_dir: Path, queries: list[str]) -> None:
    check(compared, queries, local_dir)


@pytest.mark.long
def test_views_of_tables_whose_rows_change(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    compared = Compared(spark, tmp_path, random_tables("views", change=True))
    check(compared, [*QUICK, *AGGREGATES[:8], *JOINS[7:12], *ODD[12:]], local_dir)


@pytest.mark.long
@pytest.mark.parametrize("change", [False, True], ids=["rows-come", "rows-change"])
@pytest.mark.parametrize("seed", [1, *soaking(range(2, 20))])
def test_random_views_are_what_spark_answers(spark: Any, seed: int, change: bool) -> None:
    found = Found()
    for tables, queries in batches(seed, 20):
        try_queries(spark, tables, queries, found, parallelism=2, change=change)
    assert not found.faults, "\n".join(found.faults)
    assert found.right > 15


@pytest.mark.parametrize("query", REFUSED, ids=lambda query: query.split(" FROM ")[0].replace(" ", "-"))
def test_queries_that_are_refused(compared: Compared, query: str) -> None:
    with pytest.raises(sl.errors.ConfigurationError, match=REFUSED[query]):
        compared.add(query).changes()


def test_views_into_tables_and_files(spark: Any, compared: Compared, tmp_path: Path, local_dir: Path) -> None:
    """Rows are replaced and deleted by key; a view whose rows only come goes into files; a view reads another one."""
    totals = compared.add(
        "SELECT shop, count(*) AS n FROM orders WHERE shop IS NOT NULL GROUP BY shop HAVING count(*) < 3"
    )
    plain = compared.add("SELECT id, shop, amount FROM orders WHERE amount > 2")
    most = compared.add(f"SELECT * FROM ({QUICK[1]}) WHERE shop > '' ORDER BY n DESC, shop LIMIT 2")
    orders = compared.stream("orders")
    above = sl.sql("SELECT n, count(*) AS shops FROM totals GROUP BY n", totals=totals)
    mixed = sl.sql("SELECT o.id, t.n FROM o LEFT JOIN t ON o.shop = t.shop", o=orders, t=totals)
    database, gathered = tmp_path / "views.db", sl.sinks.memory()
    job = sl.Job(
        "views",
        sinks=[
            totals.to(sl.sinks.sqlite(database, "totals", key="shop", create=True)),
            above.to(sl.sinks.sqlite(database, "above", key="n", create=True)),
            most.to(sl.sinks.sqlite(database, "most", key=["shop"], create=True)),
            plain.to(sl.sinks.files(str(tmp_path / "out"), format="json")),
            mixed.changes().to(gathered),
        ],
        checkpoints=sl.Checkpoints(tmp_path / "ck"),
        settings=sl.Settings(parallelism=2, local_dir=local_dir, state_memory="128MB"),
        trigger="available-now",
    )
    job.start(spark).await_termination()
    queries = list(compared.views)
    with closing(sqlite3.connect(database)) as db:
        found = {name: Counter(db.execute(f"SELECT * FROM {name}")) for name in ("totals", "above", "most")}
    assert found["totals"] == compared.expected(queries[0], compared.epochs)
    wanted = compared.expected(queries[2], compared.epochs)
    assert found["most"] == Counter((*row[:2], None if row[2] is None else str(row[2]), row[3]) for row in wanted)
    spark.sql(queries[0]).createOrReplaceTempView("totals")
    assert found["above"] == Counter(map(tuple, spark.sql("SELECT n, count(*) FROM totals GROUP BY n").collect()))
    files = spark.read.schema(plain.schema).json(str(tmp_path / "out"))
    assert Counter(normal(tuple(row)) for row in files.collect()) == compared.expected(queries[1], compared.epochs)
    sums: Counter[Any] = Counter()
    for *row, weight in gathered.rows:
        sums[tuple(row)] += weight
    pairs = spark.sql("SELECT o.id, t.n FROM orders o LEFT JOIN totals t ON o.shop = t.shop").collect()
    assert {row: n for row, n in sums.items() if n} == Counter(map(tuple, pairs))


def test_views_that_do_not_fit_their_sink(compared: Compared, tmp_path: Path) -> None:
    totals = compared.add("SELECT shop, count(*) AS n FROM orders GROUP BY shop")
    unkeyed = compared.add("SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON o.customer = c.customer")
    files = sl.sinks.files(str(tmp_path / "out"), format="json")
    with pytest.raises(
        sl.errors.ConfigurationError, match="the view changes rows that it has given, and FileSink only adds rows"
    ):
        totals.to(files)
    with pytest.raises(sl.errors.ConfigurationError, match="its rows change, and a stream of rows has no way"):
        totals.rows()
    with pytest.raises(sl.errors.ConfigurationError, match="several rows may have the same n; its key is shop"):
        totals.to(sl.sinks.sqlite(tmp_path / "db", "totals", key="n", create=True))
    with pytest.raises(sl.errors.ConfigurationError, match="no column 'm', of which its rows' key is to be"):
        totals.upserts("m")
    with pytest.raises(sl.errors.ConfigurationError, match="has no key that Spark's plan shows"):
        unkeyed.upserts()
    with pytest.raises(sl.errors.ConfigurationError, match="has a column 'N' of its own"):
        totals.changes("N")


@pytest.mark.long
def test_uids_are_those_of_any_other_process(spark: Any, compared: Compared) -> None:
    """They depend on what a query means: neither on ids that Spark counts, nor on what else is planned before."""
    first = {query: uids(compared, query) for query in JOINS + AGGREGATES + OTHERS}
    for query in reversed(JOINS + AGGREGATES + OTHERS):
        spark.range(3).selectExpr("id", "id + 1 AS other").count()
        assert uids(compared, query) == first[query], query
    alike = [
        f"SELECT k, count(*) AS n FROM (SELECT IF(id > 3, {k}) AS k FROM orders) GROUP BY k"
        for k in ("1, 2", "'1', '2'")
    ]
    assert uids(compared, alike[0]) != uids(compared, alike[1])
    for one, other in (
        ("WHERE shop = '#5'", "WHERE shop = '#6'"), ("WHERE shop <=> '1'", "WHERE shop <=> '1 '"), ("", "WHERE shop IS NOT NULL"),
        ("JOIN VALUES (1) v(k) ON k = id", "JOIN VALUES (2) v(k) ON k = id"),
        (f"WHERE array_max(array({'id, ' * 30}1)) > 2", f"WHERE array_max(array({'id, ' * 30}2)) > 2"),
    ):  # fmt: skip
        assert uids(compared, f"SELECT count(*) AS n FROM orders {one}") != uids(
            compared, f"SELECT count(*) AS n FROM orders {other}"
        )


def uids(compared: Compared, query: str) -> list[str]:
    """Return the uids of a query's operators."""
    view = compared.add(query)
    del compared.views[query]
    return [part.uid for part in view._relation.parts]


def test_views_are_freed_with_their_streams(compared: Compared) -> None:
    compared.add("SELECT shop, count(*) AS n FROM orders GROUP BY shop")
    source = weakref.ref(compared.stream("orders")._node)
    compared.views.clear()
    compared.sources.clear()
    gc.collect()
    assert source() is None
