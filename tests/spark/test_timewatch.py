"""Event time that is not as somebody thinks: said once, without Spark."""

from __future__ import annotations

import logging

import pytest

from strandline.control.announcements import listening
from strandline.core.times import END_US
from strandline.spark.job.timewatch import TimeWatch

NOW_US = 1_700_000_000_000_000
DAY_US = 86_400_000_000


def test_late_rows_are_told_once() -> None:
    told: list[str] = []
    with listening(lambda text, detail: told.append(text)):
        watch = TimeWatch("clicks", 5, None, NOW_US)
        watch.check(5, NOW_US, NOW_US)
        assert not told, "those were an earlier run's"
        watch.check(8, NOW_US, NOW_US)
        watch.check(9, NOW_US, NOW_US)
    (said,) = told
    assert said.startswith("job 'clicks': 3 rows came late")
    assert "late=" in said


@pytest.mark.parametrize(
    ("before", "reached", "warns"),
    [
        (None, None, False),
        (None, NOW_US + DAY_US, False),
        (None, NOW_US + DAY_US + 1, True),
        (None, END_US, False),
        (NOW_US + 2 * DAY_US, NOW_US + 3 * DAY_US, False),
    ],
)
def test_an_event_of_the_future_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, before: int | None, reached: int | None, warns: bool
) -> None:
    caplog.set_level(logging.WARNING, "strandline")
    watch = TimeWatch("clicks", 0, before, NOW_US)
    watch.check(0, reached, NOW_US)
    watch.check(0, reached, NOW_US)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == warns
    assert all("event time has come to 2023-11-15T22:13:20" in each for each in said), said
