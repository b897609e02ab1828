"""Queries as Flink and RisingWave have them, as views: after every epoch what Spark answers to its own spelling."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from tests.spark.views.harness import Compared, Row, Table

pytestmark = pytest.mark.spark

HOUR, TEN, FIVE = "INTERVAL '1' HOUR", "INTERVAL '10' MINUTES", "INTERVAL '5' MINUTES"
BEFORE_END = "INTERVAL '1' MILLISECOND"
SPELLINGS = {
    f"SELECT STREAM room, TUMBLE_END(rowtime, {HOUR}), AVG(temperature) FROM sensors GROUP BY TUMBLE(rowtime, {HOUR}), room":
    "SELECT room, window.end, avg(temperature) FROM sensors GROUP BY window(rowtime, '1 hour'), room",
    f"SELECT room, TUMBLE_START(rowtime, {HOUR}) AS s, TUMBLE_ROWTIME(rowtime, {HOUR}) AS r, count(*) AS n FROM sensors "
    f"GROUP BY room, TUMBLE(rowtime, {HOUR}) HAVING TUMBLE_END(rowtime, {HOUR}) > timestamp'2026-01-01 01:00:00'":
    f"SELECT room, window.start, window.end - {BEFORE_END}, count(*) FROM sensors "
    "GROUP BY room, window(rowtime, '1 hour') HAVING window.end > timestamp'2026-01-01 01:00:00'",
    f"SELECT HOP_START(rowtime, {TEN}, {HOUR}) AS s, max(temperature) AS t FROM sensors GROUP BY HOP(rowtime, {TEN}, {HOUR})":
    "SELECT window.start, max(temperature) FROM sensors GROUP BY window(rowtime, '1 hour', '10 minutes')",
    f"SELECT room, SESSION_START(rowtime, {TEN}) AS s, SESSION_END(rowtime, {TEN}) AS e, count(*) AS n FROM sensors "
    f"GROUP BY SESSION(rowtime, {TEN}), room":
    "SELECT room, session_window.start, session_window.end, count(*) FROM sensors "
    "GROUP BY session_window(rowtime, '10 minutes'), room",
    "SELECT room, window_start, window_end, window_time, sum(id) AS n "
    f"FROM TABLE(TUMBLE(TABLE sensors, DESCRIPTOR(rowtime), {HOUR}, {TEN})) "
    "GROUP BY room, window_start, window_end, window_time":
    f"SELECT room, window.start, window.end, window.end - {BEFORE_END}, sum(id) FROM sensors "
    "GROUP BY room, window(rowtime, '1 hour', '1 hour', '10 minutes')",
    "SELECT w.id, w.window_start FROM TABLE(HOP(DATA => TABLE sensors, TIMECOL => DESCRIPTOR(rowtime), "
    f"SLIDE => {TEN}, SIZE => {HOUR})) AS w":
    "SELECT id, window(rowtime, '1 hour', '10 minutes').start FROM sensors",
    f"SELECT id, window_start, window_end FROM TABLE(CUMULATE(TABLE sensors, DESCRIPTOR(rowtime), {TEN}, {HOUR}))":
    "SELECT id, date_trunc('hour', rowtime), e FROM sensors, "
    "LATERAL (SELECT date_trunc('hour', rowtime) + make_dt_interval(0, 0, 10 * (i + 1)) AS e FROM range(6) t(i)) "
    "WHERE e > rowtime",
    f"SELECT id, window_start, window_end FROM TABLE(CUMULATE(TABLE sensors, DESCRIPTOR(rowtime), {TEN}, {HOUR}, {FIVE}))":
    "SELECT id, w.start, e FROM (SELECT id, rowtime, window(rowtime, '1 hour', '1 hour', '5 minutes') AS w FROM sensors), "
    "LATERAL (SELECT w.start + make_dt_interval(0, 0, 10 * (i + 1)) AS e FROM range(6) t(i)) WHERE e > rowtime",
    "SELECT room, window_start, window_end, count(*) AS n "
    f"FROM TABLE(SESSION(TABLE sensors PARTITION BY room, DESCRIPTOR(rowtime), {TEN})) "
    "GROUP BY room, window_start, window_end":
    "SELECT room, session_window.start, session_window.end, count(*) FROM sensors "
    "GROUP BY session_window(rowtime, '10 minutes'), room",
    "SELECT window_start, window_end, count(*) AS n FROM tumble(sensors, rowtime, INTERVAL '1 hour') "
    "GROUP BY window_start, window_end":
    "SELECT window.start, window.end, count(*) FROM sensors GROUP BY window(rowtime, '1 hour')",
    "SELECT h.id, h.window_end FROM hop(sensors, rowtime, INTERVAL '10 MINUTE', INTERVAL '1 HOUR') h":
    "SELECT id, window(rowtime, '1 hour', '10 minutes').end FROM sensors",
    f"SELECT window(rowtime, {HOUR}) AS w, count(*) AS n FROM sensors GROUP BY window(rowtime, INTERVAL '60' MINUTES)":
    "SELECT window(rowtime, '1 hour'), count(*) FROM sensors GROUP BY window(rowtime, '1 hour')",
    "SELECT id, unnest(CASE id % 3 WHEN 1 THEN NULL WHEN 2 THEN array() ELSE array(room, temperature::TEXT) END) AS part, "
    "CAST(rowtime AS TEXT) AS at FROM sensors":
    "SELECT id, explode(CASE id % 3 WHEN 1 THEN NULL WHEN 2 THEN array() ELSE array(room, temperature::STRING) END), "
    "CAST(rowtime AS STRING) FROM sensors",
    "SELECT DISTINCT ON (room) * FROM sensors ORDER BY room, rowtime DESC":
    "SELECT id, room, temperature, rowtime FROM (SELECT *, max(rowtime) OVER (PARTITION BY room) AS m FROM sensors) "
    "WHERE rowtime = m",
}  # fmt: skip
"""By the spelling of another system, Spark's."""
ASOF = {
    "SELECT s.id, c.by, c.rowtime FROM sensors s LEFT ASOF JOIN corrections c "
    "MATCH_CONDITION (s.rowtime >= c.rowtime) ON s.room = c.room":
    "SELECT id, c.by, c.rowtime FROM sensors s LEFT JOIN LATERAL (SELECT * FROM corrections c "
    "WHERE s.room = c.room AND s.rowtime >= c.rowtime ORDER BY c.rowtime DESC LIMIT 1) c",
    "SELECT s.id, c.by FROM sensors s ASOF JOIN corrections c ON s.room = c.room AND c.rowtime > s.rowtime":
    "SELECT id, c.by FROM sensors s JOIN LATERAL (SELECT * FROM corrections c "
    "WHERE s.room = c.room AND s.rowtime < c.rowtime ORDER BY c.rowtime LIMIT 1) c",
    "SELECT s.id, c.id AS before FROM sensors s ASOF LEFT JOIN sensors c ON s.room = c.room AND s.rowtime > c.rowtime":
    "SELECT id, lag(id) OVER (PARTITION BY room ORDER BY rowtime) FROM sensors",
    "SELECT s.id, c.by FROM sensors s ASOF JOIN corrections c MATCH_CONDITION (s.rowtime <= c.rowtime)":
    "SELECT id, c.by FROM sensors s JOIN LATERAL (SELECT * FROM corrections c "
    "WHERE s.rowtime <= c.rowtime ORDER BY c.rowtime LIMIT 1) c",
}  # fmt: skip


def tables() -> dict[str, Table]:
    """Return rows in no order, of which no two have the same time."""
    chance = random.Random(7)
    minutes = chance.sample(range(300), 60)
    # The seconds keep any two sessions from touching.
    times = [datetime(2026, 1, 1) + timedelta(minutes=each, seconds=at) for at, each in enumerate(minutes)]
    rooms = [chance.choice(["kitchen", "hall", "attic"]) for _ in times]
    sensors = [(at, rooms[at], float(chance.randrange(9)), times[at]) for at in range(40)]
    # One is right at the time of a sensor's row.
    times[40], rooms[40] = times[3], rooms[3]
    corrections: list[Row] = [(rooms[at], float(at), times[at]) for at in range(40, 60)]
    return {
        "sensors": Table(
            "id bigint, room string, temperature double, rowtime timestamp", [sensors[at::3] for at in range(3)]
        ),
        "corrections": Table("room string, by double, rowtime timestamp", [corrections[at::3] for at in range(3)]),
    }


def check(compared: Compared, spellings: dict[str, str], local_dir: Path) -> None:
    """Run a job of all queries, and compare each after every epoch."""
    for query in spellings:
        compared.add(query)
    compared.run(local_dir, parallelism=2)
    for query, spark in spellings.items():
        for epoch in range(1, compared.epochs + 1):
            expected = compared.expected(spark, epoch)
            assert len(expected) > 1
            assert compared.rows(query, epoch) == expected, query


@pytest.mark.long
def test_windows_and_distinct_on_are_what_spark_answers_to_its_own_spelling(
    spark: Any, tmp_path: Path, local_dir: Path
) -> None:
    check(Compared(spark, tmp_path, tables()), SPELLINGS, local_dir)


@pytest.mark.long
def test_asof_joins_are_lateral_joins_with_the_last_row(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    if spark.version < "4.3":
        pytest.skip("Spark parses ASOF JOIN from 4.3 on")
    check(Compared(spark, tmp_path, tables()), ASOF, local_dir)


def test_equal_asof_joins_are_one_operator(spark: Any, tmp_path: Path) -> None:
    if spark.version < "4.3":
        pytest.skip("Spark parses ASOF JOIN from 4.3 on")
    compared = Compared(spark, tmp_path, tables())
    query = next(iter(ASOF))
    other = query.replace("sensors s", "sensors AS t").replace("s.", "t.")
    first, second = compared.add(query), compared.add(other)
    assert first.explain() == second.explain()


def test_the_column_of_an_end_has_sparks_name(spark: Any, tmp_path: Path) -> None:
    view: sl.View = Compared(spark, tmp_path, tables()).add(next(iter(SPELLINGS)))
    assert view.columns == ["room", "end", "avg(temperature)"]
    assert view.key is None
