from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.checkpoint import gc
from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.check import summaries, verify_manifest
from strandline.checkpoint.gc import Garbage, execute, plan
from strandline.checkpoint.generation import claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.restore import choose
from strandline.core.errors import CorruptionError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import MANIFEST, FileRef
from strandline.storage.base import ObjectInfo
from strandline.storage.remote import open_store
from tests.checkpoint.helpers import HOUR_MS, Run, assert_restorable, every_epoch, manifest, shared_ref, stored
from tests.clock import ManualClock
from tests.storage.faulty import FaultyStore


@pytest.fixture
def store(clock: ManualClock) -> FaultyStore:
    """Objects carry the test's time: what is older than what is decided by it."""
    return FaultyStore(open_store("memory://"), clock=clock)


@pytest.fixture
def run(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> Run:
    run = Run(store, tmp_path, clock, config=every_epoch(retain=2))
    run.checkpoint()
    run.checkpoint()
    return run


def later(run: Run, clock: ManualClock) -> None:
    """Publish a checkpoint, and let more than the grace pass."""
    clock.advance(1)
    run.checkpoint()
    clock.advance(2 * HOUR_MS)


def needed_file(run: Run) -> FileRef:
    return next(f for f in run.confirmed.files() if f.path and f.size)


def test_nothing_to_collect(run: Run, clock: ManualClock) -> None:
    before = stored(run.jobdir)
    clock.advance(2 * HOUR_MS)
    found = plan(run.jobdir, clock)
    assert (found.garbage, found.live, found.total_bytes, found.too_young) == ([], [1, 2], 0, 0)
    assert execute(found) == 0
    assert stored(run.jobdir) == before


@pytest.mark.parametrize("what", [plan, execute])
def test_checkpoints_that_are_replaced_while_they_are_read_are_no_damage(
    run: Run, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, what: Callable[..., object]
) -> None:
    """The newest one whose manifest was read may be gone, with its files, and the newer ones were not there yet."""
    planned = plan(run.jobdir, clock)
    catalog = read_catalog(run.jobdir)
    for _ in range(3):
        later(run, clock)
    listed = {path: info for path, info in catalog.objects.items() if path in stored(run.jobdir)}
    assert needed_file(run)
    looks = [replace(catalog, objects=listed)]
    monkeypatch.setattr(gc, "read_catalog", lambda jobdir: looks.pop() if looks else read_catalog(jobdir))
    what(planned) if what is execute else plan(run.jobdir, clock)
    assert not looks
    monkeypatch.setattr(gc, "read_catalog", lambda _: replace(catalog, objects=listed))
    with pytest.raises(CorruptionError, match="missing, but live checkpoint 2 needs it"):
        plan(run.jobdir, clock)


def test_a_manifest_that_storage_writes_again_after_its_deletion(
    store: FaultyStore, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that had no answer was repeated, and executed when its checkpoint was subsumed."""
    # Verification would take the deletion of the files of this manifest for a fault.
    monkeypatch.delenv("STRANDLINE_VERIFY", raising=False)
    run = Run(store, tmp_path, clock, config=every_epoch(retain=2))
    run.checkpoint()
    path = manifest_path(CheckpointId(1))
    data = run.jobdir.get(path)
    for _ in range(8):
        later(run, clock)
    run.jobdir.put(path, data)
    run.jobdir.put("shared/aa/lost", b"12345")
    later(run, clock)
    later(run, clock)
    assert [item.path for item in plan(run.jobdir, clock).garbage] == ["shared/aa/lost"]
    again = Run(run.jobdir.store, run.tmp, clock, config=run.config)
    again.checkpoint()
    assert path not in stored(run.jobdir)


def test_garbage_is_planned_and_deleted(run: Run, clock: ManualClock) -> None:
    run.jobdir.put("shared/aa/lost", b"12345")
    run.jobdir.put("chk-3/lost", b"1")
    run.jobdir.put("chk-9/_metadata", MANIFEST.encode(manifest(9, [shared_ref("shared/bb/x")], generation=0)))
    run.jobdir.put("shared/bb/x", b"")
    lost = {"chk-9/_metadata", "chk-3/lost", "shared/aa/lost", "shared/bb/x"}
    later(run, clock)
    before = stored(run.jobdir)
    found = plan(run.jobdir, clock)
    assert [g.path for g in found.garbage] == ["chk-9/_metadata", "chk-3/lost", "shared/aa/lost", "shared/bb/x"]
    assert found.garbage[0].reason.startswith("void manifest: published by generation 0")
    assert found.garbage[2] == Garbage("shared/aa/lost", 5, "no live checkpoint references it")
    assert found.live == [2, 3]
    assert stored(run.jobdir) == before, "a plan deletes nothing"
    assert execute(found) == 4
    assert stored(run.jobdir) == before - lost
    run.claim.check()
    assert_restorable(run.jobdir, run.confirmed)


def test_what_is_not_a_checkpoints_stays(run: Run, clock: ManualClock) -> None:
    others = {"savepoint/_metadata", "savepoint/data/x", "README", "chk-07/_metadata", "shared/README"}
    for path in others:
        run.jobdir.put(path, b"somebody's")
    later(run, clock)
    found = plan(run.jobdir, clock)
    assert not others & {item.path for item in found.garbage}
    execute(found)
    assert others <= stored(run.jobdir)


def test_young_objects_stay(run: Run, clock: ManualClock) -> None:
    run.jobdir.put("shared/aa/young", b"12345")
    clock.advance(1)
    run.checkpoint()
    clock.advance(HOUR_MS - 2)
    assert (plan(run.jobdir, clock).garbage, plan(run.jobdir, clock).too_young) == ([], 1)
    clock.advance(1)
    assert [g.path for g in plan(run.jobdir, clock).garbage] == ["shared/aa/young"]


@pytest.mark.parametrize("path", ["chk-5/inner/chk-1/_metadata", "shared/inner/generations/1", "chk-5/generations/1"])
def test_files_of_a_folder_in_the_jobs_own_are_no_garbage(
    store: FaultyStore, tmp_path: Path, clock: ManualClock, path: str
) -> None:
    run = Run(store, tmp_path, clock, config=every_epoch())
    run.jobdir.put(path, b"of another job")
    clock.advance(1)
    run.checkpoint()
    clock.advance(2 * HOUR_MS)
    assert plan(run.jobdir, clock).garbage == []


@pytest.mark.parametrize("clock_ms", [1, 1000])
def test_uploads_of_a_checkpoint_in_progress_stay_however_long_it_takes(
    store: FaultyStore, tmp_path: Path, clock: ManualClock, clock_ms: int
) -> None:
    run = Run(store, tmp_path, clock, config=every_epoch())
    stamped = store._stamped

    def coarse(info: ObjectInfo) -> ObjectInfo:
        info = stamped(info)
        return replace(info, modified_ms=info.modified_ms // clock_ms * clock_ms)

    store._stamped = coarse  # type: ignore[method-assign]
    clock.advance(-clock.now_ms() % 1000)
    run.jobdir.put("shared/aa/lost", b"of a checkpoint that failed")
    clock.advance(1000)
    run.checkpoint()
    # In the same second: the first partition is through at once, the other's epoch takes longer than any grace.
    second = run.begin()
    run.change("detect", 0)
    early = run.snapshot("detect", 0, second)
    run.deliver_rest(second)
    for _ in range(30):
        clock.advance(500_000)
        run.coordinator.postpone()
        run.coordinator.advance()
    found = plan(run.jobdir, clock)
    assert [g.path for g in found.garbage] == ["shared/aa/lost"]
    assert found.too_young > 0
    execute(found)
    run.coordinator.report("detect", 0, second, early)
    run.coordinator.report("detect", 1, second, run.snapshot("detect", 1, second))
    assert run.coordinator.advance() == second
    assert_restorable(run.jobdir, run.confirmed)


def test_before_the_first_checkpoint_no_file_is_garbage(
    store: FaultyStore, jobdir: JobDirectory, tmp_path: Path, clock: ManualClock
) -> None:
    jobdir.put("chk-1/_metadata", MANIFEST.encode(manifest(1, [shared_ref("shared/bb/x")])))
    jobdir.put("shared/bb/x", b"")
    claim(jobdir, clock)
    owned = claim(jobdir, clock)
    choose(jobdir, owned)
    owned.set_base(None)
    jobdir.put("shared/aa/upload", b"in progress")
    clock.advance(2 * HOUR_MS)
    found = plan(jobdir, clock)
    assert ([g.path for g in found.garbage], found.too_young) == (["chk-1/_metadata"], 2)
    assert execute(found) == 1


def test_what_a_killed_start_and_a_start_leave(run: Run, clock: ManualClock) -> None:
    run.jobdir.put("generations/probe-0123", b"x")
    run.jobdir.put("generations/start", b"x")
    assert choose(run.jobdir).manifest is not None
    clock.advance(2 * HOUR_MS)
    assert plan(run.jobdir, clock).garbage == [], "a start may be using it"
    later(run, clock)
    found = plan(run.jobdir, clock)
    assert [g.path for g in found.garbage] == ["generations/probe-0123"]
    assert claim(run.jobdir, clock).generation == 2
    assert execute(found) == 1
    assert {i.path for i in run.jobdir.list("generations")} == {
        "generations/1", "generations/1.base", "generations/2", "generations/1.published", "generations/start",
    }  # fmt: skip


def test_what_came_to_be_needed_since_the_plan_stays(run: Run, clock: ManualClock) -> None:
    run.jobdir.put("shared/aa/f", b"")
    later(run, clock)
    found = plan(run.jobdir, clock)
    assert [g.path for g in found.garbage] == ["shared/aa/f"]
    run.jobdir.put("chk-4/_metadata", MANIFEST.encode(manifest(4, [shared_ref("shared/aa/f")], generation=1)))
    assert execute(found) == 0
    assert "shared/aa/f" in stored(run.jobdir)


def test_refuses_when_a_needed_file_is_missing(run: Run, clock: ManualClock) -> None:
    run.jobdir.put("shared/aa/lost", b"12345")
    later(run, clock)
    found = plan(run.jobdir, clock)
    path = needed_file(run).path
    run.jobdir.delete([path])
    for collect in (lambda: plan(run.jobdir, clock), lambda: execute(found)):
        with pytest.raises(CorruptionError, match=path):
            collect()
    assert "shared/aa/lost" in stored(run.jobdir)


def test_refuses_while_a_manifest_cannot_be_read(
    run: Run, store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    path = manifest_path(CheckpointId(2))
    run.jobdir.put(path, b"broken")
    with pytest.raises(CorruptionError, match="nothing may be deleted"):
        plan(run.jobdir, clock)
    # Once a driver has gone on from an older checkpoint, nobody will ever want it.
    after = Run(store, tmp_path, clock, seed=1)
    assert after.restored.checkpoint == 1
    clock.advance(2 * HOUR_MS)
    found = plan(run.jobdir, clock)
    assert [g.path for g in found.garbage] == [path]
    execute(found)
    assert_restorable(run.jobdir, after.choice.manifest)


def test_verify_reads_every_byte(run: Run) -> None:
    report = verify_manifest(run.jobdir, run.coordinator.confirmed)
    assert report.ok
    assert report.files == len(run.confirmed.files())
    assert report.bytes == run.confirmed.total_bytes
    needed = {f.path: f for f in run.confirmed.files() if f.path and f.size > 1}
    files = list(needed.values())
    run.jobdir.delete([files[0].path])
    run.jobdir.put(files[1].path, bytes([run.jobdir.get(files[1].path)[0] ^ 1]) + run.jobdir.get(files[1].path)[1:])
    run.jobdir.put(files[2].path, b"")
    report = verify_manifest(run.jobdir, run.coordinator.confirmed)
    found = {p.path: p.problem for p in report.problems}
    assert list(found) == [f.path for f in files[:3]]
    assert "missing" in found[files[0].path]
    assert "damaged" in found[files[1].path]
    assert f"0 bytes, expected {files[2].size}" in found[files[2].path]


def test_summaries(run: Run, jobdir: JobDirectory) -> None:
    jobdir.put(manifest_path(CheckpointId(5)), MANIFEST.encode(manifest(5, generation=0)))
    jobdir.put(manifest_path(CheckpointId(6)), b"broken")
    found = {s.checkpoint: s for s in summaries(jobdir)}
    assert list(found) == [6, 5, 2, 1]
    assert [s.state for s in found.values()] == ["damaged", "void", "complete", "complete"]
    assert "too few" in found[CheckpointId(6)].reason
    second = run.coordinator.history[-1]
    line = found[CheckpointId(2)]
    assert (line.epoch, line.form, line.total_bytes, line.uploaded_bytes, line.reason) == (
        2, "incremental", second.total_bytes, second.uploaded_bytes, "",
    )  # fmt: skip
    path = needed_file(run).path
    jobdir.delete([path])
    again = {s.checkpoint: s for s in summaries(jobdir)}
    assert again[CheckpointId(2)].state == "damaged"
    assert path in again[CheckpointId(2)].reason
