"""Whole pipelines in the harness: written as a program writes them, on events in place of what Spark reads."""

from __future__ import annotations

from typing import Any

import pytest

import strandline as sl
from strandline.core.errors import ConfigurationError, UserCodeError
from strandline.plan.graph import StepNode
from strandline.testing import Harness, Right, events
from tests.testing.times import at, in_seconds

SALES = "user string, n bigint, ts timestamp"


def sales(name: str | None = None, delay: str = "0s", **given: Any) -> sl.Stream:
    return events(SALES, name).watermark("ts", delay, **given)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_late_events_of_built_in_aggregates_come_out_of_the_side(parallelism: int) -> None:
    tens = sales().key_by("user").window(sl.Tumbling("10s"), lateness="2s", late="late")
    with Harness(tens.agg(n=sl.agg.sum("n"), uid="totals"), parallelism=parallelism) as h:
        h.push(("a", 1, at(3)), ("b", 2, at(11)))
        assert in_seconds(h.tick()) == [("a", 0, 10, 1)]
        assert in_seconds(h.push(("a", 4, at(9)), ("a", 8, None))) == [("a", 0, 10, 5)]
        assert in_seconds((u, n) for u, n, _ in h.side("late")) == [("a", 8)]
        h.push(("b", 16, at(12)))
        assert h.push(("a", 32, at(8)), ("b", 64, at(13))) == []
        assert in_seconds((u, n) for u, n, _ in h.side("late")) == [("a", 8), ("a", 32)]
        assert h.late_rows == 1
        h.crash()
        assert (h.side("late"), h.output) == ([], [])


def test_chains_of_any_operators() -> None:
    """A map, windows of windows, and a process function behind: what one gives has the time for the next."""

    class Count(sl.KeyedProcess):
        seen = sl.Value("bigint", default=0)

        def on_event(self, event: Any, ctx: Any) -> Any:
            self.seen.value += 1
            yield event.all, event.grand, self.seen.value

    doubled = sales().flat_map(lambda e: [(e.user, e.n, e.ts)] * 2, SALES)
    totals = doubled.key_by("user").window(sl.Tumbling("10s")).agg(n=sl.agg.sum("n"), uid="totals")
    everyone = totals.map(lambda row: ("all", row.n), "all string, n bigint").key_by("all")
    grand = everyone.window(sl.Tumbling("10s")).agg(grand=sl.agg.sum("n"), uid="grand", parallelism=1)
    counted = grand.key_by("all").process(Count(), "all string, grand bigint, seen bigint", uid="count", parallelism=3)
    with Harness(counted, parallelism=2) as h:
        h.push(("a", 1, at(1)), ("b", 2, at(2)), ("a", 4, at(11)))
        h.snapshot()
        h.push(("c", 100, at(5)))
        h.crash()
        h.push(("c", 8, at(25)))
        h.tick()
        assert h.output == [("all", 6, 1), ("all", 8, 2)]
        assert h.state("all", "count") == {"seen": 2}


def test_every_operator_can_have_a_parallelism_of_its_own() -> None:
    keyed = sales("one").key_by("user")
    windows = keyed.window(sl.Tumbling("10s"))
    other, merge = events("user string, u int, ts timestamp", "other").watermark("ts").key_by("user"), {"merge": max}
    makers: dict[str, Any] = {
        "process": lambda **said: keyed.process(Keeps(), "n int", uid="op", **said),
        "agg": lambda **said: keyed.agg(n=sl.agg.count(), uid="op", **said),
        "window.agg": lambda **said: windows.agg(n=sl.agg.count(), uid="op", **said),
        "fold": lambda **said: windows.fold("n int", 0, max, uid="op", **merge, **said),
        "reduce": lambda **said: windows.reduce(max, uid="op", **said),
        "aggregate": lambda **said: windows.aggregate(
            "int", create=int, add=max, output="n int", uid="op", **merge, **said
        ),
        "window.process": lambda **said: windows.process(lambda *_: [], "n int", uid="op", **said),
        "join": lambda **said: keyed.join(other, ("-1s", "1s"), uid="op", prefixes=("", "r_"), **said),
        "window_join": lambda **said: keyed.window_join(
            other, sl.Tumbling("1s"), uid="op", prefixes=("", "r_"), **said
        ),
    }
    for what, make in makers.items():
        with Harness(make(parallelism=3), parallelism=2) as h:
            assert h._run.find("op").program.parallelism == 3, what
        for said, refusal in (
            ({"parallelism": 0}, "operator 'op': parallelism is 0, expected 1 to max_parallelism (32768)"),
            ({"parallelism": 9, "max_parallelism": 8}, "parallelism is 9, expected 1 to max_parallelism (8)"),
            ({"parallelism": "2"}, "operator 'op': parallelism is '2', expected a number"),
            ({"max_parallelism": True}, "operator 'op': max_parallelism is True, expected a number"),
        ):
            with pytest.raises(sl.errors.ConfigurationError) as caught:
                make(**said)
            assert refusal in caught.value.message, what


class Keeps(sl.KeyedProcess):
    """Has no output."""

    def on_event(self, event: Any, ctx: Any) -> None: ...


def test_one_stream_may_come_of_several_branches() -> None:
    source = sales()
    small, large = (
        source.flat_map(lambda e, large=large: [e] if (e.n > 10) is large else [], SALES).key_by("user")
        for large in (False, True)
    )

    class Match(sl.KeyedCoProcess):
        def on_left(self, event: Any, ctx: Any) -> Any:
            yield "small", event.n

        def on_right(self, event: Any, ctx: Any) -> Any:
            yield "large", event.n

    with Harness(small.connect(large).process(Match(), "what string, n bigint", uid="both")) as h:
        rows = h.push(("a", 1, at(1)), ("a", 20, at(2)), ("a", 3, at(3)))
        assert rows == [("small", 1), ("large", 20), ("small", 3)]
        assert h.watermark == at(3)


def test_what_windows_hold_is_shown() -> None:
    kinds: list[tuple[Any, list[Any]]] = [
        (sl.Tumbling("10s"), [("a", 0, 10, 3), ("a", 10, 20, 4)]),
        (sl.Sliding("10s", every="5s"), [("a", -5, 5, 3), ("a", 0, 10, 3), ("a", 5, 15, 4), ("a", 10, 20, 4)]),
        (sl.Session("3s"), [("a", 1, 5, 3), ("a", 11, 14, 4)]),
    ]
    for kind, expected in kinds:
        keyed = sales().key_by("user").window(kind)
        folded = keyed.fold("n bigint", 0, lambda n, e: n + e.n, uid="sum", merge=lambda a, b: a + b)
        for stream in (folded, keyed.agg(n=sl.agg.sum("n"), uid="sum")):
            with Harness(stream, parallelism=2) as h:
                h.push(("a", 1, at(1)), ("b", 8, at(1)), ("a", 2, at(2)), ("a", 4, at(11)))
                assert in_seconds(h.state("a")["results"]) == expected, (kind, stream)
                h.advance_watermark(at(1000))
                assert h.state("a") == {"results": []}


@pytest.mark.parametrize("count", [None, 3])
def test_what_aggregates_hold_is_shown(count: int | None) -> None:
    keyed = events(SALES).key_by("user")
    given = {"n": sl.agg.count(), "total": sl.agg.sum("n")}
    stream = keyed.agg(given, uid="x") if count is None else keyed.window(sl.Global(count=count)).agg(given, uid="x")
    with Harness(stream, parallelism=2) as h:
        h.push(("a", 1, at(1)), ("a", 2, at(2)), ("b", 4, at(1)))
        assert [h.state(key) for key in "abc"] == [
            {"results": [("a", 2, 3)]},
            {"results": [("b", 1, 4)]},
            {"results": []},
        ]


def test_an_agg_reads_numbers_out_of_texts_as_spark_does() -> None:
    with Harness(events("k int, s string").key_by("k").agg(total=sl.agg.sum("s"), uid="totals")) as h:
        assert h.push((1, "2.5"), (1, None), (1, "4")) == [(1, 6.5)]


def test_steps_of_sparks_are_refused() -> None:
    stream = events(SALES)
    for step in (
        lambda: stream.where("n > 1"), lambda: stream.select("user"), lambda: stream.select_expr("n + 1 as m"),
        lambda: stream.transform(lambda df: df),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=r"Spark must run.*no Spark") as caught:
            step()
        assert "map()" in str(caught.value)
    with pytest.raises(
        ConfigurationError, match=r"the aggregate 'm' is over 'n \* 2', and the columns are user, n, ts"
    ):
        stream.key_by("user").agg(m=sl.agg.sum("n * 2"), uid="m")


def test_a_step_of_sparks_is_refused_when_the_harness_is_made() -> None:
    node = events(SALES)._node
    step = sl.Stream(StepNode(node.columns, node))
    for stream in (step, step.key_by("user").agg(n=sl.agg.count(), uid="n")):
        with pytest.raises(ConfigurationError, match="a step that only Spark can run") as caught:
            Harness(stream)
        assert "testing.events()" in str(caught.value)


def test_a_pipeline_without_operators() -> None:
    with Harness(sales().map(lambda e: (e.n + 1,), "n bigint")) as h:
        assert h.push(("a", 1, at(1)), ("b", 2, at(2))) == [(2,), (3,)]
        assert h.tick() == []
        assert (h.output, h.late_rows) == ([(2,), (3,)], 0)
        h.snapshot()
        h.push(("c", 3, at(3)))
        h.crash()
        assert (h.output, h.epoch) == ([(2,), (3,)], 2)
        for look in (lambda: h.side("late"), h.broadcast_state, lambda: h.state("a"), lambda: h.timers("a")):
            with pytest.raises(ConfigurationError, match="Harness: the pipeline has no operator"):
                look()


def test_a_job_is_not_made_of_events() -> None:
    with pytest.raises(ConfigurationError, match="a stream of a test's events cannot be a job's source"):
        sl.Job("x", sinks=[events(SALES).to(sl.sinks.noop())], checkpoints=sl.Checkpoints("ck"))


def test_mistakes() -> None:
    two = sales("one").key_by("user").connect(sales("two").key_by("user"))
    stream = two.process(Never(), "n int", uid="never")
    with Harness(stream) as h:
        for push in (lambda: h.push((1,)), lambda: h.push(three=[])):
            with pytest.raises(ConfigurationError, match=r"push\(\) was given events of .*the sources are one, two"):
                push()
        with pytest.raises(ConfigurationError, match="there is no right stream"):
            h.push(Right((1,)))
        with pytest.raises(UserCodeError, match="never"):
            h.push(one=[("a", 1, at(1))])


class Never(sl.KeyedCoProcess):
    def on_left(self, event: Any, ctx: Any) -> Any:
        raise ValueError("never")

    def on_right(self, event: Any, ctx: Any) -> Any:
        raise ValueError("never")
