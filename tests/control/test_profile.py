"""Profiles: the samples of several partitions as one, by function, and in the formats of other tools."""

from __future__ import annotations

import pytest

from strandline.control.profile import Profile
from tests.control.fake import PROFILE


def test_partitions_are_one_tree() -> None:
    assert PROFILE.operators == ["detect", "top"]
    assert dict(PROFILE.stacks) == {
        ("detect", "app.on_event", "app.score", "line 7"): 75, ("detect", "app.on_event"): 25,
        ("top", "app.on_event", "app.rank"): 100,
    }  # fmt: skip
    assert PROFILE.functions() == [("app.rank", 100, 100), ("app.score", 75, 75), ("app.on_event", 25, 200)]
    detect = PROFILE.of("detect")
    assert detect.functions() == [("app.score", 75, 75), ("app.on_event", 25, 100)]
    assert detect.shares == pytest.approx((0.25, 0.2, 0.55))
    assert PROFILE.program == 0.5
    assert Profile("none", 1.0, []).program == 0
    assert Profile("none", 1.0, []).shares == (1.0, 0.0, 0.0)


def test_a_function_that_calls_itself_counts_once() -> None:
    from strandline.control.profile import PartitionProfile
    from strandline.keeper.sampling import Samples

    samples = Samples(1.0, 10, 0, 0, ["a", "b"], [], [([0, 1, 0], 10)])
    assert Profile("deep", 1.0, [PartitionProfile("op", 0, samples)]).functions() == [("a", 10, 10), ("b", 0, 10)]


def test_forms_of_other_tools() -> None:
    assert PROFILE.folded() == (
        "detect;app.on_event 25\ndetect;app.on_event;app.score;line 7 75\ntop;app.on_event;app.rank 100\n"
    )
    form = PROFILE.speedscope()
    frames = [frame["name"] for frame in form["shared"]["frames"]]
    first, second = form["profiles"]
    assert (first["name"], second["name"]) == ("detect", "top")
    stacks = {
        tuple(frames[at] for at in stack): weight
        for stack, weight in zip(first["samples"], first["weights"], strict=True)
    }
    assert stacks == {("detect", "app.on_event", "app.score", "line 7"): 0.75, ("detect", "app.on_event"): 0.25}
    assert first["endValue"] == sum(first["weights"])
