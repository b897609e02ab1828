"""The hosts of partitions and of their standbys; but for the last test, without Spark."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.core.ids import Partition
from strandline.runtime.program import Followed
from strandline.spark.keepers.placement import Placement, choose_followers, choose_hosts, choose_standbys
from tests.spark import small


@pytest.mark.parametrize(
    ("warm", "executors", "chosen"),
    [
        # Each where it was.
        (["ab", "ba"], {"a": 1, "b": 1}, "ab"),
        # A host is lost: its partitions go to their standbys' hosts.
        (["ab", "ba"], {"b": 1}, "bb"),
        (["ab", "ac", "bc", "ca"], {"b": 1, "c": 1}, "bcbc"),
        # The lost one's standby is lost, too.
        (["ab", "bc", "cd", "da"], {"c": 1, "d": 1}, "dccd"),
        # A host comes: no more than its share stays on the others, and those go first that are warm there.
        (["a", "a"], {"a": 1, "b": 1}, "ab"),
        (["ab", "a", "ab", "a"], {"a": 1, "b": 1}, "baba"),
        # By executors.
        (["a", "a", "a"], {"a": 2, "b": 1}, "aab"),
        ([("",), ("a",)], {"a": 1, "b": 1}, "ba"),
        ([], {"a": 1}, ""),
    ],
)
def test_a_partition_goes_where_its_files_are(warm: list[str], executors: dict[str, int], chosen: str) -> None:
    found = choose_hosts(warm, executors)
    shares = {host: -(-len(warm) * count // sum(executors.values())) for host, count in executors.items()}
    assert all(count <= shares[host] for host, count in Counter(found).items())
    assert "".join(found) == chosen


@given(
    st.lists(st.lists(st.sampled_from("abcde"), max_size=2), max_size=20),
    st.dictionaries(st.sampled_from("abcde"), st.integers(1, 4), min_size=1),
)
def test_no_host_has_more_than_its_share(warm: list[list[str]], executors: dict[str, int]) -> None:
    found = choose_hosts(warm, executors)
    assert len(found) == len(warm)
    total = sum(executors.values())
    for host, count in Counter(found).items():
        assert count <= -(-len(warm) * executors[host] // total)


@given(st.integers(2, 6), st.integers(1, 30))
def test_standbys_are_elsewhere_and_spread(hosts: int, partitions: int) -> None:
    owners = [f"host-{partition % hosts}" for partition in range(partitions)]
    (standbys,) = choose_standbys({partitions: owners}, {}).values()
    used = len(set(owners))
    for owner, standby in zip(owners, standbys, strict=True):
        assert standby != owner
        assert (standby == "") == (used == 1)
    if used > 1:
        # The partitions of each host have theirs on all others, about as many on each.
        for host in set(owners):
            of_host = Counter(standby for owner, standby in zip(owners, standbys, strict=True) if owner == host)
            share = owners.count(host) / (used - 1)
            assert all(int(share) <= of_host[other] <= share + 1 for other in set(owners) - {host})


def test_standbys_stay_where_they_are_warm() -> None:
    # Of four hosts, d is lost, and its partition goes on on its standby's host.
    before = [("a", "c"), ("b", "a"), ("c", "b"), ("d", "c")]
    assert choose_standbys({4: ["a", "b", "c", "c"]}, {4: before}) == {4: ["c", "a", "b", "a"]}


def test_operators_of_another_parallelism_follow_where_an_operator_has_one_host() -> None:
    parallelisms, hosts = {"wide": 2, "narrow": 1}, {2: ["a", "b"], 1: ["a"]}
    standbys = choose_standbys(hosts, {})
    assert standbys == {2: ["b", "a"], 1: ["b"]}
    assert choose_followers(parallelisms, hosts, standbys) == {
        "wide": {
            Partition(1): [Followed("wide", Partition(0)), Followed("narrow", Partition(0))],
            Partition(0): [Followed("wide", Partition(1))],
        }
    }


def test_the_keepers_of_a_host_share_what_it_follows() -> None:
    parallelisms, hosts = {"a": 4, "b": 4}, {4: ["x", "y", "x", "y"]}
    followed = choose_followers(parallelisms, hosts, choose_standbys(hosts, {}))
    counts = [len(each) for by_partition in followed.values() for each in by_partition.values()]
    assert counts == [1] * 8
    assert all(each.uid == uid for uid, them in followed.items() for each in next(iter(them.values())))


def test_a_job_on_one_host_has_none_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    placement = Placement()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert placement.follow("alerts", {"op": 2}, {2: ["a", "a"]}) == {}
    assert [record.message.partition(",")[0] for record in caplog.records] == ["job 'alerts' has no standbys"]


def test_another_parallelism_is_placed_by_spark() -> None:
    placement = Placement()
    assert placement.preferred([2], {"a": 1}) == {}
    placement.follow("alerts", {"op": 2}, {2: ["a", "b"]})
    assert placement.preferred([2, 3], {"a": 1, "b": 1}) == {2: ["a", "b"]}
    assert placement.preferred([2], {"b": 1}) == {2: ["b", "b"]}
    assert placement.preferred([2], {}) == {}
    placement.note({3: ["a", "b", "b"]})
    assert placement.preferred([2, 3], {"a": 2, "b": 2}) == {3: ["a", "b", "b"]}
    placement.silent.add("7")
    assert {number: sorted(hosts) for number, hosts in placement.preferred([2], {"a": 1, "b": 1}).items()} == {
        2: ["a", "b"]
    }


@pytest.mark.spark
def test_on_one_machine_a_job_works_without_the_standbys_that_it_wants(
    spark: Any, tmp_path: Path, local_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = sl.sinks.memory()
    small.write_rows(tmp_path / "in", 0, [("ann", "x", 1), ("bob", "x", 1)])
    job = small.job(
        sl.stream(small.source(spark, tmp_path / "in")), tmp_path, local_dir, sink=sink,
        checkpoints=sl.Checkpoints(tmp_path / "ck", standbys=1),
    )  # fmt: skip
    with caplog.at_level(logging.WARNING), job.start(spark) as run:
        run.process_all_available(60)
        run.checkpoint(60)
        status = run.status()
        assert [(each.uid, each.partition, each.host) for each in status.standbys] == [
            ("count", 0, ""),
            ("count", 1, ""),
        ]
        run.stop(checkpoint=True)
    assert small.rows_of(sink) == Counter({("ann", 1): 1, ("bob", 1): 1})
    assert sum("has no standbys" in record.message for record in caplog.records) == 1
