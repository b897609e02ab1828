from __future__ import annotations

import pytest

from strandline.checkpoint.jobdir import JobDirectory
from strandline.storage.remote import open_store
from tests.checkpoint.helpers import late_clock
from tests.clock import ManualClock
from tests.storage.faulty import FaultyStore


@pytest.fixture
def clock() -> ManualClock:
    return late_clock()


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(open_store("memory://"))


@pytest.fixture
def jobdir(store: FaultyStore) -> JobDirectory:
    return JobDirectory(store, "job")
