"""From what is stored to what a program declares: what becomes of each operator and state, and what is refused."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import strandline as sl
from strandline.api.states import State, declared_states
from strandline.format.manifest import OlderSchema, OperatorInfo, StateInfo
from strandline.format.schemas import Schemas
from strandline.plan.aggregatestate import _OPTION_NAMES
from strandline.plan.changes import Change
from strandline.plan.graph import OperatorNode, with_ancestors
from strandline.plan.upgrade import Migration, Upgrade, plan_upgrade
from strandline.plan.windows import fold, operator_of
from strandline.runtime.builtin import Aggregated, BuiltinOperator
from strandline.runtime.operators.windows.operator import Rules
from strandline.runtime.program import state_infos
from strandline.spark.streams.stream import Aggregates
from strandline.testing import events


class Function(sl.KeyedProcess):
    """A function with states that are given."""

    def __init__(self, **states: State) -> None:
        self.own_states = states

    def on_event(self, event: Any, ctx: Any) -> None: ...


@dataclass
class Op:
    """An operator of a program, and what a manifest says of it."""

    uid: str
    process: Any
    was: str = ""
    key_schema: str = "`k` string"
    parallelism: int = 1
    group: str = ""
    changed_by: Sequence[str] = ()
    computed_of: Sequence[str] = ()
    declared: dict[str, State] = field(init=False)
    states: list[StateInfo] = field(init=False)
    aggregated: Aggregated | None = field(init=False)

    def __post_init__(self) -> None:
        self.declared, self.states = declared_states(self.process), state_infos(self.process)
        self.aggregated = self.process.own_aggregated if isinstance(self.process, BuiltinOperator) else None

    def stored(self, **schemas: Schemas) -> OperatorInfo:
        states = Migration(schemas=schemas).infos(self.states)
        return OperatorInfo(
            uid=self.uid, backend="rocksdb", parallelism=1, max_parallelism=128, key_schema=self.key_schema,
            states=states, partitions=[],
        )  # fmt: skip


def op(uid: str = "op", was: str = "", **states: State) -> Op:
    return Op(uid, Function(**states), was)


def go_on(before: Op, now: Op, *drop: str) -> Upgrade:
    return plan_upgrade([before.stored()], [now], drop)


def told(upgrade: Upgrade) -> list[str]:
    return str(upgrade).splitlines()


def test_what_stays_is_kept() -> None:
    same = op(seen=sl.Value("bigint"), by=sl.Map("string", "int"))
    found = go_on(same, same)
    assert told(found) == ["operator 'op': kept", "state 'op.seen': kept", "state 'op.by': kept"]
    assert not found.refusals
    migration = found.migrations["op"]
    assert migration.stored == same.stored()
    assert (migration.schemas, migration.was, migration.dropped) == ({}, {}, [])


def test_another_parallelism_is_told() -> None:
    before = op(seen=sl.Value("bigint"))
    now = Op("op", Function(seen=sl.Value("bigint")), parallelism=3)
    assert told(go_on(before, now))[0] == "operator 'op': kept (parallelism 3, was 1)"
    now = Op("new", Function(seen=sl.Value("bigint")), was="op", parallelism=3)
    assert told(go_on(before, now))[0] == "operator 'new': renamed, was 'op' (parallelism 3, was 1)"


def test_what_is_new_begins_empty() -> None:
    found = plan_upgrade([op().stored()], [op(seen=sl.Value("int")), op("other", n=sl.List("int"))])
    assert told(found) == [
        "operator 'op': kept", "state 'op.seen': new", "operator 'other': new", "state 'other.n': new",
    ]  # fmt: skip
    assert not found.refusals
    assert found.migrations["other"].stored is None
    assert str(plan_upgrade([], [])) == "nothing is stored, and the program keeps nothing"


KINDS: list[Any] = [
    lambda ddl, **hints: sl.Value(ddl, **hints),
    lambda ddl, **hints: sl.List(ddl, **hints),
    lambda ddl, **hints: sl.Map("string", ddl, **hints),
    lambda ddl, **hints: sl.Reducing(ddl, max, **hints),
    lambda ddl, **hints: sl.Aggregating(ddl, create=tuple, add=max, **hints),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_evolves_with_a_new_schema_id(kind: Any) -> None:
    before = op(seen=kind("struct<n: int, town: string>"))
    hints = {"renamed": {"city": "town"}, "fill": {"more": 7}}
    now = op(seen=kind("struct<n: bigint, city: string, more: int>", **hints))
    found = go_on(before, now)
    assert not found.refusals
    details = ("value.n: int -> bigint", "value.city: renamed, was town", "value.more: added, int, filled with 7")
    assert found.changes[1] == Change("op", "seen", "migrated", "", details)
    older = OlderSchema(
        value_type="struct<n:int,town:string>", renamed={"city": "town"}, fill={"more": b"\0\0\7\0\0\0"}
    )
    schemas = Schemas(schema_id=1, older={0: older})
    assert found.migrations["op"].schemas == {"seen": schemas}
    # Once that is stored, the same program goes on from it, and the next one has one id more.
    assert plan_upgrade([now.stored(seen=schemas)], [now]).migrations["op"].schemas == {"seen": schemas}
    third = op(seen=kind("struct<n: bigint, more: int>"))
    (made,) = plan_upgrade([now.stored(seen=schemas)], [third], ["op.seen.city"]).migrations["op"].schemas.values()
    assert made.schema_id == 2
    assert made.older == {0: older, 1: OlderSchema(value_type="struct<n:bigint,city:string,more:int>")}


def test_operators_and_states_are_renamed() -> None:
    before = op("sums", total=sl.Value("int"), kept=sl.Value("int"))
    now = op("totals", "sums", amount=sl.Value("bigint", was="total"), kept=sl.Value("int", was="older"))
    found = go_on(before, now)
    assert not found.refusals
    assert told(found) == [
        "operator 'totals': renamed, was 'sums'",
        "state 'totals.amount': migrated, was 'total' (value: int -> bigint)",
        "state 'totals.kept': kept",
    ]
    migration = found.migrations["totals"]
    assert migration.stored.uid == "sums"
    assert migration.was == {"amount": "total"}
    assert migration.schemas["amount"].schema_id == 1
    # Under its own name already: what it was before means nothing any more.
    again = plan_upgrade([now.stored()], [now])
    assert again.migrations["totals"].was == {}
    assert [change.action for change in again.changes] == ["kept"] * 3
    assert found.to_rows()[1] == {
        "operator": "totals", "state": "amount", "aggregate": "", "action": "migrated", "was": "total",
        "details": ["value: int -> bigint"],
    }  # fmt: skip


def test_what_is_gone_must_be_named() -> None:
    stored = [op("a", x=sl.Value("int"), y=sl.List("int")).stored(), op("b", z=sl.Value("int")).stored()]
    program = [op("a", x=sl.Value("int"))]
    found = plan_upgrade(stored, program)
    assert found.refusals == (
        "operator 'a': the state 'y' is not declared any more",
        "the program has no operator with uid 'b', which has state; it has a",
    )
    assert found.drop == ("a.y", "b")
    assert [change.action for change in found.changes] == ["kept", "kept", "refused", "refused"]
    partly = plan_upgrade(stored, program, ["b", "c", "a.typo"])
    assert partly.drop == ("a.y",)
    assert partly.unused == ("a.typo", "c")
    done = plan_upgrade(stored, program, ["b", "a.y"])
    assert not done.refusals
    assert told(done)[2:] == ["state 'a.y': dropped", "operator 'b': dropped"]
    assert done.migrations["a"].dropped == ["y"]


def refused(before: str, now: str, *drop: str, **hints: Any) -> tuple[str, ...]:
    """Return what stands against a Value's other type, without what it begins with."""
    found = go_on(op(s=sl.Value(before)), op(s=sl.Value(now, **hints)), *drop)
    begin = f"operator 'op': the type of state 's' is {state_infos(Function(s=sl.Value(now)))[0].value_type}, was "
    return tuple(why.removeprefix(begin).partition(": ")[2] for why in found.refusals)


def test_a_field_that_goes_is_dropped_or_renamed() -> None:
    """What is only missing under its name would be lost in silence."""
    before, now = "struct<n: int, total: double>", "struct<n: int, spent: double>"
    assert refused(before, now) == ("the field total is gone, and spent is new: is it renamed, or dropped?",)
    found = go_on(op(s=sl.Value(before)), op(s=sl.Value(now)))
    assert found.drop == ("op.s.total",)
    assert 'if a field has another name now, write renamed={"spent": "total"} in' in found.hint
    assert refused(before, now, "op.s.total") == ()
    assert refused(before, now, renamed={"spent": "total"}) == ()
    # A name that differs in case alone is another one.
    assert refused("struct<n: int>", "struct<N: int>") == (
        "the field n is gone, and N is new: is it renamed, or dropped?",
    )
    assert refused("struct<n: int, a: int>", "struct<n: int>") == ("the field a is gone",)
    assert refused("struct<n: int>", "struct<n: int, a: int>") == ()
    # The old program, on what the new one has left.
    assert refused(now, before) == ("the field spent is gone, and total is new: is it renamed, or dropped?",)
    assert refused(now, before, renamed={"total": "spent"}) == ()
    two = refused("struct<a: int, b: int>", "struct<c: int, d: int>", renamed={"c": "a"})
    assert two == ("the field b is gone, and d is new: is it renamed, or dropped?",)


def test_fields_within_go_by_their_paths() -> None:
    before = "struct<at: struct<town: string, zip: int>, items: array<struct<id: int, net: int>>, by: map<string, struct<x: int>>>"
    now = "struct<home: struct<town: string>, items: array<struct<id: int>>, by: map<string, struct<y: int>>>"
    hints = {"renamed": {"home": "at"}}
    found = go_on(op(s=sl.Value(before)), op(s=sl.Value(now, **hints)))
    assert found.drop == ("op.s.at.zip", "op.s.items[].net", "op.s.by{}.x")
    assert len(found.refusals) == 3
    assert refused(before, now, *found.drop, **hints) == ()
    (why,) = refused("struct<a: struct<b: int>, n: int>", "struct<n: int>")
    assert why == "the field a is gone", "with all that it holds"
    assert refused("struct<a: struct<b: int>, n: int>", "struct<n: int>", "op.s.a", "op.s.a.b") == ()
    elements = go_on(op(s=sl.List("array<struct<a: int>>")), op(s=sl.List("array<struct<b: int>>")))
    assert elements.drop == ("op.s[].a",)
    assert not go_on(
        op(s=sl.List("array<struct<a: int>>")), op(s=sl.List("array<struct<b: int>>")), "op.s[].a"
    ).refusals


def test_drop_names_no_field_that_the_program_has() -> None:
    before = op(s=sl.Value("struct<a: int, ab: int>"))
    assert go_on(before, before, "op.s.a").refusals == ("operator 'op': drop names 'op.s.a', and the program has it",)
    now = op(s=sl.Value("struct<ab: bigint>"))
    assert go_on(before, now, "op.s.a", "op.s.ab").refusals == (
        "operator 'op': drop names 'op.s.ab', and the program has it",
    )
    # As a restart sees it, once a checkpoint has the new type.
    again = go_on(now, now, "op.s.a")
    assert (again.refusals, again.unused) == ((), ("op.s.a",))


def test_rows_of_joins_and_windows_keep_their_columns() -> None:
    def joined(column: str) -> Op:
        sides = [events(f"k string, {column} int, ts timestamp").watermark("ts").key_by("k") for _ in range(2)]
        made = sides[0].join(sides[1], within=("0s", "1s"), uid="op", prefixes=("l_", "r_"))._node
        return Op("op", next(node.process for node in with_ancestors(made) if isinstance(node, OperatorNode)))

    found = go_on(joined("v"), joined("w"))
    assert [why.rpartition(": the ")[2] for why in found.refusals] == [
        "field [].row.v is gone, and w is new: is it renamed, or dropped?"
    ] * 2
    assert found.drop == ("op.left[].row.v", "op.right[].row.v")
    assert not go_on(joined("v"), joined("w"), *found.drop).refusals
    windows = [
        Op("op", operator_of(sl.Tumbling("1s"), fold(ddl, (0, 0), max, max, "x").contents, Rules()))
        for ddl in ("a int, b int", "a int, c int")
    ]
    assert go_on(*windows).drop == ("op.windows.value.b",)


def test_names_with_dots() -> None:
    """What drop names is one thing: where it may be two, quotes say which."""
    dotted = op("a", **{"b.c": sl.Value("int"), "d": sl.Value("int")})
    stored = [dotted.stored(), op("a.b", c=sl.Value("int")).stored(), op("a.d", e=sl.Value("int")).stored()]
    found = plan_upgrade(stored, [])
    assert found.drop == ("a", "a.b", '"a.d"')
    assert plan_upgrade(stored, [op("a", d=sl.Value("int"))], ["a.b", '"a.d"']).drop == ('"a"."b.c"',)
    unclear = plan_upgrade(stored, [], ["a", "a.b", "a.d", "a.b.c"])
    assert unclear.refusals == (
        "drop names 'a.b.c', which may be the state 'b.c' of operator 'a' or the state 'c' of operator 'a.b': "
        'write it with quotes: "a"."b.c" or "a.b"."c"',
        "drop names 'a.d', which may be the state 'd' of operator 'a' or the operator 'a.d': "
        'write it with quotes: "a"."d" or "a.d"',
        "the program has no operator with uid 'a.d', which has state; it has none",
    )
    done = plan_upgrade(stored, [op("a", d=sl.Value("int"))], ['"a"."b.c"', "a.b", '"a.d"'])
    assert not done.refusals
    assert done.migrations["a"].dropped == ["b.c"]


def test_an_operator_without_state_may_go() -> None:
    found = plan_upgrade([op("a").stored()], [])
    assert not found.refusals
    assert told(found) == ["operator 'a': dropped"]


def test_drop_takes_nothing_that_the_program_has() -> None:
    """A restart would do it again."""
    before = op(seen=sl.Value("int"))
    found = go_on(before, before, "op", "op.seen")
    assert found.refusals == (
        "operator 'op': drop names 'op', and the program has it",
        "operator 'op': drop names 'op.seen', and the program has it",
    )
    renamed = go_on(before, op(sight=sl.Value("int", was="seen")), "op.seen")
    assert renamed.refusals == ("operator 'op': drop names 'op.seen', and the program has it",)


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        (sl.Value("bigint"), sl.List("bigint"), "the kind of state 'seen' is list, was value"),
        (
            sl.Value("bigint"),
            sl.Value("int"),
            "the type of state 'seen' is int, was bigint: value: bigint -> int would lose numbers",
        ),
        (
            sl.Value("struct<items: array<struct<price: bigint, id: int>>>"),
            sl.Value("struct<items: array<struct<price: int, id: string>>>"),
            "the type of state 'seen' is struct<items:array<struct<price:int,id:string>>>, was "
            "struct<items:array<struct<price:bigint,id:int>>>: value.items[].price: bigint -> int would lose numbers; "
            "value.items[].id: int -> string is another kind of value",
        ),
        (sl.Map("string", "int"), sl.Map("binary", "int"), "the key type of state 'seen' is binary, was string"),
        (sl.Map("int", "int"), sl.Map("bigint", "int"), "the key type of state 'seen' is bigint, was int"),
    ],
)
def test_what_is_refused(before: State, now: State, reason: str) -> None:
    found = go_on(op(seen=before), op(seen=now))
    assert found.refusals == (f"operator 'op': {reason}",)
    assert found.changes[1] == Change("op", "seen", "refused", "", (reason,))


def test_another_key_is_refused() -> None:
    now = op(seen=sl.Value("int"))
    now.key_schema = "`k` int"
    found = go_on(op(seen=sl.Value("int")), now)
    assert found.refusals == ("operator 'op': its key is `k` int, was `k` string",)


def test_a_type_cannot_be_changed_for_ever() -> None:
    stored = op(seen=sl.Value("int")).stored(seen=Schemas(schema_id=254))
    (refusal,) = plan_upgrade([stored], [op(seen=sl.Value("bigint"))]).refusals
    assert "its type was changed 254 times" in refusal


def test_values_of_windows_evolve_and_their_cut_does_not() -> None:
    made = [
        Op("op", operator_of(sl.Tumbling(size), fold(ddl, 0, max, max, "x").contents, Rules()))
        for size, ddl in (("10s", "n int"), ("10s", "n bigint"), ("20s", "n bigint"))
    ]
    found = go_on(made[0], made[1])
    assert not found.refusals
    assert found.changes[1].details == ("value.value: int -> bigint",)
    assert [reason.partition(" are")[0] for reason in go_on(made[1], made[2]).refusals] == [
        "operator 'op': the windows of state 'windows'"
    ]


def test_aggs_own_words_are_known() -> None:
    """A result of such a name cannot be told to be given by a keyword."""
    parameters = inspect.signature(Aggregates.agg).parameters.values()
    own = {each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
    assert own == set(_OPTION_NAMES)
