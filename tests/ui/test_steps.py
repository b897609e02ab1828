"""A change of a key as the page shows it: what of the state has changed, and how much of it is shown."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.ui.steps import step_of


def step(before: Any = None, after: Any = None, **more: Any) -> dict[str, Any]:
    change = {
        "epoch": 7, "now_us": 1_500_000, "call": "on_event", "event": {"card": "c1"}, "before": before, "after": after,
        "timers": [], "rows": [], "sides": [],
    }  # fmt: skip
    return step_of({**change, **more})


def parts(before: Any, after: Any) -> list[tuple[str, str | None, str | None, str]]:
    shown = step(before, after)["parts"]["shown"]
    return [(each["path"], each["before"], each["after"], each["change"]) for each in shown]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (3, 11, [("", "3", "11", "changed")]),
        (None, {"n": 1}, [("", "null", '{"n": 1}', "changed")]),
        ({"n": 1, "of": "a"}, {"n": 2, "of": "a"}, [("n", "1", "2", "changed"), ("of", "a", "a", "")]),
        ({"total": {"n": 1}}, {"total": {"n": 1, "m": None}},
         [("total.m", None, "null", "added"), ("total.n", "1", "1", "")]),
        ({"a": 1}, {}, [("a", "1", None, "removed")]),
        ({}, {}, [("", "{}", "{}", "")]),
        ([1, 2], [1, 2, 3], [("[2]", None, "3", "added"), ("", "2 other elements", "2 other elements", "")]),
        ({"x": [1, 2, 3]}, {"x": [2, 3]},
         [("x[0]", "1", None, "removed"), ("x", "2 other elements", "2 other elements", "")]),
        ([{"n": 1}], [{"n": 2}], [("[0].n", "1", "2", "changed")]),
        ([1], [], [("[0]", "1", None, "removed")]),
        ([1, 1], [1, 1], [("", "[1, 1]", "[1, 1]", "")]),
    ],
)  # fmt: skip
def test_what_has_changed_comes_first(before: Any, after: Any, expected: list[Any]) -> None:
    assert parts(before, after) == expected


def test_much_is_cut_and_counted() -> None:
    many = step({}, {f"k{n}": n for n in range(100)})["parts"]
    assert (len(many["shown"]), many["changed_left_out"], many["same_left_out"]) == (40, 60, 0)
    same = {f"k{n}": n for n in range(100)}
    few = step(same, {**same, "k50": 0})["parts"]
    assert few["shown"][0] == {"path": "k50", "before": "50", "after": "0", "change": "changed"}
    assert (len(few["shown"]), few["changed_left_out"], few["same_left_out"]) == (40, 0, 60)
    assert parts("", "x" * 1000)[0][2] == "x" * 499 + "…"


def test_events_and_rows_of_calls_and_of_epochs() -> None:
    call = step(rows=[["c1", 3], {"n": 1}], sides=[{"side": "alerts", "row": {"n": 2}}])
    assert (call["now_ms"], call["events"]) == (1500, [[["card", "c1"]]])
    assert call["rows"] == [
        {"side": "", "fields": [["", "c1"], ["", "3"]]},
        {"side": "", "fields": [["n", "1"]]},
        {"side": "alerts", "fields": [["n", "2"]]},
    ]
    epoch = step(call="epoch", event=[{"n": n} for n in range(20)])
    assert (len(epoch["events"]), epoch["events_left_out"]) == (12, 8)
    timer = step(call="on_timer", event="2026-01-01T00:00:00+00:00")
    assert timer["events"] == [[["", "2026-01-01T00:00:00+00:00"]]]
