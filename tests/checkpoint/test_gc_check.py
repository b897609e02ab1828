from __future__ import annotations

from pathlib import Path

import pytest

from strandline.checkpoint.check import summaries, verify
from strandline.checkpoint.coordinator import CheckpointConfig
from strandline.checkpoint.gc import execute, plan
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.core.clock import ManualClock, SystemClock
from strandline.core.errors import CorruptionError, NotFoundError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import FileRef, encode_manifest
from tests.checkpoint.helpers import Run, assert_restorable, manifest, shared_ref, stored
from tests.storage.faulty import FaultyStore


@pytest.fixture
def run(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> Run:
    run = Run(store, tmp_path, clock, config=CheckpointConfig(interval_ms=0, retain=2))
    run.checkpoint()
    run.checkpoint()
    return run


def needed_file(run: Run) -> FileRef:
    assert run.coordinator.confirmed_manifest is not None
    return next(f for f in run.coordinator.confirmed_manifest.files() if f.path and f.size)


def test_nothing_to_collect(run: Run, clock: ManualClock) -> None:
    before = stored(run.jobdir)
    found = plan(run.jobdir, clock)
    assert (found.garbage, found.live, found.total_bytes, found.too_young) == ([], [1, 2], 0, 0)
    assert execute(found) == 0
    assert stored(run.jobdir) == before


def test_garbage_is_planned_printed_and_deleted(run: Run, clock: ManualClock) -> None:
    before = stored(run.jobdir)
    run.jobdir.put("shared/aa/lost", b"12345")
    run.jobdir.put("chk-3/lost", b"1")
    run.jobdir.put("chk-9/_metadata", encode_manifest(manifest(9, [shared_ref("shared/bb/x")], generation=0)))
    run.jobdir.put("shared/bb/x", b"")
    found = plan(run.jobdir, clock)
    assert [g.path for g in found.garbage] == ["chk-9/_metadata", "chk-3/lost", "shared/aa/lost", "shared/bb/x"]
    text = str(found)
    assert "shared/aa/lost  5 bytes  no live checkpoint references it" in text
    assert "void manifest: published by generation 0" in text
    assert "live checkpoints: 1, 2" in text
    assert stored(run.jobdir) > before, "a plan deletes nothing"
    assert execute(found) == 4
    assert stored(run.jobdir) == before
    run.claim.check()
    assert_restorable(run.jobdir, run.coordinator.confirmed_manifest)  # type: ignore[arg-type]


def test_young_objects_stay(run: Run) -> None:
    run.jobdir.put("shared/aa/young", b"12345")
    found = plan(run.jobdir, SystemClock())
    assert (found.garbage, found.too_young) == ([], 1)


def test_what_came_to_be_needed_since_the_plan_stays(run: Run, clock: ManualClock) -> None:
    run.jobdir.put("shared/aa/f", b"")
    found = plan(run.jobdir, clock)
    assert [g.path for g in found.garbage] == ["shared/aa/f"]
    run.jobdir.put("chk-3/_metadata", encode_manifest(manifest(3, [shared_ref("shared/aa/f")], generation=1)))
    assert execute(found) == 0
    assert "shared/aa/f" in stored(run.jobdir)


def test_refuses_when_a_needed_file_is_missing(run: Run, clock: ManualClock) -> None:
    run.jobdir.put("shared/aa/lost", b"12345")
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
    assert after.choice.manifest is not None
    assert after.choice.manifest.checkpoint == 1
    found = plan(run.jobdir, clock)
    assert found.garbage[0].path == path
    execute(found)
    assert_restorable(run.jobdir, after.choice.manifest)


def test_verify_reads_every_byte(run: Run) -> None:
    checkpoint = CheckpointId(2)
    report = verify(run.jobdir, checkpoint)
    assert report.ok
    assert report.files == len(run.coordinator.confirmed_manifest.files())  # type: ignore[union-attr]
    assert report.bytes == run.coordinator.confirmed_manifest.total_bytes  # type: ignore[union-attr]
    needed = {f.path: f for f in run.coordinator.confirmed_manifest.files() if f.path and f.size > 1}  # type: ignore[union-attr]
    files = list(needed.values())
    run.jobdir.delete([files[0].path])
    run.jobdir.put(files[1].path, bytes([run.jobdir.get(files[1].path)[0] ^ 1]) + run.jobdir.get(files[1].path)[1:])
    run.jobdir.put(files[2].path, b"")
    report = verify(run.jobdir, checkpoint)
    found = {p.path: p.problem for p in report.problems}
    assert list(found) == [f.path for f in files[:3]]
    assert "missing" in found[files[0].path]
    assert "damaged" in found[files[1].path]
    assert f"0 bytes, expected {files[2].size}" in found[files[2].path]


def test_verify_without_a_usable_manifest(run: Run) -> None:
    with pytest.raises(NotFoundError, match="no checkpoint 17"):
        verify(run.jobdir, CheckpointId(17))
    run.jobdir.put(manifest_path(CheckpointId(2)), b"broken")
    report = verify(run.jobdir, CheckpointId(2))
    assert [p.path for p in report.problems] == ["chk-2/_metadata"]


def test_summaries(run: Run, jobdir: JobDirectory) -> None:
    jobdir.put(manifest_path(CheckpointId(5)), encode_manifest(manifest(5, generation=0)))
    jobdir.put(manifest_path(CheckpointId(6)), b"broken")
    found = {s.checkpoint: s for s in summaries(jobdir)}
    assert list(found) == [6, 5, 2, 1]
    assert [s.state for s in found.values()] == ["damaged", "void", "complete", "complete"]
    assert "too few" in found[CheckpointId(6)].reason
    second = run.coordinator.history[-1]
    line = found[CheckpointId(2)]
    assert (line.epoch, line.mode, line.total_bytes, line.uploaded_bytes, line.reason) == (
        2, "incremental", second.total_bytes, second.uploaded_bytes, "",
    )  # fmt: skip
    path = needed_file(run).path
    jobdir.delete([path])
    again = {s.checkpoint: s for s in summaries(jobdir)}
    assert again[CheckpointId(2)].state == "damaged"
    assert path in again[CheckpointId(2)].reason
