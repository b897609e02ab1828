from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.gc import execute
from strandline.checkpoint.gc import plan as plan_deletion
from strandline.checkpoint.generation import claim
from strandline.checkpoint.jobdir import JobDirectory, shared_path
from strandline.checkpoint.retention import Holds
from strandline.core.errors import CheckpointError, UnavailableError
from strandline.core.ids import CheckpointId, Epoch, Partition
from strandline.format.manifest import FileRef, Manifest, PartitionInfo, stored_once
from tests.checkpoint.helpers import HOUR_MS, Run, assert_restorable, every_epoch, part_of, plan, shared_ref, stored
from tests.clock import ManualClock
from tests.storage.faulty import AFTER, BEFORE, FaultyStore

TOLERANT = every_epoch(tolerable_failures=None)


@pytest.fixture
def run(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> Run:
    return Run(store, tmp_path, clock, config=TOLERANT)


def restorable(run: Run) -> None:
    catalog = read_catalog(run.jobdir)
    assert_restorable(run.jobdir, catalog.live[max(catalog.live)])


def test_a_checkpoint_from_trigger_to_manifest(run: Run, clock: ManualClock) -> None:
    assert run.coordinator.confirmed is None
    checkpoint = run.trigger()
    assert checkpoint == run.coordinator.pending == 1
    assert run.coordinator.history[0].status == "triggered"
    info = run.snapshot("detect", 0, checkpoint)
    run.coordinator.report("detect", 0, checkpoint, info)
    assert run.coordinator.advance() is None
    stats = run.coordinator.history[0]
    assert (stats.status, stats.acknowledged, stats.total_partitions) == ("in_progress", 1, 2)
    assert stats.waits_for == ("operator 'detect' partition 1", "the source", "the sinks")
    run.coordinator.report("detect", 1, checkpoint, run.snapshot("detect", 1, checkpoint))
    assert run.coordinator.advance() is None, "source and sinks are not there yet"
    run.deliver_rest(checkpoint)
    clock.advance(250)
    assert run.coordinator.advance() == 1
    assert run.coordinator.pending is None
    manifest = read_catalog(run.jobdir).live[checkpoint]
    assert manifest == run.coordinator.confirmed
    assert (manifest.epoch, manifest.watermarks, manifest.duration_ms) == (1, {"watermark": 1000}, 250)
    assert run.committed == [1]
    (stats,) = run.coordinator.history
    assert (stats.status, stats.end_to_end_ms, stats.acknowledged) == ("completed", 250, 2)
    assert stats.path == "memory:///job/chk-1/_metadata" or stats.path.endswith("/job/chk-1/_metadata")
    assert stats.total_bytes == stats.uploaded_bytes == sum(f.size for f in manifest.files())
    assert run.coordinator.counts.completed == run.coordinator.counts.triggered == 1
    restorable(run)


def test_an_increment_uploads_only_what_is_new(run: Run) -> None:
    run.checkpoint()
    before = stored(run.jobdir)
    run.checkpoint()
    second = run.coordinator.history[-1]
    assert 0 < second.uploaded_bytes < second.total_bytes
    manifest = run.confirmed
    fresh = sum(f.size for f in manifest.files() if f.inline is None and f.path not in before)
    inline = sum(f.size for f in manifest.files() if f.inline is not None)
    assert second.uploaded_bytes == fresh + inline
    assert any(f.path in before for f in manifest.files())


def test_what_somebody_reads_is_not_subsumed_meanwhile(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> None:
    holds = Holds()
    run = Run(store, tmp_path, clock, config=every_epoch(), holds=holds)
    run.checkpoint()
    with holds:
        run.checkpoint()
        # Nor by a run that takes the place of the one that took it: a restart, or another parallelism.
        run = Run(store, tmp_path, clock, config=every_epoch(), seed=1, holds=holds)
        for _ in range(2):
            run.checkpoint()
        live = read_catalog(run.jobdir).live
        assert sorted(live) == [1, 2, 3, 4]
        for manifest in live.values():
            assert_restorable(run.jobdir, manifest)
    run.checkpoint()
    assert sorted(read_catalog(run.jobdir).live) == [5]
    restorable(run)


def test_retention(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> None:
    run = Run(store, tmp_path, clock, config=every_epoch(retain=2))
    for _ in range(5):
        run.checkpoint()
        restorable(run)
    live = read_catalog(run.jobdir).live
    assert list(live) == [4, 5]
    needed = {f.path for m in live.values() for f in m.files() if f.path}
    assert stored(run.jobdir) == needed | {"chk-4/_metadata", "chk-5/_metadata"}
    # A restarted driver knows what was retained, and lets go of it in turn.
    again = Run(store, tmp_path, clock, config=every_epoch(retain=2), seed=1)
    assert again.coordinator.counts.restored == 1
    again.checkpoint()
    assert list(read_catalog(run.jobdir).live) == [5, 6]
    again.checkpoint()
    assert list(read_catalog(run.jobdir).live) == [6, 7]
    restorable(again)


def test_the_oldest_checkpoint_is_known_only_when_storage_was_asked(
    store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    """Whoever takes away what older checkpoints need relies on it: it may be too old, never too new."""
    config = every_epoch(retain=2, tolerable_failures=None)
    run = Run(store, tmp_path, clock, config=config)
    assert run.coordinator.oldest_live is None
    oldest = []
    for _ in range(4):
        run.checkpoint()
        oldest.append(run.coordinator.oldest_live)
    assert oldest == [1, 1, 2, 3]
    again = Run(store, tmp_path, clock, config=config, seed=1)
    assert again.coordinator.oldest_live is None, "others that are in storage were not looked for"
    store.script = [("delete", "chk-3/_metadata", BEFORE)]
    again.checkpoint()
    assert list(read_catalog(run.jobdir).live) == [3, 4, 5]
    assert again.coordinator.oldest_live == 3, "storage did not delete it"
    again.checkpoint()
    assert again.coordinator.oldest_live == 5
    # In doubt: storage has written the next one's manifest, and did not say so; nor does it let it be deleted.
    checkpoint = again.trigger()
    assert checkpoint == 7
    again.deliver(checkpoint)
    store.script = [("create", "chk-7/_metadata", AFTER)]
    assert again.coordinator.advance() is None
    store.script = [("delete", "chk-7/_metadata", BEFORE)] * 2
    again.checkpoint()
    assert set(read_catalog(run.jobdir).live) >= {7, 8}
    assert again.coordinator.oldest_live is None
    again.checkpoint()
    assert list(read_catalog(run.jobdir).live) == [8, 9]
    assert again.coordinator.oldest_live == 8


def test_full_checkpoints_share_nothing(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> None:
    run = Run(store, tmp_path, clock, config=every_epoch(mode="full"))
    run.checkpoint()
    run.checkpoint()
    manifest = run.confirmed
    files = [f for o in manifest.operators for p in o.partitions for f in p.files if f.inline is None]
    assert files
    assert all(f.path.startswith("chk-2/") and not f.shared for f in files)
    restorable(run)


def test_a_request_while_one_is_pending_waits_for_the_next(run: Run) -> None:
    checkpoint = run.begin()
    wanted = run.coordinator.request()
    run.deliver(checkpoint)
    run.coordinator.advance()
    assert not wanted.done()
    run.checkpoint()
    assert wanted.result(0) == 2


def test_time_out_names_what_is_missing_and_deletes_uploads(run: Run, clock: ManualClock) -> None:
    run.checkpoint()
    before = stored(run.jobdir)
    wanted = run.coordinator.request()
    checkpoint = run.begin()
    run.change("detect", 0)
    run.coordinator.report("detect", 0, checkpoint, run.snapshot("detect", 0, checkpoint))
    assert stored(run.jobdir) > before
    clock.advance(599_999)
    assert run.coordinator.advance() is None
    assert run.coordinator.pending == 2
    clock.advance(1)
    run.coordinator.advance()
    assert run.coordinator.pending is None
    with pytest.raises(
        CheckpointError, match=r"timed out after 600000 ms: .*'detect' partition 1, the source, the sink"
    ):
        wanted.result(0)
    assert "timed out" in run.coordinator.history[-1].failure
    # A snapshot that arrives late is deleted, too.
    run.change("detect", 1)
    run.coordinator.report("detect", 1, checkpoint, run.snapshot("detect", 1, checkpoint))
    run.coordinator.advance()
    assert stored(run.jobdir) == before
    run.checkpoint()
    restorable(run)


def test_checkpoints_that_have_ended_are_taken_once_and_what_completed_ones_took_adds_up(run: Run) -> None:
    assert run.coordinator.take_ended() == []
    run.checkpoint()
    failing = run.begin()
    run.coordinator.fail(failing, "no space")
    with suppress(CheckpointError):
        run.coordinator.advance()
    ended = run.coordinator.take_ended()
    assert [(each.status, each.failure != "") for each in ended] == [("completed", False), ("failed", True)]
    assert run.coordinator.take_ended() == []
    assert run.coordinator.effort == (ended[0].end_to_end_ms, ended[0].uploaded_bytes)
    assert ended[0].uploaded_bytes > 0


def test_a_failing_partition_fails_the_checkpoint(run: Run) -> None:
    wanted = run.coordinator.request()
    checkpoint = run.begin()
    run.coordinator.report_failure("detect", 1, CheckpointId(99), "of another checkpoint")
    run.coordinator.report_failure("detect", 1, checkpoint, "disk full")
    run.deliver(checkpoint)
    assert run.coordinator.advance() is None
    with pytest.raises(CheckpointError, match="'detect', partition 1: disk full"):
        wanted.result(0)
    run.coordinator.advance()
    assert stored(run.jobdir) == set()


def test_a_new_keeper_has_not_heard_of_the_pending_checkpoint(run: Run) -> None:
    """Another checkpoint is taken, for those who asked; what the old keeper had uploaded is not lost on it."""
    wanted = run.coordinator.request()
    checkpoint = run.begin()
    run.change("detect", 0)
    run.coordinator.report("detect", 0, checkpoint, run.snapshot("detect", 0, checkpoint))
    run.coordinator.retake("detect", 0)
    run.coordinator.advance()
    assert run.coordinator.pending == checkpoint, "this one's part is there"
    run.coordinator.retake("detect", 1)
    assert run.coordinator.advance() is None
    assert run.coordinator.pending is None
    assert "operator 'detect', partition 1 has a new keeper" in run.coordinator.history[-1].failure
    assert not wanted.done()
    run.coordinator.retake("detect", 1)
    run.checkpoint()
    assert wanted.result(0) == checkpoint + 1
    restorable(run)


def test_failures_in_a_row(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> None:
    run = Run(store, tmp_path, clock, config=every_epoch(tolerable_failures=1))

    def fail() -> None:
        checkpoint = run.begin()
        run.coordinator.report_failure("detect", 0, checkpoint, "no space")
        run.coordinator.advance()

    fail()
    run.checkpoint()
    fail()
    run.trigger()
    run.coordinator.close("does not count")
    run.coordinator.advance()
    with pytest.raises(CheckpointError, match=r"2 checkpoints failed in a row, 1 are tolerated; the last: .*no space"):
        fail()
    assert run.coordinator.counts.failed == 4
    assert [s.status for s in run.coordinator.history].count("failed") == 4


def test_unknown_and_duplicate_reports_change_nothing(run: Run) -> None:
    checkpoint = run.begin()
    run.change("detect", 0)
    info = run.snapshot("detect", 0, checkpoint)
    run.change("detect", 0)
    strays = [run.snapshot("detect", 0, checkpoint) for _ in range(4)]
    run.coordinator.report("nobody", 0, checkpoint, strays[0])
    run.coordinator.report("detect", 2, checkpoint, strays[1])
    run.coordinator.report("detect", 0, CheckpointId(17), strays[2])
    run.coordinator.report("detect", 0, checkpoint, info)
    run.coordinator.report("detect", 0, checkpoint, strays[3])
    # The same snapshot once more, with other timings: its files must stay.
    again = PartitionInfo(index=0, first_key_group=0, last_key_group=127, files=info.files, async_ms=99.0)
    run.coordinator.report("detect", 0, checkpoint, again)
    run.coordinator.advance()
    run.coordinator.report("detect", 1, checkpoint, run.snapshot("detect", 1, checkpoint))
    run.deliver_rest(checkpoint)
    assert run.coordinator.advance() == checkpoint
    run.coordinator.report("detect", 0, checkpoint, again)
    run.coordinator.add_source(checkpoint, run.confirmed.source)
    run.coordinator.advance()
    restorable(run)
    manifest = run.confirmed
    assert stored(run.jobdir) == {f.path for f in manifest.files() if f.path} | {"chk-1/_metadata"}


def test_files_of_an_unconfirmed_checkpoint_are_never_referenced(run: Run, clock: ManualClock) -> None:
    run.checkpoint()
    lost = run.begin()
    run.change("detect", 0)
    info = run.snapshot("detect", 0, lost)
    run.coordinator.report("detect", 0, lost, info)
    run.coordinator.close("test")
    run.coordinator.advance()
    checkpoint = run.begin()
    run.coordinator.report("detect", 0, checkpoint, info)
    run.coordinator.report("detect", 1, checkpoint, run.snapshot("detect", 1, checkpoint))
    run.deliver_rest(checkpoint)
    assert run.coordinator.advance() is None
    assert "publishing it would be unsafe" in run.coordinator.history[-1].failure
    restorable(run)


def test_without_a_base_record_nothing_is_published(jobdir: JobDirectory, clock: ManualClock) -> None:
    c = Coordinator(
        jobdir, claim(jobdir, clock), TOLERANT, clock, CheckpointId(1), None, [], lambda m: None
    )  # fmt: skip
    assert c.trigger(Epoch(1)) is not None
    c.add_source(CheckpointId(1), None)
    c.add_sinks(CheckpointId(1), [])
    assert c.advance() is None
    assert "set_base" in c.history[0].failure or "recorded its base" in c.history[0].failure


def test_failing_sinks_do_not_unpublish(run: Run, store: FaultyStore, tmp_path: Path, clock: ManualClock) -> None:
    run.checkpoint()

    def fail(manifest: object) -> None:
        raise OSError("sink is down")

    run.coordinator._commit_sinks = fail
    wanted = run.coordinator.request()
    with pytest.raises(OSError, match="sink is down"):
        run.checkpoint()
    with pytest.raises(OSError, match="sink is down"):
        wanted.result(0)
    after = Run(store, tmp_path, clock, seed=1)
    assert after.restored.checkpoint == 2
    restorable(after)


def test_who_has_asked_is_told_of_a_sinks_panic(run: Run) -> None:
    class PanicException(BaseException):
        """As Rust libraries raise it."""

    def panic(manifest: object) -> None:
        raise PanicException("index out of bounds")

    run.coordinator._commit_sinks = panic
    wanted = run.coordinator.request()
    with pytest.raises(PanicException):
        run.checkpoint()
    with pytest.raises(RuntimeError, match="PanicException: index out of bounds"):
        wanted.result(0)


def test_who_has_asked_is_told_of_the_end_also_if_what_waits_cannot_be_shown(run: Run, clock: ManualClock) -> None:
    """They would wait for ever: the attempt has ended for that, and cannot advance once more."""
    run.coordinator._commit_sinks = lambda manifest: True
    run.checkpoint()
    wanted = run.coordinator.request()
    assert run.trigger() is not None

    def fail(manifest: object) -> None:
        raise OSError("sink is down")

    run.coordinator._commit_sinks = fail
    clock.advance(10_000)
    for _ in range(2):
        with pytest.raises(OSError, match="sink is down"):
            run.coordinator.advance()
    run.coordinator.close("the run ended")
    with pytest.raises(CheckpointError, match="checkpoint 2 was aborted: the run ended") as caught:
        wanted.result(0)
    assert caught.value.fields["attempt_ended"]


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_publish_without_an_answer_is_made_true_as_a_failure(
    run: Run, store: FaultyStore, clock: ManualClock, when: str
) -> None:
    run.checkpoint()
    checkpoint = run.begin()
    run.deliver(checkpoint)
    store.script = [("create", "_metadata", when)]
    assert run.coordinator.advance() is None
    assert run.confirmed.checkpoint == 1
    restorable(run)
    store.script = [("delete", "chk-2/_metadata", BEFORE)]
    run.coordinator.advance()
    restorable(run)
    run.checkpoint()
    restorable(run)
    clock.advance(10_000)
    run.coordinator.advance()
    assert list(read_catalog(run.jobdir).live) == [3]
    restorable(run)
    manifest = run.confirmed
    assert stored(run.jobdir) == {f.path for f in manifest.files() if f.path} | {"chk-3/_metadata"}


def test_storage_that_refuses_deletions_fails_no_checkpoint(run: Run, store: FaultyStore, clock: ManualClock) -> None:
    run.checkpoint()
    store.script = [("delete", "", BEFORE)] * 2
    run.checkpoint()
    restorable(run)
    assert run.coordinator.counts.failed == 0
    run.checkpoint()
    clock.advance(10_000)
    run.coordinator.advance()
    assert list(read_catalog(run.jobdir).live) == [3]


def test_a_fault_of_storage_before_publishing_is_tolerated(run: Run, store: FaultyStore) -> None:
    checkpoint = run.begin()
    run.deliver(checkpoint)
    store.script = [("head", "generations", BEFORE)]
    wanted = run.coordinator.request()
    assert run.coordinator.advance() is None
    assert "refused" in run.coordinator.history[-1].failure
    run.checkpoint()
    assert wanted.result(0) == 2


def test_late_reports_go_on_being_safe_when_storage_fails(run: Run, store: FaultyStore) -> None:
    run.checkpoint()
    run.change("detect", 0)
    store.script = [("put", "shared", BEFORE)]
    with pytest.raises(UnavailableError):
        run.snapshot("detect", 0, CheckpointId(9))
    run.coordinator.report("detect", 0, CheckpointId(9), run.snapshot("detect", 0, CheckpointId(9)))
    store.script = [("delete", "", AFTER)]
    run.coordinator.advance()
    restorable(run)


def test_reports_from_many_threads(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> None:
    run = Run(store, tmp_path, clock, operators=[plan("a", 8), plan("b", 8)])
    checkpoint = run.begin()
    infos = {key: run.snapshot(*key, checkpoint) for key in run.files}
    threads = [
        threading.Thread(target=run.coordinator.report, args=(uid, i, checkpoint, info))
        for (uid, i), info in [*infos.items(), *infos.items()]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.deliver_rest(checkpoint)
    assert run.coordinator.advance() == 1
    assert run.coordinator.history[0].acknowledged == 16
    restorable(run)


def test_how_long_something_has_waited_for_a_checkpoint(run: Run, clock: ManualClock) -> None:
    """What a failure now would have done again; a checkpoint that fails covers nothing."""
    c = run.coordinator
    clock.advance(5_000)
    assert c.uncovered_ms == 0, "nothing has happened"
    first = run.begin()
    clock.advance(300)
    assert c.uncovered_ms == 300
    # Epochs go on meanwhile: the oldest counts.
    assert c.trigger(Epoch(2)) is None
    clock.advance(100)
    assert c.uncovered_ms == 400
    run.deliver(first)
    assert c.advance() == first
    assert c.uncovered_ms == 100, "the epoch after it"
    second = c.trigger(Epoch(3))
    assert second is not None
    clock.advance(50)
    c.fail(second, "no space")
    c.advance()
    assert c.uncovered_ms == 150
    third = c.trigger(Epoch(3), changed=False)
    assert third is not None
    run.deliver(third)
    assert c.advance() == third
    clock.advance(3_600_000)
    assert c.trigger(Epoch(3), changed=False) is None
    assert c.uncovered_ms == 0, "an idle job's newest checkpoint is as good as new"


def test_a_manifest_has_what_was_counted(run: Run) -> None:
    checkpoint = run.begin()
    run.coordinator.add_sinks(checkpoint, [], {}, {"rows_in": 7, "late_rows": 1})
    # What comes again says nothing new.
    run.coordinator.add_sinks(checkpoint, [], {}, {"rows_in": 9})
    run.deliver(checkpoint)
    assert run.coordinator.advance() == checkpoint
    assert read_catalog(run.jobdir).live[checkpoint].totals == {"rows_in": 7, "late_rows": 1}
    other = run.checkpoint()
    assert not read_catalog(run.jobdir).live[other].totals


def test_a_file_that_several_partitions_hold_counts_once(run: Run) -> None:
    """As after a rescale, when each of them has some key groups of one partition of before."""
    checkpoint = run.begin()
    run.change("detect", 0)
    first = run.snapshot("detect", 0, checkpoint)
    run.coordinator.report("detect", 0, checkpoint, first)
    second = msgspec.structs.replace(first, index=1, first_key_group=64, last_key_group=127)
    run.coordinator.report("detect", 1, checkpoint, second)
    run.deliver_rest(checkpoint)
    assert run.coordinator.advance() == checkpoint
    manifest = read_catalog(run.jobdir).live[checkpoint]
    inline_bytes = sum(file.size for file in manifest.files() if file.inline is not None)
    all_bytes = inline_bytes + sum(file.size for file in stored_once(manifest.files()))
    assert manifest.total_bytes == manifest.uploaded_bytes == all_bytes
    assert all_bytes < sum(file.size for file in manifest.files())


def test_planned_files_stay_until_a_checkpoint_uses_them_or_the_run_ends(
    store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    run = Run(store, tmp_path, clock, operators=[plan(parallelism=1)])
    first, second = shared_path(), shared_path()

    def take(files: list[FileRef], planned: list[str]) -> Manifest:
        checkpoint = run.begin()
        info = part_of(run.operators[0], 0, files, planned=planned)
        run.coordinator.report(run.operators[0].uid, Partition(0), checkpoint, info)
        run.deliver_rest(checkpoint)
        assert run.coordinator.advance() == checkpoint
        return run.coordinator.confirmed

    planning = take([], [first, second])
    assert planning.paths() >= {first, second}
    run.jobdir.put(first, b"12345")
    run.jobdir.put(second, b"678")
    using = take([shared_ref(first, b"12345")], [second])
    source_bytes = (
        sum(file.size for file in using.source.files() if file.path not in planning.paths()) if using.source else 0
    )
    assert using.uploaded_bytes == 5 + source_bytes
    clock.advance(2 * HOUR_MS)
    execute(plan_deletion(run.jobdir, clock, 0))
    assert {first, second} <= stored(run.jobdir)
    run.coordinator.close("the run ended")
    run.coordinator.delete_planned()
    assert first in stored(run.jobdir)
    assert second not in stored(run.jobdir)
