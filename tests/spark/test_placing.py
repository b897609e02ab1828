"""Partitions lie evenly on the executors, and are placed anew as long as they do not."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JError

from strandline.runtime.rowlayout import KEY_GROUP, PARTITION
from strandline.spark.base.pinned import Pinned
from strandline.spark.keepers import exchange
from strandline.spark.keepers.exchange import Exchange, Exchanges, are_even, lie_evenly, prepare_session


@pytest.mark.parametrize(
    ("places", "executors", "even"),
    [
        ("a", 2, True),
        ("ab", 2, True),
        ("aa", 2, False),
        ("aa", 1, True),
        ("aab", 2, True),
        ("aaa", 2, False),
        ("abcc", 4, False),
        ("aaaaabbb", 2, True),
        ("aaaaaabb", 2, False),
        ("", 2, True),
        ("ab", 0, True),
    ],
)
def test_nobody_has_many_more_than_others(places: str, executors: int, even: bool) -> None:
    assert are_even(places, executors) == even


@pytest.mark.spark
def test_partitions_are_placed_anew_and_work_where_they_are(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def uneven_at_first(pinned: Any, partitions: int) -> bool:
        asked.append((partitions, pinned.count()))
        return len(asked) > 2 and lie_evenly(pinned, partitions)

    monkeypatch.setattr(exchange, "lie_evenly", uneven_at_first)
    made = Exchange(spark, 2)
    assert sorted(row[0] for row in made.partitions.collect()) == [0, 1]
    assert asked == [(2, 4)] * 3
    session = spark.newSession()
    prepare_session(session)
    routed = made.route(session.createDataFrame([("a",), ("b",)], "k string"), ["k"], 128)
    assert {row[PARTITION] for row in routed.collect() if row[KEY_GROUP] is None} == {0, 1}
    made.close()


@pytest.mark.spark
def test_they_are_placed_one_exchange_after_the_other(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at the same time would take each other's executors."""
    seen: list[int] = []
    monkeypatch.setattr(exchange, "lie_evenly", lambda cached, partitions: seen.append(partitions) or True)
    made = Exchanges(spark, {"a": 1, "b": 3, "c": 2, "d": 3}, "placing")
    made.of("a")._settle()
    assert seen == [3, 2, 1]
    made.close()


@pytest.mark.spark
def test_partitions_are_placed_on_given_hosts_and_work_there(spark: Any) -> None:
    """Where a host is gone, Spark does not wait for it."""
    (here,) = set(Exchange(spark, 2).hosts)
    made = Exchange(spark, 3, hosts=[here, "no.such.host", here])
    assert sorted(row[0] for row in made.partitions.collect()) == [0, 1, 2]
    assert made.hosts == [here] * 3
    present = made.remaining_partitions(lost=())
    assert sorted(row[0] for row in present.collect()) == [0, 1, 2]
    assert made.remaining_partitions(lost={exchange.executor_of(place) for place in made.places}) is None
    session = spark.newSession()
    prepare_session(session)
    routed = made.route(session.createDataFrame([("a",), ("b",)], "k string"), ["k"], 128)
    assert {row[PARTITION] for row in routed.collect() if row[KEY_GROUP] is None} == {0, 1, 2}
    made.close()


@pytest.mark.spark
def test_of_one_partition_there_is_an_empty_one_beside_it(spark: Any) -> None:
    made = Exchange(spark, 1, hosts=["localhost"])
    assert [row[0] for row in made.partitions.collect()] == [0]
    made.close()


@pytest.mark.spark
def test_where_spark_has_other_methods_it_chooses_the_places(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(pinned: Any, hosts: Any) -> None:
        raise Py4JError("makeRDD does not exist in the JVM")

    monkeypatch.setattr(Pinned, "compute_on", missing)
    made = Exchange(spark, 2, hosts=["here", "there"])
    assert sorted(row[0] for row in made.partitions.collect()) == [0, 1]
    assert "" not in made.hosts
    made.close()
