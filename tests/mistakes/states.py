"""State: declared wrongly, used as if it were its value, used where there is no key."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable
from typing import Any

import strandline as sl
from strandline.core.errors import StateTypeError, UserCodeError
from strandline.testing import events
from tests.mistakes.table import Mistake, Stage, mistake

EVENT = ("ann", 1, None)


class Stateful(sl.KeyedProcess):
    """Does with its states what a test says."""

    n = sl.Value("bigint", default=0)
    bare = sl.Value("bigint")
    pairs = sl.List("struct<a: int, b: string>")
    kept = sl.Value("bigint", ttl=sl.TTL("1h"))
    pair = sl.Value("struct<a: int, b: string>")
    items = sl.List("string")
    by = sl.Map("string", "bigint")
    tags = sl.Value("array<string>", default=["a"])
    lists = sl.Map("string", "array<bigint>")
    top = sl.Reducing("bigint", max)
    mean = sl.Aggregating("bigint", create=lambda: 0, add=lambda acc, x: acc + x)
    seen = sl.Aggregating("array<bigint>", create=list, add=lambda acc, x: acc.append(x))
    lost = sl.Reducing("array<bigint>", lambda all, x: all.extend(x))

    def __init__(self, does: Callable[[Any, Any, Any], Any]) -> None:
        self.does = does

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.does(self, event, ctx)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        self.does(self, timer, ctx)


def used(
    name: str, does: Callable[[Any, Any, Any], Any], *said: str, error: type[Exception] = UserCodeError
) -> Mistake:
    """Return the mistake of an on_event that does this with its states."""
    return mistake(
        name, "run", lambda s: s.run(Stateful(does), EVENT), "operator 'operator': on_event of", *said, error=error
    )


def declared(name: str, declare: Callable[[], Any], *said: str) -> Mistake:
    """Return the mistake of a declaration that is refused by itself."""
    return mistake(name, "declaration", lambda s: declare(), *said)


def in_class(name: str, said: tuple[str, ...], base: type = sl.KeyedProcess, **states: Any) -> Mistake:
    """Return the mistake of a class with these states, refused when it is used."""

    def program(stage: Stage) -> None:
        body = {"on_event": lambda self, event, ctx: None, "on_batch": lambda self, batch, ctx: None, **states}
        stage.place = "declaration"
        kind: Any = type("Mine", (base,), body)
        events("user string").key_by("user").process(kind(), output="user string", uid="mine")

    return mistake(name, "declaration", program, *said)


class Assigns(sl.KeyedProcess):
    n = sl.Value("bigint")

    def __init__(self) -> None:
        self.n = 0  # type: ignore[assignment]

    def on_event(self, event: Any, ctx: Any) -> Any: ...


class Declares(sl.KeyedProcess):
    def __init__(self) -> None:
        self.n = sl.Value("bigint")

    def on_event(self, event: Any, ctx: Any) -> Any: ...


class Reads(sl.KeyedProcess):
    n = sl.Value("bigint")

    def __init__(self) -> None:
        self.first = self.n.value

    def on_event(self, event: Any, ctx: Any) -> Any: ...


class Opens(sl.KeyedProcess):
    n = sl.Value("bigint")
    by = sl.Map("string", "bigint")
    items = sl.List("bigint")

    def __init__(self, does: Callable[[Any], Any]) -> None:
        self.does = does

    def open(self) -> None:
        self.does(self)

    def on_event(self, event: Any, ctx: Any) -> Any: ...


class Rings(sl.KeyedProcess):
    def on_event(self, event: Any, ctx: Any) -> Any:
        ctx.timers.set_processing(ctx.now)


class Closes(sl.KeyedProcess):
    n = sl.Value("bigint")

    def on_event(self, event: Any, ctx: Any) -> Any: ...

    def close(self) -> None:
        self.n.value = 1


def opened(name: str, does: Callable[[Any], Any]) -> Mistake:
    """Return the mistake of an open() that uses the state of a key."""
    said = "open of Opens raised", "outside of an event", "there is no key", "use state in on_event and on_timer"
    return mistake(name, "start", lambda s: s.run(Opens(does)), *said, error=UserCodeError)


def timed(name: str, at: Callable[[Any], Any], *said: str) -> Mistake:
    """Return the mistake of a timer for a time that is none."""
    return used(
        name,
        lambda self, event, ctx: ctx.timers.set_processing(at(ctx)),
        "a timer's time is",
        *said,
        error=StateTypeError,
    )


def _assign(self: Any, name: str, value: Any) -> None:
    setattr(self, name, value)


VALUE = "the Value state itself, not its value"


def change_in_place(self: Any, event: Any, ctx: Any) -> None:
    self.tags.value[0] = "b"


def add_to_nothing(self: Any, event: Any, ctx: Any) -> None:
    self.bare.value += 1


def append_to_an_entry(self: Any, event: Any, ctx: Any) -> None:
    self.lists["a"] = [1]
    self.lists["a"].append(2)


COUNT = sl.Value("bigint")
LOST = "changes a copy that is lost: the state stays as it was"

MISTAKES = [
    # -- what was read is changed, and nobody has it
    used(
        "append to what was read",
        lambda self, e, ctx: self.tags.value.append("b"),
        "state 'tags': append()",
        LOST,
        "write x = self.tags.value, change x, and then self.tags.value = x",
    ),
    used("pop from what was read", lambda self, e, ctx: self.tags.value.pop(), "state 'tags': pop()", LOST),
    used("an element of what was read", change_in_place, "state 'tags': […] = …", LOST),
    used("append to an entry", append_to_an_entry, "state 'lists': append()", LOST, "self.lists[key] = x"),
    used("setdefault and append", lambda self, e, ctx: self.lists.setdefault("a", []).append(1), LOST),
    used(
        "append to a copy of a list",
        lambda self, e, ctx: self.items.get().append("b"),
        LOST,
        "write self.items.append(…)",
    ),
    # -- a handle taken for its value
    used(
        "if on a value",
        lambda self, e, c: 1 if self.n else 2,
        "state 'n' was used with if",
        VALUE,
        "write self.n.value",
    ),
    used("not on a value", lambda self, e, c: not self.n, "used with if", "write self.n.value"),
    used("or on a value", lambda self, e, c: self.n or 0, "used with if", "write self.n.value"),
    used("value == 0", lambda self, e, c: self.n == 0, "state 'n' was used with ==", "write self.n.value"),
    used("value != 0", lambda self, e, c: self.n != 0, "used with !=", "write self.n.value"),
    used("value < 3", lambda self, e, c: self.n < 3, "used with <", "write self.n.value"),
    used("3 > value", lambda self, e, c: 3 > self.n, "write self.n.value"),  # noqa: SIM300
    used("value in a list", lambda self, e, c: self.n in [1, 2], "used with ==", "write self.n.value"),
    used("value in a set", lambda self, e, c: self.n in {1, 2}, "used with hash()", "write self.n.value"),
    used("value + 1", lambda self, e, c: self.n + 1, "used with +", "write self.n.value"),
    used("1 + value", lambda self, e, c: 1 + self.n, "used with +", "write self.n.value"),
    used("value += 1", lambda self, e, c: exec("self.n += 1", {"self": self}), "used with +", "write self.n.value"),
    used("-value", lambda self, e, c: -self.n, "used with -", "write self.n.value"),
    used("value ** 2", lambda self, e, c: self.n**2, "used with **", "write self.n.value"),
    used("len of a value", lambda self, e, c: len(self.n), "used with len()", "write self.n.value"),
    used("for over a value", lambda self, e, c: [2 * x for x in self.n], "used with for", "write self.n.value"),
    used("in a value", lambda self, e, c: 1 in self.n, "used with in", "write self.n.value"),
    used("value[0]", lambda self, e, c: self.pair[0], "used with […]", "write self.pair.value"),
    used(
        "value['a'] = 1", lambda self, e, c: self.pair.__setitem__("a", 1), "used with […] = …", "write self.pair.value"
    ),
    used("int of a value", lambda self, e, c: int(self.n), "used with int()", "write self.n.value"),
    used("value in an f-string", lambda self, e, c: f"{self.n}", "write self.n.value"),
    used("str of a value", lambda self, e, c: str(self.n), "used with str()", "write self.n.value"),
    used("a value called", lambda self, e, c: self.n(), "used with ()", "write self.n.value"),
    used(
        "if on a value that expires", lambda self, e, c: 1 if self.kept else 2, "state 'kept'", "write self.kept.value"
    ),
    used(
        "if on a reducing", lambda self, e, c: 1 if self.top else 2, "the Reducing state itself", "write self.top.value"
    ),
    used("reducing > 3", lambda self, e, c: self.top > 3, "write self.top.value"),
    used(
        "aggregating + 1", lambda self, e, c: self.mean + 1, "the Aggregating state itself", "write self.mean.result()"
    ),
    used(
        "aggregating that appends",
        lambda self, e, c: self.seen.add(1),
        "state 'seen': its add function gave None, expected the new accumulator",
        "[*acc, x] is a new one",
        error=StateTypeError,
    ),
    used(
        "reducing that extends",
        lambda self, e, c: [self.lost.add([1]) for _ in range(2)],
        "state 'lost': its reduce function gave None, expected the new value",
        error=StateTypeError,
    ),
    used("list == []", lambda self, e, c: self.items == [], "the List state itself", "self.items.get()"),
    used(
        "list + list",
        lambda self, e, c: operator.add(self.items, ["x"]),
        "used with +",
        "self.items.get()",
        "self.items.set(…)",
    ),
    used("list[0] = x", lambda self, e, c: self.items.__setitem__(0, "x"), "self.items.set(…)"),
    used("map + map", lambda self, e, c: self.by + {}, "the Map state itself", "dict(self.by)"),
    used(
        "a value without a default",
        add_to_nothing,
        "unsupported operand type(s) for +",
        "declare it with a default",
        "or test for None",
    ),
    # -- names that a handle does not have
    used("Spark's get", lambda self, e, c: self.n.get(), "state 'n' is a Value, which has no 'get'; it has .value"),
    used("Spark's update", lambda self, e, c: self.n.update(5), "which has no 'update'", "exists() and clear()"),
    used(
        "val for value",
        lambda self, e, c: _assign(self.n, "val", 5),
        "a Value state has no 'val' to assign to",
        ".value",
    ),
    used(
        "put on a map",
        lambda self, e, c: self.by.put("a", 1),
        "state 'by' is a Map, which has no 'put'",
        "what a dict has",
    ),
    used("add on a list", lambda self, e, c: self.items.add("x"), "is a List, which has no 'add'", "append()"),
    used("value of an aggregating", lambda self, e, c: self.mean.value, "has no 'value'; it has add(), result()"),
    used("get_many of an event's function", lambda self, e, c: self.n.get_many([1]), "KeyedBatchProcess"),
    # -- values that do not fit
    used(
        "text into a bigint",
        lambda self, e, c: _assign(self.n, "value", "5"),
        "state 'n'",
        "expected bigint",
        "'5'",
        error=StateTypeError,
    ),
    used(
        "float into a bigint",
        lambda self, e, c: _assign(self.n, "value", 5.5),
        "convert it with int()",
        error=StateTypeError,
    ),
    used(
        "bool into a bigint",
        lambda self, e, c: _assign(self.n, "value", True),
        "a boolean is no number",
        error=StateTypeError,
    ),
    used(
        "a missing field", lambda self, e, c: _assign(self.pair, "value", {"a": 1}), "it misses b", error=StateTypeError
    ),
    used(
        "an unknown field",
        lambda self, e, c: _assign(self.pair, "value", {"a": 1, "b": "", "c": 2}),
        "it has unknown c",
        error=StateTypeError,
    ),
    used(
        "a number as a map's key",
        lambda self, e, c: self.by.__setitem__(5, 1),
        "state 'by'",
        "expected string",
        error=StateTypeError,
    ),
    used(
        "a field of a list's element",
        lambda self, e, c: self.pairs.append((1, 2)),
        "an element does not fit the declared type struct<a:int,b:string>: expected string at .b, got 2 (int)",
        error=StateTypeError,
    ),
    used(
        "a list's element",
        lambda self, e, c: self.items.append(5),
        "state 'items': an element does not fit the declared type string: expected string, got 5 (int)",
        error=StateTypeError,
    ),
    used(
        "a state assigned to",
        lambda self, e, c: _assign(self, "n", 5),
        "would replace the state itself",
        "write self.n.value = …",
    ),
    used("a map assigned to", lambda self, e, c: _assign(self, "by", {}), "write self.by[key] = …"),
    # -- where there is no key
    mistake(
        "assigned in __init__", "start", lambda s: s.run(Assigns()), "Assigns assigns to its state 'n'", "default="
    ),
    mistake(
        "declared in __init__",
        "start",
        lambda s: s.run(Declares()),
        "declares its state 'n' in __init__",
        "n = sl.Value(…)",
    ),
    mistake(
        "read in __init__",
        "declaration",
        lambda s: Reads(),
        "state 'n' was used outside of a running job",
        "use it in on_event",
    ),
    opened("value in open()", lambda self: self.n.value),
    opened("value set in open()", lambda self: _assign(self.n, "value", 1)),
    opened("map in open()", lambda self: self.by.get("x")),
    opened("map's length in open()", lambda self: len(self.by)),
    opened("list in open()", lambda self: self.items.append(1)),
    mistake(
        "value in close()",
        "run",
        lambda s: s.run(Closes(), EVENT),
        "close of Closes raised",
        "there is no key",
        error=UserCodeError,
    ),
    # -- declarations
    declared(
        "a type of Python's",
        lambda: sl.Value(int),
        "Value: its type is <class 'int'>",
        "'bigint' is one whose values are int",
    ),  # type: ignore[arg-type]
    declared("no type", lambda: sl.Value(""), "expected a Spark DDL type", "write it like 'bigint'"),
    declared("a number as type", lambda: sl.List(5), "List: its type is 5"),  # type: ignore[arg-type]
    declared("ttl as text", lambda: sl.Value("int", ttl="1h"), "its ttl is '1h', expected a TTL", "ttl=TTL('1h')"),  # type: ignore[arg-type]
    declared("ttl of nothing", lambda: sl.TTL("0s"), "TTL: its duration is '0s'", "write it like '30 min'"),
    declared("ttl without unit", lambda: sl.TTL("soon"), "TTL: its duration is 'soon', expected a duration", "'10s'"),
    declared("ttl refreshed never", lambda: sl.TTL("1h", refresh="never"), "expected 'write' or 'read'"),  # type: ignore[arg-type]
    declared("ttl by another time", lambda: sl.TTL("1h", time="system"), "expected 'processing' or 'event'"),  # type: ignore[arg-type]
    declared(
        "was of nothing", lambda: sl.Value("int", was=""), "expected the attribute that the state was declared as"
    ),
    declared("renamed as a list", lambda: sl.Value("int", renamed=["a"]), "expected a dict by fields' paths"),  # type: ignore[arg-type]
    in_class(
        "a misspelt type", ("state 'it' of Mine: cannot read the type", "'bigintt' is no type"), it=sl.Value("bigintt")
    ),
    in_class("an open bracket", ("state 'it' of Mine", "expected"), it=sl.List("array<int")),
    in_class("a default that misfits", ("state 'it' of Mine", "'x'"), it=sl.Value("int", default="x")),
    in_class(
        "a map's key that is an array",
        ("state 'it' of Mine", "arrays and maps cannot be keys"),
        it=sl.Map("array<int>", "int"),
    ),
    in_class(
        "a list in a batch function",
        ("can only have Value states", "use Value with a struct"),
        sl.KeyedBatchProcess,
        it=sl.List("int"),
    ),
    in_class(
        "a broadcast without rules", ("which only a KeyedBroadcastProcess has",), it=sl.Broadcast("string", "int")
    ),
    in_class(
        "a ttl by event time without one",
        ("expires by event time", 'watermark("column")'),
        it=sl.Value("int", ttl=sl.TTL("1h", time="event")),
    ),
    in_class(
        "two that were one",
        ("was 'x', and so was", "leave was= out"),
        a=sl.Value("int", was="x"),
        b=sl.Value("int", was="x"),
    ),
    in_class("renamed in no struct", ("renamed names 'b'",), it=sl.Value("struct<a: int>", renamed={"b": "c"})),
    in_class(
        "a state named open",
        ("Mine declares a state 'open', which is a name of KeyedProcess", "such as open_state"),
        open=sl.Value("int"),
    ),
    in_class("a state named on_timer", ("declares a state 'on_timer'",), on_timer=sl.Map("int", "int")),
    in_class("a state of batches named close", ("a name of KeyedBatchProcess",), sl.KeyedBatchProcess, close=COUNT),
    in_class(
        "a colon for =",
        ("Mine declares no state 'n': a colon gives only a type", "n = sl.Value(…)"),
        __annotations__={"n": COUNT},
    ),
    in_class("a colon for = in text", ("declares no state 'n'",), __annotations__={"n": 'sl.Value("bigint")'}),
    in_class("a kind of state as annotation", ("declares no state 'n'",), __annotations__={"n": sl.Map[str, int]}),
    # -- timers
    timed("a timer after a number", lambda ctx: 5000, "5000", "ctx.now + timedelta(seconds=5000)", "5000 / 1000"),
    timed("a timer after a duration", lambda ctx: dt.timedelta(seconds=5), "write ctx.timestamp + "),
    timed("a timer at a time without zone", lambda ctx: dt.datetime(2024, 1, 1), "without a zone", "timezone.utc"),
    timed("a timer at text", lambda ctx: "10s", "'10s', a str", "ctx.now + timedelta"),
    used(
        "a timer of event time without one",
        lambda self, e, c: c.timers.set(c.now),
        "the stream has no event time",
        'watermark("column")',
    ),
    mistake(
        "a timer without on_timer",
        "run",
        lambda s: s.run(Rings(), EVENT),
        "Rings does not define on_timer: write def on_timer(self, timer, ctx)",
        error=UserCodeError,
    ),
    used(
        "a name that timers do not have",
        lambda self, e, c: c.timers.register(c.now),
        "ctx.timers has no 'register'; it has set(at)",
    ),
    used("a name that ctx does not have", lambda self, e, c: c.current_key, "ctx has no 'current_key'; it has key"),
    used("a side that is not declared", lambda self, e, c: c.emit("late", {}), "no side output 'late'", "sides="),
]
