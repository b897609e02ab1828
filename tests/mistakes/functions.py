"""Process functions and stateless ones: how they are written, what they give, what they ask of their events."""

from __future__ import annotations

import bdb
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import strandline as sl
from strandline.core.errors import NullKeyError, OutputError, UserCodeError
from strandline.runtime.state import timers
from strandline.runtime.task.usererrors import refuse_breakpoint
from strandline.testing import events
from tests.mistakes.table import Mistake, Stage, mistake

EVENT = ("ann", 1, None)
USERS = events("user string, n bigint")


class Gives(sl.KeyedProcess):
    """Gives what a test says."""

    def __init__(self, gives: Callable[[Any, Any], Any]) -> None:
        self.gives = gives

    def on_event(self, event: Any, ctx: Any) -> Any:
        return self.gives(event, ctx)


def gives(
    name: str,
    what: Callable[[Any, Any], Any],
    *said: str,
    error: type[Exception] = OutputError,
    event: Any = EVENT,
    lines: int = 12,
    **more: Any,
) -> Mistake:
    """Return the mistake of an on_event that returns this."""
    return mistake(name, "run", lambda s: s.run(Gives(what), event, **more), *said, error=error, lines=lines)


def process(name: str, made: Callable[[], Any], *said: str, **more: Any) -> Mistake:
    """Return the mistake of process() with this function."""
    more = {"output": "user string, n bigint", "uid": "mine", **more}
    return mistake(name, "declaration", lambda s: USERS.key_by("user").process(made(), **more), *said)


def step(name: str, write: Callable[[Any], Any], *said: str) -> Mistake:
    """Return the mistake of a step, refused as it is written."""
    return mistake(name, "declaration", lambda s: write(USERS), *said)


def mapped(
    name: str, method: str, function: Callable[[Any], Any], *said: str, error: type[Exception] = OutputError
) -> Mistake:
    """Return the mistake of a function of rows that fails on one."""

    def program(stage: Stage) -> None:
        stage.run(getattr(USERS, method)(function, "user string, n bigint"), ("ann", 1))

    return mistake(name, "run", program, *said, error=error)


def of(**methods: Any) -> Any:
    """Return a process function with these methods."""
    return type("Mine", (sl.KeyedProcess,), methods)()


def on_event(self: Any, event: Any, ctx: Any) -> None: ...


async def on_event_async(self: Any, event: Any, ctx: Any) -> None: ...


async def stream_async(self: Any, event: Any, ctx: Any) -> Any:
    yield ctx.key, 1


async def ask(row: Any) -> Any:
    return row


def ends_with_a_number(event: Any, ctx: Any) -> Any:
    yield ctx.key, 1
    return 5


def ends_with_text(event: Any, ctx: Any) -> Any:
    yield ctx.key, 1
    return "done"


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, row: Any) -> Any:
        return row


def quit_debugger() -> None:
    raise bdb.BdbQuit


def read_nothing() -> None:
    raise EOFError("EOF when reading a line")


ROWS = "yield each row, or return a list of rows"


class Rings(sl.KeyedProcess):
    """Sets a timer for the time of the one that fires."""

    def on_event(self, event: Any, ctx: Any) -> Any:
        ctx.timers.set_processing(ctx.now)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        ctx.timers.set_processing(timer.timestamp)


class Tallies(sl.KeyedProcess):
    """Counts in an attribute."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.seen[ctx.key] = self.seen.get(ctx.key, 0) + 1
        yield ctx.key, self.seen[ctx.key]


def rings(stage: Stage) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(timers, "ENDLESS_CHAIN", 1000)
    stage.after.append(patch.undo)
    stage.run(Rings(), EVENT)


MISTAKES = [
    mistake(
        "a count in an attribute",
        "run",
        lambda s: s.run(Tallies(), EVENT),
        "Tallies changes 'self.seen' (",
        ": self.seen[ctx.key] = self.seen.get(ctx.key, 0) + 1)",
        'seen = sl.Map("string", "bigint")',
        "made in open()",
        'not_state = ("seen",)',
        error=UserCodeError,
    ),
    mistake(
        "a timer for its own time",
        "run",
        rings,
        "on_timer of Rings raised for key 'ann'",
        "each call sets the next timer",
        "ctx.timers.set_processing(timer.timestamp)",
        "set the next timer later",
        error=UserCodeError,
    ),
    # -- what is given
    gives(
        "a number returned",
        lambda e, c: 5,
        "on_event of Gives raised for key 'ann'",
        "it returned 5, a int, expected rows",
        ROWS,
    ),
    gives("True returned", lambda e, c: True, "it returned True, a bool, expected rows", ROWS),
    gives("text returned", lambda e, c: "ann", "it returned 'ann', a str, expected rows", ROWS),
    gives(
        "a bare tuple returned",
        lambda e, c: (c.key, 1),
        "it returned ('ann', 1), a tuple",
        "write return [row], or yield row",
    ),
    gives("values in a list returned", lambda e, c: [c.key, 1], "an output row is 'ann', a str", ROWS),
    gives("a DataFrame returned", lambda e, c: pd.DataFrame({"user": ["a"]}), "a DataFrame, expected rows", ROWS),
    gives("a RecordBatch returned", lambda e, c: pa.record_batch({"n": [1]}), "a RecordBatch, expected rows", ROWS),
    gives("a coroutine returned", lambda e, c: ask(e), "calls are not awaited", "write it with def"),
    gives("a number at a generator's end", ends_with_a_number, "it returned 5, a int, expected rows"),
    gives("text at a generator's end", ends_with_text, "it returned 'done', a str, expected rows"),
    gives("a column missing", lambda e, c: [{"user": "a"}], "misses n; expected the columns user, n"),
    gives(
        "a column too many", lambda e, c: {"user": "a", "n": 1, "m": 2}, "has unknown m; expected the columns user, n"
    ),
    gives("a misspelt column", lambda e, c: [{"usr": "a", "n": 1}], "misses user and has unknown usr"),
    gives("a value too few", lambda e, c: [("a",)], "has 1 values, expected 2: user, n"),
    gives("a list in place of a row", lambda e, c: [[("a", 1), ("b", 2)]], "the output column 'user' is string"),
    gives(
        "a list that is yielded",
        lambda e, c: iter([[{"user": "a", "n": 1}]]),
        "several rows in a list or tuple; expected one row",
        "yield row, not yield [row]",
    ),
    gives("None as a row", lambda e, c: [None], "an output row is None"),
    gives("text for a number", lambda e, c: [("a", "1")], "the output column 'n' is bigint", "'1' (str)"),
    gives("a float for a bigint", lambda e, c: [("a", 1.5)], "convert it with int() or round()"),
    gives("numpy's float for a bigint", lambda e, c: [("a", np.float64(1))], "the output column 'n' is bigint"),
    gives("a number that is too large", lambda e, c: [("a", 1 << 70)], "the range is"),
    gives(
        "a naive datetime", lambda e, c: [(c.now.replace(tzinfo=None),)], "it has no time zone", output="at timestamp"
    ),
    gives("a datetime for a date", lambda e, c: [(c.now,)], "take its .date()", output="on date"),
    gives(
        "a row sent aside that misfits",
        lambda e, c: c.emit("odd", {"m": 1}),
        "misses n and has unknown m",
        sides={"odd": "n int"},
    ),
    gives(
        "another side output",
        lambda e, c: c.emit("od", {"n": 1}),
        "has no side output 'od', only odd",
        sides={"odd": "n int"},
    ),
    # -- what is asked of events
    gives(
        "an unknown column",
        lambda e, c: e.usr,
        "there is no column 'usr'; there are user, n, ts",
        "did you mean 'user'?",
        error=UserCodeError,
    ),
    gives(
        "an unknown column by name",
        lambda e, c: e["usr"],
        "the record has no 'usr': the names are user, n, ts",
        error=UserCodeError,
    ),
    gives(
        "get of an event",
        lambda e, c: e.get("user"),
        "a record has no 'get': read event.user or event['user']",
        error=UserCodeError,
    ),
    gives(
        "a column that begins with _",
        lambda e, c: e._id,
        "'_id' is no attribute, as its name begins with '_'",
        "event['_id']",
        schema="user string, _id int",
        output="n int",
        event=("ann", 1),
        error=UserCodeError,
    ),
    gives(
        "a column that is a word of Python's",
        lambda e, c: getattr(e, "class"),
        "is a word of Python's: write event['class']",
        schema="user string, class int",
        output="n int",
        event=("ann", 1),
        error=UserCodeError,
    ),
    gives(
        "an event that is changed",
        lambda e, c: setattr(e, "n", 5),
        "a record never changes",
        "record._replace(n=5)",
        error=UserCodeError,
    ),
    gives(
        "an event that is changed by name",
        lambda e, c: e.__setitem__("n", 5),
        "a record never changes",
        error=UserCodeError,
    ),
    gives(
        "an event unpacked as a dict",
        lambda e, c: {**e, "n": 2},
        "an event is a row, not a dict: write {**event._asdict(), …}",
        error=UserCodeError,
    ),
    gives(
        "the event's time without a watermark",
        lambda e, ctx: ctx.timestamp.year,
        "'NoneType' object has no attribute 'year'",
        "call .watermark('column') before key_by()",
        error=UserCodeError,
    ),
    gives(
        "a package that is missing",
        lambda e, c: __import__("no_such_package"),
        "No module named 'no_such_package'",
        "install it in the Python environment of all executors",
        "addPyFile(",
        error=UserCodeError,
        lines=16,
    ),
    gives(
        "breakpoint() in a job",
        lambda e, c: refuse_breakpoint(),
        "a keeper does not have",
        "Harness",
        error=UserCodeError,
    ),
    gives("pdb without a terminal", lambda e, c: quit_debugger(), "BdbQuit", "have no terminal", error=UserCodeError),
    gives(
        "input() without a terminal", lambda e, c: read_nothing(), "EOFError", "have no terminal", error=UserCodeError
    ),
    gives(
        "a function of pyspark",
        lambda e, c: [(e.user, F.when(5, 1))],
        "are for the driver: write plain Python here",
        "broadcast()",
        error=UserCodeError,
        lines=20,
    ),
    mistake(
        "a null key",
        "run",
        lambda s: s.run(Gives(lambda e, c: None), (None, 1, None)),
        "the key column 'user' is null",
        "where(",
        error=NullKeyError,
    ),
    # -- how a function is written
    process("a class", lambda: Gives, "was given the class Gives, expected an instance", "write process(Gives(), …)"),
    process("a plain function", lambda: on_event, "was given a function, expected a KeyedProcess"),
    process("no on_event", lambda: of(), "Mine does not define on_event", "write def on_event(self, event, ctx): …"),
    process("on_envent", lambda: of(on_envent=on_event), "does not define on_event", "rename on_envent"),
    process(
        "on_timers",
        lambda: of(on_event=on_event, on_timers=on_event),
        "Mine defines on_timers, which is never called",
        "is it on_timer?",
    ),
    process(
        "on_event without ctx",
        lambda: of(on_event=lambda self, event: None),
        "on_event of Mine is called with (event, ctx), and it takes (event)",
    ),
    process(
        "on_event of three",
        lambda: of(on_event=lambda self, a, b, c: None),
        "is called with (event, ctx)",
        "missing a required argument: 'c'",
    ),
    process(
        "on_timer without ctx",
        lambda: of(on_event=on_event, on_timer=lambda self, t: None),
        "on_timer of Mine is called with (timer, ctx)",
    ),
    process(
        "open of two", lambda: of(on_event=on_event, open=lambda self, ctx: None), "open of Mine is called with ()"
    ),
    process(
        "an async on_event",
        lambda: of(on_event=on_event_async),
        "on_event of Mine is an async function",
        "write it with def",
    ),
    process("an async generator", lambda: of(on_event=stream_async), "on_event of Mine is an async function"),
    process(
        "timers of a batch function",
        lambda: type("B", (sl.KeyedBatchProcess,), {"on_batch": on_event, "on_timer": on_event})(),
        "which has no timers",
    ),
    process("no uid", lambda: of(on_event=on_event), "has no uid", "uid='totals'", uid=""),
    process(
        "a misspelt output",
        lambda: of(on_event=on_event),
        "operator 'mine': output: cannot read the schema",
        "'bigit' is no type",
        output="n bigit",
    ),
    process(
        "an output without types",
        lambda: of(on_event=on_event),
        "operator 'mine': output: cannot read the schema: expected a type",
        output="user, n",
    ),
    process(
        "an output of Python's",
        lambda: of(on_event=on_event),
        "operator 'mine': output is {'n': <class 'int'>}",
        output={"n": int},
    ),
    process(
        "an output column twice",
        lambda: of(on_event=on_event),
        "another field is named 'n'",
        output="n int, n int",
    ),
    process(
        "sides as a list", lambda: of(on_event=on_event), "sides is ['late'], expected schemas by name", sides=["late"]
    ),
    process(
        "a side's misspelt type",
        lambda: of(on_event=on_event),
        "the side output 'late': cannot read the schema",
        sides={"late": "n nit"},
    ),
    process("parallelism of 0", lambda: of(on_event=on_event), "mine", "parallelism", parallelism=0),
    process(
        "parallelism as text", lambda: of(on_event=on_event), "parallelism is '4', expected a number", parallelism="4"
    ),
    process(
        "a lock in __init__",
        lambda: Gives(threading.Lock().acquire),
        "Gives cannot be shipped to other processes",
        "open()",
    ),
    # -- functions of rows
    step(
        "map of nothing",
        lambda u: u.map(None, "n int"),
        "map: the function is None, expected a function",
        'write map(function, "user string, n int")',
    ),
    step(
        "map of a process function",
        lambda u: u.map(Gives(on_event), "n int"),
        "map: the function is",
        "expected a function",
    ),
    step(
        "map of two arguments",
        lambda u: u.map(lambda a, b: a, "n int"),
        "map: the function is called with (row), and it takes (a, b)",
    ),
    step("map of an async function", lambda u: u.map(ask, "n int"), "map: the function is an async function"),
    step(
        "map of what cannot be sent",
        lambda u: u.map(Locked(), "n int"),
        "map: the function cannot be sent to other processes",
        "open() of a KeyedProcess",
    ),
    step("map without a schema", lambda u: u.map(len, 5), "map: output is 5, expected a schema in Spark DDL"),
    step(
        "flat_map's misspelt type",
        lambda u: u.flat_map(len, "n itn"),
        "flat_map: output: cannot read the schema",
        "'itn' is no type",
    ),
    step(
        "where with a lambda",
        lambda u: u.where(lambda row: row.n > 1),
        "where() was given a function, expected SQL or a Column",
        "flat_map(lambda row:",
    ),
    step(
        "where with a bool", lambda u: u.where("a" == "b"), "where() was given False, a bool, expected SQL or a Column"
    ),
    step("select with a lambda", lambda u: u.select(lambda row: row.n), "select() was given a function"),
    step("select with a number", lambda u: u.select(5), "select() was given 5, a int", "F.lit(5)"),
    step(
        "with_column with text",
        lambda u: u.with_column("m", "n + 1"),
        "with_column() was given 'n + 1', a str, expected a Column",
        "F.",
    ),
    mapped("map that returns a number", "map", lambda row: 5, "map: an output row is 5, a int"),
    mapped("map that returns nothing", "map", lambda row: None, "map: an output row is None"),
    mapped(
        "map that returns a list of rows",
        "map",
        lambda row: [row, row, row],
        "map: the output row",
        "has 3 values, expected 2",
    ),
    mapped(
        "flat_map that returns a number",
        "flat_map",
        lambda row: 5,
        "flat_map: the function raised on the row",
        "it returned 5, a int, expected rows",
    ),
    mapped("flat_map that returns a bare tuple", "flat_map", lambda row: ("a", 1), "write return [row], or yield row"),
    mapped(
        "map of an unknown column",
        "map",
        lambda row: row.usr,
        "map: the function raised on the row",
        "there is no column 'usr'",
        error=UserCodeError,
    ),
    mapped(
        "map that raises",
        "map",
        lambda row: row.n // 0,
        "map: the function raised on the row",
        "ZeroDivisionError",
        error=UserCodeError,
    ),
]
