"""Hours of a job's life in minutes: `python -m tests.simulation --seed 1 --partitions 100 --hours 2 --seeds 50`.

A violation prints its seed, the fewest kinds of faults that bring it about, and what happened last.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, replace

import pytest

from strandline.checkpoint import parallel
from strandline.core import ids
from tests.simulation.job import Faults, Job

_CALM_S = 7200


def simulate(seed: int, partitions: int, hours: float, faults: Faults | None = None) -> Job:
    """Run a job. Raises AssertionError, with the trace, if an invariant is broken."""
    with pytest.MonkeyPatch.context() as patch:
        job = Job(seed, partitions, faults or Faults())
        patch.setattr(parallel, "_THREADS", 1)
        patch.setattr(ids, "_random", job.world.rng)
        patch.delenv("STRANDLINE_VERIFY", raising=False)
        try:
            _live(job, hours * 3600)
        except Exception as error:
            error.add_note("\n".join(["The last events:", *job.world.trace]))
            raise
        finally:
            job.end()
        return job


def _live(job: Job, until_s: float) -> None:
    checked = 0
    # Look often, but not for longer than the rest takes.
    every = max(1, job.partitions // 50)
    while job.world.passed_s < until_s:
        job.world.run(job.world.passed_s + 1)
        if job.completed >= checked + every:
            checked = job.completed
            job.check()
    job.calm()
    before = job.completed
    job.world.run(job.world.passed_s + _CALM_S)
    job.check()
    job.check_calm(before)


def shrink(seed: int, partitions: int, hours: float, faults: Faults) -> Faults:
    """Return fewer kinds of faults with which the seed still breaks an invariant."""
    for name in asdict(faults):
        fewer = replace(faults, **{name: 0.0})
        try:
            simulate(seed, partitions, hours, fewer)
        except Exception:
            faults = fewer
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--faults", type=float, default=1.0, help="how many times as often as usual things go wrong")
    parser.add_argument("--hours", type=float, default=1.0, help="of the simulated time, before two calm hours")
    given = parser.parse_args()
    rates = {name: rate * given.faults for name, rate in asdict(Faults()).items()}
    # A job of whose requests each tenth fails has no time for anything else.
    shares = {name: min(rates[name], 0.05) for name in ("requests", "slow", "keepers")}
    faults = Faults(**{**rates, **shares})
    for seed in range(given.seed, given.seed + given.seeds):
        begun = time.monotonic()
        try:
            job = simulate(seed, given.partitions, given.hours, faults)
        except Exception as error:
            print(f"seed {seed}: {type(error).__name__}: {error}", *getattr(error, "__notes__", []), sep="\n")
            print("fewer faults that break it:", shrink(seed, given.partitions, given.hours, faults))
            sys.exit(1)
        print(
            f"seed {seed}: {job.completed} checkpoints of {given.partitions} partitions, at most {job.max_concurrent} in "
            f"flight, {job.subsumed} subsumed there, {job.started} starts, {job.rolled_back} rollbacks, {job.store.requests} requests; {time.monotonic() - begun:.1f} s", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
