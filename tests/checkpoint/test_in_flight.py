"""Several checkpoints in flight: the first complete one is published, and subsumes the older."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.gc import execute
from strandline.checkpoint.gc import plan as plan_deletion
from strandline.checkpoint.restore import choose
from strandline.core import failpoints
from strandline.core.errors import CheckpointError
from strandline.core.ids import CheckpointId, Partition
from strandline.format.manifest import FileRef, PartitionInfo
from tests.checkpoint.helpers import HOUR_MS, Run, assert_restorable, every_epoch, part_of, plan, shared_ref, stored
from tests.clock import ManualClock
from tests.crashing import Crash, crash
from tests.storage.faulty import AFTER, BEFORE, FaultyStore


@pytest.fixture
def run(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> Run:
    run = Run(store, tmp_path, clock, config=every_epoch(tolerable_failures=None, max_concurrent=2))
    run.checkpoint()
    return run


def trigger(run: Run, number: int) -> CheckpointId:
    assert run.trigger() == number
    return CheckpointId(number)


def upload(run: Run, checkpoint: CheckpointId) -> list[PartitionInfo]:
    """Let all partitions change, and upload their snapshots, which build on the checkpoint that is confirmed now."""
    for slot in run.files:
        run.change(*slot)
    return [run.snapshot(uid, partition, checkpoint) for uid, partition in run.files]


def deliver(run: Run, checkpoint: CheckpointId, infos: list[PartitionInfo]) -> None:
    for info in infos:
        run.coordinator.report("detect", info.index, checkpoint, info)
    run.deliver_rest(checkpoint)


def paths(infos: list[PartitionInfo]) -> set[str]:
    return {file.path for info in infos for file in info.files if file.path}


def assert_only(run: Run, *checkpoints: int) -> None:
    """These checkpoints are in storage, can be restored, and nothing else is left there."""
    live = read_catalog(run.jobdir).live
    assert sorted(live) == list(checkpoints)
    for manifest in live.values():
        assert_restorable(run.jobdir, manifest)
    needed = {path for manifest in live.values() for path in manifest.paths()}
    assert stored(run.jobdir) == needed | {f"chk-{checkpoint}/_metadata" for checkpoint in checkpoints}


def test_a_later_checkpoint_that_is_complete_first_is_published_at_once(run: Run) -> None:
    slow = trigger(run, 2)
    wanted = run.coordinator.request()
    partial = upload(run, slow)
    run.coordinator.report("detect", Partition(0), slow, partial[0])
    fast = trigger(run, 3)
    assert run.coordinator.in_flight == (slow, fast)
    deliver(run, fast, upload(run, fast))
    assert run.coordinator.advance() == fast
    assert wanted.result(0) == fast
    assert run.coordinator.in_flight == ()
    assert run.committed == [1, 3]
    assert [stats.status for stats in run.coordinator.history] == ["completed", "subsumed", "completed"]
    counts = run.coordinator.counts
    assert (counts.completed, counts.subsumed, counts.failed, counts.in_progress) == (2, 1, 0, 0)
    # What comes of the slow one later is deleted, too.
    run.coordinator.report("detect", Partition(1), slow, partial[1])
    run.coordinator.report_failure("detect", Partition(1), slow, "cancelled")
    assert run.coordinator.advance() is None
    assert_only(run, 3)
    assert choose(run.jobdir).manifest == run.coordinator.confirmed


def test_those_who_asked_for_the_slow_one_get_the_later_one(run: Run) -> None:
    wanted = run.coordinator.request()
    trigger(run, 2)
    fast = trigger(run, 3)
    deliver(run, fast, upload(run, fast))
    assert not wanted.done()
    assert run.coordinator.advance() == fast
    assert wanted.result(0) == fast


def test_those_who_asked_for_the_slow_one_are_told_of_a_sinks_failure(run: Run) -> None:
    wanted = run.coordinator.request()
    trigger(run, 2)
    fast = trigger(run, 3)
    deliver(run, fast, upload(run, fast))
    run.coordinator._commit_sinks = lambda manifest: 1 / 0  # type: ignore[assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        run.coordinator.advance()
    with pytest.raises(ZeroDivisionError):
        wanted.result(0)


def test_increments_build_on_completed_checkpoints_alone(run: Run) -> None:
    """The worked example: 3 completes before 2, and 4 builds on 3 only."""
    second, third = trigger(run, 2), trigger(run, 3)
    of_second, of_third = upload(run, second), upload(run, third)
    first = run.confirmed
    # Both have uploaded what the first one lacks, each under its own names.
    assert not (paths(of_second) - first.paths()) & (paths(of_third) - first.paths())
    deliver(run, third, of_third)
    assert run.coordinator.advance() == third
    deliver(run, second, of_second)
    fourth = trigger(run, 4)
    of_fourth = upload(run, fourth)
    assert paths(of_fourth) & paths(of_third) - first.paths()
    assert not paths(of_fourth) & (paths(of_second) - first.paths())
    deliver(run, fourth, of_fourth)
    assert run.coordinator.advance() == fourth
    run.coordinator.advance()
    assert_only(run, 4)


def test_both_are_complete(run: Run) -> None:
    """One publication does for both."""
    for number in (2, 3):
        deliver(run, trigger(run, number), upload(run, CheckpointId(number)))
    assert run.coordinator.advance() == 3
    assert run.coordinator.advance() is None
    assert run.committed == [1, 3]
    assert_only(run, 3)


def replace_a_base(run: Run) -> tuple[CheckpointId, list[PartitionInfo]]:
    """Let 3 take the place of 2, while 4, which is returned with its parts, builds on 2.

    2 and 3 upload the same files under two names.
    """
    second, third = trigger(run, 2), trigger(run, 3)
    of_third = upload(run, third)
    deliver(run, second, upload(run, second))
    assert run.coordinator.advance() == second
    fourth = trigger(run, 4)
    of_fourth = upload(run, fourth)
    deliver(run, third, of_third)
    assert run.coordinator.advance() == third
    return fourth, of_fourth


def test_a_base_stays_while_a_checkpoint_in_flight_builds_on_it(run: Run) -> None:
    fourth, of_fourth = replace_a_base(run)
    second, third = CheckpointId(2), CheckpointId(3)
    live = read_catalog(run.jobdir).live
    assert sorted(live) == [2, 3]
    assert paths(of_fourth) & live[second].paths() - live[third].paths(), "it needs files that only its base has"
    deliver(run, fourth, of_fourth)
    assert run.coordinator.advance() == fourth
    run.coordinator.advance()
    assert_only(run, 4)


def test_a_base_goes_when_the_checkpoint_that_builds_on_it_fails(run: Run) -> None:
    second, third = trigger(run, 2), trigger(run, 3)
    deliver(run, second, upload(run, second))
    assert run.coordinator.advance() == second
    assert sorted(read_catalog(run.jobdir).live) == [1, 2]
    of_third = upload(run, third)
    run.coordinator.report("detect", Partition(0), third, of_third[0])
    run.coordinator.report_failure("detect", Partition(1), third, "no space")
    run.coordinator.report("detect", Partition(1), third, of_third[1])
    for _ in range(2):
        run.coordinator.advance()
    assert_only(run, 2)


def test_no_file_of_a_checkpoint_in_flight_is_referenced_by_another(run: Run) -> None:
    second, third = trigger(run, 2), trigger(run, 3)
    of_second = upload(run, second)
    run.coordinator.report("detect", Partition(0), second, of_second[0])
    of_third = upload(run, third)
    deliver(run, third, [of_second[0], of_third[1]])
    assert run.coordinator.advance() is None
    assert "publishing it would be unsafe" in run.coordinator.history[-1].failure
    # That report is the other one's, too: its files stay.
    run.coordinator.report("detect", Partition(1), second, of_second[1])
    run.deliver_rest(second)
    run.coordinator.advance()
    assert run.committed[-1] in (1, 2)
    assert_restorable(run.jobdir, read_catalog(run.jobdir).live[run.committed[-1]])


def test_files_that_were_uploaded_beside_are_used_by_several_in_flight(store: FaultyStore, tmp_path: Path) -> None:
    clock = ManualClock()
    config = every_epoch(tolerable_failures=None, max_concurrent=3)
    run = Run(store, tmp_path, clock, config=config, operators=[plan(parallelism=1)])
    path = "shared/ab/cdef"

    def report(checkpoint: CheckpointId, files: list[FileRef], planned: list[str]) -> None:
        deliver(run, checkpoint, [part_of(run.operators[0], 0, files, planned=planned)])

    first = trigger(run, 1)
    report(first, [], [path])
    assert run.coordinator.advance() == first
    run.jobdir.put(path, b"12345")
    second, third, fourth = (trigger(run, number) for number in (2, 3, 4))
    # The third is the first that uses it, and fails; the second, an older one, is complete.
    run.coordinator.report("detect", Partition(0), third, part_of(run.operators[0], 0, [shared_ref(path, b"12345")]))
    run.coordinator.fail(third, "no progress of the source")
    assert run.coordinator.advance() is None
    report(second, [], [path])
    assert run.coordinator.advance() == second
    report(fourth, [shared_ref(path, b"12345")], [])
    assert run.coordinator.advance() == fourth
    run.coordinator.advance()
    assert_only(run, 4)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_nothing_older_is_published_after_one_in_doubt(run: Run, store: FaultyStore, when: str) -> None:
    """It may be the job's newest, and then it needs a base that the publication of an older one would subsume."""
    wanted = run.coordinator.request()
    second, third = trigger(run, 2), trigger(run, 3)
    of_second = upload(run, second)
    deliver(run, third, upload(run, third))
    deliver(run, second, of_second)
    store.script = [("create", "chk-3/_metadata", when)]
    assert run.coordinator.advance() is None
    assert run.coordinator.in_flight == ()
    assert run.committed == [1]
    assert not wanted.done()
    found = choose(run.jobdir).manifest
    assert found.checkpoint == (3 if when == AFTER else 1)
    assert_restorable(run.jobdir, found)
    run.checkpoint()
    assert wanted.result(0) == 4
    run.coordinator.advance()
    assert_only(run, 4)


def test_a_later_one_is_published_after_one_in_doubt(run: Run, store: FaultyStore) -> None:
    second, third = trigger(run, 2), trigger(run, 3)
    of_third = upload(run, third)
    deliver(run, second, upload(run, second))
    store.script = [("create", "chk-2/_metadata", AFTER)]
    assert run.coordinator.advance() is None
    assert run.coordinator.in_flight == (third,)
    deliver(run, third, of_third)
    assert run.coordinator.advance() == third
    run.coordinator.advance()
    assert_only(run, 3)


def test_one_in_doubt_keeps_the_files_of_its_base(run: Run, store: FaultyStore) -> None:
    """4 is in doubt: it may be the job's newest, with files of 2.

    2 stays, so that `gc` keeps its files, too, while the manifest of 4 may still appear.
    """
    fourth, of_fourth = replace_a_base(run)
    third = CheckpointId(3)
    deliver(run, fourth, of_fourth)
    store.script = [("create", "chk-4/_metadata", AFTER)]
    for _ in range(2):
        assert run.coordinator.advance() is None
    live = read_catalog(run.jobdir).live
    assert sorted(live) == [2, 3, 4]
    assert paths(of_fourth) - live[third].paths(), "it needs files that only its base had"
    assert_restorable(run.jobdir, live[fourth])
    run.checkpoint()
    run.coordinator.advance()
    assert_only(run, 5)


def test_each_has_its_own_timeout(run: Run, clock: ManualClock) -> None:
    second = trigger(run, 2)
    run.coordinator.add_source(second, None)
    clock.advance(599_999)
    third = trigger(run, 3)
    run.coordinator.postpone()
    clock.advance(1)
    assert run.coordinator.advance() is None
    assert run.coordinator.in_flight == (third,)
    assert "checkpoint 2 timed out" in run.coordinator.history[-2].failure
    deliver(run, third, upload(run, third))
    assert run.coordinator.advance() == third
    assert run.coordinator.counts.failed == 1


def test_changes_of_one_that_fails_are_covered_by_the_later_one(run: Run, clock: ManualClock) -> None:
    c = run.coordinator
    second = trigger(run, 2)
    clock.advance(100)
    third = trigger(run, 3)
    clock.advance(100)
    assert c.uncovered_ms == 200
    c.fail(second, "no space")
    c.advance()
    assert c.uncovered_ms == 200
    assert not c.is_due, "the later one covers them"
    c.fail(third, "no space")
    c.advance()
    assert c.uncovered_ms == 200
    assert c.is_due
    fourth = trigger(run, 4)
    deliver(run, fourth, upload(run, fourth))
    assert c.advance() == fourth
    phases = c.history[-1].phases
    assert phases.waits_ms == 200


def test_rows_of_a_subsumed_checkpoint_have_waited_since_their_epoch(run: Run, clock: ManualClock) -> None:
    trigger(run, 2)
    clock.advance(1000)
    third = trigger(run, 3)
    deliver(run, third, upload(run, third))
    assert run.coordinator.advance() == third
    phases = run.coordinator.history[-1].phases
    assert phases.waits_ms == 1000


def test_no_more_than_so_many_are_in_flight(run: Run) -> None:
    second, third = trigger(run, 2), trigger(run, 3)
    wanted = run.coordinator.request()
    assert not run.coordinator.is_due
    assert run.trigger() is None
    deliver(run, second, upload(run, second))
    assert run.coordinator.advance() == second
    assert run.coordinator.is_due
    assert trigger(run, 4)
    assert run.coordinator.in_flight == (third, 4)
    deliver(run, third, upload(run, third))
    assert run.coordinator.advance() == third
    assert not wanted.done(), "only the fourth was triggered after the request"


def test_a_new_keeper_knows_only_of_the_checkpoint_that_began_with_it(run: Run) -> None:
    second = trigger(run, 2)
    run.coordinator.report("detect", Partition(0), second, upload(run, second)[0])
    third = trigger(run, 3)
    run.coordinator.retake("detect", Partition(0), known=third)
    assert run.coordinator.advance() is None
    assert run.coordinator.in_flight == (second, third)
    run.coordinator.retake("detect", Partition(1), known=third)
    assert run.coordinator.advance() is None
    assert run.coordinator.in_flight == (third,)
    deliver(run, third, upload(run, third))
    assert run.coordinator.advance() == third


def test_the_end_of_a_run_aborts_all(run: Run) -> None:
    wanted = [run.coordinator.request()]
    trigger(run, 2)
    wanted.append(run.coordinator.request())
    trigger(run, 3)
    run.coordinator.close("the run ended")
    for number, each in enumerate(wanted, 2):
        with pytest.raises(CheckpointError, match=f"checkpoint {number} was aborted: the run ended") as caught:
            each.result(0)
        assert caught.value.fields["attempt_ended"]
    run.coordinator.advance()
    assert run.coordinator.in_flight == ()
    assert_only(run, 1)


def test_a_crash_before_the_files_of_the_subsumed_one_are_deleted(
    run: Run, store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    second, third = trigger(run, 2), trigger(run, 3)
    run.coordinator.report("detect", Partition(0), second, upload(run, second)[0])
    deliver(run, third, upload(run, third))
    failpoints.arm("checkpoint.subsume.in_flight", crash)
    with pytest.raises(Crash):
        run.coordinator.advance()
    failpoints.disarm_all()
    after = Run(store, tmp_path, clock, seed=1)
    assert after.restored.checkpoint == third
    assert_restorable(after.jobdir, after.choice.manifest)
    after.checkpoint()
    clock.advance(2 * HOUR_MS)
    execute(plan_deletion(after.jobdir, clock, HOUR_MS))
    assert_only(after, 4)
