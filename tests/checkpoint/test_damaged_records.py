"""Empty and torn records, as a power loss leaves them: nothing is guessed, nothing committed is lost, and it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.chain import BASE, BaseRecord
from strandline.checkpoint.check import summaries
from strandline.checkpoint.gc import execute, plan
from strandline.checkpoint.generation import claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.restore import choose
from strandline.core import failpoints
from strandline.core.errors import CorruptionError, FencedError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import MANIFEST
from strandline.storage.remote import open_store
from tests.checkpoint.helpers import HOUR_MS, LIFE, Run, assert_restorable, every_epoch, manifest
from tests.clock import ManualClock
from tests.storage.faulty import FaultyStore

KEEP_MANY = every_epoch(retain=9, tolerable_failures=None)
DAMAGE = ["empty", "cut off", "flipped", "moved"]


@pytest.fixture
def store(clock: ManualClock) -> FaultyStore:
    return FaultyStore(open_store("memory://"), clock=clock)


def damage(jobdir: JobDirectory, path: str, how: str = "empty") -> None:
    data = jobdir.get(path)
    moved = BASE.encode(BaseRecord(generation=99, checkpoint=None, checkpoint_generation=None, highest_seen=0, life=""))
    jobdir.put(path, {"empty": b"", "cut off": data[:-9], "flipped": data[:-1] + b"!", "moved": moved}[how])


def publish(jobdir: JobDirectory, checkpoint: int, generation: int) -> None:
    jobdir.create(manifest_path(CheckpointId(checkpoint)), MANIFEST.encode(manifest(checkpoint, generation=generation)))


def go_on(jobdir: JobDirectory, clock: ManualClock) -> int | None:
    """Let a new driver take over; return the checkpoint that it goes on from."""
    owned = claim(jobdir, clock)
    found = choose(jobdir, owned).manifest
    owned.set_base(CheckpointId(found.checkpoint) if found else None)
    return found.checkpoint if found else None


@pytest.fixture
def history(jobdir: JobDirectory, clock: ManualClock) -> JobDirectory:
    """Generation 1 published 5 and 6, and later 7, which is void; generation 2 goes on from 6."""
    go_on(jobdir, clock)
    publish(jobdir, 5, generation=1)
    publish(jobdir, 6, generation=1)
    assert go_on(jobdir, clock) == 6
    publish(jobdir, 7, generation=1)
    assert list(read_catalog(jobdir).void) == [7]
    return jobdir


# -- the newest base record


@pytest.mark.parametrize("how", DAMAGE)
def test_of_a_generation_that_published(history: JobDirectory, clock: ManualClock, how: str) -> None:
    publish(history, 8, generation=2)
    damage(history, "generations/2.base", how)
    catalog = read_catalog(history)
    assert (list(catalog.live), list(catalog.unknown), catalog.void) == ([8], [5, 6, 7], {})
    choice = choose(history)
    assert choice.manifest.checkpoint == 8
    assert "generations/2.base" in choice.damaged_bases[0]
    with pytest.raises(CorruptionError, match=r"generations/2\.base.*nothing may be deleted"):
        plan(history, clock)
    assert go_on(history, clock) == 8


@pytest.mark.parametrize("how", DAMAGE)
def test_of_a_generation_that_published_nothing(history: JobDirectory, clock: ManualClock, how: str) -> None:
    damage(history, "generations/2.base", how)
    catalog = read_catalog(history)
    # A replaced driver had published late, too: three faults at once. Sinks will miss the rows that 7 lists, and say so.
    assert (list(catalog.live), catalog.unknown, catalog.void) == ([5, 6, 7], {}, {})
    assert "generations/2.base" in choose(history).damaged_bases[0]
    with pytest.raises(CorruptionError, match=r"generations/2\.base"):
        plan(history, clock)
    assert go_on(history, clock) == 7
    # The generation that was passed over cannot come back: it is fenced, and what it publishes is void.
    publish(history, 8, generation=2)
    assert list(read_catalog(history).void) == [8]
    assert choose(history).damaged_bases == []
    assert choose(history).next_id == 9
    plan(history, clock)


def test_without_any_manifest_the_job_begins_as_before(jobdir: JobDirectory, clock: ManualClock) -> None:
    assert go_on(jobdir, clock) is None
    damage(jobdir, "generations/1.base")
    assert go_on(jobdir, clock) is None
    damage(jobdir, "generations/2.base")
    damage(jobdir, "generations/1")
    damage(jobdir, "generations/2")
    choice = choose(jobdir)
    assert (choice.manifest, choice.skipped, len(choice.damaged_bases)) == (None, [], 2)
    assert go_on(jobdir, clock) is None
    publish(jobdir, 1, generation=3)
    assert go_on(jobdir, clock) == 1


def test_nothing_begins_empty_while_what_there_is_cannot_be_judged(history: JobDirectory) -> None:
    publish(history, 8, generation=2)
    damage(history, "generations/2.base")
    choice = choose(history, exclude=frozenset([CheckpointId(8)]))
    assert choice.manifest is None
    assert [(s.checkpoint, s.lost) for s in choice.skipped] == [(8, True), (7, True), (6, True), (5, True)]


# -- an older base record


@pytest.mark.parametrize("how", DAMAGE)
def test_further_down_what_is_older_is_unknown(history: JobDirectory, clock: ManualClock, how: str) -> None:
    publish(history, 8, generation=2)
    assert go_on(history, clock) == 8
    publish(history, 9, generation=3)
    damage(history, "generations/2.base", how)
    catalog = read_catalog(history)
    assert (list(catalog.live), list(catalog.unknown), catalog.void) == ([8, 9], [5, 6, 7], {})
    with pytest.raises(CorruptionError, match=r"generations/2\.base"):
        plan(history, clock)
    assert go_on(history, clock) == 9


def test_beyond_the_oldest_manifest_nobody_reads_it(history: JobDirectory, clock: ManualClock) -> None:
    publish(history, 8, generation=2)
    damage(history, "generations/1.base")
    assert choose(history).damaged_bases != []
    history.delete([manifest_path(CheckpointId(i)) for i in (5, 6, 7)])
    assert choose(history).damaged_bases == []
    plan(history, clock)


def test_what_cannot_be_judged_ends_like_every_older_checkpoint(
    store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    for seed in range(2):
        run = Run(store, tmp_path, clock, config=KEEP_MANY, seed=seed)
        run.checkpoint()
    damage(run.jobdir, "generations/2.base")
    after = Run(store, tmp_path, clock, seed=5)
    after.checkpoint()
    assert list(read_catalog(run.jobdir).manifests) == [3]
    clock.advance(1)
    after.checkpoint()
    clock.advance(2 * HOUR_MS)
    execute(plan(run.jobdir, clock))
    assert_restorable(run.jobdir, after.confirmed)


# -- manifests and claims


@pytest.mark.parametrize("how", ["empty", "cut off", "flipped"])
@pytest.mark.parametrize("which", [1, 2])
def test_manifests(store: FaultyStore, tmp_path: Path, clock: ManualClock, how: str, which: int) -> None:
    run = Run(store, tmp_path, clock, config=KEEP_MANY)
    run.checkpoint()
    run.checkpoint()
    damage(run.jobdir, f"chk-{which}/_metadata", how)
    after = Run(store, tmp_path, clock, config=KEEP_MANY, seed=1)
    assert after.restored.checkpoint == (1 if which == 2 else 2)
    assert [(s.checkpoint, s.lost) for s in after.choice.skipped] == ([(2, True)] if which == 2 else [])
    assert after.checkpoint() == 3
    assert_restorable(run.jobdir, after.confirmed)


def test_claims_damaged_all_over(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> None:
    run = Run(store, tmp_path, clock)
    run.checkpoint()
    damage(run.jobdir, "generations/1")
    assert run.checkpoint() == 2, "the driver goes on"
    after = Run(store, tmp_path, clock, seed=1)
    assert (after.claim.generation, after.restored.checkpoint) == (2, 2)
    damage(run.jobdir, "generations/2")
    assert after.checkpoint() == 3


# -- what people see


def test_lists_show_it(history: JobDirectory) -> None:
    publish(history, 8, generation=2)
    damage(history, "generations/2.base")
    found = {s.checkpoint: s for s in summaries(history)}
    assert {i: s.state for i, s in found.items()} == {8: "complete", 7: "damaged", 6: "damaged", 5: "damaged"}
    assert all("generations/2.base" in s.reason for s in found.values())


def test_lists_show_a_record_that_is_passed_over(history: JobDirectory) -> None:
    damage(history, "generations/2.base")
    found = {s.checkpoint: s for s in summaries(history)}
    assert {i: s.state for i, s in found.items()} == {7: "complete", 6: "complete", 5: "complete"}
    assert "generations/2.base" in found[CheckpointId(7)].reason


# -- the name of the job's life


def life_of(jobdir: JobDirectory, generation: int) -> str:
    return BASE.decode(jobdir.get(f"generations/{generation}.base"), "").life


def test_a_life_goes_on_through_every_start(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> None:
    first = Run(store, tmp_path, clock)
    life = first.claim.life
    assert len(life) == 32
    second = Run(store, tmp_path, clock, seed=1)  # there is no checkpoint yet
    second.checkpoint()
    assert second.confirmed.life == life
    third = Run(store, tmp_path, clock, seed=2)
    assert third.claim.life == life
    assert {life_of(first.jobdir, g) for g in (1, 2, 3)} == {life}
    assert Run(store, tmp_path, clock, name="other").claim.life != life


def test_a_life_outlives_its_first_claim_and_records(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> None:
    run = Run(store, tmp_path, clock)
    for path in ("generations/1", "generations/1.base"):
        run.checkpoint()
        damage(run.jobdir, path)
        assert Run(store, tmp_path, clock, seed=1).claim.life == run.claim.life
        run = Run(store, tmp_path, clock, seed=2)
    damage(run.jobdir, f"generations/{run.claim.generation}.base")
    assert choose(run.jobdir, run.claim).manifest is not None
    assert run.claim.life == Run(store, tmp_path, clock, seed=3).claim.life


def test_a_checkpoint_brings_its_life_along(jobdir: JobDirectory, clock: ManualClock) -> None:
    publish(jobdir, 4, generation=1)
    owned = claim(jobdir, clock)
    choose(jobdir, owned)
    assert owned.life == LIFE
    owned.set_base(CheckpointId(4))
    assert owned.life == life_of(jobdir, 1) == LIFE


# -- manifests that are gone


def test_nothing_begins_empty_where_the_job_once_went_on_from_a_checkpoint(
    history: JobDirectory, clock: ManualClock
) -> None:
    """Somebody, or a rule of the storage, has deleted them all, and the records stayed."""
    publish(history, 8, generation=2)
    history.delete([info.path for info in history.list() if info.path.startswith("chk-")])
    choice = choose(history)
    assert choice.manifest is None
    assert [(s.checkpoint, s.lost) for s in choice.skipped] == [(6, True)]
    assert "it is the base of generation 2" in choice.skipped[0].reason


# -- what others have put there


def test_names_that_only_look_like_ours_mean_nothing(history: JobDirectory, clock: ManualClock) -> None:
    before = choose(history)
    for name in (
        "chk-06/_metadata",
        "chk-99 (copy)/_metadata",
        "chk-٧/_metadata",
        "generations/009",
        "generations/09.base",
    ):
        history.put(name, b"foreign")
    assert choose(history) == before
    assert claim(history, clock).generation == 3


@pytest.mark.parametrize("record", ["whole", "torn"])
@pytest.mark.parametrize("starts", [1, 2])
def test_a_job_whose_first_checkpoints_are_gone_does_not_begin_empty(
    store: FaultyStore, tmp_path: Path, clock: ManualClock, starts: int, record: str
) -> None:
    """No base names them: the job had gone on from nothing when it published them."""
    run = Run(store, tmp_path, clock)
    assert choose(run.jobdir).skipped == []
    run.checkpoint()
    run.checkpoint()
    run.jobdir.delete([info.path for info in run.jobdir.list() if not info.path.startswith("generations/")])
    if record == "torn":
        run.jobdir.put("generations/1.published", b"SL")
    for _ in range(starts):
        choice = choose(run.jobdir)
        assert choice.manifest is None
        (gone,) = choice.skipped
        assert gone.lost
        assert gone.checkpoint == (1 if record == "whole" else 0)


def test_what_a_replaced_driver_published_beside_its_successor_is_not_missed(
    store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    """It stood still between its claim's check and the manifest; the successor began empty, and fails before its first."""
    first = Run(store, tmp_path, clock)
    successors: list[Run] = []
    failpoints.arm("checkpoint.publish.before", lambda: successors.append(Run(store, tmp_path, clock, seed=1)))
    with pytest.raises(FencedError):
        first.checkpoint()
    failpoints.disarm_all()
    assert successors[0].choice.manifest is None
    third = Run(store, tmp_path, clock, seed=2)
    assert third.choice.manifest is None
    assert [one.lost for one in third.choice.skipped] == [False], "void, and nobody's loss"
    # What is the job's is missed.
    third.checkpoint()
    third.jobdir.delete([info.path for info in third.jobdir.list() if not info.path.startswith("generations/")])
    assert [one.lost for one in choose(third.jobdir).skipped] == [True]


@pytest.mark.parametrize("which", ["chk-1/_metadata", "chk-2/_metadata", "generations/1.base"])
def test_a_record_that_was_damaged_on_the_way_is_read_again(
    jobdir: JobDirectory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """Were it passed over, the job would go back behind it for good."""
    claim(jobdir, clock).set_base(None)
    for checkpoint in (1, 2):
        publish(jobdir, checkpoint, 1)
    before, real, damaged = read_catalog(jobdir), JobDirectory.get, []

    def get(self: JobDirectory, path: str) -> bytes:
        data = real(self, path)
        if path != which or path in damaged:
            return data
        damaged.append(path)
        return data[:-1] + b"!"

    monkeypatch.setattr(JobDirectory, "get", get)
    assert read_catalog(jobdir) == before
    assert damaged == [which]
