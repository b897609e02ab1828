"""Rates between two looks at a running job, and what each browser gets of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strandline.control.client import Driver
from strandline.control.recent import Recent
from strandline.control.status import Status
from strandline.core.errors import UnavailableError
from strandline.ui import live
from strandline.ui.live import LiveJob, Viewer
from tests.control.fake import KEEPER, OTHER, RECENT, STATS, FakeRun

DRIVER = Driver(Path("run.sock"), 1, "0", "alerts", "file:///ck", 1)
STATUS = FakeRun().status()


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(live.time, "monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def looking(*answers: tuple[Status, Recent] | Exception) -> LiveJob:
    left = list(answers)

    def ask(_: Driver) -> tuple[Status, Recent]:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return LiveJob(ask)


def at_work(rows: int, busy_ms: float, **more: Any) -> Status:
    keepers = [replace(KEEPER, all_rows_in=rows, all_rows_out=rows // 2, all_busy_ms=busy_ms), OTHER]
    return replace(STATUS, keepers=keepers, **more)


def test_rates_are_of_the_time_between_two_looks(clock: Clock) -> None:
    job = looking((at_work(1000, 500.0), RECENT), (at_work(3000, 1500.0), RECENT))
    assert job.look(DRIVER)["rates"] == []
    clock.now_s += 4
    first, second = job.look(DRIVER)["rates"]
    assert first == {"uid": "detect", "partition": 0, "rows_in_per_s": 500.0, "rows_out_per_s": 250.0, "busy": 0.25}
    assert (second["partition"], second["rows_in_per_s"], second["busy"]) == (1, 0.0, 0.0)
    assert len(job.points()) == 2


def test_counters_that_begin_again_give_no_rate(clock: Clock) -> None:
    job = looking(
        (at_work(9000, 500.0), RECENT), (at_work(10, 1.0, restarts=2), RECENT), (at_work(30, 2.0, restarts=2), RECENT)
    )
    job.look(DRIVER)
    clock.now_s += 2
    assert job.look(DRIVER)["rates"] == []
    clock.now_s += 2
    assert job.look(DRIVER)["rates"][0]["rows_in_per_s"] == 10.0


def test_a_driver_is_not_asked_by_each_browser(clock: Clock) -> None:
    job = looking((STATUS, RECENT))
    assert job.look(DRIVER) is job.look(DRIVER)


def test_keys_are_named_only_where_values_are_shown(clock: Clock) -> None:
    hidden, shown = looking((STATUS, RECENT)), looking((STATUS, RECENT))
    shown.shows_values = True
    figures = hidden.look(DRIVER)
    assert (
        "ann"
        not in msgspec.json.encode(
            [figures["status"]["keepers"], figures["status"]["operators"], figures["skews"]]
        ).decode()
    )
    assert figures["status"]["operators"][0]["heaviest_keys"] == [
        {"key": {}, "share": 0.72, "error": 0.018, "partition": 0}
    ]
    assert "One key has about 72 % (± 2 %) of this operator's rows lately: more" in figures["skews"]["detect"]
    figures = shown.look(DRIVER)
    assert figures["status"]["keepers"][0]["heaviest_keys"][0]["key"] == {"card": "ann", "n": "7"}
    assert "One key, card=ann, n=7, has about 72 %" in figures["skews"]["detect"]


def test_why_there_are_no_figures_is_said(clock: Clock) -> None:
    job = looking(UnavailableError("the driver has not answered", hint="ps"))
    assert job.look(DRIVER) == {"asked_s": 1000.0, "error": "the driver has not answered", "hint": "ps"}
    assert job.points() == []


def test_a_viewer_gets_each_epoch_once_and_all_after_a_restart(clock: Clock) -> None:
    more = replace(
        RECENT,
        epochs=[*RECENT.epochs, replace(RECENT.epochs[-1], epoch=13)],
        checkpoints=[replace(STATS, status="completed"), replace(STATS, checkpoint=8)],
    )
    job = looking((STATUS, RECENT), (STATUS, more), (replace(STATUS, restarts=9), more))
    viewer = Viewer(job)
    seen = []
    for _ in range(3):
        figures = viewer.look(DRIVER)
        seen.append(
            (
                figures["anew"],
                [e["epoch"] for e in figures["epochs"]],
                [c["checkpoint"] for c in figures["checkpoints"]],
            )
        )
        clock.now_s += 2
    assert seen == [(True, [11, 12], [7]), (False, [13], [7, 8]), (True, [11, 12, 13], [7, 8])]
    assert len(figures["points"]) == 3
