"""From the aggregates that are stored to those of a program: what each goes on from, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import strandline as sl
from strandline.api.aggregates import Aggregate
from strandline.core.errors import ConfigurationError
from strandline.format.manifest import OlderSchema
from strandline.plan.parallelism import Parallelism
from strandline.plan.pipeline import Operator, Pipeline
from strandline.plan.upgrade import Upgrade, plan_upgrade
from strandline.testing import events
from tests.runtime.upgrading import info_of, operator_of

KINDS: list[Any] = [None, sl.Global(count=3), sl.Session("1s"), sl.Tumbling("10s")]
HOLDING = {None: "totals", KINDS[1]: "totals", KINDS[2]: "newest", KINDS[3]: "panes"}


def go_on(before: Operator, now: Operator, *drop: str) -> Upgrade:
    return plan_upgrade([info_of(before)], [now], drop)


def upgraded(operator: Operator, upgrade: Upgrade) -> Operator:
    return replace(operator, migration=upgrade.migrations["op"])


def of(kind: Any = None, /, **aggregates: Aggregate) -> Operator:
    return operator_of(kind, aggregates)


def aggregates_of(upgrade: Upgrade) -> list[str]:
    return [str(change) for change in upgrade.changes if change.aggregate]


@pytest.mark.parametrize("kind", KINDS)
def test_aggregates_are_added_taken_away_and_renamed(kind: Any) -> None:
    before = of(kind, n=sl.agg.count(), total=sl.agg.sum("v"), gone=sl.agg.max("w"))
    now = of(
        kind,
        all=sl.agg.collect_list("v").added(),
        amount=sl.agg.sum("v").renamed(was="total"),
        n=sl.agg.count(),
    )
    found = go_on(before, now, "op.gone")
    assert not found.refusals
    assert aggregates_of(found) == [
        "aggregate 'op.amount': renamed, was 'total'",
        "aggregate 'op.n': kept",
        "aggregate 'op.all': new (begins empty in what is stored)",
        "aggregate 'op.gone': dropped",
    ]
    name = HOLDING[kind]
    (state,) = [change for change in found.changes if change.state == name]
    assert (state.action, state.details) == (
        "migrated", ("1 aggregate added", "1 aggregate renamed", "1 aggregate dropped"),
    )  # fmt: skip
    schemas = found.migrations["op"].schemas
    assert {*schemas} == ({"newest", "older"} if name == "newest" else {name})
    assert schemas[name].older == {
        0: OlderSchema(
            value_type=before.states[0].value_type,
            renamed={"__strandline_amount_sum_0": "__strandline_total_sum_0"},
            fill={"__strandline_all_collect_list_0": b"\0\0\x90"},
        )
    }
    if name == "newest":
        (older,) = schemas["older"].older.values()
        assert older.renamed == {"[].__strandline_amount_sum_0": "__strandline_total_sum_0"}
    # A restart of the same program, with the same hints and the same drop, changes nothing more.
    again = go_on(upgraded(now, found), now, "op.gone")
    assert {change.action for change in again.changes} == {"kept"}
    assert again.migrations["op"].schemas == schemas
    assert again.unused == ("op.gone",)


def test_what_is_not_said_is_refused() -> None:
    had = {"n": sl.agg.count(), "gone": sl.agg.max("w")}
    has = {"n": sl.agg.count(), "one": sl.agg.first("v", ignore_nulls=True), "to tal": sl.agg.sum("v")}
    before, now = (operator_of(sl.Tumbling("10s"), aggregates) for aggregates in (had, has))
    found = go_on(before, now)
    new = "is new: of windows and keys in the snapshot it would have only what comes from now on"
    assert found.refusals == (
        f"operator 'op': the aggregate 'one' {new}",
        f"operator 'op': the aggregate 'to tal' {new}",
        "operator 'op': the aggregate 'gone' is not declared any more",
    )
    assert found.drop == ("op.gone",)
    assert found.hint == (
        'to have what is new begin empty, write one=sl.agg.first(…).added(), "to tal": sl.agg.sum(…).added() in agg() '
        "of 'op'"
    )
    assert found.to_rows()[1:3] == [
        {
            "operator": "op", "state": "panes", "aggregate": "", "action": "refused", "was": "",
            "details": ["its aggregates are"],
        },
        {"operator": "op", "state": "", "aggregate": "n", "action": "kept", "was": "", "details": []},
    ]  # fmt: skip
    assert found.migrations["op"].schemas == {}
    # Each operator has its own to say.
    both = plan_upgrade(
        [info_of(before), info_of(operator_of(None, had, "other"))], [now, operator_of(None, has, "other")]
    )
    assert len(both.refusals) == 6
    assert both.drop == ("op.gone", "other.gone")
    assert "sl.agg.sum(…).added() in agg() of 'op', and one=sl.agg.first(…).added(), " in both.hint
    assert both.hint.endswith(" in agg() of 'other'")


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (sl.agg.sum("v"), sl.agg.max("v"), "it is max, was sum"),
        (sl.agg.first("v"), sl.agg.first("v", ignore_nulls=True), "it is first of values only, was first"),
        (sl.agg.sum("v"), sl.agg.sum("w"), "its type is double, was bigint"),
        (sl.agg.max_by("k", "v"), sl.agg.max_by("k", "w"), "it is computed of string, double, was of string, bigint"),
        (sl.agg.approx_percentile("v", 0.5), sl.agg.approx_percentile("w", 0.5), "its type is double, was bigint"),
    ],
)
def test_what_an_aggregate_is_stays(before: Aggregate, now: Aggregate, why: str) -> None:
    found = go_on(of(n=sl.agg.count(), x=before), of(n=sl.agg.count(), x=now.added()))
    assert found.refusals == (f"operator 'op': the aggregate 'x': {why}: give it another name",)
    assert aggregates_of(found)[1].startswith("aggregate 'op.x': refused (")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (sl.agg.count("v"), sl.agg.count()),
        (sl.agg.sum("v"), sl.agg.sum("v").added().renamed(was="other")),
        (sl.agg.approx_percentile("v", 0.5), sl.agg.approx_percentile("v", [0.1, 0.9])),
        (sl.agg.approx_percentile("v", 0.5), sl.agg.approx_percentile("v", 0.5, accuracy=500)),
        (sl.agg.approx_count_distinct("v"), sl.agg.approx_count_distinct("v", rsd=0.01)),
    ],
)
def test_what_may_change(before: Aggregate, now: Aggregate) -> None:
    found = go_on(of(x=before), of(x=now))
    assert not found.refusals
    assert {change.action for change in found.changes} == {"kept"}
    assert found.migrations["op"].schemas == {}


def test_the_order_of_aggregates_is_no_matter() -> None:
    given = {"b": sl.agg.sum("v"), "a": sl.agg.avg("w"), "c": sl.agg.count()}
    found = go_on(operator_of(None, given), operator_of(None, dict(reversed(given.items()))))
    assert {change.action for change in found.changes} == {"kept"}
    assert found.migrations["op"].schemas == {}


def test_shared_state_goes_on_with_what_stays() -> None:
    """Columns have the name of one of those that share them."""
    before = of(p50=sl.agg.approx_percentile("v", 0.5), p90=sl.agg.approx_percentile("v", 0.9))
    added = go_on(before, of(a=sl.agg.approx_percentile("v", 0.1), p90=sl.agg.approx_percentile("v", 0.9)), "op.p50")
    assert not added.refusals
    assert aggregates_of(added) == [
        "aggregate 'op.p90': kept",
        "aggregate 'op.a': new (it shares the state of 'p90': nothing is missing)",
        "aggregate 'op.p50': dropped",
    ]
    (schemas,) = added.migrations["op"].schemas.values()
    columns = {f"__strandline_a_approx_percentile_{at}": f"__strandline_p50_approx_percentile_{at}" for at in (0, 1)}
    assert schemas.older[0].renamed == columns
    assert schemas.older[0].fill == {}
    # Apart from now on: both go on with what they had.
    apart = go_on(before, of(p50=sl.agg.approx_percentile("v", 0.5), p90=sl.agg.approx_percentile("v", 0.9, 500)))
    assert not apart.refusals
    (schemas,) = apart.migrations["op"].schemas.values()
    assert len(schemas.older[0].renamed) == 4
    assert {*schemas.older[0].renamed.values()} == {*columns.values()}
    # Together from now on: it cannot be both.
    together = go_on(of(p50=before_of(100), p90=before_of(500)), of(p50=before_of(100), p90=before_of(100)))
    assert together.refusals == (
        "operator 'op': the aggregate 'p90': it would have one state with 'p50' now, and each had its own: "
        "leave one of them out",
    )


def before_of(accuracy: int) -> Aggregate:
    return sl.agg.approx_percentile("v", 0.5, accuracy)


def test_half_of_the_columns_is_not_shared() -> None:
    """An average that is added beside a sum begins empty: both parts of it."""
    before, now = of(total=sl.agg.sum("w")), of(mean=sl.agg.avg("w").added(), total=sl.agg.sum("w"))
    (schemas,) = go_on(before, now).migrations["op"].schemas.values()
    assert schemas.older[0].renamed == {}
    assert {*schemas.older[0].fill} == {"__strandline_mean_avg_1"}


def test_drop_names_an_aggregate_and_not_a_state_of_that_name() -> None:
    before = of(totals=sl.agg.sum("v"), n=sl.agg.count())
    assert not go_on(before, of(n=sl.agg.count()), "op.totals").refusals
    assert go_on(before, before, "op.totals", "op.n").refusals == (
        "operator 'op': the aggregate 'totals': drop names 'op.totals', and the program has it",
        "operator 'op': the aggregate 'n': drop names 'op.n', and the program has it",
    )


def test_other_state_is_not_gone_on_with() -> None:
    class Totals(sl.KeyedProcess):
        totals = sl.Value("struct<v: bigint>")

    before = of(n=sl.agg.count())
    by_hand = replace(before, node=replace(before.node, process=Totals()))
    (refusal,) = go_on(before, by_hand).refusals
    assert refusal.endswith("only agg() goes on with state of agg()")
    (refusal,) = go_on(by_hand, before).refusals
    assert refusal.endswith("only agg() goes on with state of agg()")
    other = go_on(of(sl.Tumbling("10s"), n=sl.agg.count()), of(sl.Tumbling("20s"), n=sl.agg.count()))
    assert other.refusals == (
        "operator 'op': the windows of state 'panes' are 20000 ms every 20000 ms from 0 ms, were "
        "10000 ms every 10000 ms from 0 ms",
    )


def test_windows_that_look_at_each_event_want_to_be_told_what_is_new() -> None:
    def folded(**aggregates: Aggregate) -> Operator:
        keyed: Any = events("k string, t timestamp, v bigint, w bigint").watermark("t").key_by("k")
        stream = keyed.window(sl.Tumbling("10s"), early=sl.Early(events=3)).agg(aggregates, uid="op")
        return Pipeline([stream._node]).settle(Parallelism(default=1))[0]

    before = folded(n=sl.agg.count(), a=sl.agg.sum("v"), b=sl.agg.sum("v"))
    (refusal,) = go_on(
        before, folded(n=sl.agg.count(), a=sl.agg.sum("v"), b=sl.agg.sum("v"), m=sl.agg.max("v"))
    ).refusals
    assert "the aggregate 'm' is new" in refusal
    assert "write .added() behind sl.agg.max(…)" in refusal
    # What two have shared, one of them would be without.
    (refusal,) = go_on(before, folded(n=sl.agg.count(), a=sl.agg.sum("v"), b=sl.agg.sum("w"))).refusals
    assert "the aggregate 'b' is new, or has a state of its own now" in refusal
    said = go_on(before, folded(n=sl.agg.count(), a=sl.agg.sum("v"), m=sl.agg.max("v").added()))
    assert not said.refusals


def test_totals_become_no_windows_by_count_and_these_no_totals() -> None:
    """Both have one accumulator a key, and only one of them the number of its events."""
    totals, counted = of(n=sl.agg.count()), of(sl.Global(count=3), n=sl.agg.count())
    (refusal,) = go_on(totals, counted).refusals
    assert "how many events each key has had is not stored, and windows by count go by it" in refusal
    (refusal,) = go_on(counted, totals).refusals
    assert refusal == "operator 'op': the windows of state 'totals' are of another kind, were 3 events"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a": sl.agg.count(), "b": sl.agg.count().renamed(was="a")}, "'b' was 'a', and so is 'a'"),
        (
            {"a": sl.agg.count().renamed(was="x"), "b": sl.agg.count().renamed(was="x")},
            "'a' was 'x', and so was 'b'",
        ),
    ],
)
def test_one_state_goes_to_one_aggregate(given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        operator_of(None, given)


def test_a_name_is_given_to_renamed() -> None:
    with pytest.raises(ConfigurationError, match=r"renamed: was is '', expected the name that the result had"):
        sl.agg.sum("v").renamed(was="")
