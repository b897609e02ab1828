from __future__ import annotations

import pytest

from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.chain import Restored
from strandline.checkpoint.generation import claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.restore import choose
from strandline.core.errors import CheckpointError, ConfigurationError, CorruptionError, FencedError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import MANIFEST
from tests.checkpoint.helpers import manifest
from tests.clock import ManualClock
from tests.storage.faulty import AFTER, BEFORE, FaultyStore

FOREIGN = Restored(
    requested="file:///sp", url="file:///sp", kind="savepoint", job="other", checkpoint=3, generation=1, life="ab" * 16,
    sha256="0" * 64,
)  # fmt: skip


def publish(jobdir: JobDirectory, checkpoint: int, generation: int) -> None:
    jobdir.create(manifest_path(CheckpointId(checkpoint)), MANIFEST.encode(manifest(checkpoint, generation=generation)))


def chosen(jobdir: JobDirectory) -> int | None:
    found = choose(jobdir).manifest
    return found.checkpoint if found else None


@pytest.mark.parametrize("job", ["", ".", "..", "a/b", "-x", "a b", "x" * 101, "ü"])
def test_job_names_that_are_no_folder_names(store: FaultyStore, job: str) -> None:
    with pytest.raises(ConfigurationError, match="job name"):
        JobDirectory(store, job)


def test_the_newest_claim_owns_the_job(jobdir: JobDirectory, clock: ManualClock) -> None:
    first = claim(jobdir, clock)
    first.check()
    second = claim(jobdir, clock)
    assert (first.generation, second.generation) == (1, 2)
    second.check()
    with pytest.raises(FencedError, match="generation 1"):
        first.check()
    claim(jobdir, clock)
    with pytest.raises(FencedError):
        first.check()


def test_check_is_two_small_calls(jobdir: JobDirectory, store: FaultyStore, clock: ManualClock) -> None:
    mine = claim(jobdir, clock)
    store.calls.clear()
    mine.check()
    assert store.calls == [("head", "job/generations/2"), ("get", "job/generations/1")]


def test_a_claim_loops_past_competitors(jobdir: JobDirectory, store: FaultyStore, clock: ManualClock) -> None:
    rivals = []

    def compete(operation: str, path: str) -> None:
        if operation == "create" and len(rivals) < 3:
            rivals.append(None)
            rivals[-1] = claim(JobDirectory(store.inner, "job"), clock)  # type: ignore[call-overload]

    store.before = compete
    mine = claim(jobdir, clock)
    assert mine.generation == 4
    mine.check()


def test_a_driver_that_restarts_does_not_take_the_job_back(jobdir: JobDirectory, clock: ManualClock) -> None:
    older = claim(jobdir, clock)
    older = claim(jobdir, clock, older)
    assert older.generation == 2
    newer = claim(jobdir, clock)
    with pytest.raises(FencedError, match="generation 2 was replaced"):
        claim(jobdir, clock, older)
    newer.check()


def test_a_restart_whose_claim_lost_its_answer_is_not_fenced_by_itself(
    jobdir: JobDirectory, store: FaultyStore, clock: ManualClock
) -> None:
    first = claim(jobdir, clock)
    store.script.append(("create", "generations/2", AFTER))
    with pytest.raises(UnavailableError):
        claim(jobdir, clock, first)
    clock.advance(1000)
    again = claim(jobdir, clock, first)
    assert again.generation == 3
    again.check()


def test_a_claim_whose_answer_was_lost_below_us_is_ours(
    jobdir: JobDirectory, store: FaultyStore, clock: ManualClock
) -> None:
    # The cloud library retries by itself: our own first try then looks like a competitor.
    original = store.inner.create

    def twice(path: str, data: bytes) -> None:
        original(path, data)
        original(path, data)

    store.inner.create = twice  # type: ignore[method-assign]
    assert claim(jobdir, clock).generation == 1


def test_a_zombie_that_publishes_late_changes_nothing(jobdir: JobDirectory, clock: ManualClock) -> None:
    zombie = claim(jobdir, clock)
    zombie.set_base(None)
    publish(jobdir, 6, generation=1)
    zombie.check()  # … and then it pauses
    owner = claim(jobdir, clock)
    assert choose(jobdir, owner).manifest.checkpoint == 6  # type: ignore[union-attr]
    owner.set_base(CheckpointId(6))
    publish(jobdir, 7, generation=1)
    assert chosen(jobdir) == 6
    assert list(read_catalog(jobdir).void) == [7]
    publish(jobdir, 8, generation=2)
    assert chosen(jobdir) == 8


def test_what_was_published_before_the_choice_counts(jobdir: JobDirectory, clock: ManualClock) -> None:
    claim(jobdir, clock).set_base(None)
    publish(jobdir, 6, generation=1)
    owner = claim(jobdir, clock)
    publish(jobdir, 7, generation=1)
    assert choose(jobdir, owner).manifest.checkpoint == 7  # type: ignore[union-attr]
    owner.set_base(CheckpointId(7))
    assert chosen(jobdir) == 7


def test_a_base_written_late_by_a_fenced_driver_does_not_void_the_history_of_its_successor(
    jobdir: JobDirectory, store: FaultyStore, clock: ManualClock
) -> None:
    claim(jobdir, clock).set_base(None)
    publish(jobdir, 6, generation=1)
    slow = claim(jobdir, clock)
    choose(jobdir, slow)

    def successor(operation: str, path: str) -> None:
        if path == "job/generations/2.base":  # the slow driver has passed its own check
            store.before = lambda operation, path: None
            publish(jobdir, 7, generation=1)
            owner = claim(jobdir, clock)
            assert choose(jobdir, owner).manifest.checkpoint == 7  # type: ignore[union-attr]
            owner.set_base(CheckpointId(7))

    store.before = successor
    slow.set_base(CheckpointId(6))
    assert chosen(jobdir) == 7
    with pytest.raises(FencedError):
        slow.check()
    publish(jobdir, 8, generation=2)  # whatever the slow one does
    assert chosen(jobdir) == 7


def test_starting_empty_voids_everything_older(jobdir: JobDirectory, clock: ManualClock) -> None:
    claim(jobdir, clock).set_base(None)
    publish(jobdir, 3, generation=1)
    claim(jobdir, clock).set_base(None)
    assert chosen(jobdir) is None
    assert choose(jobdir).next_id == 4


def test_numbers_are_not_reused_after_void_checkpoints_were_deleted(jobdir: JobDirectory, clock: ManualClock) -> None:
    claim(jobdir, clock).set_base(None)
    publish(jobdir, 6, generation=1)
    publish(jobdir, 9, generation=1)
    owner = claim(jobdir, clock)
    choose(jobdir, owner, exclude=frozenset([CheckpointId(9)]))
    owner.set_base(CheckpointId(6))
    jobdir.delete([manifest_path(CheckpointId(9))])
    assert choose(jobdir).next_id == 10


def test_an_older_base_remains_in_force_through_a_claim_that_went_nowhere(
    jobdir: JobDirectory, clock: ManualClock
) -> None:
    claim(jobdir, clock).set_base(None)
    publish(jobdir, 6, generation=1)
    claim(jobdir, clock).set_base(CheckpointId(6))
    publish(jobdir, 7, generation=1)
    claim(jobdir, clock)  # dies before it chose
    assert chosen(jobdir) == 6
    claim(jobdir, clock).set_base(CheckpointId(6))
    assert chosen(jobdir) == 6


def test_the_history_is_followed_even_when_the_base_was_subsumed(jobdir: JobDirectory, clock: ManualClock) -> None:
    claim(jobdir, clock).set_base(None)
    publish(jobdir, 5, generation=1)
    publish(jobdir, 6, generation=1)
    claim(jobdir, clock).set_base(CheckpointId(6))
    publish(jobdir, 8, generation=2)
    jobdir.delete([manifest_path(CheckpointId(6))])
    assert sorted(read_catalog(jobdir).live) == [5, 8]


def test_set_base_refuses(jobdir: JobDirectory, store: FaultyStore, clock: ManualClock) -> None:
    first = claim(jobdir, clock)
    with pytest.raises(CorruptionError, match="chk-4"):
        first.set_base(CheckpointId(4))
    publish(jobdir, 4, generation=1)
    first.set_base(CheckpointId(4))
    first.set_base(CheckpointId(4))
    with pytest.raises(CheckpointError, match="another base"):
        first.set_base(None)
    second = claim(jobdir, clock)
    with pytest.raises(FencedError):
        first.set_base(CheckpointId(4))
    store.script = [("create", ".base", BEFORE)]
    with pytest.raises(Exception, match="refused"):
        second.set_base(CheckpointId(4))
    assert not second.has_base
    store.script = [("create", ".base", AFTER)]
    with pytest.raises(Exception, match="no answer"):
        second.set_base(CheckpointId(4))
    second.set_base(CheckpointId(4))
    assert second.has_base


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("path", [".turned", ".base"])
def test_a_foreign_base_whose_answer_is_lost(
    jobdir: JobDirectory, store: FaultyStore, clock: ManualClock, when: str, path: str
) -> None:
    owned = claim(jobdir, clock)
    choose(jobdir, owned)
    store.script = [("create", path, when)]
    with pytest.raises(UnavailableError):
        owned.set_base(None, FOREIGN)
    restored = path == ".base" and when == AFTER
    assert choose(jobdir).foreign == (FOREIGN if restored else None)
    following = claim(jobdir, clock, owned)
    choice = choose(jobdir, following)
    following.set_base(None, None if choice.foreign else FOREIGN)
    assert choose(jobdir).foreign == FOREIGN


def test_what_was_restored_is_carried_on(jobdir: JobDirectory, clock: ManualClock) -> None:
    first = claim(jobdir, clock)
    choose(jobdir, first)
    first.set_base(None, FOREIGN)
    publish(jobdir, 1, generation=1)
    for generation in (2, 3, 4):
        owned = claim(jobdir, clock)
        choice = choose(jobdir, owned)
        assert (choice.foreign, choice.restored) == (None, FOREIGN)
        owned.set_base(CheckpointId(generation - 1))
        publish(jobdir, generation, generation)
        jobdir.delete([manifest_path(CheckpointId(generation - 1))])
    assert not any(path.path.endswith(".turned") for path in jobdir.list() if "/1." not in path.path)
