"""Checkpoints of the mode `changelog`: a base and the changes since, and the next base beside them."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from strandline.api.config import Changelog
from strandline.core import failpoints
from strandline.core.errors import CorruptionError
from strandline.format.manifest import PartitionInfo
from tests.runtime.clients import Nursery, answers, restore_of, shared
from tests.runtime.keeping import Keeping

CHANGELOG = Changelog(parts=3)
STEPS = ["keeper.persist.before", "keeper.rebase.before", "keeper.rebase.upload", "keeper.rebase.uploaded"]


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Keeping]:
    kept = Keeping(tmp_path, changelog=CHANGELOG)
    yield kept
    failpoints.disarm_all()
    kept.close()


def parts_of(info: PartitionInfo) -> set[str]:
    return {file.path for file in info.files if file.name.endswith(".log")}


def test_a_checkpoint_has_the_changes_alone(nursery: Nursery) -> None:
    keeper = nursery.start(mode="changelog")
    keeper.run([(str(n), "fill", 500, 0) for n in range(2000)])
    first = keeper.checkpoint(1)
    keeper.run([("7", "fill", 500, 0)], confirmed=1)
    second = keeper.checkpoint(2, confirmed=1)
    keeper.run([("8", "fill", 500, 0)], confirmed=2)
    third = keeper.checkpoint(3, confirmed=2)
    assert first.info.uploaded_bytes > 1_000_000
    assert second.info.uploaded_bytes < 2_000
    assert third.info.uploaded_bytes < 2_000
    assert set(shared(first.info.files).values()) < set(shared(second.info.files).values())
    assert len(parts_of(third.info)) == 2
    assert all(file.shared for file in third.info.files)


@pytest.mark.parametrize("mode", ["incremental", "changelog", "continuous", "full"])
def test_a_keeper_of_any_mode_restores_a_base_and_its_log(nursery: Nursery, mode: str) -> None:
    keeper = nursery.start(mode="changelog")
    keeper.counts("a", "b")
    keeper.checkpoint(1)
    keeper.run([("a", "count", 0, 0)], confirmed=1)
    report = keeper.checkpoint(2, confirmed=1)
    keeper.kill()
    following = nursery.start(mode=mode, generation=2, restore=restore_of(report, 2))
    assert answers(following.run([("a", "count", 0, 0), ("b", "count", 0, 0)])[0]) == [("a", "3"), ("b", "2")]
    # All but the log and its MANIFEST is there.
    files = following.checkpoint(3, confirmed=2)
    assert bool(set(shared(files.info.files).values()) & set(shared(report.info.files).values())) == (mode != "full")


def test_the_next_base_is_uploaded_once_a_published_checkpoint_has_planned_it(keeping: Keeping) -> None:
    seen: list[PartitionInfo] = []
    while len(seen) < 5 or seen[-1].planned:
        keeping.run("a", "b")
        info = keeping.take()
        assert info is not None
        seen.append(info)
        keeping.wait_for_the_base()
    assert [(len(parts_of(info)), bool(info.planned)) for info in seen[:3]] == [(0, False), (1, False), (2, False)]
    # A base is planned once or twice, and then used: the log begins anew.
    planned = [set(info.planned) for info in seen if info.planned]
    assert len(planned) in (1, 2)
    assert planned[0] <= {file.path for file in seen[-1].files}
    assert len(parts_of(seen[-1])) <= 2
    keeping.go_back()
    keeping.run("a", "b")


def test_nothing_is_uploaded_before_its_paths_are_published(keeping: Keeping) -> None:
    for _ in range(3):
        keeping.run("a")
        keeping.take()
    planned = None
    while planned is None or not planned.planned:
        keeping.run("a")
        planned = keeping.take(published=False)
        assert planned is not None
    keeping.wait_for_the_base()
    stored = {str(path.relative_to(keeping.root / "storage" / "job")) for path in files_in(keeping.root / "storage")}
    assert not stored & set(planned.planned)


def files_in(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("step", STEPS)
def test_a_failure_at_each_step_of_a_new_base(keeping: Keeping, step: str) -> None:
    """The next attempt uses other paths, as storage may still execute a request that it has refused."""
    for _ in range(3):
        keeping.run("a", "b")
        keeping.take()
    failed: list[bool] = []

    def fail_once() -> None:
        failed.append(True)
        raise OSError("no space left")

    failpoints.arm(step, fail_once)
    refused: set[str] = set()
    while not failed:
        keeping.run("a", "c")
        info = keeping.take()
        refused = set(info.planned or ()) if info else set()
        keeping.wait_for_the_base()
        keeping.partition.snapshots._writer.submit(int).result()
    failpoints.disarm_all()
    if step in STEPS[:2]:
        # Changes are lost on the way to the backend, or may be: the job restores.
        keeping.go_back()
    else:
        assert refused
    for _ in range(6):
        keeping.run("a", "d")
        info = keeping.take()
        keeping.wait_for_the_base()
        assert not {file.path for file in info.files} & refused
    assert info is not None
    assert len(parts_of(info)) <= 5
    keeping.go_back()
    keeping.run("a", "b", "d")


@pytest.mark.parametrize("seed", range(6))
def test_any_sequence_of_changes_checkpoints_and_restores(keeping: Keeping, seed: int) -> None:
    """Some checkpoints fail elsewhere, some uploads of bases fail, and restores come at any time."""
    rng = random.Random(seed)
    for _ in range(60):
        if rng.random() < 0.1:
            failpoints.arm(rng.choice(STEPS[2:]), lambda: 1 / 0)
        keeping.run(*rng.sample("abcdefghij", rng.randint(1, 5)))
        keeping.take(published=rng.random() < 0.8)
        if rng.random() < 0.5:
            keeping.wait_for_the_base()
        failpoints.disarm_all()
        if keeping.restored is not None and rng.random() < 0.1:
            if rng.random() < 0.5:
                # From storage alone.
                shutil.rmtree(keeping.root / "local", ignore_errors=True)
            keeping.go_back()


@pytest.mark.parametrize("fault", ["", "lost", "cut"])
def test_a_checkpoint_that_fails_elsewhere_does_not_upload_the_new_base_again(keeping: Keeping, fault: str) -> None:
    """Unless storage has lost a file of it, which may be why the checkpoint failed."""
    keeping.run("a", *map(str, range(300)))
    planned: set[str] = set()
    while not planned or keeping.partition.snapshots._next_base is None:
        keeping.run("a")
        info = keeping.take()
        planned = set((info.planned if info else None) or ())
    keeping.wait_for_the_base()
    keeping.run("a")
    used = keeping.take(published=False)
    assert planned <= {file.path for file in used.files}
    path = keeping.root / "storage" / "job" / max(planned)
    if fault == "lost":
        path.unlink()
    elif fault == "cut":
        os.truncate(path, path.stat().st_size - 1)
    keeping.run("a")
    again = keeping.take()
    assert planned - {file.path for file in again.files} == ({max(planned)} if fault else set())
    keeping.go_back()
    keeping.run("a", "7")


def test_small_parts_are_merged(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path, changelog=Changelog())
    most = uploads = 0
    for n in range(150):
        keeping.run("a", str(n % 7))
        info = keeping.take()
        most = max(most, len(parts_of(info)))
        uploads += info.uploaded_bytes if n else 0
    log_bytes = sum(file.size for file in info.files if file.name.endswith(".log"))
    # The base has the first changes; 149 is 2 · 64 + 2 · 8 + 5. Before a merge there are 7 of each kind, and a new one.
    assert len(parts_of(info)) == 9
    assert most <= 16
    assert log_bytes < uploads < 4 * log_bytes
    assert keeping.partition.snapshots._backend.metrics()["log_bytes"] == log_bytes
    keeping.go_back()
    keeping.run("a", *map(str, range(7)))
    keeping.close()


def test_a_log_that_lacks_a_part_is_refused(keeping: Keeping) -> None:
    for _ in range(3):
        keeping.run("a")
        keeping.take()
    (part,) = keeping.restored.stored.partitions
    first, *_ = (file for file in part.files if file.name.endswith(".log"))
    broken = msgspec.structs.replace(part, files=[file for file in part.files if file != first])
    stored = msgspec.structs.replace(keeping.restored.stored, partitions=[broken])
    keeping.restored = msgspec.structs.replace(keeping.restored, stored=stored)
    keeping.close()
    with pytest.raises(CorruptionError, match="expected one that begins at 0"):
        keeping.start()
