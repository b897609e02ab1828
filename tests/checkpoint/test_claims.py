"""Storage that ignores the condition of a conditional create, and claims that are not what they were."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from strandline.checkpoint.generation import CLAIM, ClaimRecord, claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import choose
from strandline.core.errors import ConfigurationError, ConflictError, FencedError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.format.frame import frame
from strandline.storage.remote import open_store
from tests.checkpoint.helpers import Run
from tests.clock import ManualClock
from tests.storage.faulty import AFTER, BEFORE, FaultyStore


class Replacing(FaultyStore):
    """Takes a conditional create for a plain one."""

    def create(self, path: str, data: bytes) -> None:
        self.put(path, data)


class Silent(FaultyStore):
    """Keeps what is there, and does not say so."""

    def create(self, path: str, data: bytes) -> None:
        try:
            super().create(path, data)
        except ConflictError:
            pass


class Complaining(FaultyStore):
    """Says that something is there, and replaces it."""

    def create(self, path: str, data: bytes) -> None:
        try:
            super().create(path, data)
        except ConflictError:
            self.put(path, data)
            raise


def claim_of(owner: str) -> bytes:
    record = ClaimRecord(generation=1, owner=owner, claimed_ms=0)
    return frame(CLAIM.magic, 1, msgspec.json.encode(record))


def paths(jobdir: JobDirectory) -> set[str]:
    return {info.path for info in jobdir.list()}


@pytest.mark.parametrize("careless", [Replacing, Silent, Complaining])
def test_storage_without_conditional_creates_is_refused(careless: type[FaultyStore], clock: ManualClock) -> None:
    jobdir = JobDirectory(careless(open_store("memory://")), "job")
    with pytest.raises(ConfigurationError, match=r"memory:///job.*conditional create") as caught:
        claim(jobdir, clock)
    assert "conditional writes" in caught.value.hint
    assert paths(jobdir) == set(), "the probe is removed, and nothing was claimed"


def test_only_the_first_claim_of_a_process_tries(jobdir: JobDirectory, store: FaultyStore, clock: ManualClock) -> None:
    first = claim(jobdir, clock)
    assert paths(jobdir) == {"generations/1"}
    store.calls.clear()
    claim(jobdir, clock, first)
    assert {path for _, path in store.calls} == {"job/generations/1", "job/generations/2"}


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_probe_without_an_answer_is_no_verdict(
    jobdir: JobDirectory, store: FaultyStore, clock: ManualClock, when: str
) -> None:
    store.script = [("create", "probe", when)]
    with pytest.raises(UnavailableError):
        claim(jobdir, clock)
    assert paths(jobdir) == set()
    assert claim(jobdir, clock).generation == 1


def test_a_probe_that_cannot_be_removed_disturbs_nobody(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> None:
    store.script = [("delete", "probe", BEFORE)]
    run = Run(store, tmp_path, clock)
    assert any("probe" in path for path in paths(run.jobdir))
    run.checkpoint()
    after = Run(store, tmp_path, clock, seed=1)
    assert after.claim.generation == 2
    assert after.restored.checkpoint == 1


def overwritten_once_created(store: FaultyStore, path: str, data: bytes) -> None:
    """Let somebody else's bytes be there as soon as an object was created."""
    create = store.inner.create

    def created_and_lost(created: str, own: bytes) -> None:
        create(created, own)
        if created == path:
            store.inner.put(path, data)

    store.inner.create = created_and_lost  # type: ignore[method-assign]


def test_a_claim_that_holds_other_bytes_is_somebody_elses(
    jobdir: JobDirectory, store: FaultyStore, clock: ManualClock
) -> None:
    overwritten_once_created(store, "job/generations/1", claim_of("somebody else"))
    assert claim(jobdir, clock).generation == 2


def test_a_restart_whose_claim_holds_other_bytes_is_fenced(
    jobdir: JobDirectory, store: FaultyStore, clock: ManualClock
) -> None:
    first = claim(jobdir, clock)
    overwritten_once_created(store, "job/generations/2", claim_of("somebody else"))
    with pytest.raises(FencedError):
        claim(jobdir, clock, first)


def test_a_claim_that_is_not_ours_any_more_fences(jobdir: JobDirectory, clock: ManualClock) -> None:
    mine = claim(jobdir, clock)
    mine.check()
    jobdir.put("generations/1", claim_of("somebody else"))
    with pytest.raises(FencedError, match="replaced"):
        mine.check()
    jobdir.delete(["generations/1"])
    with pytest.raises(FencedError, match="is gone"):
        mine.check()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_driver_that_restarts_does_not_begin_anew_in_an_emptied_directory(
    store: FaultyStore, tmp_path: Path, clock: ManualClock, when: str
) -> None:
    """As one does that is not mounted any more: all that sinks have shown would come again, in another life."""
    run = Run(store, tmp_path, clock)
    run.checkpoint()

    def empty(operation: str, path: str) -> None:
        if when == "before" or (operation, path) == ("create", "job/generations/2"):
            store.before = lambda operation, path: None
            run.jobdir.delete(paths(run.jobdir))

    store.before = empty
    with pytest.raises(FencedError, match="is gone"):
        claim(run.jobdir, clock, run.claim)
    assert paths(run.jobdir) <= {"generations/2"}


@pytest.mark.parametrize("damaged", [b"", claim_of("x")[:30], claim_of("x")[:-1] + b"!", frame(CLAIM.magic, 1, b"{}")])
def test_a_damaged_claim_fences_and_is_nobodys(jobdir: JobDirectory, clock: ManualClock, damaged: bytes) -> None:
    mine = claim(jobdir, clock)
    jobdir.put("generations/1", damaged)
    mine.check()
    jobdir.put("generations/2", damaged)
    with pytest.raises(FencedError):
        mine.check()
    with pytest.raises(FencedError):
        claim(jobdir, clock, mine)
    newest = claim(jobdir, clock)
    assert newest.generation == 3
    newest.check()


# -- what a newer driver has subsumed


def test_what_a_newer_driver_has_subsumed_is_no_damage_to_the_one_it_replaced(
    store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    """One was stopped between choosing and its base, the other in the middle of its first cleaning up."""
    first = Run(store, tmp_path, clock)
    first.checkpoint()
    starting = claim(first.jobdir, clock)
    newer = []

    def replace(operation: str, path: str) -> None:
        if (operation, path) == ("get", "job/chk-1/_metadata"):
            store.before = lambda operation, path: None
            newer.append(Run(store, tmp_path, clock, seed=1))
            newer[0].checkpoint()

    store.before = replace
    with pytest.raises(FencedError):
        starting.set_base(CheckpointId(1))
    assert newer[0].confirmed.checkpoint == 2


def test_one_that_is_replaced_while_it_cleans_up_is_told_so(
    store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    run = Run(store, tmp_path, clock)
    newer = []

    def replace(operation: str, path: str) -> None:
        if operation == "list":
            store.before = lambda operation, path: None
            newer.append(Run(store, tmp_path, clock, seed=1))
            newer[0].checkpoint()

    store.before = replace
    checkpoint = run.begin()
    run.deliver(checkpoint)
    with pytest.raises(FencedError):
        run.coordinator.advance()
    assert newer[0].confirmed.checkpoint == 2


def test_a_listing_without_the_own_claim_is_not_believed(
    store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    """S3's client takes an error, or a proxy's page, that comes with status 200 for an empty listing."""
    Run(store, tmp_path, clock).checkpoint()
    jobdir = JobDirectory(store, "job")
    owned, listing = claim(jobdir, clock), store.inner.list
    store.inner.list = lambda prefix: iter(())  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="listing lacks generations/2"):
        choose(jobdir, owned)
    # A start looks before its claim, too: its sinks would refuse their own rows for good.
    with pytest.raises(UnavailableError, match="listing lacks generations/1"):
        choose(jobdir)
    store.inner.list = listing  # type: ignore[method-assign]
    assert choose(jobdir, owned).manifest is not None
