"""What each handle does, and what it says of values that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from strandline.api.process import KeyedProcess
from strandline.api.states import Aggregating, List, Map, Reducing, Value
from strandline.core.errors import StateTypeError, StrandlineError
from tests.runtime.bench import Bench
from tests.runtime.conftest import Make

Act = Callable[[Any], Any]


class Script(KeyedProcess):
    """Runs what a test says; the tests' functions are called in this process, never shipped."""

    number = Value("int")
    text = Value("string", default="none")
    tags = Value("array<string>", default=["a"])
    table = Value("map<string, array<int>>")
    nested = Value("struct<id: int, tags: array<int>>")
    log = List("string")
    points = List("struct<x: int, path: array<int>>")
    counts = Map("string", "int")
    shelves = Map("int", "array<int>")
    reals = Map("double", "string")
    pairs = Map("struct<a: int, b: string>", "int")
    top = Reducing("int", max)
    joined = Reducing("array<int>", lambda old, new: old + new)
    bag = Aggregating("array<int>", create=list, add=lambda acc, x: [*acc, x], result=lambda acc: sorted(acc))

    def on_event(self, event: Any, ctx: Any) -> Any:
        raise NotImplementedError


class Play:
    """Runs functions as events of a key, each an epoch of its own."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def __call__(self, *acts: Act, key: str = "k", abort: bool = False) -> Any:
        found: list[Any] = []
        todo = iter(acts)

        def on_event(event: Any, ctx: Any) -> None:
            found.append(next(todo)(self.bench.process))

        vars(self.bench.process)["on_event"] = on_event
        self.bench.run([(key, "", 0, 0)] * len(acts), abort=abort)
        return found[-1]

    def again(self) -> None:
        """Go on from a snapshot, in a new partition."""
        self.bench.restore(self.bench.snapshot(), self.bench.epoch)


@pytest.fixture
def play(make: Make) -> Play:
    return Play(make(Script(), cache_bytes=1))


def put(state: str, value: Any) -> Act:
    def act(s: Any) -> None:
        getattr(s, state).value = value

    return act


def value(state: str) -> Act:
    return lambda s: getattr(s, state).value


def items(state: str) -> Act:
    return lambda s: sorted(getattr(s, state).items())


def test_a_value_is_its_default_until_it_is_set_and_after_it_is_cleared(play: Play) -> None:
    assert play(lambda s: (s.text.value, s.text.exists())) == ("none", False)
    assert play(put("text", "x"), lambda s: (s.text.value, s.text.exists())) == ("x", True)
    assert play(lambda s: s.text.clear(), lambda s: (s.text.value, s.text.exists())) == ("none", False)
    assert play(put("text", "none"), lambda s: s.text.exists()) is True
    assert play(put("text", None), lambda s: (s.text.value, s.text.exists())) == ("none", False)
    play.again()
    assert play(lambda s: (s.text.value, s.text.exists())) == ("none", False)


def test_keys_do_not_see_each_other(play: Play) -> None:
    play(put("number", 1), lambda s: s.log.append("a"), lambda s: s.counts.update(a=1), lambda s: s.top.add(5))
    found = play(lambda s: (s.number.value, s.log.get(), dict(s.counts), s.top.value), key="k2")
    assert found == (None, [], {}, None)


def test_values_are_stored_in_one_form(play: Play) -> None:
    play(put("nested", {"tags": (1, 2), "id": True + 0}))
    nested = play(value("nested"))
    assert (nested, nested.id, nested["tags"]) == ((1, [1, 2]), 1, [1, 2])
    assert play(put("text", ""), value("text")) == ""
    assert play(put("number", 0), lambda s: (s.number.value, s.number.exists())) == (0, True)


@pytest.mark.parametrize("abort", [False, True])
def test_nobody_changes_state_without_assigning(play: Play, abort: bool) -> None:
    mine = {"a": [1]}
    play(put("table", mine), put("nested", (1, [1])), lambda s: s.shelves.update({1: [1]}),
         lambda s: s.points.append((1, [1])), lambda s: s.bag.add(1), lambda s: s.joined.add([1]))  # fmt: skip
    mine["a"].append(9)

    def meddle(s: Any) -> None:
        # Where nobody holds what was read, a change of it is refused.
        table, nested, tags = s.table.value, s.nested.value, s.tags.value
        table["a"].append(2)
        table["b"] = []
        nested.tags.append(2)
        tags.append("b")
        shelf, same_shelf = s.shelves[1], s.shelves.get(1)
        shelf.append(2)
        same_shelf.append(2)
        points, point, joined, bag = s.points.get(), s.points[0], s.joined.value, s.bag.result()
        points[0].path.append(2)
        point.path.append(2)
        points.clear()
        joined.append(2)
        bag.append(2)

    play(meddle, abort=abort)
    wanted = {"a": [1]}, (1, [1]), ["a"], {1: [1]}, [(1, [1])], [1], [1]

    def read(s: Any) -> Any:
        states = s.table.value, s.nested.value, s.tags.value, dict(s.shelves), s.points.get()
        return *states, s.joined.value, s.bag.result()

    assert play(read) == wanted
    play.again()
    assert play(read) == wanted


def test_lists_given_are_not_held_on_to(play: Play) -> None:
    path, given = [1], ["a"]
    play(lambda s: s.points.append((1, path)), lambda s: s.log.set(given), lambda s: s.log.append("b"))
    path.append(2)
    given.append("c")
    assert play(lambda s: (s.points.get(), s.log.get())) == ([(1, [1])], ["a", "b"])


def test_a_list(play: Play) -> None:
    play(lambda s: s.log.append("a"), lambda s: s.log.extend(iter(["b", "c"])))
    play(lambda s: s.log.append("d"))
    assert play(lambda s: s.log.get()) == ["a", "b", "c", "d"]
    assert play(lambda s: (s.log[0], s.log[-1], s.log[1:3], len(s.log), bool(s.log))) == ("a", "d", ["b", "c"], 4, True)
    assert play(lambda s: [x for x in s.log]) == ["a", "b", "c", "d"]  # noqa: C416  iterating is what is tested
    play(lambda s: s.log.append("e"), abort=True)
    assert play(lambda s: s.log.get()) == ["a", "b", "c", "d"]
    assert play(lambda s: s.log.set("xy"), lambda s: s.log.append("z"), lambda s: s.log.get()) == ["x", "y", "z"]
    assert play(lambda s: s.log.clear(), lambda s: (s.log.get(), len(s.log), bool(s.log))) == ([], 0, False)
    play.again()
    assert play(lambda s: (s.log.get(), bool(s.log))) == ([], False)


def test_a_list_of_many_chunks_is_rewritten_as_one_when_it_is_read(play: Play) -> None:
    wanted = [str(number) for number in range(40)]
    for text in wanted:
        play(lambda s, text=text: s.log.append(text))
    play.again()
    assert _chunks(play, "log") == 40
    assert play(lambda s: s.log.get(), abort=True) == wanted
    play.again()
    assert _chunks(play, "log") == 40
    assert play(lambda s: s.log.get(), lambda s: s.log.append("last"), lambda s: s.log.get()) == [*wanted, "last"]
    play.again()
    assert _chunks(play, "log") == 1
    assert play(lambda s: s.log.get()) == [*wanted, "last"]


def _chunks(play: Play, state: str) -> int:
    changes = play.bench.freeze()
    entries = [value for _, value in changes.changes()[state] if value is not None]
    if not play.bench.backend.keeps_all:
        entries = [value for _, value in play.bench.backend.scan(state)]
    changes.release()
    return len(entries)


def test_a_map(play: Play) -> None:
    play(lambda s: s.counts.update(a=1, b=2, c=3))
    assert play(lambda s: (s.counts["a"], s.counts.get("z"), s.counts.get("z", 0), "b" in s.counts, len(s.counts))) == (
        1, None, 0, True, 3,
    )  # fmt: skip
    assert play(lambda s: s.counts.pop("a"), items("counts")) == [("b", 2), ("c", 3)]
    assert play(lambda s: s.counts.setdefault("b", 9)) == 2
    assert play(lambda s: s.counts.setdefault("d", 9), lambda s: sorted(s.counts)) == ["b", "c", "d"]
    assert play(lambda s: s.counts == {"b": 2, "c": 3, "d": 9}) is True
    assert play(lambda s: s.counts.clear(), lambda s: (dict(s.counts), bool(s.counts))) == ({}, False)
    play.again()
    assert play(lambda s: dict(s.counts)) == {}


def test_a_missing_entry_of_a_map_is_a_key_error_with_the_users_key(play: Play) -> None:
    def missing(s: Any) -> Any:
        said = []
        for act in (lambda: s.counts["a"], lambda: s.counts.pop("a"), lambda: s.counts.__delitem__("a")):
            with pytest.raises(KeyError) as caught:
                act()
            said.append(caught.value.args)
        return said

    assert play(missing) == [("a",)] * 3
    play(lambda s: s.counts.update(a=1))
    assert play(lambda s: s.counts.pop("a"), missing) == [("a",)] * 3


def test_a_map_is_walked_with_what_is_stored_and_what_is_pending(play: Play) -> None:
    play(lambda s: s.counts.update(a=1, b=2, c=3))
    play.again()
    play(lambda s: s.counts.update(b=20, d=4))
    frozen = play.bench.freeze()
    play(lambda s: s.counts.pop("c"), lambda s: s.counts.update(e=5))

    def during(s: Any) -> Any:
        del s.counts["a"]
        s.counts["f"] = 6
        return sorted(s.counts.items()), len(s.counts)

    assert play(during, abort=True) == ([("b", 20), ("d", 4), ("e", 5), ("f", 6)], 4)
    assert play(items("counts")) == [("a", 1), ("b", 20), ("d", 4), ("e", 5)]
    play.bench.write(frozen)
    assert play(items("counts")) == [("a", 1), ("b", 20), ("d", 4), ("e", 5)]


def test_a_map_may_be_changed_while_it_is_walked(play: Play) -> None:
    def halve(s: Any) -> None:
        for name in s.counts:
            if s.counts[name] % 2:
                del s.counts[name]
            else:
                s.counts[name + name] = 0

    play(lambda s: s.counts.update(a=1, b=2, c=3))
    assert play(halve, items("counts")) == [("b", 2), ("bb", 0)]


def test_keys_of_maps_are_values(play: Play) -> None:
    play(lambda s: s.pairs.update({(1, "a"): 1}), lambda s: s.reals.update({1: "one"}))
    assert play(lambda s: (s.pairs[{"a": 1, "b": "a"}], s.reals[1.0], 1 in s.reals)) == (1, "one", True)
    play.again()
    assert play(lambda s: [(key.a, key.b) for key in s.pairs]) == [(1, "a")]


def test_equal_keys_of_maps_are_one_entry(play: Play) -> None:
    play(lambda s: s.reals.update({float("nan"): "a", -0.0: "zero"}))
    play(lambda s: s.reals.update({float("nan"): "b"}))
    read = lambda s: (len(s.reals), s.reals.get(float("nan")), s.reals[0.0])  # noqa: E731
    assert play(read) == (2, "b", "zero")
    play.again()
    assert play(read) == (2, "b", "zero")


def test_reducing_and_aggregating(play: Play) -> None:
    assert play(lambda s: (s.top.value, s.bag.result())) == (None, None)
    play(lambda s: s.top.add(3), lambda s: s.bag.add(3))
    play(lambda s: s.top.add(1), lambda s: s.bag.add(1))
    assert play(lambda s: (s.top.value, s.bag.result())) == (3, [1, 3])
    assert play(put("top", 1), lambda s: s.top.add(2), value("top")) == 2
    assert play(lambda s: s.joined.add([1]), lambda s: s.joined.add([2]), value("joined")) == [1, 2]
    assert play(lambda s: s.top.clear(), lambda s: s.bag.clear(), lambda s: (s.top.value, s.bag.result())) == (
        None,
        None,
    )


MISFITS: dict[str, Act] = {
    "number": put("number", "x"),
    "text": put("text", 5),
    "tags": put("tags", "abc"),
    "nested": put("nested", {"id": 1}),
    "log": lambda s: s.log.append(5),
    "log ": lambda s: s.log.extend(["a", None]),
    "log  ": lambda s: s.log.set(["a", 5]),
    "points": lambda s: s.points.append((1, 2, 3)),
    "counts": lambda s: s.counts.update(a="x"),
    "counts ": lambda s: s.counts.update(a=None),
    "counts  ": lambda s: s.counts.get(5),
    "counts   ": lambda s: s.counts.__setitem__(None, 1),
    "reals": lambda s: "x" in s.reals,
    "shelves": lambda s: s.shelves.__delitem__("x"),
    "top": lambda s: s.top.add("x"),
    "bag": lambda s: s.bag.add("x"),
}


@pytest.mark.parametrize("state", MISFITS)
def test_what_does_not_fit_names_operator_state_and_event(make: Make, state: str) -> None:
    play = Play(make(Script(), uid="detect"))
    with pytest.raises(StateTypeError) as caught:
        play(MISFITS[state])
    error = caught.value
    assert f"operator 'detect', state '{state.strip()}': " in error.message
    assert "Record(k='k'" in error.message
    assert (error.operator, error.key) == ("detect", "'k'")
    assert "on_event" in error.traceback


OUT_OF_RANGE: dict[str, Act] = {
    "number": put("number", 1 << 40),
    "text": put("text", "\ud800"),
    "log": lambda s: s.log.append("\ud800"),
    "counts": lambda s: s.counts.update(a=1 << 40),
    "top": lambda s: s.top.add(1 << 40),
    "shelves": lambda s: s.shelves.update({1 << 40: [1]}),
    "shelves ": lambda s: s.shelves.get(1 << 40),
    "counts ": lambda s: s.counts.update({"\ud800": 1}),
}


@pytest.mark.parametrize("state", OUT_OF_RANGE)
def test_what_is_out_of_range_never_reaches_a_snapshot_and_names_the_state(make: Make, state: str) -> None:
    """Values whose Python type is right are not looked at when they are assigned: encoding them finds out."""
    play = Play(make(Script(), uid="detect"))

    def assign_and_snapshot() -> None:
        play(OUT_OF_RANGE[state])
        play.bench.snapshot()

    with pytest.raises(StrandlineError) as caught:
        assign_and_snapshot()
    assert f"operator 'detect', state '{state.strip()}': " in caught.value.message
