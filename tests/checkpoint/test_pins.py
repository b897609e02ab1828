"""Checkpoints that other processes read while their job deletes them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.checkpoint import pins
from strandline.checkpoint.gc import execute, plan
from strandline.checkpoint.pins import LEASE_MS, PINS
from strandline.core import failpoints
from strandline.core.clock import SystemClock
from strandline.core.errors import NotFoundError
from strandline.snapshot.opening.listing import list_snapshots
from strandline.snapshot.opening.snapshot import Snapshot, find_snapshot, open_snapshot, pin_snapshot, pinned_snapshot
from strandline.storage.local import LocalStore
from tests.checkpoint.helpers import Run, every_epoch
from tests.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock().now_ms())


@pytest.fixture
def job(tmp_path: Path, clock: ManualClock) -> Run:
    """A job with a checkpoint, which keeps one."""
    found = Run(LocalStore(tmp_path / "ck", fsync=False), tmp_path / "tmp", clock, config=every_epoch(mode="full"))
    found.checkpoint()
    return found


def go_on(job: Run, clock: ManualClock, checkpoints: int = 1) -> None:
    for _ in range(checkpoints):
        clock.advance(1000)
        job.checkpoint()


def url(job: Run) -> str:
    return job.jobdir.url


def files(snapshot: Snapshot) -> int:
    """How many files of a snapshot are there."""
    return len(snapshot.manifest.stored()) - len(snapshot.missing())


def test_files_stay_as_long_as_they_are_read(job: Run, clock: ManualClock) -> None:
    with pinned_snapshot(url(job)) as snapshot:
        go_on(job, clock, 3)
        with pytest.raises(NotFoundError):
            open_snapshot(snapshot.url)
        snapshot.check()
        assert [one.checkpoint for one in list_snapshots(url(job))] == [4]
        # Another process opens exactly this.
        again = open_snapshot(snapshot.reading_url)
        assert (again.manifest, again.pin, again.url) == (snapshot.manifest, snapshot.pin, snapshot.url)
        with pinned_snapshot(snapshot.reading_url) as other:
            assert other.pin == snapshot.pin
        snapshot.check()
    assert not [*job.jobdir.list(PINS)]
    go_on(job, clock)
    assert files(snapshot) == 0


def test_a_manifest_that_is_deleted_before_its_pin_is_there_is_not_read(job: Run, clock: ManualClock) -> None:
    failpoints.arm("pins.write.before", lambda: go_on(job, clock))
    try:
        with pinned_snapshot(url(job)) as snapshot:
            assert snapshot.manifest.checkpoint == 2
            snapshot.check()
    finally:
        failpoints.disarm_all()
    assert not [*job.jobdir.list(PINS)]


def test_a_pin_is_found_whenever_its_reader_found_the_manifest(job: Run, clock: ManualClock) -> None:
    found: list[Snapshot] = []
    failpoints.arm("checkpoint.subsume.before", lambda: found.append(pin_snapshot(f"{url(job)}/chk-1")))
    try:
        go_on(job, clock)
    finally:
        failpoints.disarm_all()
    go_on(job, clock, 2)
    found[0].check()


def test_readers_of_a_job_that_goes_on_and_on(job: Run, clock: ManualClock) -> None:
    """Each finds a checkpoint, and all of it to the end."""
    found: list[Snapshot] = []
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            with pinned_snapshot(url(job)) as snapshot:
                snapshot.check()
                found.append(snapshot)

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        while len(found) < 30 and not any(reader.done() for reader in readers):
            go_on(job, clock)
        ended.set()
        for reader in readers:
            reader.result()
    assert not [*job.jobdir.list(PINS)]


def test_the_pin_of_a_reader_that_was_killed_is_void_in_time(job: Run, clock: ManualClock) -> None:
    snapshot = pin_snapshot(url(job))
    go_on(job, clock)
    clock.advance(LEASE_MS - 60_000)
    go_on(job, clock)
    snapshot.check()
    clock.advance(120_000)
    go_on(job, clock)
    assert files(snapshot) == 0
    assert not [*job.jobdir.list(PINS)]
    with pytest.raises(NotFoundError, match=r"not kept any more[^$]*open the job's folder again"):
        pins.renew(snapshot.folder, snapshot.pin)


@pytest.mark.parametrize("by_ms", [-2 * LEASE_MS, 2 * LEASE_MS])
def test_a_clock_that_is_set_takes_no_reader_its_files(job: Run, clock: ManualClock, by_ms: int) -> None:
    """Or one that differs from the storage's, or has jumped while the machine was suspended."""
    snapshot = pin_snapshot(url(job))
    clock.set_by(by_ms)
    go_on(job, clock, 3)
    snapshot.check()
    clock.advance(LEASE_MS)
    go_on(job, clock)
    assert files(snapshot) == 0


@pytest.mark.parametrize("by_ms", [-2 * LEASE_MS, 2 * LEASE_MS])
def test_a_pin_is_renewed_whatever_the_clock_of_its_reader_says(
    job: Run, monkeypatch: pytest.MonkeyPatch, by_ms: int
) -> None:
    with pinned_snapshot(url(job)) as snapshot:
        before = snapshot.folder.head(snapshot.pin)
        now_ms = SystemClock().now_ms() + by_ms
        monkeypatch.setattr(SystemClock, "now_ms", lambda self: now_ms)
        time.sleep(0.002)
        pins.renew(snapshot.folder, snapshot.pin)
        assert snapshot.folder.head(snapshot.pin).modified_ms > before.modified_ms


def test_garbage_collection_leaves_what_is_read(job: Run, clock: ManualClock) -> None:
    snapshot = pin_snapshot(url(job))
    go_on(job, clock, 2)
    clock.advance(LEASE_MS - 60_000)
    assert execute(plan(job.jobdir, clock, grace_ms=0)) == 0
    snapshot.check()
    clock.advance(120_000)
    assert execute(plan(job.jobdir, clock, grace_ms=0)) == len(snapshot.manifest.stored()) + 1
    assert files(snapshot) == 0
    assert find_snapshot(url(job)).missing() == []


def test_nothing_is_written_where_nobody_deletes(tmp_path: Path, job: Run) -> None:
    (tmp_path / "ck/job").rename(tmp_path / "copy")
    for path in (tmp_path / "copy/generations").iterdir():
        path.unlink()
    assert pin_snapshot(str(tmp_path / "copy")).pin == ""
    assert not (tmp_path / "copy" / PINS).exists()
