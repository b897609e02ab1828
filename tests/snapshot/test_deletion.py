"""A savepoint that was given to a job goes once the job stands on its own, and not before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandline.checkpoint.folder import folder_at
from strandline.core import failpoints
from strandline.core.errors import ConflictError, FencedError, NotFoundError, UnavailableError
from strandline.snapshot.opening.deletion import release
from strandline.snapshot.opening.snapshot import find_snapshot, open_snapshot, place_of
from strandline.snapshot.tools.copy import copy_snapshot
from tests.clock import ManualClock
from tests.snapshot import helpers
from tests.snapshot.helpers import Job, tree, url, write_savepoint


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    write_savepoint(tmp_path / "sp")
    return tmp_path / "sp"


def released(job: Job) -> bool:
    return release(job.jobdir, job.claim, fsync=False)


def test_it_goes_after_the_first_own_checkpoint(tmp_path: Path, clock: ManualClock, savepoint: Path) -> None:
    before = tree(savepoint)
    job = Job(tmp_path, clock, url(savepoint), claimed=True)
    assert not released(job)
    again = Job(tmp_path, clock, seed=1)
    assert not released(again)
    assert tree(savepoint) == {"_claim": (savepoint / "_claim").read_bytes(), **before}, "a restart needs it"
    again.checkpoint()
    assert released(again)
    assert tree(savepoint) == {}
    assert released(again), "nothing remains to be done"
    assert Job(tmp_path, clock, url(savepoint), claimed=True, seed=2).origin.is_own, "the command is repeated"


def test_a_driver_that_is_killed_before_leaves_it_to_the_next(
    tmp_path: Path, clock: ManualClock, savepoint: Path
) -> None:
    Job(tmp_path, clock, url(savepoint), claimed=True).checkpoint()
    after = Job(tmp_path, clock, seed=1)
    assert released(after)
    assert tree(savepoint) == {}


@pytest.mark.parametrize("step", ["begun", "manifest_deleted", "files_deleted"])
def test_a_kill_in_the_middle_leaves_the_rest_to_the_next(
    tmp_path: Path, clock: ManualClock, savepoint: Path, step: str
) -> None:
    job = Job(tmp_path, clock, url(savepoint), claimed=True)
    job.checkpoint()

    class Crash(BaseException):
        pass

    def crash() -> None:
        raise Crash

    failpoints.arm(f"savepoint.delete.{step}", crash)
    with pytest.raises(Crash):
        released(job)
    failpoints.disarm_all()
    if step == "begun":
        open_snapshot(str(savepoint))
    else:
        with pytest.raises(NotFoundError):
            open_snapshot(str(savepoint))
    assert released(Job(tmp_path, clock, seed=1))
    assert tree(savepoint) == {}


def test_without_a_claim_it_stays(tmp_path: Path, clock: ManualClock, savepoint: Path) -> None:
    before = tree(savepoint)
    job = Job(tmp_path, clock, url(savepoint))
    job.checkpoint()
    assert released(job)
    assert released(Job(tmp_path, clock, url(savepoint), claimed=True, seed=1)), "it was not given when it was restored"
    assert tree(savepoint) == before


def test_what_else_lies_there_stays(tmp_path: Path, clock: ManualClock, savepoint: Path) -> None:
    (savepoint / "README").write_text("mine")
    job = Job(tmp_path, clock, url(savepoint), claimed=True)
    job.checkpoint()
    assert released(job)
    assert list(tree(savepoint)) == ["README"]


@pytest.mark.parametrize("what", ["another savepoint", "damaged"])
def test_what_is_not_what_was_claimed_stays(tmp_path: Path, clock: ManualClock, savepoint: Path, what: str) -> None:
    job = Job(tmp_path, clock, url(savepoint), claimed=True)
    job.checkpoint()
    if what == "damaged":
        (savepoint / "_metadata").write_bytes(b"")
    else:
        savepoint.rename(tmp_path / "moved")
        write_savepoint(savepoint, seed=3)
    before = tree(savepoint)
    assert released(job)
    assert tree(savepoint) == before


def test_a_replaced_driver_deletes_nothing(tmp_path: Path, clock: ManualClock, savepoint: Path) -> None:
    job = Job(tmp_path, clock, url(savepoint), claimed=True)
    job.checkpoint()
    Job(tmp_path, clock, seed=1)
    with pytest.raises(FencedError):
        released(job)
    assert (savepoint / "_metadata").exists()


def test_a_savepoint_has_one_owner(tmp_path: Path, clock: ManualClock, savepoint: Path) -> None:
    Job(tmp_path, clock, url(savepoint), claimed=True, name="a")
    for claimed in (True, False):
        with pytest.raises(ConflictError, match=r"job 'a' in file:.*/ck/a has claimed[^$]*snapshots copy"):
            Job(tmp_path, clock, url(savepoint), claimed=claimed, name="b")
    assert not list((tmp_path / "ck/b/generations").glob("*.base"))
    # The same command of the owner's, and a copy for others.
    Job(tmp_path, clock, url(savepoint), claimed=True, name="a", seed=1)
    found = find_snapshot(url(savepoint))
    copy_snapshot(found, folder_at(place_of(str(tmp_path / "copy"))))
    assert Job(tmp_path, clock, url(tmp_path / "copy"), claimed=True, name="b").origin.manifest == found.manifest


def test_of_two_that_claim_at_once_one_is_first(tmp_path: Path, clock: ManualClock, savepoint: Path) -> None:
    """The second one has found nobody's claim, and then there is one; what it had of its own still counts."""
    own = Job(tmp_path, clock, name="b")
    own.checkpoint()
    first: list[Job] = []

    def claim_it(*_: Any) -> None:
        first.append(Job(tmp_path, clock, url(savepoint), claimed=True, name="a", seed=5))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(helpers, "verify", lambda *given: (patch.undo(), claim_it()))
        with pytest.raises(ConflictError, match=r"job 'a' in .* has claimed this savepoint"):
            Job(tmp_path, clock, url(savepoint), claimed=True, name="b", seed=1)
    assert Job(tmp_path, clock, name="b", seed=2).origin.text("x") == "goes on from checkpoint 1 of x"
    first[0].checkpoint()
    assert released(first[0])


@pytest.mark.parametrize("claimed", [True, False])
def test_one_that_its_owner_deletes_meanwhile(
    tmp_path: Path, clock: ManualClock, savepoint: Path, claimed: bool
) -> None:
    own = Job(tmp_path, clock, name="b")
    own.checkpoint()

    def delete_it(*_: Any) -> None:
        first = Job(tmp_path, clock, url(savepoint), claimed=True, name="a", seed=5)
        first.checkpoint()
        assert released(first)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(helpers, "verify", lambda *given: (patch.undo(), delete_it()))
        with pytest.raises(NotFoundError):
            Job(tmp_path, clock, url(savepoint), claimed=claimed, name="b", seed=1)
    assert tree(savepoint) == {}
    assert Job(tmp_path, clock, name="b", seed=2).origin.text("x") == "goes on from checkpoint 1 of x"


def test_a_kill_after_the_claim(tmp_path: Path, clock: ManualClock, savepoint: Path) -> None:
    class Crash(BaseException):
        pass

    def crash() -> None:
        raise Crash

    failpoints.arm("savepoint.claimed", crash)
    try:
        with pytest.raises(Crash):
            Job(tmp_path, clock, url(savepoint), claimed=True)
    finally:
        failpoints.disarm_all()
    again = Job(tmp_path, clock, url(savepoint), claimed=True, seed=1)
    again.checkpoint()
    assert released(again)
    assert tree(savepoint) == {}


def test_a_savepoint_that_is_another_jobs_by_now_stays(tmp_path: Path, clock: ManualClock, savepoint: Path) -> None:
    """Somebody has deleted the claim, and another job has claimed it."""
    job = Job(tmp_path, clock, url(savepoint), claimed=True, name="a")
    (savepoint / "_claim").unlink()
    Job(tmp_path, clock, url(savepoint), claimed=True, name="b")
    before = tree(savepoint)
    job.checkpoint()
    assert released(job)
    assert tree(savepoint) == before


def test_the_bytes_of_a_claim(tmp_path: Path, clock: ManualClock, savepoint: Path) -> None:
    Job(tmp_path, clock, url(savepoint), claimed=True, name="a")
    data = (savepoint / "_claim").read_bytes()
    assert (data[:8], int.from_bytes(data[8:12], "little")) == (b"SLOWNER1", 1)
    assert json.loads(data[20:-32]) == {"job": "a", "url": f"{tmp_path.as_uri()}/ck/a"}


def test_storage_that_refuses(tmp_path: Path, clock: ManualClock, savepoint: Path) -> None:
    job = Job(tmp_path, clock, url(savepoint), claimed=True)
    job.checkpoint()

    def refuse() -> None:
        raise UnavailableError("no answer")

    failpoints.arm("savepoint.delete.manifest_deleted", refuse)
    assert not released(job), "tried again"
    assert released(job)
