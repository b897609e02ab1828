"""From the aggregations of views that are stored to those of a program: which goes on from which, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.api.states import State, declared_states
from strandline.format.manifest import AggregateInfo, OperatorInfo, StateInfo
from strandline.plan.upgrade import Upgrade, plan_upgrade
from strandline.runtime.builtin import Aggregated
from strandline.runtime.operators.aggregates.accumulators import FieldSpec
from strandline.runtime.operators.views.totals import COUNT, TOTALS, Totals
from strandline.runtime.program import state_infos
from strandline.types.datatypes import parse_schema

TYPES = {"count": "bigint", "sum": "bigint", "avg": "double", "max": "bigint"}
GROUP = "totals-aaaaaa"


def columns_of(name: str) -> list[str]:
    """Return the columns of an aggregate: sum_a is a sum of the column a, avg_a the sum of it by its number."""
    function, _, of = name.partition("_")
    return {"sum": [f"sum_{of}", f"count_{of}"], "avg": [f"total_{of}", f"count_{of}"]}.get(function, [name])


@dataclass
class Op:
    """An aggregation of a view, and what a manifest says of it."""

    uid: str
    aggregates: Sequence[str] = ()
    group: str = GROUP
    was: str = ""
    key_schema: str = "k struct<k0: string>"
    parallelism: int = 1
    is_changed: bool = False
    names: dict[str, str] = field(default_factory=dict)
    """By aggregate: the name that the user has given it."""
    changed_by: Sequence[str] = ()
    computed_of: Sequence[str] = ()

    def __post_init__(self) -> None:
        of = {name: columns_of(name) for name in self.aggregates}
        columns = [COUNT, *dict.fromkeys(column for each in of.values() for column in each)]
        infos = {
            self.names.get(name, name): AggregateInfo(
                function=(function := name.partition("_")[0]), type=TYPES[function], columns=columns
            )
            for name, columns in of.items()
        }
        infos[COUNT] = AggregateInfo(function="count", type="bigint", columns=[COUNT])
        counts = {column: 0 for column in columns if column.startswith("count") or column == COUNT}
        self.aggregated = Aggregated(
            infos, dict.fromkeys(columns, "sum"), counts, {new: name for name, new in self.names.items()}, (),
            texts={name: f"{info.function}({name})" for name, info in infos.items()},
            same={"count_all": COUNT} if "count_all" in columns else {}, is_changed=self.is_changed,
        )  # fmt: skip
        fields = [FieldSpec(column, "bigint", "sum") for column in columns]
        process = Totals(parse_schema(self.key_schema), fields, [""] * (len(fields) - 1), self.aggregated)
        self.declared: dict[str, State] = declared_states(process)
        self.states: list[StateInfo] = state_infos(process)

    def stored(self) -> OperatorInfo:
        return OperatorInfo(
            uid=self.uid, backend="rocksdb", parallelism=1, max_parallelism=128, key_schema=self.key_schema,
            states=self.states, partitions=[],
        )  # fmt: skip


def one(*aggregates: str, **more: Any) -> Op:
    return Op(f"{GROUP}-{'_'.join(aggregates)}", aggregates, **more)


def upgrade(before: Sequence[Op], now: Sequence[Op], **more: Any) -> Upgrade:
    return plan_upgrade([each.stored() for each in before], now, **more)


def said(found: Upgrade) -> list[str]:
    return [str(change) for change in found.changes if not change.state and COUNT not in change.aggregate]


def test_aggregates_come_and_go() -> None:
    before, now = one("sum_a", "max_b"), one("sum_a", "sum_c")
    refused = upgrade([before], [now])
    assert refused.refusals == (
        f"operator '{now.uid}': the aggregate 'sum(sum_c)' is new: of groups that are stored, it would have the rows "
        "from now on alone",
    )
    assert (refused.from_now, refused.drop) == ((now.uid,), ())
    assert f'from_now=["{now.uid}"]' in refused.hint
    found = upgrade([before], [now], from_now=[now.uid])
    assert not found.refusals
    assert said(found) == [
        f"operator '{now.uid}': extended, was '{before.uid}'",
        f"aggregate '{now.uid}.sum(sum_a)': kept",
        f"aggregate '{now.uid}.sum(sum_c)': new (of groups that are stored, it has the rows from now on alone)",
        f"aggregate '{now.uid}.max_b': dropped",
    ]
    migration = found.migrations[now.uid]
    assert migration.stored.uid == before.uid
    # A number of values begins at 0, a sum at null.
    (older,) = migration.schemas[TOTALS].older.values()
    assert older.fill.keys() == {"count_c"}


def test_what_is_there_under_another_name_is_complete() -> None:
    """count(*) is the number of a group's rows, and an average is a sum by a number that others have, too."""
    found = upgrade([one("sum_a", "max_b")], [one("sum_a", "count_all", "count_a")])
    assert not found.refusals
    complete = "new (all that it needs is in the state: nothing is missing)"
    assert [text.partition(": ")[2] for text in said(found)[1:]] == ["kept", complete, complete, "dropped"]


def test_an_average_has_no_older_number() -> None:
    now = one("count_a", "avg_a")
    found = upgrade([one("count_a")], [now], from_now=[now.uid])
    assert found.refusals == (
        f"operator '{now.uid}': the aggregate 'avg(avg_a)' is new: it would divide the sum of what comes from now on by "
        "the number of all rows",
    )
    assert not found.from_now


def test_rows_that_are_taken_back() -> None:
    """A row that came before the aggregate did may be taken back from it."""
    now = one("sum_a", "sum_c", is_changed=True)
    found = upgrade([one("sum_a", is_changed=True)], [now], from_now=[now.uid])
    assert "rows may be taken back that came before it: it must be computed anew" in found.refusals[0]


def test_other_groups_are_other_operators() -> None:
    found = upgrade([one("sum_a")], [Op("totals-bbbbbb-x", ["sum_a"], "totals-bbbbbb")])
    assert found.drop == (f"{GROUP}-sum_a",)
    assert said(found)[0] == "operator 'totals-bbbbbb-x': new"


def test_the_nearest_of_several_goes_on() -> None:
    """Each goes on from the operator with which it has most in common; one may be copied, too."""
    before = [one("sum_a"), one("sum_a", "max_b"), one("max_b")]
    now = [one("sum_a"), one("sum_a", "max_b", "count_all"), one("sum_a", "count_all")]
    found = upgrade(before, now)
    stored = [migration.stored for migration in found.migrations.values()]
    assert [each and each.uid for each in stored] == [before[0].uid, before[1].uid, before[2].uid]
    only = upgrade([one("sum_a")], [one("sum_a"), one("sum_a", "count_all")])
    assert not only.refusals
    assert {each.stored and each.stored.uid for each in only.migrations.values()} == {f"{GROUP}-sum_a"}


def test_dropped_by_name_it_begins_empty() -> None:
    before, now = one("sum_a"), one("sum_a", "max_b")
    found = upgrade([before], [now], drop=[before.uid])
    assert not found.refusals
    assert said(found) == [f"operator '{now.uid}': new", f"operator '{before.uid}': dropped"]


def test_a_uid_is_given_and_then_the_meaning_changes() -> None:
    """State is found by the names of results then, and before by what the aggregates mean."""
    before = one("sum_a", "count_all")
    pinned = Op("totals", ["sum_a", "count_all"], names={"sum_a": "total", "count_all": "n"})
    found = upgrade([before], [pinned])
    assert not found.refusals
    assert said(found) == [
        f"operator 'totals': renamed, was '{before.uid}'",
        "aggregate 'totals.sum(total)': renamed, was 'sum_a'",
        "aggregate 'totals.count(n)': renamed, was 'count_all'",
    ]
    other = Op("totals", ["max_b"], "totals-cccccc", names={"max_b": "total"})
    refused = upgrade([pinned], [other])
    assert refused.refusals == (
        "operator 'totals': the aggregate 'max(total)': it is max, was sum: give it another name",
    )
    keyed = Op("totals", ["sum_a"], "totals-cccccc", names={"sum_a": "total"}, key_schema="k struct<k0: bigint>")
    assert "its key is k struct<k0: bigint>, was k struct<k0: string>" in upgrade([pinned], [keyed]).refusals[0]


def test_what_reads_changes_must_have_read_all() -> None:
    """A new operator would have to take rows back that a kept one has given before."""
    above, below = one("sum_a"), Op("totals-bbbbbb-x", ["sum_a"], "totals-bbbbbb", changed_by=[f"{GROUP}-sum_a"])
    found = upgrade([above], [above, below])
    assert found.refusals == (
        f"operator '{below.uid}': it is new, and rows that '{above.uid}' gave before may be taken back: it has not "
        "read them",
    )
    assert found.to_begin == (below.uid,)
    assert "job of its own" in found.hint
    # Both begin empty.
    assert not upgrade([], [above, below]).refusals
    assert not upgrade([above, below], [above, below]).refusals


def test_results_of_kept_rows() -> None:
    rows, old = Op("rows-1", group="rows-1"), Op("results-aaaaaa-1", group="results-aaaaaa-1")
    new = Op("results-aaaaaa-2", group="results-aaaaaa-2", computed_of=["rows-1"])
    found = upgrade([rows, old], [rows, new])
    assert not found.refusals
    assert found.migrations["rows-1"].replays
    assert [text for text in said(found) if "results" in text] == [
        "operator 'results-aaaaaa-2': new (it is computed of rows that are kept)",
        "operator 'results-aaaaaa-1': dropped ('results-aaaaaa-2' computes results anew)",
    ]
    # Once it has state, rows are not given again.
    assert not upgrade([rows, new], [rows, new]).migrations["rows-1"].replays
    assert upgrade([old], [rows, new]).drop == ("results-aaaaaa-1",)
