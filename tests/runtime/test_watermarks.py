"""How far event time has come: the least of what is waited for, never going back, the same after a restart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.runtime.reached import OriginStatus
from strandline.runtime.watermarks import Watermarks, WatermarkSpec, describe_changes, time_text

PLAIN = WatermarkSpec("ts", delay_us=5)
PER = WatermarkSpec("ts", per="device")
IDLE = WatermarkSpec("ts", per="device", idle_us=100)


def test_nothing_is_known_before_the_first_event() -> None:
    marks = Watermarks([PLAIN], {}, 0)
    assert (marks.advance(10), marks.reached_us, marks.stored()) == (None, None, {})
    marks.observe(0, {}, 10)
    assert marks.advance(1 << 60) is None


def test_it_is_the_newest_time_less_the_delay_and_never_goes_back() -> None:
    marks = Watermarks([PLAIN], {}, 0)
    marks.observe(0, {"": 100}, 1)
    assert marks.reached_us is None, "it is computed when it is asked for"
    assert marks.advance(1) == 95
    marks.observe(0, {"": 90}, 2)
    assert marks.advance(2) == 95
    marks.observe(0, {"": 101}, 3)
    assert (marks.advance(3), marks.reached_us) == (96, 96)


def test_times_before_1970() -> None:
    marks = Watermarks([PLAIN], {}, 0)
    marks.observe(0, {"": -1000}, 1)
    assert marks.advance(1) == -1005


def test_the_slowest_origin_counts() -> None:
    marks = Watermarks([PER], {}, 0)
    marks.observe(0, {"a": 100, "b": 50}, 1)
    assert marks.advance(1) == 50
    marks.observe(0, {"a": 200}, 2)
    assert marks.advance(2) == 50
    marks.observe(0, {"b": 150}, 3)
    assert marks.advance(3) == 150
    marks.observe(0, {"new and old": 10}, 4)
    assert marks.advance(4) == 150
    marks.observe(0, {"new and old": 160, "b": 170}, 5)
    assert marks.advance(5) == 160


def test_who_holds_it_up_can_be_seen() -> None:
    def seen(now_us: int) -> list[tuple[str | None, str, int, int]]:
        return [(at.time, at.slowest, at.origins, at.idle) for at in marks.look(now_us)]

    marks = Watermarks([PLAIN, IDLE], {}, 0)
    assert seen(0) == [(None, "", 0, 0), (None, "", 0, 0)]
    marks.observe(0, {"": 300}, 10)
    marks.observe(1, {"a": 100, "b": 50}, 10)
    marks.observe(1, {"a": 200}, 50)
    assert seen(60) == [(time_text(295), "", 1, 0), (time_text(50), "b", 2, 0)]
    assert seen(120) == [(time_text(295), "", 1, 0), (time_text(200), "a", 2, 1)]
    assert marks.look(2_050)[0].furthest_behind == [OriginStatus("", time_text(295), 2)]
    assert marks.look(120)[1].furthest_behind == [
        OriginStatus("b", time_text(50), 0, idle=True), OriginStatus("a", time_text(200), 0),
    ]  # fmt: skip
    assert seen(200) == [(time_text(295), "", 1, 0), (time_text(200), "", 2, 2)]
    assert marks.reached_us is None, "to look moves nothing"
    assert marks.advance(200) == 295
    assert seen(200)[1] == (None, "", 0, 0), "what the watermark has passed is forgotten"


def test_a_silent_origin_is_not_waited_for_and_comes_back() -> None:
    marks = Watermarks([IDLE], {}, 0)
    marks.observe(0, {"a": 100, "b": 50}, 10)
    marks.observe(0, {"a": 300}, 100)
    assert marks.advance(110) == 50, "heard of just so long ago"
    assert marks.advance(111) == 300
    marks.observe(0, {"b": 60}, 120)
    assert marks.advance(120) == 300, "its events are late now"
    marks.observe(0, {"a": 500, "b": 400}, 130)
    assert marks.advance(130) == 400


def test_nobody_is_silent_before_the_sources_are_looked_at() -> None:
    again = Watermarks([IDLE], {"watermark": 50, ":ts:device/a": 300, ":ts:device/b": 50}, 1000)
    again.begin(5000)
    again.observe(0, {"a": 310}, 5000)
    assert again.advance(5000) == 50
    assert again.advance(5100) == 50
    assert again.advance(5101) == 310


def test_origins_that_come_and_go_are_forgotten() -> None:
    marks = Watermarks([IDLE], {}, 0)
    for n in range(1000):
        marks.observe(0, {f"device {n}": n}, n)
        marks.advance(n)
    assert len(marks.stored()) <= 102, "those of the last 100 µs, and the watermark"
    assert marks.advance(2000) == 999
    assert marks.stored() == {"watermark": 999}
    again = Watermarks([IDLE], marks.stored(), 2000)
    again.observe(0, {"device 7": 50}, 2000)
    assert again.advance(2000) == 999
    again.observe(0, {"device 7": 1050}, 2001)
    assert again.advance(2001) == 1050


def test_a_silent_origin_that_is_ahead_is_remembered() -> None:
    marks = Watermarks([PLAIN, IDLE], {}, 0)
    marks.observe(1, {"ahead": 500}, 1)
    marks.observe(0, {"": 105}, 1)
    assert marks.advance(200) == 100
    assert ":ts:device/ahead" in marks.stored()
    marks.observe(0, {"": 505}, 200)
    marks.advance(201)
    assert ":ts:device/ahead" not in marks.stored()


def test_without_idle_every_origin_is_waited_for() -> None:
    marks = Watermarks([PER], {}, 0)
    marks.observe(0, {"a": 100, "b": 50}, 1)
    marks.observe(0, {"a": 1000}, 1 << 40)
    assert marks.advance(1 << 50) == 50
    assert marks.stored().keys() == {"watermark", ":ts:device/a", ":ts:device/b"}


def test_when_all_are_silent_the_fastest_counts() -> None:
    marks = Watermarks([IDLE], {}, 0)
    marks.observe(0, {"a": 100, "b": 50}, 10)
    assert marks.advance(110) == 50
    assert marks.advance(111) == 100
    assert marks.advance(10_000) == 100


def test_every_source_is_waited_for_unless_it_may_be_idle() -> None:
    marks = Watermarks([PLAIN, PLAIN], {}, 0)
    marks.observe(0, {"": 100}, 1)
    assert marks.advance(1 << 50) is None
    marks.observe(1, {"": 50}, 2)
    assert marks.advance(2) == 45

    marks = Watermarks([PLAIN, IDLE], {}, 0)
    marks.observe(0, {"": 100}, 1)
    assert marks.advance(100) is None, "it may still begin"
    assert marks.advance(101) == 95
    marks.observe(1, {"a": 20}, 102)
    assert marks.advance(102) == 95


def test_a_restart_goes_on_where_the_checkpoint_was() -> None:
    specs = [IDLE, PLAIN]
    marks = Watermarks(specs, {}, 0)
    marks.observe(0, {"a/b": 100, "": 50}, 10)
    marks.observe(1, {"": 70}, 10)
    assert marks.advance(10) == 50
    assert marks.stored() == {"watermark": 50, ":ts:device/a/b": 100, ":ts:device/": 50, ":ts:/": 70}

    again = Watermarks(specs, marks.stored(), 1_000_000)
    assert (again.reached_us, again.stored()) == (50, marks.stored())
    # What was heard before counts as heard now: the job may have stood still for days.
    assert again.advance(1_000_100) == 50
    assert again.advance(1_000_101) == 65


def test_named_ones_are_found_wherever_they_are_after_a_restart() -> None:
    orders, payments = (WatermarkSpec("ts", source=name) for name in ("orders", "payments"))
    marks = Watermarks([orders, payments], {}, 0)
    marks.observe(0, {"": 100}, 1)
    marks.observe(1, {"eu/1": 50}, 1)
    assert marks.advance(1) == 50
    assert marks.stored() == {"watermark": 50, "orders:ts:/": 100, "payments:ts:/eu/1": 50}
    again = Watermarks([WatermarkSpec("new", source="new"), payments, orders], marks.stored(), 0)
    again.observe(0, {"": 70}, 1)
    assert again.advance(1) == 50
    again.observe(1, {"eu/1": 90}, 2)
    assert again.advance(2) == 70


def test_a_restart_with_another_program() -> None:
    stored = {"watermark": 50, ":ts:/": 100, ":ts:device/a": 70}
    fewer = Watermarks([WatermarkSpec("ts", delay_us=60)], stored, 0)
    assert fewer.advance(0) == 50, "a longer delay does not let it go back"
    assert fewer.stored() == {"watermark": 50, ":ts:/": 100}
    none = Watermarks([], stored, 0)
    assert none.advance(0) == 50
    more = Watermarks([PER, PLAIN, PLAIN], stored, 0)
    assert more.advance(0) == 70
    other = Watermarks([PER, WatermarkSpec("at")], stored, 0)
    assert other.advance(0) == 50, "what the program has anew is waited for"


def test_a_start_says_which_watermarks_it_does_not_find() -> None:
    """With another `per`, origins are of another kind: one of the old kind would be waited for for ever."""
    stored = {"watermark": 50_000_000, "orders:ts:/": 100_000_000}
    orders = WatermarkSpec("ts", source="orders")
    assert describe_changes([orders], stored) == []
    assert describe_changes([orders, WatermarkSpec("at", source="payments")], stored) == []
    assert describe_changes([WatermarkSpec("ts", per="device", source="orders")], stored) == [
        "the program has no watermark 'orders:ts' any more, which the snapshot has",
        "the watermark of column 'ts' of source 'orders' per 'device' is new: event time stays at "
        "1970-01-01T00:00:50+00:00 until its first event, and events before that are late",
    ]


observations = st.lists(
    st.tuples(st.integers(0, 1), st.dictionaries(st.sampled_from(["", "a", "b"]), st.integers(-50, 300)), st.integers(0, 80))
)  # fmt: skip


@given(observations=observations, restart=st.integers(0, 10), idle=st.sampled_from([None, 60]))
@pytest.mark.parametrize("specs", [[PLAIN], [PLAIN, PER]])
def test_against_plain_words(specs: list[WatermarkSpec], observations: list[Any], restart: int, idle: Any) -> None:
    specs = [WatermarkSpec(s.column, s.delay_us, s.per, idle) for s in specs]
    marks, now, began, reached = Watermarks(specs, {}, 0), 0, 0, None
    newest: dict[tuple[int, str], int] = {}
    heard: dict[tuple[int, str], int] = {}
    passed: set[tuple[int, str]] = set()
    for number, (index, times, later) in enumerate(observations):
        now += later
        index %= len(specs)
        if number == restart:
            marks = Watermarks(specs, marks.stored(), now)
            # What was silent before is not waited for again.
            newest = {origin: at for origin, at in newest.items() if origin not in passed}
            heard, began, passed = dict.fromkeys(newest, now), now, set()
        marks.observe(index, times, now)
        for origin, at in times.items():
            newest[index, origin] = max(at, newest.get((index, origin), at))
            heard[index, origin] = now
            passed.discard((index, origin))
        parts: list[int | None] = []
        silent: dict[tuple[int, str], int] = {}
        for at, spec in enumerate(specs):
            known = [origin for origin in newest if origin[0] == at]
            awake = [origin for origin in known if idle is None or now - heard[origin] <= idle]
            if awake:
                parts.append(min(newest[origin] for origin in awake) - spec.delay_us)
            elif not known and (idle is None or now - began <= idle):
                parts.append(None)
            silent |= {origin: newest[origin] - spec.delay_us for origin in known if origin not in awake}
        if None not in parts and (parts or silent):
            found = min(part for part in parts if part is not None) if parts else max(silent.values())
            reached = found if reached is None else max(reached, found)
            passed = {origin for origin, time in silent.items() if time <= reached}
        assert marks.advance(now) == reached
        remembered = {f"{specs[index].name}/{origin}" for index, origin in newest.keys() - passed}
        assert marks.stored().keys() - {"watermark"} == remembered


def test_a_status_has_the_origins_that_are_the_furthest_behind() -> None:
    marks = Watermarks([PER], {}, 0)
    marks.observe(0, {f"o{n}": 1000 - n for n in range(50)}, 0)
    (status,) = marks.look(5_000_000)
    assert status.origins == 50
    assert [each.origin for each in status.furthest_behind] == [f"o{n}" for n in range(49, 29, -1)]
    assert {each.silent_ms for each in status.furthest_behind} == {5_000}
