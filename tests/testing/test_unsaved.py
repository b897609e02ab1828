"""State that a function keeps in variables is found with its line, and so are changes of read values that are dropped."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import strandline as sl
from strandline.core.errors import UserCodeError
from strandline.runtime.task.unsaved import _EPOCHS, UnsavedState
from strandline.testing import Harness

SAID: dict[str, Any] = {"schema": "k string, v bigint", "key": "k", "output": "k string"}
COUNTED: Any = None
SEEN: dict[str, int] = {}
OPENED: list[int] = []


RATES = {"a": 1}


@dataclass
class Tally:
    n: int = 0


class Index:
    """What makes its parts when they are first needed."""

    def __init__(self) -> None:
        self.parts: dict[str, int] | None = None

    @cached_property
    def names(self) -> list[str]:
        return ["a"]

    def find(self, name: str) -> int:
        self.parts = self.parts or {"a": 1}
        return self.parts.get(name, len(self.names))


class Unwilling:
    """A proxy that raises whatever it is asked, as those of web frameworks do outside of a request."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("working outside of a context")


class Answering:
    """An object that has everything, of no use."""

    fget = np.zeros(2)


UNWILLING, ANSWERING = Unwilling(), Answering()


def note(key: str) -> None:
    SEEN[key] = SEEN.get(key, 0) + 1


class Keeps(sl.KeyedProcess):
    """Keeps something, in the way that a test says."""

    shared = 0
    shared_list: ClassVar[list[int]] = []
    not_state: Any = ("spare",)

    def __init__(self, way: str) -> None:
        self.way, self.count, self.spare, self.client, self.loaded = way, 0, 0, None, None
        self.kinds: dict[str, Any] = {"deque": deque(), "counter": Counter(), "array": np.zeros(2), "object": Tally()}
        self.kinds["buffer"] = []
        self.index = Index()
        self.begin_anew()

    def open(self) -> None:
        self.cache: dict[str, int] = {}
        OPENED.append(1)
        self.begin_anew()

    def begin_anew(self) -> None:
        self.since_open = 0

    def on_event(self, event: Any, ctx: Any) -> Any:
        global COUNTED
        match self.way:
            case "attribute":
                self.count += event.v
            case "of the class":
                Keeps.shared += 1
            case "over that of the class":
                self.shared += 1
            case "list of the class":
                self.shared_list.append(1)
            case "global":
                COUNTED = (COUNTED or 0) + 1
            case "helper":
                note(ctx.key)
            case "buffer":
                self.kinds["buffer"].append(event)
            case "deque":
                self.kinds["deque"].append(1)
            case "counter":
                self.kinds["counter"][ctx.key] += 1
            case "array":
                self.kinds["array"][0] += 1
            case "object":
                self.kinds["object"].n += 1
            # What follows is legitimate.
            case "made in open":
                self.cache[ctx.key] = event.v
                OPENED.append(event.v)
                self.since_open += 1
            case "named":
                self.spare += 1
            case "made when needed":
                self.client = self.client or object()
                self.loaded = self.loaded or {"a": 1}
                self.index.find(ctx.key)
                if not hasattr(self, "late"):
                    self.late = [1]
            case "by others":
                assert RATES["a"]
            case "odd objects":
                assert [UNWILLING, ANSWERING]
            case "nothing":
                pass


@pytest.mark.parametrize(
    ("way", "variable", "line"),
    [
        ("attribute", "'self.count'", "self.count += event.v"),
        ("of the class", "'Keeps.shared'", "Keeps.shared += 1"),
        ("over that of the class", "'self.shared'", "shared += 1"),
        ("list of the class", "'Keeps.shared_list'", "self.shared_list.append(1)"),
        ("global", "'COUNTED' of module", "COUNTED = (COUNTED or 0) + 1"),
        ("helper", "'SEEN' of module", "SEEN[key] = SEEN.get(key, 0) + 1"),
        *((way, "'self.kinds'", "self.kinds[") for way in ("buffer", "deque", "counter", "array", "object")),
    ],
)
def test_variables_as_state_are_found_with_their_line(
    way: str, variable: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Keeps, "shared", 0)
    monkeypatch.setattr("tests.testing.test_unsaved.COUNTED", 0)
    with Harness(Keeps(way), **SAID) as h:
        with pytest.raises(UserCodeError) as caught:
            h.push(("a", 1))
        assert h.epoch == 0
    text = str(caught.value)
    assert f"Keeps changes {variable}" in text
    assert f"{line}" in text
    assert "test_unsaved.py, line" in text
    assert "not_state" in text


@pytest.mark.parametrize("way", ["made in open", "named", "made when needed", "by others", "odd objects", "nothing"])
def test_what_may_be_lost_is_left_alone(way: str) -> None:
    with Harness(Keeps(way), **SAID, parallelism=2) as h:
        for each in range(4):
            RATES["a"] += 1
            h.push(*((key, each) for key in "abcd"))


class Changes(sl.KeyedProcess):
    """Changes what it has read, and assigns it or does not."""

    tags = sl.Value("array<string>", default=["a"])
    expiring = sl.Value("array<string>", default=["a"], ttl=sl.TTL("1h"))
    by = sl.Map("string", "struct<ns: array<int>>")
    items = sl.List("map<string,int>")

    def __init__(self, change: Callable[[Any], None]) -> None:
        self.change = change

    def on_event(self, event: Any, ctx: Any) -> None:
        if event.v == 0:
            self.by["k"] = ([],)
            self.items.append({"n": 1})
        else:
            self.change(self)


def drop_value(self: Any) -> None:
    tags = self.tags.value
    tags += ["b"]


def drop_expiring(self: Any) -> None:
    tags = self.expiring.value
    tags.append("b")


def drop_entry(self: Any) -> None:
    entry = self.by["k"]
    entry.ns.append(1)


def drop_element(self: Any) -> None:
    for item in self.items:
        item["n"] = 2


def assign_all(self: Any) -> None:
    tags, expiring, entry, items = self.tags.value, self.expiring.value, self.by["k"], self.items.get()
    for some in (tags, expiring, entry.ns):
        some.append(1 if some is entry.ns else "b")
    self.tags.value, self.expiring.value, self.by["k"] = tags, expiring, entry
    items[0]["n"] = 5
    self.items.set(items)
    self.tags.value += ["c"]
    of_my_own = sorted(self.tags.value)
    of_my_own.pop()


@pytest.mark.parametrize(
    ("change", "state", "line"),
    [
        (drop_value, "tags", 'tags += ["b"]'),
        (drop_expiring, "expiring", 'tags.append("b")'),
        (drop_entry, "by", "entry.ns.append(1)"),
        (drop_element, "items", 'item["n"] = 2'),
    ],
)
def test_a_change_that_is_not_assigned_is_warned_of(change: Callable[[Any], None], state: str, line: str) -> None:
    with Harness(Changes(change), **SAID) as h:
        h.push(("x", 0))
        with pytest.warns(UserWarning, match=f"read from state '{state}' is changed") as caught:
            h.push(("x", 1), ("x", 1))
        assert len(caught) == 1
        assert line in str(caught[0].message)
        assert caught[0].filename == __file__
        # Once is enough.
        h.push(("x", 1))


def test_a_change_that_is_assigned_is_no_mistake() -> None:
    with Harness(Changes(assign_all), **SAID) as h:
        h.push(("x", 0))
        h.push(("x", 1))
        assert h.state("x")["tags"] == ["a", "b", "c"]


def test_an_expiring_value_too_refuses_a_change_of_what_is_not_held() -> None:
    change = lambda self: self.expiring.value.append("b")  # noqa: E731
    with Harness(Changes(change), **SAID) as h, pytest.raises(UserCodeError, match="a copy that is lost"):
        h.push(("x", 1))


def test_a_call_that_fails_and_is_undone_has_changed_nothing() -> None:
    def fail(self: Any) -> None:
        tags = self.tags.value
        tags.append("b")
        self.tags.value = tags
        raise ValueError("no")

    with Harness(Changes(fail), **SAID, on_error="dead-letter") as h:
        h.push(("x", 0))
        h.push(("x", 1))
        assert [letter.step for letter in h.dead_letters] == ["on_event"]


def test_a_job_looks_in_its_first_epochs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.testing.operator.math", SimpleNamespace(inf=_EPOCHS))
    looked: list[int] = []
    monkeypatch.setattr(UnsavedState, "find", lambda self: looked.append(1) or [])
    with Harness(Keeps("nothing"), **SAID) as h:
        for _ in range(2 * _EPOCHS):
            h.push(("a", 1))
    assert len(looked) == _EPOCHS
    looked.clear()
    with Harness(Keeps("nothing"), **SAID) as h:
        for _ in range(50 * _EPOCHS):
            h.push()
    assert _EPOCHS < len(looked) < 30 * _EPOCHS
