"""How many rows a second a status says, by a clock that stands where the test puts it."""

from __future__ import annotations

import pytest

from strandline.spark.job.progress import Rate


def test_rows_of_the_last_ten_seconds_count() -> None:
    now = 100.0
    rate = Rate(lambda: now)
    assert rate.per_s() == 0
    now = 102.0
    rate.note(50, 1000)
    # Since the beginning, while that is not long ago.
    assert rate.per_s() == 25
    now = 108.0
    rate.note(30, 1000)
    assert rate.per_s() == 10
    now = 113.0
    assert rate.per_s() == 3
    now = 118.1
    assert rate.per_s() == 0


def test_an_epoch_of_a_minute_counts_with_its_minute() -> None:
    now = 0.0
    rate = Rate(lambda: now)
    now = 200.0
    rate.note(6000, 60_000)
    assert rate.per_s() == 100
    now = 205.0
    assert rate.per_s() == pytest.approx(6000 / 65)
