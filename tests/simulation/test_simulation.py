"""Seeds of the simulated job. `make simulate` runs more of them, for longer and with more partitions."""

from __future__ import annotations

import pytest

from tests.simulation.__main__ import simulate
from tests.simulation.job import Faults
from tests.simulation.world import World


@pytest.mark.parametrize("seed", range(4))
def test_a_job_survives_its_faults(seed: int) -> None:
    often = Faults(
        requests=0.05, slow=0.01, keepers=0.01, deaths=60, pauses=30, rivals=20, rollbacks=30, collections=20
    )
    job = simulate(seed, 4, 0.2, often)
    assert job.completed > 200


def test_a_seed_decides_everything() -> None:
    first, second = (simulate(7, 3, 0.05, Faults()) for _ in range(2))
    assert list(first.world.trace) == list(second.world.trace)
    assert first.store.requests == second.store.requests


def test_time_passes_in_order() -> None:
    world, seen = World(0), []
    world.at(20, lambda: seen.append(world.passed_s))
    world.at(10, lambda: world.at(5, lambda: seen.append(world.passed_s)))
    world.run(1)
    assert seen == [0.015, 0.02]
