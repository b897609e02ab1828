from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.core.failpoints import disarm_all
from tests.checkpoint.helpers import late_clock
from tests.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return late_clock()


@pytest.fixture(autouse=True)
def _no_failpoints() -> Iterator[None]:
    yield
    disarm_all()
