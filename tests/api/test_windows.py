"""Kinds of windows: what they refuse, and that they stay what they are on their way to a keeper."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from strandline.api import windows
from strandline.api.windows import Session, Sliding, Tumbling, windows_of
from strandline.core.errors import ConfigurationError

MINUTE = 60_000_000


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Tumbling("1h", offset="-15 min"), "Tumbling: offset is '-15 min', expected 0 or more"),
        (lambda: Sliding("1h", every="now"), "Sliding: every is 'now', expected a duration"),
        (lambda: Sliding("1h", every="0s"), "a window's every is 0 ms, expected more than 0"),
        (lambda: Sliding("1h", every="1s", offset="x"), "Sliding: offset is 'x', expected a duration"),
        (lambda: Session("0s"), "a window's gap is 0 ms, expected more than 0"),
    ],
)
def test_what_cannot_be_a_window_is_refused_when_it_is_made(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert caught.value.message == said


def test_durations_are_those_that_were_given() -> None:
    tumbling, sliding = Tumbling("1h", offset="15 min"), Sliding("10 min", every="1 min")
    assert (tumbling.size_us, tumbling.every_us, tumbling.offset_us) == (60 * MINUTE, 60 * MINUTE, 15 * MINUTE)
    assert (sliding.size_us, sliding.every_us, sliding.offset_us) == (10 * MINUTE, MINUTE, 0)
    assert Session("30 min").gap_us == 30 * MINUTE


@pytest.mark.parametrize("kind", [Tumbling("1h", offset="15 min"), Sliding("10 min", every="1 min"), Session("30 min")])
def test_they_travel(kind: object) -> None:
    arrived = pickle.loads(pickle.dumps(kind))
    assert arrived == kind
    assert [getattr(arrived, name) for name in kind.__slots__] == [getattr(kind, name) for name in kind.__slots__]  # type: ignore[attr-defined]


def test_an_event_parses_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = Sliding("2s", every="1s")
    monkeypatch.setattr(windows, "parse_duration_ms", None)
    assert [(w.start_us, w.end_us) for w in windows_of(kind, 5_500_000)] == [
        (4_000_000, 6_000_000),
        (5_000_000, 7_000_000),
    ]
