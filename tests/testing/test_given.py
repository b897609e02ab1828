"""What a function gives is taken as it is at that moment, however it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.runtime.output_rows import frozen, row_copier
from strandline.runtime.task.outputs import OutputBuilder
from strandline.testing import Harness, events
from strandline.types.datatypes import parse_schema
from strandline.types.records import record_type

Row = record_type(("user", "n"))


class Gives(sl.KeyedProcess):
    kept = sl.Map("string", "bigint")
    seen = sl.List("bigint")

    def __init__(self, gives: Callable[[Any, Any, Any], Any]) -> None:
        self.gives = gives

    def on_event(self, event: Any, ctx: Any) -> Any:
        return self.gives(self, event, ctx)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        return self.gives(self, None, ctx)


def run(
    gives: Callable[[Any, Any, Any], Any], *users: str, output: str = "user string, n bigint", **said: Any
) -> list[Any]:
    with Harness(Gives(gives), schema="user string", key="user", output=output, **said) as h:
        return [tuple(row) for row in h.push(*((user,) for user in users or ("ann",)))]


def ending(self: Any, event: Any, ctx: Any) -> Any:
    yield ctx.key, 1
    return [(ctx.key, 2), {"user": ctx.key, "n": 3}]


def ending_in_another(self: Any, event: Any, ctx: Any) -> Any:
    if self is not None:
        yield "first", 0
    return ending(self, event, ctx)


def ending_early(self: Any, event: Any, ctx: Any) -> Any:
    if event is not None:
        return {"user": ctx.key, "n": 7}
    yield ctx.key, 8


@pytest.mark.parametrize(
    ("gives", "rows"),
    [
        (ending, [("ann", 1), ("ann", 2), ("ann", 3)]),
        (ending_in_another, [("first", 0), ("ann", 1), ("ann", 2), ("ann", 3)]),
        (ending_early, [("ann", 7)]),
        (lambda self, e, c: {"n": 1, "user": c.key}, [("ann", 1)]),
        (lambda self, e, c: Row._make((c.key, 1)), [("ann", 1)]),
        (lambda self, e, c: ((c.key, 1), (c.key, 2)), [("ann", 1), ("ann", 2)]),
        (lambda self, e, c: zip((c.key, c.key), range(2), strict=True), [("ann", 0), ("ann", 1)]),
        (lambda self, e, c: [[c.key, 1]], [("ann", 1)]),
        (lambda self, e, c: (), []),
        (lambda self, e, c: {}, "misses user, n"),
        (lambda self, e, c: None, []),
    ],
)
def test_rows_however_they_are_given(gives: Any, rows: Any) -> None:
    if isinstance(rows, str):
        with pytest.raises(sl.errors.OutputError, match=rows):
            run(gives)
    else:
        assert run(gives) == rows


def one_dict(self: Any, event: Any, ctx: Any) -> Any:
    row: Any = {"user": ctx.key}
    for n in range(3):
        row["n"] = n
        yield row
    row.clear()


def one_list(self: Any, event: Any, ctx: Any) -> Any:
    row = [ctx.key, 0]
    for n in range(3):
        row[1] = n
        yield row


@pytest.mark.parametrize("gives", [one_dict, one_list])
@pytest.mark.parametrize("said", [{}, {"event_time": "at"}])
def test_a_row_is_taken_as_it_is_when_it_is_given(gives: Any, said: dict[str, Any]) -> None:
    schema = "user string, at timestamp" if said else "user string"
    with Harness(Gives(gives), schema=schema, key="user", output="user string, n bigint", **said) as h:
        rows = h.push({"user": "ann"}, {"user": "bob"})
    assert rows == [(user, n) for user in ("ann", "bob") for n in range(3)]


def one_tags(self: Any, event: Any, ctx: Any) -> Any:
    tags: list[Any] = []
    by: dict[str, Any] = {}
    for n in range(2):
        tags.append([n])
        by["n"] = n
        yield ctx.key, tags, by, {"a": tags[-1]}
        tags[-1].append(9)


def test_so_is_what_is_in_it() -> None:
    output = "user string, tags array<array<int>>, by map<string, int>, s struct<a: array<int>>"
    assert run(one_tags, output=output) == [
        ("ann", [[0]], {"n": 0}, ([0],)),
        ("ann", [[0, 9], [1]], {"n": 1}, ([1],)),
    ]


def give_state(self: Any, event: Any, ctx: Any) -> Any:
    self.kept[ctx.key] = len(self.kept)
    yield {"user": ctx.key, "kept": self.kept}


def test_a_map_that_is_state_is_given_as_the_keys_own() -> None:
    """Not as that of the key which happens to be the last one when rows are put together."""
    rows = run(give_state, "ann", "bob", output="user string, kept map<string, bigint>")
    assert rows == [("ann", {"ann": 0}), ("bob", {"bob": 0})]


def aside(self: Any, event: Any, ctx: Any) -> None:
    row = {"n": 0}
    for n in range(3):
        row["n"] = n
        ctx.emit("odd", row)


def test_so_are_rows_that_are_sent_aside() -> None:
    with Harness(Gives(aside), schema="user string", key="user", output="n int", sides={"odd": "n int"}) as h:
        h.push(("ann",))
        assert h.side("odd") == [(0,), (1,), (2,)]


def timers(self: Any, event: Any, ctx: Any) -> Any:
    if event is not None:
        ctx.timers.set_processing(ctx.now)
        return None
    return one_dict(self, event, ctx)


def test_so_are_rows_of_timers_and_of_steps_and_of_windows() -> None:
    with Harness(Gives(timers), schema="user string", key="user", output="user string, n bigint") as h:
        assert h.push(("ann",)) + h.tick() == [("ann", 0), ("ann", 1), ("ann", 2)]
    users = events("user string, at timestamp").watermark("at")
    with Harness(users.flat_map(lambda row: one_dict(None, None, Keyed(row.user)), "user string, n bigint")) as h:
        assert h.push(("ann", h.now)) == [("ann", 0), ("ann", 1), ("ann", 2)]
        assert Harness(users.map(lambda row: {"n": 5}, "n int")).push(("ann", h.now)) == [(5,)]
    window = users.key_by("user").window(sl.Tumbling("10s"))
    with Harness(window.process(rows_of_window, "tags array<bigint>", uid="w")) as h:
        h.push(("ann", h.now))
        assert [row.tags for row in h.advance_watermark(h.now.replace(second=20))] == [[0], [0, 1], [7]]


class Keyed:
    def __init__(self, key: str) -> None:
        self.key = key


def rows_of_window(key: Any, window: Any, events: Any) -> Any:
    tags: list[int] = []
    for n in range(2):
        tags.append(n)
        yield {"tags": tags}
    return {"tags": [7]}


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


def scramble(value: Any) -> None:
    """Change everything in a value that can be changed."""
    for part in list(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()):
        scramble(part)
    if isinstance(value, list | dict):
        value.clear()


@given(values)
def test_what_is_frozen_is_equal_and_stays_so(value: Any) -> None:
    before, taken = repr(value), frozen(value)
    scramble(value)
    assert repr(taken) == before


def test_what_is_frozen_of_other_libraries() -> None:
    array, data = np.array([1, 2]), bytearray(b"ab")
    taken = frozen((array, data, Row._make(([1], 2))))
    array[0], data[0] = 9, 0
    assert taken[0].tolist() == [1, 2]
    assert taken[1:] == (b"ab", ([1], 2))
    assert taken[2].user == [1]
    plain = (1, ("a", b"b"), Row._make((1, 2)))
    assert frozen(plain) is plain


@given(st.permutations(["a", "b", "c"]), st.integers(0, 3))
def test_dicts_become_tuples_only_if_they_fit(names: list[str], left_out: int) -> None:
    """The others go on as they are, to be refused where all rows are looked at."""
    schema = parse_schema("a int, b int, c int")
    plain, taken = row_copier(schema.names, [field.type for field in schema.fields])
    row = {name: at for at, name in enumerate(names[left_out:])}
    found = taken(row)
    assert plain is tuple
    assert found == ((row["a"], row["b"], row["c"]) if not left_out else row)
    assert found is not row


def test_a_row_with_names_is_matched_by_them_in_columns_that_hold_lists_too() -> None:
    build = OutputBuilder("op", parse_schema("k string, tags array<int>"))
    swapped = record_type(("tags", "k"))._make(([1], "a"))
    assert build.from_rows([build.copied(swapped)]).to_pylist() == [{"k": "a", "tags": [1]}]


class Puts(sl.KeyedBatchProcess):
    total = sl.Value("bigint")

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make

    def on_batch(self, batch: Any, ctx: Any) -> Any:
        self.total.put_many(ctx.keys, self.make(batch.column("n")), last=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda column: column,
        lambda column: pa.chunked_array([column]),
        lambda column: column.to_pylist(),
        lambda column: tuple(column.to_pylist()),
        lambda column: column.to_numpy(),
        lambda column: column.to_numpy().astype(np.int32),
        lambda column: column.to_pandas(),
    ],
)
def test_values_of_batches_however_they_are_given(make: Any) -> None:
    with Harness(Puts(make), schema="user string, n bigint", key="user", output="n bigint") as h:
        h.push(("ann", 1), ("bob", 2), ("ann", 3))
        assert [h.state(user) for user in ("ann", "bob")] == [{"total": 3}, {"total": 2}]
