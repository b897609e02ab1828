"""What is seen before a manifest is published, and what becomes of one that nobody knows to be there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.jobdir import manifest_path
from strandline.checkpoint.restore import choose
from strandline.core import failpoints
from strandline.core.errors import ConfigurationError, ConflictError, CorruptionError, FencedError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import FileRef
from tests.checkpoint.helpers import Run, assert_restorable, every_epoch, stored
from tests.clock import ManualClock
from tests.storage.faulty import AFTER, BEFORE, FaultyStore

TOLERANT = every_epoch(tolerable_failures=None)


@pytest.fixture
def run(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> Run:
    run = Run(store, tmp_path, clock, config=TOLERANT)
    run.checkpoint()
    return run


def delivered(run: Run) -> CheckpointId:
    """Trigger a checkpoint and upload everything for it."""
    checkpoint = run.begin()
    run.deliver(checkpoint)
    return checkpoint


def new_file(run: Run) -> FileRef:
    """Return a stored file that the pending checkpoint has and the confirmed one has not."""
    pending = run.coordinator._in_flight.newest
    known = {f.path for f in run.confirmed.files()}
    return next(f for f in pending.files() if f.path and f.path not in known and f.size > 1)


# -- every new file is seen before


@pytest.mark.parametrize("damage", ["missing", "cut off"])
def test_what_is_not_in_storage_is_not_published(run: Run, damage: str) -> None:
    delivered(run)
    file = new_file(run)
    if damage == "missing":
        run.jobdir.delete([file.path])
    else:
        run.jobdir.put(file.path, b"!")
    wanted = "missing" if damage == "missing" else f"1 bytes, expected {file.size}"
    assert run.coordinator.advance() is None
    failure = run.coordinator.history[-1].failure
    assert file.path in failure
    assert wanted in failure
    assert list(read_catalog(run.jobdir).live) == [1], "the only good one stays"
    assert run.committed == [1]
    run.checkpoint()
    assert_restorable(run.jobdir, run.confirmed)


def test_storage_that_does_not_answer_before_the_manifest_leaves_no_doubt(run: Run, store: FaultyStore) -> None:
    before = stored(run.jobdir)
    delivered(run)
    store.script = [("head", new_file(run).path, BEFORE)]
    assert run.coordinator.advance() is None
    run.coordinator.advance()
    assert stored(run.jobdir) == before, "its files are deleted at once"


def test_only_new_files_are_looked_at(
    store: FaultyStore, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STRANDLINE_VERIFY")
    run = Run(store, tmp_path, clock, config=TOLERANT)
    run.checkpoint()
    known = {f.path for f in run.confirmed.files()}
    delivered(run)
    store.calls.clear()
    run.coordinator.advance()
    looked_at = [path.removeprefix("job/") for op, path in store.calls if op == "head" and "generations" not in path]
    manifest = run.coordinator.confirmed
    assert sorted(looked_at) == sorted({f.path for f in manifest.files() if f.path} - known)


def test_nothing_is_deleted_when_the_first_look_finds_the_newest_incomplete(
    store: FaultyStore, tmp_path: Path, clock: ManualClock, run: Run, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.delenv("STRANDLINE_VERIFY")
    after = Run(store, tmp_path, clock, config=TOLERANT, seed=1)
    for partition, part in enumerate(after.restored.operators[0].partitions):
        after.files["detect", partition] = {f.name: run.jobdir.get(f.path) for f in part.files if f.shared}
    after.numbers = 1000
    delivered(after)
    pending = after.coordinator._in_flight.newest
    taken_over = {f.path for f in after.restored.files() if f.shared}
    shared = next(f for f in pending.files() if f.path in taken_over)
    data, before = run.jobdir.get(shared.path), stored(run.jobdir)
    run.jobdir.delete([shared.path])
    with caplog.at_level("WARNING"):
        assert after.coordinator.advance() == 2
        # Neither goes a file, nor comes a checkpoint that would lack it, too.
        for _ in range(2):
            clock.advance(10_000)
            assert delivered(after)
            assert after.coordinator.advance() is None
    failed = after.coordinator.history[-1].failure
    assert f"{shared.path}: missing, but checkpoint 2 is the newest" in failed
    assert len([r for r in caplog.records if shared.path in r.getMessage()]) == 1
    assert before - {shared.path} | {"chk-2/_metadata"} <= stored(run.jobdir)
    run.jobdir.put(shared.path, data)
    clock.advance(10_000)
    after.checkpoint()
    assert "chk-2/_metadata" not in stored(run.jobdir)
    assert_restorable(run.jobdir, after.confirmed)


# -- in doubt


@pytest.mark.parametrize("there", [True, False])
def test_a_manifest_in_doubt_stays_while_it_may_be_the_newest(
    run: Run, store: FaultyStore, tmp_path: Path, clock: ManualClock, there: bool
) -> None:
    second = delivered(run)
    pending = run.coordinator._in_flight.newest
    files = {f.path for f in pending.files() if f.path}
    store.script = [("create", "_metadata", AFTER if there else BEFORE)]
    assert run.coordinator.advance() is None
    for _ in range(3):
        clock.advance(10_000)
        run.coordinator.advance()
    # … nor with a failure after it, or when the run ends.
    run.trigger()
    run.coordinator.close("the run ended")
    run.coordinator.advance()
    run.coordinator.advance()
    assert files <= stored(run.jobdir)
    assert (manifest_path(second) in stored(run.jobdir)) == there
    after = Run(store, tmp_path, clock, config=TOLERANT, seed=1)
    assert after.restored.checkpoint == (2 if there else 1)
    assert_restorable(run.jobdir, after.choice.manifest)


def test_any_error_of_the_last_write_leaves_doubt(run: Run, store: FaultyStore) -> None:
    """Credentials expire between a try whose answer was lost and the next."""
    delivered(run)
    create = store.inner.create

    def written_and_denied(path: str, data: bytes) -> None:
        create(path, data)
        raise ConfigurationError("the token has expired")

    store.inner.create = written_and_denied  # type: ignore[method-assign]
    assert run.coordinator.advance() is None
    store.inner.create = create  # type: ignore[method-assign]
    run.coordinator.advance()
    found = choose(run.jobdir).manifest
    assert found.checkpoint == 2
    assert_restorable(run.jobdir, found)


def test_any_error_of_the_look_at_a_conflict_leaves_doubt(run: Run, store: FaultyStore) -> None:
    """The client has tried again after a lost answer, and conflicts with itself."""
    delivered(run)
    create, get = store.inner.create, store.inner.get

    def denied(path: str) -> bytes:
        raise ConfigurationError("the token has expired")

    def written_and_conflicting(path: str, data: bytes) -> None:
        create(path, data)
        store.inner.get = denied  # type: ignore[method-assign]
        raise ConflictError("an object is already there")

    store.inner.create = written_and_conflicting  # type: ignore[method-assign]
    assert run.coordinator.advance() is None
    store.inner.create, store.inner.get = create, get  # type: ignore[method-assign]
    run.coordinator.advance()
    found = choose(run.jobdir).manifest
    assert found.checkpoint == 2
    assert_restorable(run.jobdir, found)


def test_a_manifest_in_doubt_that_appears_after_its_deletion_does_not_stay(
    run: Run, store: FaultyStore, clock: ManualClock
) -> None:
    delivered(run)
    create, delete, late, deleted = store.inner.create, store.inner.delete, [], []

    def delayed(path: str, data: bytes) -> None:
        late.append((path, data))
        raise UnavailableError("no answer")

    store.inner.create = delayed  # type: ignore[method-assign]
    assert run.coordinator.advance() is None
    store.inner.create = create  # type: ignore[method-assign]
    run.checkpoint()
    ((path, data),) = late
    create(path, data)
    newest = run.checkpoint()
    assert list(read_catalog(run.jobdir).manifests) == [newest]

    def noted(paths: Iterable[str]) -> None:
        deleted.extend(paths := list(paths))
        delete(paths)

    # Not for ever: each deletion leaves a marker in a bucket with versions.
    store.inner.delete = noted  # type: ignore[method-assign]
    for _ in range(2):
        deleted.clear()
        clock.advance(3_600_000)
        run.checkpoint()
    assert deleted
    assert path not in deleted


def test_a_driver_that_takes_over_keeps_what_was_in_doubt(
    run: Run, store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    """The worst moment: the old driver has made sure that it owns the job, and is about to delete."""
    delivered(run)
    store.script = [("create", "_metadata", AFTER)]
    run.coordinator.advance()
    failed = run.begin()
    run.deliver(failed)
    run.coordinator.close("it leaves files to delete")
    successors: list[Run] = []

    def take_over(operation: str, path: str) -> None:
        if operation == "delete" and not successors:
            store.before = lambda operation, path: None
            successors.append(Run(store, tmp_path, clock, config=TOLERANT, seed=1))

    store.before = take_over
    for _ in range(2):
        try:
            run.coordinator.advance()
        except FencedError:
            pass
    (successor,) = successors
    assert successor.restored.checkpoint == 2
    assert_restorable(run.jobdir, successor.choice.manifest)
    successor.checkpoint()
    assert_restorable(run.jobdir, successor.confirmed)


def test_files_of_a_manifest_in_doubt_are_never_referenced(run: Run, store: FaultyStore) -> None:
    second = run.begin()
    run.change("detect", 0)
    info = run.snapshot("detect", 0, second)
    run.coordinator.report("detect", 0, second, info)
    run.coordinator.report("detect", 1, second, run.snapshot("detect", 1, second))
    run.deliver_rest(second)
    store.script = [("create", "_metadata", AFTER)]
    run.coordinator.advance()
    third = run.begin()
    run.coordinator.report("detect", 0, third, info)
    run.coordinator.report("detect", 1, third, run.snapshot("detect", 1, third))
    run.deliver_rest(third)
    assert run.coordinator.advance() is None
    assert "publishing it would be unsafe" in run.coordinator.history[-1].failure
    run.coordinator.advance()
    assert_restorable(run.jobdir, read_catalog(run.jobdir).manifests[second])


# -- an old driver that deletes late


def paused_in_subsume(run: Run, store: FaultyStore, take_over: object) -> None:
    """Let a driver be replaced when it has made sure that it owns the job, and is about to delete a manifest."""

    def replace(operation: str, path: str) -> None:
        if operation == "delete" and path.endswith("_metadata"):
            store.before = lambda operation, path: None
            take_over()  # type: ignore[operator]

    store.before = replace
    run.checkpoint()


@pytest.mark.parametrize("publishes", [False, True])
def test_what_an_old_driver_deletes_late_is_not_what_its_successor_chose(
    run: Run, store: FaultyStore, tmp_path: Path, clock: ManualClock, publishes: bool
) -> None:
    successors: list[Run] = []

    def take_over() -> None:
        successors.append(Run(store, tmp_path, clock, config=TOLERANT, seed=1))
        if publishes:
            successors[0].checkpoint()

    paused_in_subsume(run, store, take_over)
    (successor,) = successors
    assert successor.restored.checkpoint == 2
    newest = 3 if publishes else 2
    assert list(read_catalog(run.jobdir).live) == [newest]
    assert_restorable(run.jobdir, read_catalog(run.jobdir).live[CheckpointId(newest)])
    successor.checkpoint()
    assert_restorable(run.jobdir, successor.confirmed)


def test_only_if_the_newest_was_damaged_meanwhile_it_is_and_that_shows(
    run: Run, store: FaultyStore, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STRANDLINE_VERIFY")
    successors: list[Run] = []

    def take_over() -> None:
        run.jobdir.put("chk-2/_metadata", b"")
        successor = Run(store, tmp_path, clock, config=TOLERANT, seed=1)
        assert successor.restored.checkpoint == 1
        successors.append(successor)

    paused_in_subsume(run, store, take_over)
    # The files of a failed checkpoint are the first that the successor would delete.
    delivered(successors[0])
    before = stored(run.jobdir)
    successors[0].coordinator.close("test")
    successors[0].coordinator.advance()
    successors[0].coordinator.advance()
    clock.advance(10_000)
    delivered(successors[0])
    assert successors[0].coordinator.advance() is None
    assert "checkpoint 1 is the newest: nothing is deleted" in successors[0].coordinator.history[-1].failure
    assert before <= stored(run.jobdir)


# -- the invariant


def test_an_invariant_that_is_broken_before_publishing(run: Run) -> None:
    delivered(run)
    file = new_file(run)
    data = run.jobdir.get(file.path)
    run.jobdir.put(file.path, bytes([data[0] ^ 1]) + data[1:])
    before = stored(run.jobdir)
    with pytest.raises(CorruptionError, match=f"^invariant broken.*checkpoint 2 is to be published: {file.path}"):
        run.coordinator.advance()
    assert stored(run.jobdir) == before


def test_an_invariant_that_is_broken_before_deleting(run: Run) -> None:
    delivered(run)
    file = new_file(run)

    def damage() -> None:
        data = run.jobdir.get(file.path)
        run.jobdir.put(file.path, bytes([data[0] ^ 1]) + data[1:])

    failpoints.arm("checkpoint.subsume.before", damage)
    before = stored(run.jobdir)
    with pytest.raises(CorruptionError, match=f"^invariant broken.*checkpoint 2 stays, and lacks {file.path}"):
        run.coordinator.advance()
    assert stored(run.jobdir) == before | {"chk-2/_metadata"}


def test_an_invariant_that_is_broken_by_a_deletion(run: Run) -> None:
    """A fault of our own: the books say that a file is nobody's, and a manifest lists it."""
    path = next(f.path for f in run.confirmed.files() if f.path)
    run.jobdir.put("shared/aa/garbage", b"")
    run.coordinator._retention._live.clear()
    run.coordinator._retention._garbage |= {path, "shared/aa/garbage"}
    before = stored(run.jobdir)
    with pytest.raises(CorruptionError, match=f"^invariant broken.*{path} is to be deleted, and checkpoint 1 needs it"):
        run.coordinator.advance()
    assert stored(run.jobdir) == before


def test_an_invariant_that_is_broken_by_deleting_the_last(run: Run) -> None:
    run.coordinator._retention._retain = -1
    with pytest.raises(CorruptionError, match=r"^invariant broken.*no other would stay"):
        run.coordinator.advance()
    assert list(read_catalog(run.jobdir).live) == [1]
