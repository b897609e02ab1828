"""What a job starts from: each command once, whatever is killed in between."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.chain import BASE
from strandline.checkpoint.check import summaries
from strandline.checkpoint.gc import execute, plan
from strandline.checkpoint.generation import claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import choose
from strandline.core import failpoints
from strandline.core.errors import ConfigurationError, CorruptionError, FencedError, NotFoundError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import MANIFEST
from strandline.snapshot.opening.origin import decide, rollback, verify
from tests.checkpoint.helpers import HOUR_MS, LIFE, assert_restorable, every_epoch
from tests.clock import ManualClock
from tests.snapshot.helpers import Job, jobdir_at, tree, url, write_savepoint
from tests.storage.faulty import FaultyStore


@pytest.fixture
def savepoint(tmp_path: Path) -> str:
    write_savepoint(tmp_path / "sp")
    return url(tmp_path / "sp")


def crash_in(step: str, tmp_path: Path, clock: ManualClock, wanted: str) -> None:
    class Crash(BaseException):
        pass

    def crash() -> None:
        raise Crash

    failpoints.arm(step, crash)
    with pytest.raises(Crash):
        Job(tmp_path, clock, wanted, seed=99)
    failpoints.disarm_all()


def test_a_command_that_is_repeated_restores_once(tmp_path: Path, clock: ManualClock, savepoint: str) -> None:
    first = Job(tmp_path, clock, savepoint)
    assert (first.origin.is_new, first.origin.is_own, first.origin.depends_on) == (True, False, savepoint)
    assert first.epoch == first.origin.manifest.epoch == 70
    again = Job(tmp_path, clock, savepoint, seed=1)
    assert (again.origin.is_new, again.origin.depends_on) == (False, savepoint), "no checkpoint of its own yet"
    assert again.claim.life == first.claim.life, "the same start, once more"
    again.checkpoint()
    third = Job(tmp_path, clock, savepoint, seed=2)
    assert (third.origin.is_own, third.origin.depends_on) == (True, "")
    assert third.origin.manifest.checkpoint == 1
    for seed in range(3, 9):  # However many generations later.
        latest = Job(tmp_path, clock, savepoint, seed=seed)
        latest.checkpoint()
    assert latest.origin.is_own
    other = tmp_path / "other"
    write_savepoint(other, seed=5)
    after = Job(tmp_path, clock, url(other), seed=9)
    assert after.origin.is_new
    assert Job(tmp_path, clock, savepoint, seed=10).origin.is_new, "nothing is lost: there is no checkpoint since"


def test_what_was_restored_before_others_is_not_restored_once_more(
    tmp_path: Path, clock: ManualClock, savepoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A supervisor that alternates between two commands loses nothing; a name of its own says that it is wanted."""
    write_savepoint(tmp_path / "other", seed=5)
    other, seeds = url(tmp_path / "other"), iter(range(100))

    def start(wanted: str | None, again: str = "") -> bool:
        job = Job(tmp_path, clock, wanted, again=again, seed=next(seeds))
        job.checkpoint()
        return job.origin.is_new

    assert start(savepoint)
    assert start(other)
    assert [start(wanted) for wanted in (savepoint, other, None, savepoint)] == [False] * 4
    assert "start it with again=" in caplog.text
    assert start(savepoint, "monday")
    assert [start(savepoint, "monday"), start(savepoint), start(other)] == [False] * 3
    assert start(other, "monday"), "a name is of a snapshot"
    assert start(savepoint, "tuesday")
    newest = max((tmp_path / "ck/job/generations").glob("*.turned"), key=lambda path: int(path.stem))
    record = BASE.decode(newest.read_bytes(), "")
    assert record.restored
    assert record.restored.commands == [
        (savepoint, ""), (other, ""), (savepoint, "monday"), (other, "monday"), (savepoint, "tuesday")
    ]  # fmt: skip


def test_a_restart_does_not_repeat_what_the_start_has_said(
    tmp_path: Path, clock: ManualClock, savepoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    Job(tmp_path, clock, savepoint).checkpoint()
    run = Job(tmp_path, clock, savepoint, seed=1)
    assert "start it with again=" in caplog.text
    caplog.clear()
    restarted = claim(run.jobdir, clock, run.claim)
    assert not decide(run.jobdir, savepoint, owned=restarted, fsync=False).is_new
    assert not caplog.text


@pytest.mark.parametrize("wanted", ["sp", "ck/job/chk-1"])
def test_a_damaged_snapshot_takes_the_place_of_nothing(tmp_path: Path, clock: ManualClock, wanted: str) -> None:
    write_savepoint(tmp_path / "sp")
    run = Job(tmp_path, clock, config=every_epoch(retain=4))
    for _ in range(3):
        run.checkpoint()
    before = run.origin
    files = run.jobdir.read("chk-1/_metadata", MANIFEST.decode).files() if wanted != "sp" else ()
    folder = tmp_path / ("ck/job" if files else "sp")
    mine = {file.path for file in files if file.path}
    broken = min(folder / path for path in mine) if files else min((folder / "data").iterdir())
    whole = broken.read_bytes()
    broken.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    for seed in (1, 2):
        with pytest.raises(CorruptionError, match=rf"{wanted} is not restored: .*{broken.name}: damaged") as caught:
            Job(tmp_path, clock, url(tmp_path / wanted), seed=seed)
        assert "the job still has its own checkpoint 3" in caught.value.hint
        assert "checkpoint" not in caught.value.fields, "and it is not passed over"
    if files:
        claims = tree(tmp_path / "ck/job/generations").keys()
        with pytest.raises(CorruptionError, match="does not go back to checkpoint 1: "):
            rollback(run.jobdir, CheckpointId(1), clock)
        assert tree(tmp_path / "ck/job/generations").keys() == claims
    again = decide(run.jobdir, fsync=False)
    assert again.manifest.checkpoint == 3
    broken.write_bytes(whole)
    assert Job(tmp_path, clock, url(tmp_path / wanted), seed=3).origin.is_new
    assert before.manifest is None


def test_without_anything_to_lose_a_snapshot_is_read_once(
    tmp_path: Path, clock: ManualClock, savepoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    monkeypatch.setattr(
        "strandline.snapshot.opening.origin.verify_files", lambda folder, files: read.append(folder) or []
    )
    run = Job(tmp_path, clock, savepoint)
    assert not read
    run.checkpoint()
    Job(tmp_path, clock, savepoint, seed=1)
    assert not read
    found = decide(run.jobdir, savepoint, again="x", fsync=False)
    verify(run.jobdir, found)
    assert len(read) == 1
    verify(run.jobdir, decide(run.jobdir, savepoint, again="x", fsync=False), found)
    assert len(read) == 1


def test_without_the_command_it_goes_on_too(tmp_path: Path, clock: ManualClock, savepoint: str) -> None:
    Job(tmp_path, clock, savepoint)
    again = Job(tmp_path, clock, seed=1)
    assert again.origin.depends_on == savepoint, "it does not begin empty"
    again.checkpoint()
    assert Job(tmp_path, clock, seed=2).origin.is_own
    assert Job(tmp_path, clock, savepoint, seed=3).origin.is_own


def test_the_folder_of_a_job_that_runs_is_restored_once(tmp_path: Path, clock: ManualClock) -> None:
    theirs = Job(tmp_path, clock, name="theirs", config=every_epoch(retain=2))
    theirs.checkpoint()
    folder = url(tmp_path / "ck/theirs")
    Job(tmp_path, clock, folder, seed=1)
    theirs.checkpoint()
    again = Job(tmp_path, clock, folder, seed=2)
    assert again.origin.depends_on == f"{folder}/chk-1", "the very one that it began with"
    again.checkpoint()
    assert again.origin.is_new is False
    assert Job(tmp_path, clock, folder, seed=3).origin.is_own


@pytest.mark.parametrize("what", ["gone", "other", "cut off"])
def test_a_snapshot_that_is_needed_and_gone(tmp_path: Path, clock: ManualClock, savepoint: str, what: str) -> None:
    first = Job(tmp_path, clock, savepoint)
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "sp", kept)
    shutil.rmtree(tmp_path / "sp")
    if what == "other":
        write_savepoint(tmp_path / "sp", seed=7)
    elif what == "cut off":
        shutil.copytree(kept, tmp_path / "sp")
        next((tmp_path / "sp/data").iterdir()).unlink()
    for wanted in (None, savepoint):
        with pytest.raises(CorruptionError, match=rf"restored {savepoint}, has no checkpoint of its own yet") as caught:
            decide(first.jobdir, wanted, fsync=False)
        assert "bring the snapshot back" in caught.value.hint
        assert "checkpoint" not in caught.value.fields, "none of its own is damaged"
    assert Job(tmp_path, clock, url(kept), seed=1).origin.is_new, "another place is another command"


def test_a_void_snapshot_of_somebody_else_is_still_what_was_restored(tmp_path: Path, clock: ManualClock) -> None:
    theirs = Job(tmp_path, clock, name="theirs", config=every_epoch(retain=2))
    theirs.checkpoint()
    theirs.checkpoint()
    chosen = url(tmp_path / "ck/theirs/chk-2")
    Job(tmp_path, clock, chosen, seed=1)
    rollback(theirs.jobdir, CheckpointId(1), clock)
    assert Job(tmp_path, clock, chosen, seed=2).origin.depends_on == chosen


def test_what_the_job_had_before_is_void(tmp_path: Path, clock: ManualClock, savepoint: str) -> None:
    before = Job(tmp_path, clock)
    before.checkpoint()
    number = before.checkpoint()
    after = Job(tmp_path, clock, savepoint, seed=1)
    catalog = read_catalog(after.jobdir)
    assert (catalog.live, list(catalog.void)) == ({}, [number])
    with pytest.raises(FencedError):
        before.checkpoint()
    assert after.checkpoint() == number + 1, "numbers go on"
    clock.advance(3 * HOUR_MS)
    execute(plan(after.jobdir, clock))
    assert [s.checkpoint for s in summaries(after.jobdir)] == [number + 1]


def test_the_life(tmp_path: Path, clock: ManualClock, savepoint: str) -> None:
    run = Job(tmp_path, clock)
    run.checkpoint()
    life = run.claim.life
    write_savepoint(tmp_path / "own", life=life, generation=1)
    assert not decide(run.jobdir, url(tmp_path / "own"), fsync=False).is_fork
    assert Job(tmp_path, clock, url(tmp_path / "own"), seed=1).claim.life == life, "its own: sinks take back"
    foreign = Job(tmp_path, clock, savepoint, seed=2)
    assert foreign.claim.life not in (life, LIFE)
    foreign.checkpoint()
    assert foreign.confirmed.life == foreign.claim.life
    assert Job(tmp_path, clock, savepoint, seed=3).claim.life == foreign.claim.life
    # Known before anything is touched: what sinks have pending is no fork's affair.
    assert decide(run.jobdir, url(tmp_path / "own"), again="x", fsync=False).is_fork
    assert decide(jobdir_at(tmp_path, "fork"), url(tmp_path / "own"), fsync=False).is_fork
    assert not decide(run.jobdir, fsync=False).is_fork
    fork = Job(tmp_path, clock, url(tmp_path / "own"), name="fork", seed=4)
    assert fork.claim.life not in (life, foreign.claim.life), "two jobs must not take back each other's rows"


def savepoint_of(run: Job, path: Path) -> str:
    """Write what stands for a savepoint of a run's newest checkpoint."""
    newest = run.confirmed
    write_savepoint(
        path, life=newest.life, epoch=newest.epoch, generation=newest.generation, checkpoint=newest.checkpoint
    )
    return url(path)


def test_a_savepoint_that_the_job_has_gone_back_behind(tmp_path: Path, clock: ManualClock) -> None:
    """Its sinks have deleted rows that its state has counted."""
    seeds = iter(range(100))

    def start(wanted: str | None = None) -> Job:
        seed = next(seeds)
        return Job(tmp_path, clock, wanted, again=str(seed), seed=seed, config=every_epoch(retain=9))

    def refused(wanted: str) -> None:
        with pytest.raises(ConfigurationError, match="has gone back behind this snapshot"):
            decide(jobdir_at(tmp_path), wanted, again="and again", fsync=False)

    run = start()
    run.checkpoint()
    one = savepoint_of(run, tmp_path / "one")
    run.checkpoint()
    run = start()
    run.checkpoint()
    three = savepoint_of(run, tmp_path / "three")
    run.checkpoint()
    start()
    # Of the job's history, however many generations ago: it goes back to the one, and the other is beside it then.
    again = start(three)
    assert again.origin.manifest is not None
    assert start(one).claim.life == run.claim.life == again.claim.life
    refused(three)
    run = start(one)
    run.checkpoint()
    run = start()
    run.checkpoint()
    refused(three)
    five = savepoint_of(run, tmp_path / "five")
    run.checkpoint()
    rollback(run.jobdir, CheckpointId(run.confirmed.checkpoint - 2), clock)
    refused(five)
    refused(three)
    start()
    refused(five)
    # Another job has sinks of its own, and one that begins a life too.
    assert Job(tmp_path, clock, five, name="fork", seed=next(seeds)).origin.is_new
    start(one)


@pytest.mark.parametrize("step", ["generation.base.before", "generation.base.copied", "generation.base.after"])
def test_a_kill_at_each_step(tmp_path: Path, clock: ManualClock, savepoint: str, step: str) -> None:
    run = Job(tmp_path, clock)
    number = run.checkpoint()
    crash_in(step, tmp_path, clock, savepoint)
    after = Job(tmp_path, clock, seed=1)
    if step == "generation.base.after":
        assert after.origin.depends_on == savepoint
    else:
        assert (after.origin.is_own, after.origin.manifest.checkpoint) == (True, number), "nothing was decided yet"
    assert Job(tmp_path, clock, savepoint, seed=2).origin.depends_on == savepoint


def test_nothing_of_the_snapshot_is_referenced_or_touched(tmp_path: Path, clock: ManualClock) -> None:
    theirs = Job(tmp_path, clock, name="theirs")
    theirs.checkpoint()
    before = tree(tmp_path / "ck/theirs")
    run = Job(tmp_path, clock, url(tmp_path / "ck/theirs/chk-1"), seed=1)
    assert run.coordinator.counts.restored == 1
    assert run.coordinator.depends_on
    run.checkpoint()
    assert run.coordinator.depends_on == ""
    assert run.coordinator.history[-1].frees == url(tmp_path / "ck/theirs/chk-1")
    run.checkpoint()
    assert run.coordinator.history[-1].frees == ""
    clock.advance(3 * HOUR_MS)
    execute(plan(run.jobdir, clock))
    assert tree(tmp_path / "ck/theirs") == before
    shutil.rmtree(tmp_path / "ck/theirs")
    assert_restorable(run.jobdir, run.coordinator.confirmed)


def test_a_job_that_lost_its_own_checkpoints_does_not_go_back_to_the_snapshot(
    tmp_path: Path, clock: ManualClock, savepoint: str
) -> None:
    run = Job(tmp_path, clock, savepoint)
    run.checkpoint()
    shutil.rmtree(tmp_path / "ck/job/chk-1")
    for wanted in (None, savepoint):
        origin = decide(run.jobdir, wanted, fsync=False)
        assert origin.manifest is None
        assert [(one.checkpoint, one.lost) for one in origin.choice.skipped] == [(1, True)]


def test_an_older_damaged_manifest_is_nobodys_loss(tmp_path: Path, clock: ManualClock, savepoint: str) -> None:
    Job(tmp_path, clock).checkpoint()
    (tmp_path / "ck/job/chk-1/_metadata").write_bytes(b"")
    Job(tmp_path, clock, savepoint, seed=1)
    assert Job(tmp_path, clock, seed=2).origin.depends_on == savepoint


class TestOwnCheckpoints:
    @pytest.fixture
    def run(self, tmp_path: Path, clock: ManualClock) -> Job:
        run = Job(tmp_path, clock, config=every_epoch(retain=4))
        for _ in range(4):
            run.checkpoint()
        return run

    @pytest.mark.parametrize("how", ["restore", "rollback"])
    def test_back_in_time(self, tmp_path: Path, clock: ManualClock, run: Job, how: str) -> None:
        wanted = url(tmp_path / "ck/job/chk-2") if how == "restore" else None
        if how == "rollback":
            assert rollback(run.jobdir, CheckpointId(2), clock) == 2
        after = Job(tmp_path, clock, wanted, seed=1, config=every_epoch(retain=4))
        assert after.origin.is_own
        assert after.origin.manifest.checkpoint == 2
        assert not any(one.lost for one in after.choice.skipped), "they were passed over on purpose"
        assert after.claim.life == run.claim.life
        assert after.checkpoint() == 5
        assert [(s.checkpoint, s.state) for s in summaries(run.jobdir)] == [
            (5, "complete"), (4, "void"), (3, "void"), (2, "complete"), (1, "complete")
        ]  # fmt: skip
        clock.advance(3 * HOUR_MS)
        execute(plan(run.jobdir, clock))
        assert [s.checkpoint for s in summaries(run.jobdir)] == [5, 2, 1]
        assert_restorable(run.jobdir, read_catalog(run.jobdir).live[CheckpointId(2)])
        again = Job(tmp_path, clock, wanted, seed=2)
        assert again.origin.manifest.checkpoint == 5, "the same command goes on"

    def test_a_rollback_is_no_new_command(self, tmp_path: Path, clock: ManualClock, savepoint: str) -> None:
        run = Job(tmp_path, clock, savepoint, name="other", config=every_epoch(retain=4))
        for _ in range(3):
            run.checkpoint()
        rollback(run.jobdir, CheckpointId(2), clock)
        rollback(run.jobdir, CheckpointId(1), clock)
        again = decide(run.jobdir, savepoint, fsync=False)
        assert again.is_own
        assert again.manifest.checkpoint == 1

    def test_damaged_ones_that_were_left_behind_do_not_stop_a_collection(
        self, tmp_path: Path, clock: ManualClock, run: Job
    ) -> None:
        (tmp_path / "ck/job/chk-3/_metadata").write_bytes(b"")
        rollback(run.jobdir, CheckpointId(2), clock)
        for seed in (1, 2):
            after = Job(tmp_path, clock, seed=seed, config=every_epoch(retain=4))
            after.checkpoint()
        clock.advance(3 * HOUR_MS)
        execute(plan(run.jobdir, clock))
        assert [s.checkpoint for s in summaries(run.jobdir)] == [6, 5, 2, 1]

    def test_where_one_cannot_go_back_to(self, tmp_path: Path, clock: ManualClock, run: Job) -> None:
        rollback(run.jobdir, CheckpointId(3), clock)
        before = choose(run.jobdir).manifest
        for number, why in ((17, "there is none of this number"), (4, "published by generation 1")):
            with pytest.raises(NotFoundError, match=f"cannot go back to checkpoint {number}: {why}") as caught:
                rollback(run.jobdir, CheckpointId(number), clock)
            assert caught.value.hint == "it can go back to 1, 2, 3"
        assert choose(run.jobdir).manifest == before
        assert not (tmp_path / "ck/job/generations/3").exists(), "nobody was fenced"

    @pytest.mark.parametrize("at", range(1, 5))
    def test_one_that_a_driver_elsewhere_subsumes_meanwhile(self, clock: ManualClock, run: Job, at: int) -> None:
        store, lists = FaultyStore(run.jobdir.store), []

        def subsume(operation: str, path: str) -> None:
            lists.extend([path] * (operation == "list"))
            if len(lists) == at:
                run.jobdir.delete(["chk-1/_metadata"])

        store.before = subsume
        with pytest.raises(NotFoundError, match="cannot go back to checkpoint 1: there is none of this number"):
            rollback(JobDirectory(store, "job"), CheckpointId(1), clock)

    def test_a_driver_that_runs_is_fenced(self, clock: ManualClock, run: Job) -> None:
        rollback(run.jobdir, CheckpointId(2), clock)
        with pytest.raises(FencedError):
            run.checkpoint()


class TestDamagedRecords:
    def test_the_record_of_a_restore_has_a_copy(self, tmp_path: Path, clock: ManualClock, savepoint: str) -> None:
        Job(tmp_path, clock).checkpoint()
        Job(tmp_path, clock, savepoint, seed=1)
        (tmp_path / "ck/job/generations/2.base").write_bytes(b"")
        again = Job(tmp_path, clock, seed=2)
        assert again.origin.depends_on == savepoint
        assert again.choice.damaged_bases == []

    def test_the_record_of_a_rollback_has_a_copy(self, tmp_path: Path, clock: ManualClock) -> None:
        run = Job(tmp_path, clock, config=every_epoch(retain=2))
        run.checkpoint()
        run.checkpoint()
        rollback(run.jobdir, CheckpointId(1), clock)
        (tmp_path / "ck/job/generations/2.base").write_bytes(b"")
        assert sorted(read_catalog(run.jobdir).live) == [1]

    @pytest.mark.parametrize("had", [0, 1])
    def test_both_are_damaged(self, tmp_path: Path, clock: ManualClock, savepoint: str, had: int) -> None:
        run = Job(tmp_path, clock)
        for _ in range(had):
            run.checkpoint()
        Job(tmp_path, clock, savepoint, seed=1)
        for name in ("2.base", "2.turned"):
            (tmp_path / "ck/job/generations" / name).write_bytes(b"")
        origin = decide(run.jobdir, fsync=False)
        assert origin.manifest is None
        assert any(one.lost for one in origin.choice.skipped), "it does not begin empty, nor with what was left"
        with pytest.raises(CorruptionError, match=r"whether it has restored .* is unknown"):
            decide(run.jobdir, savepoint, fsync=False)

    def test_whether_it_was_restored_is_unknown(self, tmp_path: Path, clock: ManualClock, savepoint: str) -> None:
        Job(tmp_path, clock, savepoint).checkpoint()
        run = Job(tmp_path, clock, seed=1)
        number = run.checkpoint()
        (tmp_path / "ck/job/generations/2.base").write_bytes(b"")
        with pytest.raises(CorruptionError, match=r"generations/2\.base") as caught:
            decide(run.jobdir, savepoint, fsync=False)
        assert "without a snapshot" in caught.value.hint
        origin = decide(run.jobdir, fsync=False)
        assert origin.manifest.checkpoint == number

    def test_a_copy_without_its_record_decides_nothing(
        self, tmp_path: Path, clock: ManualClock, savepoint: str
    ) -> None:
        run = Job(tmp_path, clock)
        number = run.checkpoint()
        crash_in("generation.base.copied", tmp_path, clock, savepoint)
        assert (tmp_path / "ck/job/generations/2.turned").exists()
        assert list(read_catalog(run.jobdir).live) == [number]


def test_a_checkpoint_of_another_job_cannot_be_claimed(tmp_path: Path, clock: ManualClock) -> None:
    Job(tmp_path, clock, name="theirs").checkpoint()
    wanted = url(tmp_path / "ck/theirs/chk-1")
    with pytest.raises(ConfigurationError, match="checkpoint of job 'theirs' cannot be claimed"):
        decide(jobdir_at(tmp_path), wanted, claimed=True, fsync=False)
    assert decide(jobdir_at(tmp_path, "theirs"), wanted, claimed=True, fsync=False).is_own, "it is its own anyway"


def test_the_record(tmp_path: Path, clock: ManualClock, savepoint: str) -> None:
    Job(tmp_path, clock, savepoint)
    record = BASE.decode((tmp_path / "ck/job/generations/1.base").read_bytes(), "")
    assert (record.checkpoint, record.foreign.url, record.foreign.kind) == (None, savepoint, "savepoint")
    assert (record.foreign.job, record.foreign.checkpoint, record.foreign.generation) == ("other", 9, 4)
    assert record.foreign.life == LIFE != record.life


def test_it_says_that_it_goes_on(
    tmp_path: Path, clock: ManualClock, savepoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run = Job(tmp_path, clock, savepoint)
        run.checkpoint()
        assert run.coordinator.history[-1].frees == savepoint
        Job(tmp_path, clock, savepoint, seed=1)
    assert f"goes on from its own checkpoint 1: it has restored {savepoint} before" in caplog.text


def test_a_claim_that_was_replaced_records_nothing(tmp_path: Path, clock: ManualClock, savepoint: str) -> None:
    jobdir = jobdir_at(tmp_path)
    slow = claim(jobdir, clock)
    origin = decide(jobdir, savepoint, owned=slow, fsync=False)
    claim(jobdir, clock)
    with pytest.raises(FencedError):
        origin.make_base(jobdir, slow)
    assert not list((tmp_path / "ck/job/generations").glob("*.*"))
