"""Partitions of every backend, closed at the end of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.bench import Bench
from tests.runtime.clients import Nursery
from tests.soak import BACKENDS

Make = Callable[..., Bench]


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Return what makes a partition over the backend under test."""
    made: list[Bench] = []

    def bench(process: Any = None, **given: Any) -> Bench:
        root = tmp_path / f"bench-{len(made)}"
        root.mkdir()
        made.append(Bench(request.param, root, process, **given))
        return made[-1]

    yield bench
    for each in made:
        each.close()


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """Starts keepers, and ends them."""
    made = Nursery(tmp_path)
    yield made
    made.close()
