"""When a job follows its executors: after long enough, and then to what there was all the time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.core.settings import FollowExecutors
from strandline.plan.autoscaler import Autoscaler


def changes(rooms: list[int], now: int, most: int = 128, **said: object) -> list[tuple[int, int]]:
    """Look each second; return when the job was changed, in seconds, and to what."""
    autoscaler, found = Autoscaler(FollowExecutors(**{"after": "5s", **said})), []  # type: ignore[arg-type]
    for second, room in enumerate(rooms):
        wanted = autoscaler.observe(room, second * 1000, now, most)
        if wanted is not None:
            found.append((second, wanted))
            now = wanted
            autoscaler.reset()
    return found


def test_what_lasts_is_followed_and_what_does_not_is_not() -> None:
    assert changes([4] * 60, now=4) == []
    assert changes([4] + [8] * 9, now=4) == [(6, 8)]
    assert changes([4] + [2] * 9, now=4) == [(6, 2)]
    # An executor is replaced; another one comes and goes.
    assert changes(([4] * 7 + [2] * 4) * 5, now=4) == []
    assert changes(([4] * 7 + [6] * 4) * 5, now=4) == []


def test_one_that_grows_all_the_while_is_followed_all_the_while() -> None:
    grown = changes([4 + second // 2 for second in range(60)], now=4)
    assert grown[:2] == [(7, 5), (13, 8)]
    assert all(later - earlier >= 5 for (earlier, _), (later, _) in itertools.pairwise(grown))
    assert grown[-1][1] > 26


def test_it_stays_within_its_bounds() -> None:
    assert changes([40] * 9, now=4, max=16) == [(5, 16)]
    assert changes([40] * 9, now=16, max=16) == []
    assert changes([1] * 9, now=4, min=2) == [(5, 2)]
    assert changes([40] * 9, now=4, most=32) == [(5, 32)]
    assert changes([40] * 9, now=32, most=32) == []


def test_without_executors_nothing_is_decided() -> None:
    assert changes([0] * 60, now=4) == []
    assert changes([2] * 4 + [0] + [2] * 5, now=4) == []
    assert changes([2] * 4 + [0] + [2] * 6, now=4) == [(10, 2)]


@given(
    st.lists(st.tuples(st.integers(1, 900), st.integers(0, 9)), max_size=40),
    st.integers(1, 8), st.integers(1, 8), st.integers(1, 8), st.integers(500, 3000),
)  # fmt: skip
def test_as_if_all_looks_were_remembered(
    looks: list[tuple[int, int]], now: int, low: int, more: int, after_ms: int
) -> None:
    follow = FollowExecutors(min=low, max=low + more, after=f"{after_ms}ms")
    autoscaler, at_ms = Autoscaler(follow), 0
    seen: list[tuple[int, int]] = []
    for passed_ms, room in looks:
        at_ms += passed_ms
        wanted = autoscaler.observe(room, at_ms, now, 12)
        if room == 0:
            assert wanted is None
            seen = []
            continue
        seen.append((at_ms, min(follow.within(room), 12)))
        # What was found at the last look before the time still held when it began.
        before = [number for at, number in seen if at <= at_ms - follow.after_ms][-1:]
        numbers = before + [number for at, number in seen if at > at_ms - follow.after_ms]
        expected = None
        if before:
            expected = min(numbers) if min(numbers) > now else max(numbers) if max(numbers) < now else None
        assert wanted == expected
        if wanted is not None:
            now, seen = wanted, []
            autoscaler.reset()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"min": 0}, "min is 0, expected a positive number"),
        ({"max": True}, "max is True, expected a positive number"),
        ({"min": 4, "max": 2}, "max is 2, and min is 4"),
        ({"after": "soon"}, "FollowExecutors: after is 'soon'"),
        ({"after": 0}, "FollowExecutors: after is 0, expected more than 0"),
    ],
)
def test_what_cannot_be_followed_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(sl.errors.ConfigurationError) as caught:
        FollowExecutors(**wrong)  # type: ignore[arg-type]
    assert said in caught.value.message
