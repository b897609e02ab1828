from __future__ import annotations

import pytest

from tests.checkpoint.helpers import late_clock
from tests.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return late_clock()
