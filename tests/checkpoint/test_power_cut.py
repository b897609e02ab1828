"""A driver killed at every single change of the disk, its successor, and a power cut: nothing that was visible is lost.

What the state machine of `test_model.py` does by chance, here one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from strandline.checkpoint import parallel
from strandline.checkpoint.gc import execute, plan
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import choose
from strandline.format.manifest import Manifest
from strandline.storage.local import LocalStore
from tests.checkpoint.helpers import HOUR_MS, Run, assert_restorable, every_epoch, late_clock
from tests.clock import ManualClock
from tests.soak import soaking
from tests.storage.forgetful import ForgetfulDisk


class Pessimist(random.Random):
    """Of all that may be left, the first: as if nothing had happened since the last sync."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


class Machine:
    """A disk with a job on it: new, of one complete checkpoint, or as a killed process has left it."""

    def __init__(self, directory: Path, killed: Killing | None = None) -> None:
        root = directory / "disk"
        root.mkdir(parents=True)
        self.tmp = directory
        self.disk = ForgetfulDisk(root, left=killed.left if killed else b"")
        self.clock = killed.clock if killed else late_clock()
        self.lives = killed.lives if killed else 0
        self.committed = killed.committed if killed else 0
        if not killed:
            self.start().checkpoint()

    def start(self) -> Run:
        run = Run(
            LocalStore(self.disk.root / "store", disk=self.disk), self.tmp, self.clock,
            config=every_epoch(), seed=self.lives, source_bytes=66_000,
        )  # fmt: skip
        self.lives += 1
        self.run = run
        return run

    def killings(self, act: Callable[[Machine], None]) -> list[Killing]:
        """Return what a kill would leave while it does this: at its first change of the disk, its second, …

        What leaves the same as the one before is left out, as a sync of what was synced does.
        """
        found: list[Killing] = []

        def note(left: bytes) -> None:
            one = Killing(left, max(self.run.committed), self.lives, self.clock)
            if one not in found[-1:]:
                found.append(one)

        self.disk.on_change = note
        act(self)
        return found

    def look(self) -> Manifest:
        """Return the checkpoint that would be restored now, all of which must be there; looking syncs nothing."""
        jobdir = JobDirectory(LocalStore(self.disk.root / "store", fsync=False), "job")
        found = choose(jobdir)
        assert found.manifest is not None
        assert not any(skipped.lost for skipped in found.skipped), "nothing that was complete is damaged"
        assert_restorable(jobdir, found.manifest)
        return found.manifest


@dataclass(frozen=True)
class Killing:
    """What a kill leaves: a disk, the newest checkpoint that had been committed, and how many runs there were."""

    left: bytes
    committed: int
    lives: int
    clock: ManualClock


def take_checkpoint(machine: Machine) -> None:
    machine.run.checkpoint()


def restart(machine: Machine) -> None:
    machine.start()


def collect_garbage(machine: Machine) -> None:
    """With something to collect: the files of a checkpoint that nobody published."""
    zombie = machine.run
    zombie.deliver(zombie.trigger() or zombie.coordinator.next_id)
    machine.start()
    execute(plan(zombie.jobdir, ManualClock(machine.clock.now_ms() + 2 * HOUR_MS)))


def deaths(tmp_path: Path, act: Callable[[Machine], None]) -> Iterator[Machine]:
    """Give a machine for each moment at which a process may be killed while it does this."""
    killings = Machine(tmp_path / "alive").killings(act)
    assert len(killings) > 20
    for number, killed in enumerate(killings):
        yield Machine(tmp_path / str(number), killed)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_THREADS", 1)


@pytest.mark.parametrize("act", [take_checkpoint, restart, collect_garbage])
def test_a_power_cut_after_a_kill(tmp_path: Path, act: Callable[[Machine], None]) -> None:
    for machine in deaths(tmp_path, act):
        machine.disk.power_cut(Pessimist())
        assert machine.look().checkpoint >= machine.committed
        assert max(machine.start().committed) >= machine.committed


@pytest.mark.parametrize("act", [take_checkpoint, restart, collect_garbage])
def test_a_power_cut_after_a_successor_has_started(tmp_path: Path, act: Callable[[Machine], None]) -> None:
    """The successor makes visible what the dead one may not have come to syncing."""
    for machine in deaths(tmp_path, act):
        committed = max(machine.start().committed)
        machine.disk.power_cut(Pessimist())
        assert machine.look().checkpoint >= committed
        assert max(machine.start().committed) >= committed


@pytest.mark.parametrize("chance", [Pessimist(), random.Random(1), *soaking([random.Random(2)])])
def test_a_power_cut_after_a_successor_has_collected_garbage(tmp_path: Path, chance: random.Random) -> None:
    for machine in deaths(tmp_path, take_checkpoint):
        successor = machine.start()
        execute(plan(successor.jobdir, ManualClock(machine.clock.now_ms() + 2 * HOUR_MS)))
        machine.disk.power_cut(chance)
        assert machine.look().checkpoint >= max(successor.committed)
        # Raises if a manifest has come back without its files.
        plan(successor.jobdir, machine.clock)
