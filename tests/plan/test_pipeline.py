"""A job's pipeline as a whole: its sources, their watermarks, and which operators count its rows. Needs no JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import strandline as sl
from strandline.core.settings import parse_duration_ms
from strandline.format.manifest import OperatorInfo
from strandline.plan.columns import Columns, quoted
from strandline.plan.graph import LateNode, Node, OperatorNode, PairNode, SourceNode, StepNode, UnionNode, WatermarkNode
from strandline.plan.operators import branches_above
from strandline.plan.parallelism import Parallelism, ParallelismOverride, check_wanted, most_on_one
from strandline.plan.pipeline import Pipeline
from strandline.plan.unions import union
from strandline.runtime.watermarks import Watermarks, WatermarkSpec, find_stored
from strandline.spark.lower.plan import Plan
from strandline.spark.lower.query import Sources
from strandline.spark.sinks.simple import NoopSink
from strandline.spark.sources.checks import check_source_name
from strandline.spark.streams.frames import FrameSource
from strandline.spark.streams.stream import Output, Stream
from strandline.types.datatypes import parse_schema

LOOK = Columns.of("k string")
NO_FRAME: Any = None


def source(name: str = "") -> SourceNode:
    return FrameSource(LOOK, name=name, df=NO_FRAME)


def watermark(parent: Node, column: str = "ts", delay: str = "0s") -> WatermarkNode:
    return WatermarkNode(LOOK, parent, spec=WatermarkSpec(column, parse_duration_ms(delay, "delay") * 1000))


def operator(uid: str, parent: Node, *others: Node) -> OperatorNode:
    for other in others:
        movers = tuple(node if isinstance(node, WatermarkNode) else None for node in (parent, other))
        parent = PairNode(LOOK, parent, other=other, movers=movers)
    return OperatorNode(LOOK, parent, uid=uid, name=uid)


def names_of(*nodes: Node) -> list[str]:
    return Sources(Pipeline(nodes).sources).names


def test_late_events_move_no_watermark_and_are_no_rows_of_the_source() -> None:
    timed = watermark(source())
    main = operator("main", timed)
    behind = operator("behind", LateNode(LOOK, timed, uid="main"))
    made = Pipeline([behind, main])
    assert (set(made.measuring), set(made.counting)) == ({"main"}, {"main"})
    with pytest.raises(sl.errors.ConfigurationError, match="the late events of the operator 'main' go to a sink"):
        Pipeline([behind])


def test_a_sink_is_for_one_stream() -> None:
    one, other, sink = source("one"), source("other"), NoopSink()
    with pytest.raises(sl.errors.ConfigurationError, match="several streams have the same sink object"):
        Plan([Output(Stream(one), sink), Output(Stream(other), sink)])


def test_what_is_no_output_is_refused() -> None:
    output = Output(Stream(source()), NoopSink())
    for sinks, said in (
        ([], "the job has no sinks"),
        (output, "is not a list of outputs"),
        ([Stream(source())], "is not"),
    ):
        with pytest.raises(sl.errors.ConfigurationError, match=said):
            Plan(sinks)  # type: ignore[arg-type]


def test_a_single_source_needs_no_name() -> None:
    assert names_of(source()) == []
    assert names_of(source("payments")) == ["payments"]


def test_several_sources_are_in_the_order_of_their_names() -> None:
    a, b = source("a"), source("b")
    for nodes in ((a, b), (b, a), (operator("join", b, a),)):
        assert names_of(*nodes) == ["a", "b"]


def test_sources_without_names_of_their_own_are_refused() -> None:
    for nodes, said in (
        ((source(), source()), "the job reads 2 sources, and 2 of them have no name"),
        ((source("a"), source(), source("b")), "the job reads 3 sources, and 1 of them have no name"),
        ((source("a"), source("b"), source("a")), "two sources are named 'a'"),
    ):
        with pytest.raises(sl.errors.ConfigurationError) as caught:
            Pipeline(nodes)
        assert said in caught.value.message
        assert "branches of one DataFrame begin with one stream()" in str(caught.value)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a:2", 7])
def test_a_name_that_cannot_be(name: object) -> None:
    with pytest.raises(sl.errors.ConfigurationError, match=r"stream\(\) was given name="):
        check_source_name(name)


def test_names() -> None:
    assert [check_source_name(name) for name in (None, "payments", "eu-west.kafka_2", "zahlungen-für-2")] == [
        "", "payments", "eu-west.kafka_2", "zahlungen-für-2",
    ]  # fmt: skip


def test_watermarks_of_several_sources_are_found_by_their_names() -> None:
    a, b = source("a"), source("b")
    first, second, third = watermark(b, "b1"), watermark(a, "a"), watermark(b, "b2")
    made = Pipeline([operator("one", StepNode(LOOK, first)), operator("two", third, second)])
    assert [spec.name for spec in made.watermarks] == ["b:b1:", "b:b2:", "a:a:"]
    assert made.measuring == {"one": 0, "two": (1, 2)}
    assert made.moved("two", {"0/x": 5, "1/": 7}) == {1: {"x": 5}, 2: {"": 7}}


def test_watermarks_of_one_source_are_found_by_their_columns() -> None:
    """Another order of the sinks is another order of the nodes: each goes on from what it had itself."""
    only = source()

    def made(*columns: str) -> Pipeline:
        return Pipeline([operator(f"by {column}", watermark(only, column)) for column in columns])

    before, swapped = made("x", "a/b"), made("a/b", "x")
    assert [spec.name for spec in before.watermarks] == [":x:", ":a%2Fb:"]
    marks = Watermarks(before.watermarks, {}, 0)
    marks.observe(0, {"": 10}, 0)
    marks.observe(1, {"": 100}, 0)
    assert marks.advance(0) == 10
    again = Watermarks(swapped.watermarks, marks.stored(), 0)
    again.observe(0, {"": 101}, 0)
    again.observe(1, {"": 11}, 0)
    assert again.advance(0) == 11


def test_watermarks_of_one_column_are_told_apart_by_what_they_move() -> None:
    only = source()

    def made(*branches: tuple[str, str]) -> tuple[Pipeline, dict[str, int]]:
        pipeline = Pipeline([operator(uid, watermark(only, "x", delay)) for uid, delay in branches])
        return pipeline, {uid: pipeline.measuring[uid] for uid, _ in branches}  # type: ignore[misc]

    before, at = made(("one", "0s"), ("two", "0s"), ("three", "1s"))
    assert len({spec.full_name for spec in before.watermarks}) == 3
    marks = Watermarks(before.watermarks, {}, 0)
    for uid, time_us in (("one", 10), ("two", 100), ("three", 5_000_000)):
        marks.observe(at[uid], {"": time_us}, 0)
    stored = marks.stored()

    def newest(*branches: tuple[str, str]) -> dict[str, int]:
        pipeline, at = made(*branches)
        found, gone = find_stored(pipeline.watermarks, stored)
        assert not gone
        return {uid: found[index][""] for uid, index in at.items()}

    assert newest(("three", "1s"), ("two", "0s"), ("one", "0s")) == {"one": 10, "two": 100, "three": 5_000_000}
    assert newest(("two", "0s"), ("new", "0s")) == {"two": 100, "new": 10}, "the least of all where nothing says which"
    assert newest(("two", "0s")) == {"two": 100}
    assert newest(("two", "2s")) == {"two": 100}, "with another delay"
    assert newest(("four", "0s")) == {"four": 10}


def test_inputs_of_a_join_are_told_apart_and_those_of_a_union_are_not() -> None:
    only = source()
    left, right = watermark(only, "x"), watermark(only, "x")
    pair = PairNode(LOOK, left, right, movers=(left, right))
    names = dict(branches_above(pair, "j"))
    assert names == {left: "j.0", right: "j.1"}
    union = UnionNode(LOOK, left, (right,), movers=(left, right))
    made = Pipeline([operator("u", union)])
    marks = Watermarks(made.watermarks, {}, 0)
    marks.observe(0, {"": 10}, 0)
    marks.observe(1, {"": 100}, 0)
    assert marks.stored() == {":x:@u:0ms/": 10}


def test_a_watermark_that_no_operator_moves_holds_nothing_back() -> None:
    a, b = source("a"), source("b")
    made = Pipeline([watermark(a, "unread"), operator("one", watermark(b))])
    assert [spec.column for spec in made.watermarks] == ["ts"]
    assert made.measuring == {"one": 0}


def test_each_sources_rows_are_counted_once() -> None:
    a, b, c = source("a"), source("b"), source("c")
    alone = operator("alone", a)
    assert set(Pipeline([alone, operator("join", StepNode(LOOK, a), b), operator("after", alone)]).counting) == {"join"}
    assert set(Pipeline([operator("one", a), operator("two", b), c]).counting) == {"one", "two"}
    assert set(Pipeline([operator("one", a), operator("two", a)]).counting) == {"one"}
    assert set(Pipeline([a]).counting) == set()


def test_rows_of_a_stream_that_is_united_with_itself_are_counted_once() -> None:
    a, b = source("a"), source("b")
    twice = union(a, [a])
    assert Pipeline([operator("n", twice)]).counting == {"n": 2}
    assert Pipeline([operator("n", union(twice, [twice]))]).counting == {"n": 4}
    assert Pipeline([operator("n", union(a, [b]))]).counting == {"n": 1}
    # One that gets each row once counts in its place.
    assert Pipeline([operator("a", twice), operator("b", a)]).counting == {"b": 1}


ONE_SOURCE = source()


def renamed(uid: str, was: str, **said: Any) -> OperatorNode:
    return OperatorNode(LOOK, ONE_SOURCE, uid=uid, was=was, name=f"the {uid}", **said)


def test_state_under_one_uid_goes_to_one_operator() -> None:
    assert len(Pipeline([renamed("a", "x"), renamed("b", "y"), renamed("c", "")]).operators) == 3
    with pytest.raises(sl.errors.ConfigurationError, match=r"'b' was 'a', and so is 'a' \(the a\)"):
        Pipeline([renamed("a", ""), renamed("b", "a")])
    with pytest.raises(sl.errors.ConfigurationError, match=r"'a' was 'x', and so was 'b' \(the b\)"):
        Pipeline([renamed("a", "x"), renamed("b", "x")])


def settle(job: int | None, nodes: list[OperatorNode], stored: Sequence[OperatorInfo] = (), **more: Any) -> list[Any]:
    return Pipeline(nodes).settle(Parallelism(default=6, job=job, **more), stored)


def stored(uid: str, parallelism: int, max_parallelism: int = 128) -> OperatorInfo:
    return OperatorInfo(
        uid=uid, backend="rocksdb", parallelism=parallelism, max_parallelism=max_parallelism, key_schema="", states=[],
        partitions=[],
    )  # fmt: skip


def numbers(*args: Any, **more: Any) -> dict[str, int]:
    return {operator.uid: operator.parallelism for operator in settle(*args, **more)}


def test_whose_word_counts_of_an_operators_parallelism() -> None:
    nodes = [renamed("own", "", parallelism=3), renamed("new", ""), renamed("b", "a"), renamed("c", "")]
    there = [stored("own", 9), stored("a", 2), stored("c", 5), stored("d", 5)]
    # What it is stored with, under whatever uid; a new one has what most stored ones have; Spark's comes last.
    assert numbers(None, nodes, there) == {"own": 3, "new": 5, "b": 2, "c": 5}
    assert numbers(None, nodes) == {"own": 3, "new": 6, "b": 6, "c": 6}
    assert numbers(4, nodes, there) == {"own": 3, "new": 4, "b": 4, "c": 4}
    assert numbers(4, nodes, there, overrides={"own": 7, "c": 1}) == {"own": 7, "new": 4, "b": 4, "c": 1}
    own = {operator.uid for operator in settle(4, nodes, there, overrides={"c": 1}) if operator.is_explicit}
    assert own == {"own", "c"}


def test_whose_word_counts_of_an_operators_largest_parallelism() -> None:
    nodes = [renamed("own", "", max_parallelism=300), renamed("there", ""), renamed("new", "")]
    there = [stored("there", 2, 512)]

    def largest(**more: Any) -> dict[str, int]:
        return {operator.uid: operator.max_parallelism for operator in settle(2, nodes, there, **more)}

    assert largest() == {"own": 300, "there": 512, "new": 128}
    # The job's, too, is what the program says: state under another one is refused.
    assert largest(max_parallelism=64) == {"own": 300, "there": 64, "new": 64}


def test_more_partitions_than_key_groups_are_refused_unless_they_are_what_there_is_room_for() -> None:
    nodes = [renamed("few", "", max_parallelism=4), renamed("more", "")]
    with pytest.raises(sl.errors.ConfigurationError, match="operator 'few': parallelism is 300, expected 1 to max_par"):
        settle(300, nodes)
    assert numbers(300, nodes, is_room=True) == {"few": 4, "more": 300}
    assert numbers(300, nodes, [stored("more", 2)], is_room=True) == {"few": 4, "more": 128}
    with pytest.raises(sl.errors.ConfigurationError, match="operator 'few': parallelism is 5, expected 1 to max_par"):
        settle(300, nodes, is_room=True, overrides={"few": 5})


def test_of_one_with_few_partitions_more_are_not_too_many_later() -> None:
    one, _ = settle(1000, [renamed("one", "", parallelism=1), renamed("more", "")])
    assert (one.parallelism, one.max_parallelism) == (1, 2048)
    (follows,) = settle(2, [renamed("follows", "")], is_room=True, most=1000)
    assert (follows.parallelism, follows.max_parallelism) == (2, 2048)


def test_what_a_running_job_is_told_adds_up() -> None:
    override = ParallelismOverride().merge({"a": 2, "b": 1}).merge(7).merge({"a": 3})
    assert override == ParallelismOverride(7, {"a": 3, "b": 1})
    for wanted, said in (
        ({"c": 1}, "the job has no operator 'c', it has a, b"),
        ({"a": 0}, "the parallelism of operator 'a' is 0"),
        ({}, "no operator is named"),
        (0, "the parallelism is 0"),
        ("4", "the parallelism is '4'"),
        (True, "the parallelism is True"),
    ):
        with pytest.raises(sl.errors.ConfigurationError, match=said):
            check_wanted(wanted, ["b", "a"])  # type: ignore[arg-type]


def test_one_machine_has_a_partition_of_each_operator_with_one() -> None:
    """They lie together: the machine's memory must do for all of them."""
    assert most_on_one([1] * 10, 3) == 10
    assert most_on_one([9, *[1] * 10], 3) == 13
    assert most_on_one([4, 4], 3) == 4
    assert most_on_one([8, 2], 1) == 10
    assert most_on_one([], 3) == 0


def test_max_parallelism_is_found_under_the_old_uid() -> None:
    (settled,) = settle(4, [renamed("b", "a")], [stored("a", 2, 64)])
    assert (settled.uid, settled.was, settled.max_parallelism) == ("b", "a", 64)


def test_a_key_is_read_again_whatever_its_name() -> None:
    """Of a checkpoint whose key cannot be read, nothing is restored."""
    names = ["plain", "a.b", "a`b", "`q`", "select"]
    input_ = ", ".join(f"{quoted(name)} int" for name in names)
    node = OperatorNode(Columns.of("n int"), source(), uid="x", keys=tuple(names), input_schema=input_)
    (settled,) = settle(2, [node])
    assert [(field.name, field.type.ddl) for field in parse_schema(settled.key_schema).fields] == [
        (name, "int") for name in names
    ]
    assert settled.key_schema.startswith("`plain` int, ")
