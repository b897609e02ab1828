"""Keepers that go on with the state of one that was killed: exactly its last version, or nothing."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import VersionMismatchError
from strandline.format.manifest import FileRef
from tests.runtime.clients import Keeper, Nursery, answers, eventually, restore_of
from tests.soak import seeds

KEYS = [f"k{n}" for n in range(20)]


def mark(keeper: Keeper) -> bytes:
    """Return the record of the version that the database on this machine is at."""
    path = keeper.directory / f"db-{keeper.generation}-live" / "mark"
    return path.read_bytes()[:8] if path.exists() else b""


def wait_for_the_log(keeper: Keeper) -> None:
    """Wait until the log has all that the keeper has acknowledged."""
    eventually(lambda: int.from_bytes(mark(keeper), "little") == keeper.epoch, "the log has the last epoch")


def replace(nursery: Nursery, dead: Keeper, **polled: Any) -> Keeper:
    """Kill a keeper, and start one that goes on in its place."""
    dead.kill()
    other = nursery.start(
        **{name: getattr(dead.program, name) for name in ("mode", "local_log", "restore", "generation")}
    )
    other.epoch = dead.epoch
    try:
        other.poll(resume=True, **polled)
    except VersionMismatchError:
        other.kill()
        raise
    return other


def paths(files: list[FileRef]) -> dict[str, str]:
    return {ref.name: ref.path for ref in files if ref.name.endswith((".sst", ".log"))}


@pytest.mark.parametrize("mode", ["incremental", "changelog", "continuous"])
def test_another_keeper_goes_on_where_a_killed_one_was(nursery: Nursery, mode: str) -> None:
    keeper = nursery.start(mode=mode, local_log=True)
    keeper.run([(str(n), "fill", 500, 0) for n in range(2000)])
    first = keeper.checkpoint(1)
    for _ in range(2):
        keeper.run([(key, "count", 0, 0) for key in KEYS], confirmed=1)
    wait_for_the_log(keeper)
    keeper = replace(nursery, keeper, confirmed=1)
    assert keeper.counts(*KEYS) == [(key, "3") for key in KEYS]
    # What storage has of the state is not uploaded again.
    second = keeper.checkpoint(2, confirmed=1)
    assert second.info.uploaded_bytes < first.info.uploaded_bytes / 4
    assert paths(first.info.files).items() & paths(second.info.files).items()
    keeper.kill()
    restored = nursery.start(mode=mode, generation=2, restore=restore_of(second, keeper.epoch))
    assert restored.counts(*KEYS) == [(key, "4") for key in KEYS]
    assert restored.seen("7")[1] == [1]


def test_what_was_published_unheard_is_not_uploaded_again(nursery: Nursery) -> None:
    """An idle keeper does not hear of it, and dies: the one in its place knows what was reported."""
    keeper = nursery.start(mode="incremental", local_log=True)
    keeper.run([(str(n), "fill", 500, 0) for n in range(2000)])
    first = keeper.checkpoint(1)
    wait_for_the_log(keeper)
    keeper = replace(nursery, keeper, confirmed=1)
    second = keeper.checkpoint(2, confirmed=1)
    assert second.info.uploaded_bytes < first.info.uploaded_bytes / 100


def test_a_keeper_goes_on_only_at_the_version_that_it_is_asked_for(nursery: Nursery) -> None:
    keeper = nursery.start(mode="changelog", local_log=True)
    keeper.counts("a")
    keeper.counts("a")
    wait_for_the_log(keeper)
    for epoch in (1, 3):
        keeper.epoch = epoch
        with pytest.raises(VersionMismatchError, match="none can go on in its place"):
            replace(nursery, keeper)
    keeper.epoch = 2
    assert replace(nursery, keeper).counts("a") == [("a", "3")]


@pytest.mark.parametrize("damage", ["mark", "names", "known", "database", "gone", "log", "another"])
def test_a_damaged_record_or_database_is_not_gone_on_with(nursery: Nursery, damage: str) -> None:
    keeper = nursery.start(mode="changelog", local_log=True)
    keeper.counts(*KEYS)
    wait_for_the_log(keeper)
    keeper.kill()
    database = keeper.directory / "db-1"
    (log,) = (keeper.directory / "db-1-log").glob("*.growing")
    if damage == "database":
        (database / "CURRENT").write_text("MANIFEST-000099\n")
    elif damage == "log":
        # As after a crash of the machine: the end was not on the disk.
        log.write_bytes(log.read_bytes()[:-7])
    elif damage == "another":
        # Another program has deleted the log that has the entries.
        log.rename(log.with_name(f"000001{log.name[6:]}"))
    elif damage == "gone":
        (keeper.directory / "db-1-live" / "mark").unlink()
    else:
        path = keeper.directory / "db-1-live" / damage
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(VersionMismatchError, match="none can go on in its place"):
        replace(nursery, keeper)


def test_a_keeper_that_has_applied_the_next_epoch_answers_and_replays_it(nursery: Nursery) -> None:
    """Where another one died in that epoch, which comes again."""
    keeper = nursery.start(mode="changelog", local_log=True)
    keeper.counts("a")
    output, _ = keeper.run([("a", "count", 0, 0)])
    with pytest.raises(VersionMismatchError):
        keeper.poll(epoch=1)
    assert keeper.poll(epoch=1, resume=True).epoch == 2
    assert keeper.run(epoch=2)[0] == output
    with pytest.raises(VersionMismatchError):
        keeper.poll(epoch=0, resume=True)


@pytest.mark.parametrize("seed", seeds(range(2), range(100, 140)))
def test_lives_with_kills(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    """Keepers are killed at any time; what goes on has exactly the counts, and so have restores of its checkpoints."""
    rng = random.Random(seed)
    mode = rng.choice(["incremental", "changelog", "continuous"])
    keeper = nursery.start(mode=mode, local_log=True)
    expected, generation, number, resumed = dict.fromkeys(KEYS, 0), 1, 0, 0
    confirmed: int | None = None
    saved: tuple[Any, int, dict[str, int]] | None = None
    while resumed < 4:
        for _ in range(rng.randrange(1, 6)):
            keys = rng.sample(KEYS, rng.randrange(1, len(KEYS)))
            frames, _ = keeper.run([(key, "count", 0, 0) for key in keys], confirmed=confirmed)
            expected.update({key: expected[key] + 1 for key in keys})
            assert sorted(answers(frames)) == sorted((key, str(expected[key])) for key in keys)
        if rng.random() < 0.6:
            number += 1
            report = keeper.checkpoint(number, confirmed=confirmed)
            if rng.random() < 0.7:
                confirmed, saved = number, (report, keeper.epoch, dict(expected))
        if rng.random() < 0.5:
            wait_for_the_log(keeper)
        else:
            time.sleep(rng.random() / 200)
        try:
            keeper = replace(nursery, keeper, confirmed=confirmed)
            resumed += 1
        except VersionMismatchError:
            # It was killed before the log had its last epoch: the job goes back.
            generation += 1
            restore = None if saved is None else restore_of(saved[0], saved[1])
            keeper = nursery.start(mode=mode, local_log=True, generation=generation, restore=restore)
            expected = dict.fromkeys(KEYS, 0) if saved is None else dict(saved[2])
            keeper.poll()
        assert keeper.seen(*KEYS)[1] == [expected[key] or None for key in KEYS]
