"""A savepoint that was given to a job goes once the job stands on its own, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.core import failpoints
from strandline.core.errors import FencedError, NotFoundError, UnavailableError
from strandline.snapshot.claimed import release
from strandline.snapshot.opened import open_snapshot
from tests.clock import ManualClock
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
    assert tree(savepoint) == before, "a restart needs it"
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


def test_storage_that_refuses(tmp_path: Path, clock: ManualClock, savepoint: Path) -> None:
    job = Job(tmp_path, clock, url(savepoint), claimed=True)
    job.checkpoint()

    def refuse() -> None:
        raise UnavailableError("no answer")

    failpoints.arm("savepoint.delete.manifest_deleted", refuse)
    assert not released(job), "tried again"
    assert released(job)
