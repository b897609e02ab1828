"""Snapshots of one partition in this process: errors of the backend, of memory and of threads, and what is written behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strandline.backends.base import Changes, LocalFile
from strandline.checkpoint.jobdir import JobDirectory
from strandline.core import failpoints
from strandline.core.errors import StrandlineError, UnavailableError
from strandline.core.ids import CheckpointId, Epoch, Partition
from strandline.format.manifest import FileRef
from strandline.keeper.service import PartitionService
from strandline.keeper.snapshots import Known, Snapshots
from strandline.runtime.program import Restore
from strandline.storage.remote import open_store
from tests.runtime.bench import MIB, Bench
from tests.runtime.clients import eventually


class Panic(BaseException):
    """As a library in Rust raises it."""


class Stubborn:
    """A backend whose next write fails."""

    def __init__(self, backend: Any, error: BaseException | None = None) -> None:
        self._backend = backend
        self._error = error or UnavailableError("the disk is full")
        self.fail = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def write(self, changes: Changes) -> None:
        if self.fail:
            self.fail = False
            raise self._error
        self._backend.write(changes)

    def persist(self, changes: Changes, into: Path) -> list[LocalFile]:
        found: list[LocalFile] = self._backend.persist(changes, into)
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench("rocksdb", tmp_path)
    yield made
    made.close()


def snapshots_of(bench: Bench, backend: Any, write_behind_bytes: int, base: Mapping[str, FileRef] = {}) -> Snapshots:
    jobdir = JobDirectory(open_store(f"file://{bench.root}/storage"), "job")
    known = Known("", bench.program.restore.checkpoint if bench.program.restore else None, base)
    return Snapshots(
        bench.program, Partition(0), bench.task.store, backend, jobdir, bench.root, known, write_behind_bytes
    )  # fmt: skip


@pytest.mark.parametrize(
    ("error", "said"), [(UnavailableError("the disk is full"), "the disk is full"), (Panic("no unwrap"), "Panic")]
)
def test_no_snapshot_is_taken_of_a_state_that_misses_a_write(bench: Bench, error: BaseException, said: str) -> None:
    backend = Stubborn(bench.backend, error)
    snapshots = snapshots_of(bench, backend, write_behind_bytes=1)
    bench.run([("lost", "set_value", 1, 0)])
    backend.fail = True
    snapshots.write_behind(Epoch(1))
    bench.run([("k", "set_value", 2, 0)])
    snapshots.trigger(CheckpointId(1), Epoch(1))
    report = eventually(snapshots.reports, "a report")[0]
    assert report.info is None
    assert said in report.failure
    with pytest.raises(StrandlineError) as caught:
        snapshots.raise_error()
    assert said in caught.value.discreet
    snapshots.close()


@pytest.mark.parametrize("place", ["keeper.persist.before", "keeper.upload.before"])
def test_a_panic_ends_a_snapshot_with_a_report(bench: Bench, place: str) -> None:
    """Else the driver would wait for it until its time is up."""
    snapshots = snapshots_of(bench, bench.backend, write_behind_bytes=MIB)
    failpoints.arm(place, lambda: (_ for _ in ()).throw(Panic("no unwrap")))
    bench.run([("k", "set_value", 2, 0)])
    snapshots.trigger(CheckpointId(1), Epoch(1))
    assert "Panic" in eventually(snapshots.reports, "a report")[0].failure
    snapshots.close()


def test_an_error_that_is_none_of_ours_says_where_writing_failed(bench: Bench) -> None:
    snapshots = snapshots_of(bench, bench.backend, write_behind_bytes=1)
    failpoints.arm("keeper.persist.before", lambda: (_ for _ in ()).throw(OSError("no space left")))
    bench.run([("k", "set_value", 2, 0)])
    snapshots.trigger(CheckpointId(1), Epoch(1))
    assert "no space left" in eventually(snapshots.reports, "a report")[0].failure
    with pytest.raises(StrandlineError, match="operator 'op', partition 0: writing state failed: no space left"):
        snapshots.raise_error()
    snapshots.close()


@pytest.mark.parametrize("place", ["keeper.persist.before", "keeper.upload.before"])
@pytest.mark.parametrize("log_values", [False, True])
def test_an_error_that_is_none_of_ours_may_quote_values(
    bench: Bench, caplog: pytest.LogCaptureFixture, place: str, log_values: bool
) -> None:
    """What a snapshot fails at goes into the keeper's log, the driver's, and the status."""

    def fail() -> None:
        raise KeyError("ann@example.org")

    bench.program = msgspec.structs.replace(bench.program, log_values=log_values)
    snapshots = snapshots_of(bench, bench.backend, write_behind_bytes=MIB)
    failpoints.arm(place, fail)
    bench.run([("k", "set_value", 2, 0)])
    snapshots.trigger(CheckpointId(1), Epoch(1))
    failure = eventually(snapshots.reports, "a report")[0].failure
    assert "KeyError" in failure or log_values
    assert ("ann@" in failure) == log_values
    assert ("ann@" in caplog.text) == log_values
    if place == "keeper.persist.before":
        with pytest.raises(StrandlineError) as caught:
            snapshots.raise_error()
        assert "ann@" in str(caught.value)
        assert "ann@" not in caught.value.discreet
    snapshots.close()


@pytest.mark.parametrize("log_values", [False, True])
def test_the_last_words_of_a_keeper_may_quote_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, log_values: bool
) -> None:
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    monkeypatch.setattr("logging.shutdown", lambda: None)
    monkeypatch.setattr(PartitionService, "log_values", log_values)
    with PartitionService(tmp_path / "op-0")._exit_on_error():
        raise KeyError("ann@example.org")
    assert codes == [1]
    assert "the epoch is half applied" in caplog.text
    assert Path(__file__).name in caplog.text
    assert ("ann@" in caplog.text) == log_values


def without_memory(*_args: object, **_given: object) -> None:
    raise MemoryError


def test_a_keeper_whose_memory_does_not_suffice_to_say_so_ends_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    monkeypatch.setattr("strandline.keeper.service.format_error", without_memory)
    with pytest.raises(MemoryError), PartitionService(tmp_path / "op-0")._exit_on_error():
        without_memory()
    assert codes == [1]


def test_a_snapshot_that_lacks_memory_is_the_last_also_if_the_log_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later ones would miss its changes."""
    monkeypatch.setattr("strandline.keeper.snapshots.format_error", without_memory)
    snapshots = snapshots_of(bench, bench.backend, write_behind_bytes=MIB)
    failpoints.arm("keeper.persist.before", without_memory)
    bench.run([("k", "set_value", 2, 0)])
    snapshots.trigger(CheckpointId(1), Epoch(1))
    snapshots._writer.shutdown()
    with pytest.raises(StrandlineError):
        snapshots.raise_error()


def test_no_snapshot_follows_a_freeze_that_failed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ack of the epoch has been sent: only the next request can tell the driver."""
    snapshots = snapshots_of(bench, bench.backend, write_behind_bytes=1)
    bench.run([("k", "set_value", 2, 0)])
    monkeypatch.setattr(bench.task.store, "freeze", without_memory)
    with pytest.raises(MemoryError):
        snapshots.write_behind(Epoch(1))
    with pytest.raises(StrandlineError):
        snapshots.raise_error()
    snapshots.close()


def test_an_epoch_starts_no_thread_for_its_snapshot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory, it would wait for ever for one that ends before it has begun (CPython's gh-140746)."""
    snapshots = snapshots_of(bench, bench.backend, write_behind_bytes=MIB)
    bench.run([("k", "set_value", 2, 0)])
    monkeypatch.setattr(threading.Thread, "start", without_memory)
    snapshots.trigger(CheckpointId(1), Epoch(1))
    assert eventually(snapshots.reports, "a report")
    snapshots.close()


def test_writing_behind_bounds_what_waits_to_be_written(bench: Bench) -> None:
    """A slow backend holds epochs up rather than let changes pile up."""
    gate = threading.Event()
    slow = Stubborn(bench.backend)
    write = slow.write
    vars(slow)["write"] = lambda changes: (gate.wait(60), write(changes))[1]
    snapshots = snapshots_of(bench, slow, write_behind_bytes=1)
    bench.run([(str(n), "set_value", 1, 0) for n in range(50)])
    snapshots.write_behind(Epoch(1))
    assert bench.task.store.dirty_bytes == 0
    bench.run([("k", "set_value", 1, 0)])
    blocked = threading.Thread(target=snapshots.write_behind, args=(Epoch(2),))
    blocked.start()
    assert bench.task.store.dirty_bytes > 0
    gate.set()
    blocked.join(60)
    assert bench.task.store.dirty_bytes == 0
    assert bench.run([(str(n), "read", 0, 0) for n in range(50)])[0][1].startswith("((1, True")
    snapshots.close()


def test_a_confirmed_checkpoint_that_this_keeper_took_no_part_in_has_none_of_its_files(bench: Bench) -> None:
    """One that died has: which files of the restored one it still references, nobody here knows."""
    base = {"7.sst": FileRef(name="7.sst", size=1, sha256="0" * 64, path="shared/ab/cd", shared=True)}
    bench.program = msgspec.structs.replace(bench.program, restore=Restore(checkpoint=5, epoch=9))
    snapshots = snapshots_of(bench, bench.backend, MIB, base)
    snapshots.apply_driver_state(CheckpointId(5), [])
    assert snapshots._known.files == base
    snapshots.apply_driver_state(CheckpointId(6), [])
    assert snapshots._known.files == {}
    snapshots.close()
