from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strandline.checkpoint.folder import Folder
from strandline.core import failpoints
from strandline.core.errors import ConfigurationError, ConflictError, CorruptionError, NotFoundError
from strandline.core.ids import CheckpointId
from strandline.snapshot.opening.deletion import delete_files, delete_snapshot
from strandline.snapshot.opening.listing import list_snapshots, verify_snapshot
from strandline.snapshot.opening.origin import rollback
from strandline.snapshot.opening.snapshot import open_snapshot
from strandline.snapshot.savepoints.savepoint import begin
from strandline.snapshot.tools.copy import copy_snapshot
from strandline.storage.local import LocalStore
from tests.checkpoint.helpers import every_epoch
from tests.clock import ManualClock
from tests.snapshot.helpers import Job, jobdir_at, tree, url, write_savepoint


@pytest.fixture
def root(tmp_path: Path, clock: ManualClock) -> Path:
    """A job with checkpoints 1 to 3, of which 3 is void, another one, and two savepoints."""
    job = Job(tmp_path, clock, config=every_epoch(retain=3))
    for _ in range(3):
        job.checkpoint()
    rollback(job.jobdir, CheckpointId(2), clock)
    Job(tmp_path, clock, name="other", seed=1).checkpoint()
    for number, name in enumerate(("sp/a", "sp/b")):
        write_savepoint(tmp_path / name, seed=number)
    return tmp_path


def shown(url_: Path) -> list[tuple[str, str, str]]:
    return [
        (one.url.rpartition("ck/")[2].rpartition("sp/")[2], one.kind, one.state) for one in list_snapshots(str(url_))
    ]


def test_everything_below(root: Path) -> None:
    assert sorted(shown(root)) == [
        ("a", "savepoint", "complete"), ("b", "savepoint", "complete"), ("job/chk-1", "checkpoint", "complete"),
        ("job/chk-2", "checkpoint", "complete"), ("job/chk-3", "checkpoint", "void"),
        ("other/chk-1", "checkpoint", "complete"),
    ]  # fmt: skip
    assert [one.url for one in list_snapshots(str(root / "sp"))] == [url(root / "sp/b"), url(root / "sp/a")], (
        "newest first"
    )
    assert [one for one, _, _ in shown(root / "ck/job")] == ["job/chk-3", "job/chk-2", "job/chk-1"]
    (savepoint,) = list_snapshots(str(root / "sp/a"))
    assert (savepoint.form, savepoint.job, savepoint.checkpoint, savepoint.epoch) == ("native", "other", 9, 70)
    (checkpoint,) = list_snapshots(str(root / "ck/job/chk-2"))
    assert (checkpoint.state, checkpoint.job, checkpoint.form) == ("complete", "job", "incremental")
    assert list_snapshots(str(root / "ck/job/chk-3"))[0].reason.startswith("void: published by generation 1")
    assert list_snapshots(str(root / "ck/job/shared")) == []


def test_what_is_damaged(root: Path) -> None:
    next((root / "sp/a/data").iterdir()).unlink()
    (root / "sp/b/_metadata").write_bytes(b"")
    (root / "ck/other/chk-1/_metadata").write_bytes(b"")
    found = {one.url: one for one in list_snapshots(str(root))}
    assert "1 files are missing" in found[url(root / "sp/a")].reason
    assert "0 bytes are too few" in found[url(root / "sp/b")].reason
    assert found[url(root / "ck/other/chk-1")].state == "damaged"
    for path in ("sp/a", "sp/b", "ck/other/chk-1"):
        (one,) = list_snapshots(str(root / path))
        assert (one.state, one.kind) == ("damaged", "checkpoint" if "chk" in path else "savepoint")


def test_verify(root: Path) -> None:
    report = verify_snapshot(str(root / "sp/a"))
    assert (report.ok, report.files, report.bytes) == (True, 2, 600)
    assert verify_snapshot(str(root / "ck/job")).ok
    assert "void" in verify_snapshot(str(root / "ck/job/chk-3")).problems[0].problem
    file = next((root / "sp/a/data").iterdir())
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    (problem,) = verify_snapshot(str(root / "sp/a")).problems
    assert problem.path == f"data/{file.name}"
    assert "damaged: sha256" in problem.problem
    (root / "sp/b/_metadata").write_bytes(b"")
    assert not verify_snapshot(str(root / "sp/b")).ok
    with pytest.raises(NotFoundError):
        verify_snapshot(str(root / "sp/c"))


def test_delete(root: Path) -> None:
    before = tree(root / "ck")
    assert delete_snapshot(str(root / "sp/a")).url == url(root / "sp/a")
    assert [one for one, _, _ in shown(root / "sp")] == ["b"]
    for path in ("ck/job", "ck/job/chk-1"):
        with pytest.raises(ConfigurationError, match="not deleted by hand") as caught:
            delete_snapshot(str(root / path))
        assert "gc" in caught.value.hint
    assert tree(root / "ck") == before
    assert jobdir_at(root).head("chk-2/_metadata")


@pytest.mark.parametrize("step", ["begun", "manifest_deleted", "files_deleted"])
def test_a_deletion_that_was_broken_off_is_ended(tmp_path: Path, step: str) -> None:
    def crash() -> None:
        raise KeyboardInterrupt

    whole = write_savepoint(tmp_path / "sp")
    write_savepoint(tmp_path / "other", seed=1)
    (tmp_path / "sp" / "README").write_text("mine")
    failpoints.arm(f"savepoint.delete.{step}", crash)
    with pytest.raises(KeyboardInterrupt):
        delete_snapshot(str(tmp_path / "sp"))
    failpoints.disarm_all()
    if step != "begun":
        for place in (tmp_path, tmp_path / "sp"):
            (found,) = [one for one in list_snapshots(str(place)) if one.url.endswith("/sp")]
            assert (found.state, "`strandline snapshots delete` ends it" in found.reason) == ("damaged", True)
        folder = Folder(LocalStore(tmp_path), "sp")
        with pytest.raises(ConflictError, match="its deletion was broken off"):
            begin(folder)
        with pytest.raises(ConflictError, match="its deletion was broken off"):
            copy_snapshot(open_snapshot(str(tmp_path / "other")), folder)
    assert delete_snapshot(str(tmp_path / "sp")).manifest == whole
    assert tree(tmp_path / "sp").keys() == {"README"}
    with pytest.raises(NotFoundError):
        delete_snapshot(str(tmp_path / "sp"))
    assert len(tree(tmp_path / "other")) == 3


def test_another_savepoint_that_took_its_place_is_not_deleted(tmp_path: Path) -> None:
    write_savepoint(tmp_path / "sp")
    snapshot = open_snapshot(str(tmp_path / "sp"))
    shutil.rmtree(tmp_path / "sp")
    write_savepoint(tmp_path / "sp", seed=1)
    before = tree(tmp_path / "sp")
    with pytest.raises(CorruptionError, match="not the manifest that was opened"):
        delete_files(snapshot)
    assert tree(tmp_path / "sp") == before
