"""What a program may change about expiry and sources and still go on from its checkpoint. Needs no Spark session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import UNSET

import strandline as sl
from strandline.core.errors import IncompatibleStateError
from strandline.format.manifest import FileRef, Manifest, OperatorInfo, SourceInfo, StateInfo
from strandline.format.types import parse_schema
from strandline.runtime.joins import IntervalJoin, Layout, WindowJoin
from strandline.runtime.program import state_infos
from strandline.spark.compat import check_compatible
from strandline.testing import window


def declared(ttl: sl.TTL | None) -> list[StateInfo]:
    class Function(sl.KeyedProcess):
        seen = sl.Value("bigint", ttl=ttl)

    return state_infos(Function())


def go_on(before: list[StateInfo], now: list[StateInfo], shape: str = "", shape_now: str = "") -> None:
    operator: dict[str, Any] = {"uid": "op", "key_schema": "k int", "max_parallelism": 128, "parallelism": 1}
    stored = OperatorInfo(**operator, backend="rocksdb", states=before, partitions=[], shape=shape or UNSET)
    going_on: Any = SimpleNamespace(**operator, states=now, shape=shape_now)
    check_compatible(made([stored]), [going_on], "rocksdb", [], [])


def made(operators: list[OperatorInfo], source: SourceInfo | None = None) -> Manifest:
    return Manifest(
        job="job",
        generation=1,
        checkpoint=1,
        epoch=1,
        mode="full",
        created_ms=0,
        engine_version="0",
        operators=operators,
        source=source,
    )


def read_on(before: list[str] | None, now: list[str]) -> None:
    """Go on with sources of these names; before, there were those: none if one without a name."""
    blob = FileRef(name="source", size=0, sha256="")
    check_compatible(made([], SourceInfo(batch=1, blob=blob, names=before or UNSET)), [], "rocksdb", [], now)


TTLS = [None, sl.TTL("1h"), sl.TTL("2h", refresh="read"), sl.TTL("1h", time="event")]


@pytest.mark.parametrize("before", TTLS, ids=str)
@pytest.mark.parametrize("now", TTLS, ids=str)
def test_a_ttl_may_change(before: sl.TTL | None, now: sl.TTL | None) -> None:
    go_on(declared(before), declared(now))


def test_a_state_with_a_ttl_may_not_vanish() -> None:
    with pytest.raises(IncompatibleStateError, match="the state 'seen' is not declared any more"):
        go_on(declared(sl.TTL("1h")), [])


def layout() -> Layout:
    return Layout(parse_schema("k int"), parse_schema("k int"))


def windows(kind: Any) -> Any:
    made = window(kind).fold("n int", 0, lambda n, event: n + 1, merge=lambda a, b: a + b)
    return made.plan(parse_schema("k int, ts timestamp"), ["k"], "op", timed=True).operator


SHAPES: list[tuple[Any, Any, str]] = [
    (IntervalJoin(layout(), 0, 5), IntervalJoin(layout(), 0, 6), "it is a join .inner. within 0 to 6 µs, was a join"),
    (IntervalJoin(layout(), 0, 5), IntervalJoin(layout(), 0, 5, "left"), "it is a join .left. within 0 to 5 µs, was"),
    (WindowJoin(layout(), sl.Tumbling("1s")), WindowJoin(layout(), sl.Tumbling("2s")), "a join of windows of 2000000"),
    (windows(sl.Tumbling("1s")), windows(sl.Sliding("2s", every="1s")), "windows of 2000000 µs, one every 1000000 µs"),
    (windows(sl.Session("1s")), windows(sl.Session("3s")), "it is sessions with gaps of 3000000 µs, was sessions"),
    (windows(sl.Session("1s")), sl.KeyedProcess(), "it is a function, was sessions"),
]


@pytest.mark.parametrize(("before", "now", "said"), SHAPES)
def test_what_the_state_of_windows_and_joins_depends_on_may_not_change(before: Any, now: Any, said: str) -> None:
    shape, shape_now = before.own_shape, getattr(now, "own_shape", "")
    go_on([], [], shape, shape)
    # Made before the shape stood in manifests.
    go_on([], [], "", shape)
    with pytest.raises(IncompatibleStateError, match=said):
        go_on([], [], shape, shape_now)


def test_the_same_windows_in_other_words_fit() -> None:
    assert windows(sl.Tumbling("60s")).own_shape == windows(sl.Tumbling("1 min")).own_shape


@pytest.mark.parametrize(
    ("before", "now"), [(None, []), (None, ["a"]), (["a"], []), (["a"], ["a"]), (["a", "b"], ["a", "b"])]
)
def test_sources_that_fit(before: list[str] | None, now: list[str]) -> None:
    read_on(before, now)


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        (["a"], ["b"], ["has no source named 'a'; it reads b", "'b' is new; the checkpoint knows a"]),
        (["a", "b"], ["a"], ["has no source named 'b'; it reads a"]),
        (["a"], ["a", "b"], ["'b' is new; the checkpoint knows a"]),
        (
            ["a", "b"],
            [],
            ["has no source named 'a'; it reads one source without a name", "has no source named 'b'; it reads"],
        ),
        (None, ["a", "b"], ["'a' is new; the checkpoint knows one source without a name", "'b' is new;"]),
    ],
)
def test_sources_that_do_not_fit(before: list[str] | None, now: list[str], found: list[str]) -> None:
    with pytest.raises(IncompatibleStateError, match="a source is found by its name in stream") as caught:
        read_on(before, now)
    assert len(caught.value.fields["differences"]) == len(found)
    assert all(said in difference for said, difference in zip(found, caught.value.fields["differences"], strict=True))


def test_what_was_never_read_may_change() -> None:
    check_compatible(made([]), [], "rocksdb", [], ["a", "b"])
