"""Rows on their partitions: all of them, and after the last the one that says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from strandline.core.keygroups import partition_of
from strandline.runtime.rowlayout import KEY_GROUP, PARTITION
from strandline.spark.base.quiet import spark_log
from strandline.spark.keepers.exchange import Exchange, prepare_session
from tests.soak import soaking

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("generated_code")]

SCHEMA = "k string, v bigint"


@pytest.fixture(scope="module", params=[1, *soaking([2]), 5])
def exchange(spark: Any, request: pytest.FixtureRequest) -> Iterator[tuple[Exchange, int]]:
    made = Exchange(spark, request.param)
    yield made, request.param
    made.close()


@pytest.mark.parametrize("order_by", [(), ("v",)])
@pytest.mark.parametrize("rows", ["none", *soaking(["few"]), "one key", "many"])
def test_every_partition_ends_with_the_row_that_only_comes_last(
    spark: Any, exchange: tuple[Exchange, int], rows: str, order_by: tuple[str, ...]
) -> None:
    made, parallelism = exchange
    session = spark.newSession()
    prepare_session(session)
    keys = {"none": [], "few": ["a", "b"], "one key": ["a"] * 50, "many": [f"k{i}" for i in range(300)]}[rows]
    # As Spark gives an epoch's rows: it does not know how many they are.
    given = session.createDataFrame([(key, -at) for at, key in enumerate(keys)], SCHEMA)
    routed = made.route(given, ["k"], 128, order_by)
    parts = [part for part in routed.rdd.glom().collect() if part]
    assert sorted(part[0][PARTITION] for part in parts) == list(range(parallelism))
    seen = []
    for part in parts:
        ends = [row[KEY_GROUP] is None for row in part]
        assert ends[-1]
        assert ends == sorted(ends), "no row comes after the end"
        there = part[: ends.index(True)]
        assert all(partition_of(row[KEY_GROUP], 128, parallelism) == row[PARTITION] for row in there)
        if order_by:
            assert [row.v for row in there] == sorted(row.v for row in there)
        seen += [row.k for row in there]
    assert sorted(seen) == sorted(keys)


def test_what_every_partition_hears_of_comes_once_to_each(spark: Any, exchange: tuple[Exchange, int]) -> None:
    """There are copies for as many as the widest operator has that hears it."""
    made, parallelism = exchange
    session = spark.newSession()
    prepare_session(session)
    heard = [(None, to) for to in range(5)]
    given = session.createDataFrame([*heard, *((f"k{i}", None) for i in range(50))], "k string, to int")
    found = made.route(given, ["k"], 128, to="to").where(f"{KEY_GROUP} is not null").collect()
    assert sorted(row[PARTITION] for row in found if row.k is None) == list(range(parallelism))
    assert sorted(row.k for row in found if row.k is not None) == sorted(f"k{i}" for i in range(50))


def test_operators_of_one_key_have_each_their_own_columns(spark: Any, exchange: tuple[Exchange, int]) -> None:
    made, _ = exchange
    session = spark.newSession()
    prepare_session(session)
    for columns in (["v"], ["total", "a.b"], []):
        row = ("a", *range(len(columns)))
        given = session.createDataFrame([row], ", ".join(["k string", *(f"`{name}` int" for name in columns)]))
        routed = made.route(given, ["k"], 128)
        assert routed.columns == [PARTITION, KEY_GROUP, "k", *columns]
        assert [tuple(found)[2:] for found in routed.collect() if found.k] == [row]


def test_polls_reach_every_partition_once(exchange: tuple[Exchange, int]) -> None:
    made, parallelism = exchange
    assert sorted(row[0] for row in made.partitions.collect()) == list(range(parallelism))


def test_workers_are_forked_with_what_tasks_import(spark: Any) -> None:
    def parent(batches: Any) -> Any:
        import os
        from pathlib import Path

        import pyarrow as pa

        for _ in batches:
            command = Path(f"/proc/{os.getppid()}/cmdline").read_text()
            yield pa.RecordBatch.from_pydict({"command": [command]})

    (row,) = spark.range(1).coalesce(1).mapInArrow(parent, "command string").collect()
    assert "strandline.spark.keepers.daemon" in row.command


def test_the_anchor_stays_where_it_is_whatever_else_is_taken_from_the_cache(spark: Any) -> None:
    one, other = Exchange(spark, 2), Exchange(spark, 2)
    session = spark.newSession()
    prepare_session(session)
    given = session.createDataFrame([(f"k{i}",) for i in range(20)], "k string")
    other._settle()
    # A job with a like anchor ends; and programs clear caches in all the ways that they know.
    one.close()
    spark.catalog.clearCache()
    other._anchor.rows.unpersist()
    for rdd in spark.sparkContext._jsc.getPersistentRDDs().values():
        rdd.unpersist()
    parts = [part for part in other.route(given, ["k"], 128).rdd.glom().collect() if part]
    assert sorted(part[0][PARTITION] for part in parts) == [0, 1]
    assert all(part[-1][KEY_GROUP] is None for part in parts)
    assert sum(row.k is not None for part in parts for row in part) == 20
    other.close()
    with pytest.raises(Py4JJavaError, match="not found"):
        other._anchor.rows.count()
    # In a job with several sources, that would be a line an epoch.
    log = spark_log()
    assert "locally checkpointed" not in log.read_text()
