"""Views of windows that the watermark closes, and views in PostgreSQL."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from tests.postgres import Server
from tests.spark.views.harness import Compared, Table, normal

pytestmark = [pytest.mark.spark, pytest.mark.long]

FINAL = [
    "SELECT room, window.end AS e, avg(t) AS a, count(*) AS c, sum(n) AS s, max(t) AS m FROM sensors "
    "GROUP BY window(at, '10 minutes'), room",
    "SELECT window.start AS s, count(*) AS c FROM sensors GROUP BY window(at, '20 minutes', '5 minutes', '2 minutes')",
    "SELECT room, session_window.start AS s, session_window.end AS e, count(*) AS c FROM sensors WHERE n > 0 "
    "GROUP BY session_window(at, '3 minutes'), room HAVING count(*) > 1",
    "SELECT STREAM room, TUMBLE_END(at, INTERVAL '1' HOUR) AS e, AVG(t) AS a FROM sensors "
    "GROUP BY TUMBLE(at, INTERVAL '1' HOUR), room",
]
CHANGING = "SELECT window AS w, percentile(t, 0.5) AS p FROM sensors GROUP BY window(at, '10 minutes')"
SPARK = {FINAL[3]: "SELECT room, window.end AS e, avg(t) AS a FROM sensors GROUP BY window(at, '1 hour'), room"}


def test_windows_are_given_once_when_they_are_closed(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    rng = random.Random(5)
    begin = dt.datetime(2026, 1, 1)

    def event(epoch: int) -> tuple[Any, ...]:
        at = begin + dt.timedelta(minutes=20 * epoch + rng.randrange(20))
        return rng.choice(["a", "b", None]), at, rng.random(), rng.choice([1, 2, None])

    events = [[event(epoch) for _ in range(8)] for epoch in range(5)]
    compared = Compared(spark, tmp_path, {"sensors": Table("room string, at timestamp, t double, n int", events)})
    compared.sources["sensors"] = compared.stream("sensors").watermark("at", "1 min")
    for query in (*FINAL, CHANGING):
        assert compared.add(query).appends == (query != CHANGING)
    compared.job(local_dir, 2, drain=True).start(spark).await_termination()
    table = compared.tables["sensors"]
    spark.createDataFrame(table.until(5), table.ddl).createOrReplaceTempView("sensors")
    for query in (*FINAL, CHANGING):
        rows = compared.rows(query, 1000)
        assert rows == Counter(normal(tuple(row)) for row in spark.sql(SPARK.get(query, query)).collect()), query
        output = [row for changes in compared.changes[query].values() for row in changes]
        assert query == CHANGING or len(output) == rows.total()
    # Before the end, no window is given that is still open.
    first = compared.changes[FINAL[0]][1]
    assert all(row[1] <= begin + dt.timedelta(minutes=20) for row in first)


def test_a_view_is_a_table_of_postgresql(spark: Any, tmp_path: Path, local_dir: Path, postgresql: Server) -> None:
    """Rows are replaced and deleted by key, also by a second run of the job."""
    orders = [[(number, f"s{number % 3}", number) for number in range(10 * e, 10 * e + 10)] for e in range(3)]
    shops = [[("s0", "A", False), ("s1", "B", False), ("s2", "A", False)], [("s2", "C", False)], [("s1", "", True)]]
    compared = Compared(
        spark,
        tmp_path,
        {
            "orders": Table("id bigint, shop string, amount bigint", orders),
            "shops": Table("shop string, city string, gone boolean", shops),
        },
    )
    table = sl.table(compared.stream("shops"), key="shop", deleted="gone")
    query = "SELECT city, count(*) AS n, sum(amount) AS total FROM orders JOIN shops USING (shop) GROUP BY city"
    dsn = postgresql.schema()

    def job() -> sl.Job:
        view = sl.sql(query, orders=compared.stream("orders"), shops=table)
        sink = sl.sinks.postgres(dsn, "cities", key="city", create=True)
        return compared.job(local_dir, 2, sinks=[view.to(sink)])

    job().start(spark).await_termination()

    def rows() -> list[tuple[Any, ...]]:
        with postgresql.connect(dsn) as db:
            return sorted(db.execute("SELECT city, n, total FROM cities").fetchall())

    by_shop = {shop: [row for rows in orders for row in rows if row[1] == shop] for shop in ("s0", "s2")}
    wanted = [("A", len(by_shop["s0"]), sum(row[2] for row in by_shop["s0"]))]
    wanted.append(("C", len(by_shop["s2"]), sum(row[2] for row in by_shop["s2"])))
    assert rows() == wanted
    compared.write("shops", [[("s0", "", True), ("s2", "A", False)]], first=3)
    job().start(spark).await_termination()
    assert rows() == [("A", *wanted[1][1:])]


def test_a_table_of_spark_changes_while_the_job_runs(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    """What is gone from it is taken back; a view of it is none whose rows only come."""
    compared = Compared(spark, tmp_path, {"events": Table("k bigint", [[(1,)], [(2,)], [(3,)]])})
    table = tmp_path / "table"
    spark.createDataFrame([(100,), (101,)], "k bigint").coalesce(1).write.parquet(str(table))
    (file,) = table.glob("part-*.parquet")
    spark.read.parquet(str(table)).createOrReplaceTempView("constants")
    view = sl.sql("SELECT k FROM events UNION ALL SELECT k FROM constants", events=compared.stream("events"))
    assert not view.appends
    assert sl.sql("SELECT k FROM events UNION ALL VALUES (7)", events=compared.stream("events")).appends
    with pytest.raises(sl.errors.ConfigurationError, match="changes rows that it has given, and FileSink only adds"):
        view.to(sl.sinks.files(str(tmp_path / "out")))
    rows: Counter[int] = Counter()

    def write(df: Any, epoch: int) -> None:
        for k, change in df.collect():
            rows[k] += change
        if epoch == 1:
            pq.write_table(pa.table({"k": pa.array([100, 999], pa.int64())}), file)
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    compared.job(local_dir, sinks=[view.changes().to(sl.sinks.foreach_batch(write))]).start(spark).await_termination()
    assert {k: n for k, n in rows.items() if n} == dict.fromkeys([1, 2, 3, 100, 999], 1)
