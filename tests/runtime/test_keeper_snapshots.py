"""Checkpoints of a keeper: taken, confirmed, given up, and restored by the next keeper."""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.api.process import KeyedProcess
from strandline.backends.base import Backend
from strandline.core.errors import CorruptionError, StrandlineError, UnavailableError
from strandline.core.ids import CheckpointId, Epoch, Partition
from strandline.keeper import opening
from strandline.keeper.paths import local_copies, local_copy
from strandline.keeper.service import PartitionService
from strandline.runtime.program import Program
from strandline.runtime.task.task import EpochTimes
from tests.runtime import bench
from tests.runtime.bench import batch_of, program
from tests.runtime.clients import Counter, Keeper, Nursery, eventually, restore_of, shared
from tests.soak import BACKENDS


@pytest.fixture
def table_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have snapshots with table files, which those of the mode `continuous` lack."""
    if bench.MODE == "continuous":
        monkeypatch.setattr(bench, "MODE", "changelog")


def fill(keeper: Keeper, keys: int, **given: Any) -> None:
    keeper.run([(str(n), "fill", 500, 0) for n in range(keys)], **given)


def copies(keeper: Keeper) -> set[int]:
    return {checkpoint for checkpoint, _ in local_copies(keeper.directory)}


def test_a_disk_on_which_nothing_can_be_restored_is_named(nursery: Nursery) -> None:
    """The driver heard of a connection that was closed, and of nothing else."""
    keeper = nursery.start(backend="memory")
    report = keeper.checkpoint(1)
    keeper.stop()
    (keeper.directory / "db-2").touch()
    next_one = nursery.start(backend="memory", generation=2, restore=restore_of(report, 0, "memory"))
    with pytest.raises(UnavailableError, match=r"'op', partition 0: its state cannot be restored .*db-2"):
        next_one.poll()
    (keeper.directory / "db-2").unlink()
    assert next_one.poll().epoch == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_checkpoint_is_restored_as_of_its_epoch(nursery: Nursery, backend: str) -> None:
    keeper = nursery.start(backend=backend)
    keeper.counts("a", "b", "a")
    keeper.run([("a", "count", 0, 0)], trigger=1, pending=1)
    keeper.run([("a", "count", 0, 0), ("c", "count", 0, 0)], pending=1)
    report = keeper.report(1)
    keeper.stop()
    next_one = nursery.start(backend=backend, generation=2, restore=restore_of(report, 2, backend))
    assert next_one.poll().epoch == 2
    assert next_one.counts("a", "b", "c") == [("a", "4"), ("b", "2"), ("c", "1")]


def test_a_confirmed_checkpoint_makes_the_next_one_small(nursery: Nursery) -> None:
    keeper = nursery.start()
    fill(keeper, 300)
    first = keeper.checkpoint(1)
    fill(keeper, 1)
    again = keeper.checkpoint(2)
    fill(keeper, 1, confirmed=2)
    small = keeper.checkpoint(3, confirmed=2)
    assert first.info
    assert again.info
    assert small.info
    assert again.info.uploaded_bytes >= first.info.uploaded_bytes > 10 * small.info.uploaded_bytes
    assert not set(shared(first.info.files).values()) & set(shared(again.info.files).values())
    assert set(shared(again.info.files).values()) < set(shared(small.info.files).values())
    assert first.info.sync_ms >= 0
    assert first.info.first_key_group == 0
    assert first.info.last_key_group == 127


def test_a_full_checkpoint_shares_nothing(nursery: Nursery) -> None:
    """Nor do those before and after it with it, when a job changes its mode from one start to the next."""
    keeper = nursery.start()
    fill(keeper, 100)
    report = keeper.checkpoint(1)
    keeper.stop()
    keeper = nursery.start(mode="full", generation=2, restore=restore_of(report, epoch=1))
    full = keeper.checkpoint(2)
    assert full.info
    assert shared(full.info.files) == {}
    assert full.info.uploaded_bytes == sum(ref.size for ref in full.info.files)
    again = keeper.checkpoint(3, confirmed=2)
    assert again.info
    assert again.info.uploaded_bytes == sum(ref.size for ref in again.info.files)
    keeper.stop()
    keeper = nursery.start(generation=3, restore=restore_of(again, epoch=1))
    after = keeper.checkpoint(4)
    assert after.info
    assert sum(ref.size for ref in after.info.files if ref.shared) > 0
    assert sum(ref.size for ref in after.info.files if ref.shared) <= after.info.uploaded_bytes


def test_a_full_checkpoint_finds_files_that_were_damaged_since_the_last_one(nursery: Nursery) -> None:
    """It replaced them in storage, where nothing could tell that they were damaged."""
    keeper = nursery.start(mode="full")
    fill(keeper, 100)
    keeper.checkpoint(1)
    keeper.poll(confirmed=1)
    file = max(keeper.directory.glob("db-*/*.sst"), key=lambda path: path.stat().st_size)
    data = file.read_bytes()
    with file.open("r+b") as changed:
        changed.seek(len(data) // 2)
        changed.write(bytes([data[len(data) // 2] ^ 1]))
    keeper.poll(confirmed=1, trigger=2, pending=2)
    with pytest.raises(CorruptionError, match=r"\.sst: the local file is damaged"):
        eventually(lambda: keeper.poll(confirmed=1, pending=2).epoch < 0, "the damage is found")
    assert copies(keeper) == set()


def test_reports_stay_until_the_driver_has_decided(nursery: Nursery) -> None:
    keeper = nursery.start()
    fill(keeper, 10)
    report = keeper.checkpoint(1)
    assert keeper.run(pending=1)[1].reports == [report]
    assert keeper.poll(pending=1).reports == [report]
    assert keeper.poll(confirmed=1).reports == []


def test_only_the_confirmed_local_copy_stays(nursery: Nursery) -> None:
    keeper = nursery.start()
    fill(keeper, 10)
    keeper.checkpoint(1)
    fill(keeper, 10)
    keeper.checkpoint(2)
    assert copies(keeper) == {1, 2}
    keeper.poll(confirmed=2)
    assert copies(keeper) == {2}
    keeper.stop()
    assert {path.name for path in keeper.directory.iterdir()} == {"chk-2", "keeper.lock"}


def test_nothing_stays_of_partitions_that_went_to_other_machines(nursery: Nursery) -> None:
    """Each held the disk space of its last checkpoint here; and nobody came back for another job."""
    keeper = nursery.start()
    left, alive, died = (keeper.places.state("op", Partition(partition)) for partition in (7, 8, 9))
    for path in (left / "db-1", left / "chk-1", alive / "chk-1", died / "chk-1"):
        path.mkdir(parents=True)
    for path, holder in ((left, "4711 1 0"), (alive, ""), (died, "4711 1 1")):
        (path / "keeper.lock").write_text(holder)
    other = keeper.places.local_dir / "0123456789ab"
    (other / "op-1").mkdir(parents=True)
    (other / "op-1" / "keeper.lock").touch()
    for path in (other / "op-1", other):
        os.utime(path, (1, 1))
    with (alive / "keeper.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keeper.checkpoint(1)
        keeper.poll(pending=1)
        assert left.exists()
        keeper.poll(confirmed=1)
        eventually(lambda: not left.exists() and not other.exists(), "what nobody needs is removed")
    assert (alive / "chk-1").exists()
    assert (died / "chk-1").exists(), "the next keeper of this run restores from it"
    assert copies(keeper) == {1}


def test_what_a_killed_keeper_left_of_a_local_copy_is_removed(nursery: Nursery) -> None:
    keeper = nursery.start()
    report = keeper.checkpoint(1)
    keeper.kill()
    # As RocksDB leaves it when it is killed between two links.
    local_copy(keeper.directory, CheckpointId(1)).with_name("chk-2.tmp").mkdir()
    nursery.start(generation=2, restore=restore_of(report, 0)).poll()
    assert {path.name for path in keeper.directory.glob("chk-*")} == {"chk-1"}


def test_an_upload_that_nobody_waits_for_is_given_up(nursery: Nursery) -> None:
    keeper = nursery.start(env={"STRANDLINE_FAILPOINTS": "keeper.upload.before=sleep:0.3"})
    fill(keeper, 100)
    keeper.poll(trigger=1, pending=1)
    keeper.poll(pending=None)
    eventually(lambda: "upload failed" in keeper.log.read_text(), "the upload is given up")
    assert nursery.objects() == set()
    eventually(lambda: copies(keeper) == set(), "its local copy is gone")
    assert keeper.checkpoint(2).info


def test_an_upload_that_fails_is_reported_and_the_next_one_works(nursery: Nursery) -> None:
    keeper = nursery.start(env={"STRANDLINE_FAILPOINTS": "keeper.upload.before=error"})
    fill(keeper, 100)
    failed = keeper.checkpoint(1)
    assert failed.info is None
    assert "keeper.upload.before" in failed.failure
    done = keeper.checkpoint(2)
    assert done.info
    assert nursery.objects() == {f"job/{ref.path}" for ref in done.info.files if ref.path}


@pytest.mark.usefixtures("table_files")
@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_a_restore_takes_what_is_whole_of_the_local_copy_and_the_rest_from_storage(
    nursery: Nursery, backend: str
) -> None:
    keeper = nursery.start(backend=backend)
    keeper.run([(str(n), "fill", 500, 0) for n in range(200)])
    report = keeper.checkpoint(1)
    restore = restore_of(report, 1, backend)
    keeper.kill()
    whole = nursery.start(backend=backend, generation=2, restore=restore)
    assert whole.counts("7") == [("7", "2")]
    local_bytes, remote_bytes = whole.restored()
    assert local_bytes > 100_000
    assert remote_bytes == 0
    whole.kill()
    for path in local_copy(keeper.directory, CheckpointId(1)).iterdir():
        if path.stat().st_size > 1000:
            damaged = bytearray(path.read_bytes())
            damaged[len(damaged) // 2] ^= 1
            # A file of its own: the copy is linked to.
            path.unlink()
            path.write_bytes(damaged)
    fallback = nursery.start(backend=backend, generation=3, restore=restore)
    if backend == "rocksdb":
        # Its files are verified after the start, and before anything is uploaded: then the copy is dropped.
        eventually(lambda: has_refused(fallback), "the damage is found")
        log = fallback.log.read_text()
        assert "the state comes from the checkpoint storage" in log
        assert "writing state failed" not in log, log
        fallback.kill()
        fallback = nursery.start(backend=backend, generation=4, restore=restore)
    assert fallback.counts("7") == [("7", "2")]
    local_bytes, remote_bytes = fallback.restored()
    assert remote_bytes > 100_000
    assert local_bytes < 1000


def has_refused(keeper: Keeper) -> bool:
    try:
        keeper.poll()
    except CorruptionError as error:
        return bool(error.fields["is_local"]) and "the local copy is damaged" in error.message
    return False


def test_a_restore_that_finds_storage_damaged_says_which_file(nursery: Nursery) -> None:
    keeper = nursery.start()
    fill(keeper, 100)
    report = keeper.checkpoint(1)
    keeper.stop(forget=True)
    damaged = next(ref for ref in report.info.files if ref.path) if report.info else None
    assert damaged
    (nursery.storage / "job" / damaged.path).write_bytes(b"no more")
    next_one = nursery.start(generation=2, restore=restore_of(report, epoch=1))
    for _ in range(2):
        with pytest.raises(CorruptionError, match=damaged.path):
            next_one.poll()


@pytest.mark.usefixtures("table_files")
def test_what_breaks_on_this_machine_alone_is_fetched_and_opened_again(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the checkpoint called damaged, the job would go back behind it for good."""
    keeper = nursery.start(backend="rocksdb")
    keeper.counts("a", "b")
    report = keeper.checkpoint(1)
    keeper.kill()
    real, opened = opening.open_backend, []

    def open_backend(program: Program, process: Any, database: Path) -> Backend:
        if not opened:
            next(database.glob("*.sst")).unlink()
        opened.append(database)
        return real(program, process, database)

    monkeypatch.setattr(opening, "open_backend", open_backend)
    wanted = program(
        Counter(), store_url=f"file://{nursery.storage}", backend="rocksdb", generation=2, restore=restore_of(report, 1)
    )
    found = opening.open_partition(wanted, Partition(0), keeper.directory, "")
    assert len(opened) == 2
    assert found.partition.version == 1
    found.partition.task.close()


@pytest.mark.usefixtures("table_files")
def test_a_copy_that_cannot_be_read_is_not_used_by_the_next_restore(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a failing disk."""
    keeper = nursery.start(backend="rocksdb")
    keeper.counts("a", "b")
    report = keeper.checkpoint(1)
    keeper.kill()
    real = opening.open_backend

    def open_backend(program: Program, process: Any, database: Path) -> Backend:
        unreadable = next(database.glob("*.sst"))
        unreadable.unlink()
        unreadable.mkdir()
        return real(program, process, database)

    def wanted(generation: int) -> Program:
        return program(
            Counter(), store_url=f"file://{nursery.storage}", backend="rocksdb", generation=generation,
            restore=restore_of(report, 1),
        )  # fmt: skip

    with monkeypatch.context() as patched:
        patched.setattr(opening, "open_backend", open_backend)
        with pytest.raises(UnavailableError, match="Is a directory"):
            opening.open_partition(wanted(2), Partition(0), keeper.directory, "")
    assert not list(local_copies(keeper.directory))
    found = opening.open_partition(wanted(3), Partition(0), keeper.directory, "")
    assert found.partition.version == 1
    found.partition.task.close()


@pytest.mark.parametrize(
    ("error", "has_unread", "kept"),
    [(CorruptionError("x"), False, False), (UnavailableError("x"), True, False), (UnavailableError("x"), False, True)],
)
def test_copies_of_damaged_state_are_dropped(
    tmp_path: Path, error: StrandlineError, has_unread: bool, kept: bool
) -> None:
    service = PartitionService(tmp_path / "op-0")
    copy = local_copy(tmp_path / "op-0", CheckpointId(1))
    copy.mkdir(parents=True)
    service.drop_damaged(error)
    assert copy.exists(), "before the state is open, damage is not of this machine"
    task = SimpleNamespace(store=SimpleNamespace(has_unread=has_unread))
    service._opened = cast(Any, SimpleNamespace(partition=SimpleNamespace(task=task), restoring=None))
    service.drop_damaged(error)
    assert copy.exists() == kept
    assert ("is_local" in error.fields) != kept


class Ringing(KeyedProcess):
    """Sets a timer for each key: opening looks for the first ones, in blocks of files."""

    def on_event(self, event: Any, ctx: Any) -> None:
        ctx.timers.set_processing(ctx.now + dt.timedelta(days=1))

    def on_timer(self, timer: Any, ctx: Any) -> None:
        pass


@pytest.mark.usefixtures("table_files")
@pytest.mark.parametrize("places", [[200], [200, 200], [200, 300]])
def test_a_block_that_is_damaged_is_met_when_timers_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: list[int]
) -> None:
    """On this machine alone, or before it was hashed and uploaded: then the checkpoint is passed over.

    Each restore that reads other damage blames the machine: were the checkpoint passed over, a failing disk would have
    the job go back behind all of its checkpoints.
    """
    given: dict[str, Any] = {"store_url": f"file://{tmp_path}/storage", "backend": "rocksdb", "output_schema": "a int"}
    backends: list[Backend] = []
    real = opening.open_backend

    def open_backend(program: Program, process: Any, database: Path) -> Backend:
        if 1 <= len(backends) <= len(places):
            for file in database.glob("*.sst"):
                data = bytearray(file.read_bytes())
                data[places[len(backends) - 1]] ^= 0xFF
                file.unlink()
                file.write_bytes(data)
        backends.append(real(program, process, database))
        return backends[-1]

    monkeypatch.setattr(opening, "open_backend", open_backend)
    first = opening.open_partition(program(Ringing(), **given), Partition(0), tmp_path / "op-0", "")
    events = batch_of([(f"k{n}", "", n, n) for n in range(2000)])
    assert not list(first.partition.run(Epoch(1), EpochTimes(now_us=1_700_000_000_000_000), [events]))
    first.partition.commit()
    first.snapshots.trigger(CheckpointId(1), Epoch(1))
    report = eventually(first.snapshots.reports, "a report")[0]
    first.snapshots.close()
    shutil.rmtree(tmp_path / "op-0")
    wanted = program(Ringing(), generation=2, restore=restore_of(report, 1), **given)
    if len(places) == 1:
        found = opening.open_partition(wanted, Partition(0), tmp_path / "op-0", "")
        assert found.partition.task.next_timers_us[1] is not None
        found.snapshots.close()
    else:
        with pytest.raises(CorruptionError) as caught:
            opening.open_partition(wanted, Partition(0), tmp_path / "op-0", "")
        if places == [200, 200]:
            assert caught.value.fields["checkpoint"] == 1
        else:
            assert caught.value.fields == {"is_local": True}
            assert f"{socket.gethostname()}, {tmp_path / 'op-0'}: this machine reads" in str(caught.value)
    assert len(backends) == 3
    for backend in backends:
        backend.close()


def test_a_keeper_that_took_a_snapshot_of_a_restored_state_shares_its_files(nursery: Nursery) -> None:
    keeper = nursery.start(mode="incremental")
    fill(keeper, 300)
    report = keeper.checkpoint(1)
    keeper.kill()
    next_one = nursery.start(mode="incremental", generation=2, restore=restore_of(report, epoch=1))
    fill(next_one, 1)
    after = next_one.checkpoint(2)
    assert after.info
    assert report.info
    assert set(shared(report.info.files).values()) < set(shared(after.info.files).values())
    third = nursery.start(generation=3, restore=restore_of(after, epoch=2))
    assert third.counts("0", "1") == [("0", "3"), ("1", "2")]


# -- in this process


@pytest.mark.parametrize("backend", ["rocksdb", "filesystem"])
def test_an_epoch_that_changes_more_than_fits_in_memory_is_reported(nursery: Nursery, backend: str) -> None:
    keeper = nursery.start(backend=backend, partition_memory_bytes=16 << 20)
    _, few = keeper.run([(str(n), "fill", 500, 0) for n in range(100)])
    assert few.findings == []
    _, many = keeper.run([(str(n), "fill", 500, 0) for n in range(60_000)])
    # The memory of a backend that has all state there is another matter.
    expected = ["changes more state than a partition's share of state_memory, 16.0 MB"] if backend == "rocksdb" else []
    assert [text.partition("an epoch ")[2].partition(":")[0] for text in many.findings] == expected
