"""The harness with functions that hear of rules, in every partition."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from strandline import Broadcast, KeyedBroadcastProcess, Value
from strandline.core.errors import ConfigurationError, UserCodeError
from strandline.testing import Harness, Right
from tests.runtime.bench import KINDS
from tests.testing.test_connected import OUT, Shout, at


class Check(KeyedBroadcastProcess):
    """Holds payments up that are above their kind's limit."""

    limits = Broadcast("string", "double")
    texts = Broadcast("string", "string")
    seen = Value("bigint", default=0)

    def on_broadcast(self, rule: Any, ctx: Any) -> None:
        if rule.version == -1:
            raise ValueError("no such version")
        self.limits[rule.kind] = rule.limit
        self.texts[rule.kind] = f"{self.texts.get(rule.kind, '')}{rule.version}"

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.seen.value += 1
        if event.amount > self.limits.get(event.kind, math.inf):
            yield ctx.key, f"{event.kind} by {self.texts[event.kind]}"


def check(**given: Any) -> Harness:
    usual: dict[str, Any] = {
        "schema": "id int, kind string, amount double, at timestamp",
        "right": "kind string, limit double, version int, at timestamp",
        "key": "id", "output": OUT, "order_by": "version",
    }  # fmt: skip
    return Harness(Check(), **{**usual, **given})


def rule(kind: str, limit: float, version: int, time: float | None = None) -> tuple[Any, ...]:
    return kind, limit, version, None if time is None else at(time)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_rules_reach_every_partition_and_come_back_after_a_crash(kind: Any, parallelism: int) -> None:
    with check(backend=kind, parallelism=parallelism) as h:
        numbers = range(20)
        payments = [(number, "cash", 50.0, None) for number in numbers]
        assert h.broadcast_state() == {"limits": {}, "texts": {}}
        told = h.push(*payments, Right(rule("cash", 40, 2)), Right(rule("cash", math.nan, 1)))
        assert sorted(told) == [(number, "cash by 12") for number in numbers], "rules come first, in their order"
        kept = {"limits": {"cash": 40.0}, "texts": {"cash": "12"}}
        h.snapshot()
        for _ in range(2):
            assert h.broadcast_state() == kept
            h.push_right(rule("cash", 60, 3), rule("card", math.nan, 1))
            assert h.push(*payments) == []
            assert h.broadcast_state()["texts"] == {"cash": "123", "card": "1"}
            assert (h.state(1)["seen"], h.state(1)["texts"]) == (2, {"cash": "123", "card": "1"})
            h.crash()


def test_rules_without_an_order_apply_by_time_then_by_what_they_say() -> None:
    with check(event_time="at", right_event_time="at", order_by=None) as h:
        h.push_right(rule("a", 1, 9, 2), rule("a", 1, 8, 1), rule("a", 1, 7, 2))
        assert h.broadcast_state()["texts"] == {"a": "879"}


def test_rules_hold_the_watermark_back_if_they_have_event_time() -> None:
    with check(event_time="at", watermark="2s", parallelism=2) as h:
        h.push((1, "a", 1.0, at(10)), Right(rule("a", 1, 1, 50)))
        assert h.watermark == at(8)
    with check(event_time="at", watermark="2s", right_event_time="at", right_watermark="1s", parallelism=2) as h:
        h.push((1, "a", 1.0, at(10)))
        assert h.watermark is None
        h.push_right(rule("a", 1, 1, 5))
        assert h.watermark == at(4)


def test_a_chain_goes_on_after_rules() -> None:
    with check(parallelism=2).then(Shout(), key="id", output=OUT, uid="shout") as h:
        h.push_right(rule("cash", 1, 7))
        assert h.push((1, "cash", 5.0, None)) == [(1, "cash by 7, 1 at None")]
        assert h.broadcast_state()["texts"] == {"cash": "7"}


def test_rules_that_fail_change_nothing() -> None:
    with check(parallelism=2) as h:
        h.push_right(rule("cash", 1, 7))
        with pytest.raises(UserCodeError, match=r"on_broadcast of Check raised.*no such version"):
            h.push_right(rule("cash", 1, 8), rule("cash", 1, -1))
        assert h.broadcast_state()["texts"] == {"cash": "7"}


class Forgetful(KeyedBroadcastProcess):
    """Breaks the rule for rules: what on_broadcast does depends on the events that its partition has seen."""

    limits = Broadcast("string", "bigint")

    def open(self) -> None:
        self.seen = 0

    def on_broadcast(self, rule: Any, ctx: Any) -> None:
        self.limits[rule.name] = self.seen

    def on_event(self, event: Any, ctx: Any) -> None:
        self.seen += 1


def test_rules_that_do_different_things_in_different_partitions_are_found() -> None:
    with Harness(Forgetful(), schema="id int", right="name string", key="id", output=OUT, parallelism=2) as h:
        h.push_right(("a",))
        assert h.broadcast_state() == {"limits": {"a": 0}}
        h.push((1,))
        h.push_right(("a",))
        with pytest.raises(
            UserCodeError, match=r"the Broadcast 'limits' is \{'a': \d\} in partition 0, and .* in partition 1"
        ):
            h.broadcast_state()


class Newest(KeyedBroadcastProcess):
    """Remembers which rule came last."""

    last = Broadcast("string", "bigint")

    def on_broadcast(self, rule: Any, ctx: Any) -> None:
        self.last["rule"] = rule.n

    def on_event(self, event: Any, ctx: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("double", [None, -math.inf, 1.5, math.inf, math.nan]),
        ("array<int>", [None, [], [None, 5], [1], [1, None], [1, 2]]),
        ("struct<a: int, b: array<float>>", [None, (None, None), (1, None), (1, [2.0]), (1, [math.nan])]),
        ("decimal(5, 2)", [None, 1, 2]),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_rules_apply_in_the_order_that_spark_has_for_a_type(kind: str, values: list[Any], seed: int) -> None:
    rules = list(enumerate(values))
    random.Random(seed).shuffle(rules)
    with Harness(Newest(), schema="id int", right=f"n int, by {kind}", key="id", output="id int", order_by="by") as h:
        for some in range(1, len(rules) + 1):
            h.push_right(*rules[:some])
            assert h.broadcast_state() == {"last": {"rule": max(n for n, _ in rules[:some])}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"right_key": "kind"}, "the rules of a KeyedBroadcastProcess have no key"),
        ({"order_by": ["version", "time"]}, "order_by names 'time'; the broadcast stream has kind, limit, version, at"),
        ({"right": "v array<struct<m: map<int, int>>>", "order_by": "v"}, "'v', a .*, and maps have no order"),
        ({"right_event_time": "at"}, "right_event_time was given, and event_time was not"),
        ({"event_time": "at", "watermark": "1s", "right_watermark": "1s"}, "right_watermark was given without"),
    ],
)
def test_rules_that_cannot_work(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check(**given)


def test_a_function_without_a_method() -> None:
    half = type("Half", (KeyedBroadcastProcess,), {"on_broadcast": Check.on_broadcast})
    with pytest.raises(ConfigurationError, match="Half does not define on_event"):
        Harness(half(), schema="id int", right="id int", key="id", output=OUT)
