"""Rows that Python has no values for, in each operator: they leave dead letters, and nothing else of them is seen."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.testing import Harness, events
from strandline.testing.events import AT
from strandline.types.columns import build, to_arrow_type, to_readable

ROW = "k string, v string, tags array<struct<tag: string>>, at timestamp, n bigint, ts timestamp"
PLAIN = "k binary, v binary, tags array<struct<tag: binary>>, at bigint, n bigint, ts bigint"
OUT = "k string, said string"
SECOND = 1_000_000
FAR = 1 << 62
GOOD = [(b"a", b"1", [(b"x",)], 5, n, n * SECOND) for n in range(3)] + [(b"b", None, None, None, 3, 3 * SECOND)]
BAD = [
    (b"\xff", b"2", [(b"x",)], 5, 10, SECOND),
    (b"a", b"\xfe\xff", None, 5, 11, SECOND),
    (b"a", b"3", [(b"x",), (b"\xed\xa0\x80",)], 5, 12, SECOND),
    (b"b", b"4", [], FAR, 13, SECOND),
]
ALL = [GOOD[0], *BAD[:2], *GOOD[1:3], *BAD[2:], GOOD[3]]
Rows = Sequence[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def as_spark_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have harnesses take strings as bytes and times as numbers, and place keys that are no strings anywhere."""
    plain, types = events(PLAIN)._node.columns.schema("test"), events(ROW)._node.columns.schema("test")

    def rows(self: Any, given: Sequence[tuple[int, Any]]) -> pa.RecordBatch:
        columns = [
            build([event[at] for _, event in given], field.type).view(to_arrow_type(wanted.type))
            for at, (field, wanted) in enumerate(zip(plain.fields, types.fields, strict=True))
        ]
        places = pa.array([at for at, _ in given], pa.int64())
        return pa.RecordBatch.from_arrays([*columns, places], names=[*types.names, AT])

    def keys(array: pa.Array, kind: Any) -> list[Any]:
        return ["?" if isinstance(key, bytes) else key for key in to_readable(array, kind)] if len(array) else []

    monkeypatch.setattr(sys.modules["strandline.testing.events"].Events, "rows", rows)
    monkeypatch.setattr("strandline.testing.operator.to_python", keys)


class Keeping(sl.KeyedProcess):
    """Keeps what it is given, in states of each kind."""

    last = sl.Value("struct<v: string, at: timestamp>")
    seen = sl.List("string")
    tags = sl.Map("string", "array<struct<tag: string>>")

    def on_event(self, event: Any, ctx: Any) -> Any:
        before = self.last.value
        self.last.value = event.v, event.at
        self.seen.append(event.v or "")
        self.tags[event.v or ""] = event.tags or []
        yield ctx.key, repr((before, self.seen.get(), sorted(self.tags)))


class Both(sl.KeyedCoProcess):
    """Says which events it is given."""

    def on_left(self, event: Any, ctx: Any) -> Any:
        yield ctx.key, f"left {event.n}"

    def on_right(self, event: Any, ctx: Any) -> Any:
        yield ctx.key, f"right {event.n}"


class Ruled(sl.KeyedBroadcastProcess):
    """Says which rules it has heard of."""

    rules = sl.Broadcast("string", "bigint")

    def on_broadcast(self, event: Any, ctx: Any) -> None:
        self.rules[event.v or ""] = event.n

    def on_event(self, event: Any, ctx: Any) -> Any:
        yield ctx.key, repr((event.n, sorted(self.rules)))


def source(name: str) -> sl.Stream:
    return events(ROW, name).watermark("ts", "60s")


def keyed(name: str = "left") -> Any:
    return source(name).key_by("k")


def minute() -> Any:
    return keyed().window(sl.Tumbling("1 min"))


def listed(key: Any, window: Any, found: list[Any]) -> Any:
    yield (repr(list(map(tuple, found))),)


AB: Any = {"prefixes": ("a_", "b_"), "uid": "op"}
ONE: dict[str, Callable[[Any], sl.Stream]] = {
    "process": lambda on: keyed().process(Keeping(), output=OUT, uid="op", on_error=on),
    "map": lambda on: source("left").map(lambda row: (row.k, repr(tuple(row))), OUT, on_error=on),
    "map_async": lambda on: source("left").map_async(
        lambda row: (row.k, repr(tuple(row))), OUT, concurrency=2, on_error=on
    ),
    "fold": lambda on: keyed().fold("said string", "", lambda said, e: said + str(e.n), uid="op", on_error=on),
    "reduce": lambda on: keyed().reduce(lambda a, b: b, uid="op", on_error=on),
    "window": lambda on: minute().process(listed, output="said string", uid="op", on_error=on),
    "session": lambda on: keyed().window(sl.Session("9s")).process(listed, output="said string", uid="op", on_error=on),
}
AGGREGATED: dict[str, Callable[[Any], sl.Stream]] = {
    name: lambda on, of=of: of().agg(  # type: ignore[misc]
        n=sl.agg.count(),
        top=sl.agg.max("v"),
        tags=sl.agg.last("tags"),
        at=sl.agg.collect_set("at"),
        uid="op",
        on_error=on,
    )
    for name, of in {
        "running": keyed,
        "windowed": minute,
        "sessions": lambda: keyed().window(sl.Session("9s")),
        "counted": lambda: keyed().window(sl.Global(count=2)),
    }.items()
}
TWO: dict[str, Callable[[Any], sl.Stream]] = {
    "join": lambda on: keyed().join(keyed("right"), ("-9s", "9s"), how="full", on_error=on, **AB),
    "window_join": lambda on: keyed().window_join(keyed("right"), sl.Tumbling("1 min"), how="full", on_error=on, **AB),
    "as_of_join": lambda on: keyed().as_of_join(keyed("right"), how="left", on_error=on, **AB),
    "connect": lambda on: keyed().connect(keyed("right")).process(Both(), output=OUT, uid="op", on_error=on),
    "broadcast": lambda on: (
        keyed().broadcast(source("right"), order_by="n").process(Ruled(), output=OUT, uid="op", on_error=on)
    ),
}


def found(stream: sl.Stream, name: str, rows: Rows) -> tuple[Counter[str], list[Any]]:
    """Return what a stream gives of rows, those of both inputs if there are two, and its dead letters."""
    with Harness(stream, parallelism=2) as h:
        given = h.push(left=rows, right=rows) if name in TWO else h.push(*rows)
        letters = h.dead_letters if any(side == "dead_letters" for _, side in h._run.sides) else []
        assert h.failed_events == (len(BAD) * (1 + (name in TWO)) if rows is ALL else 0)
        return Counter(map(repr, [*given, *h.advance_to_end()])), letters


@pytest.mark.parametrize("name", [*ONE, *AGGREGATED, *TWO])
def test_they_are_borne_or_end_the_job_in_words(name: str) -> None:
    make = {**ONE, **AGGREGATED, **TWO}[name]
    wanted, _ = found(make("fail"), name, GOOD)
    seen, letters = found(make("dead-letter"), name, ALL)
    assert seen == wanted
    # Those of aggregates are made by Spark, of rows that a harness cannot have.
    if name not in AGGREGATED:
        assert Counter(letter.step for letter in letters) == {"read": len(BAD) * (1 + (name in TWO))}
        assert all(" cannot be read: " in letter.reason for letter in letters)
    with pytest.raises(sl.errors.UserCodeError, match="cannot be read: ") as caught:
        found(make("fail"), name, ALL)
    assert "operator 'op': " in caught.value.discreet or name in ("map", "map_async")
    assert not any(value in caught.value.discreet for value in ("xf", "xed", str(FAR)))
