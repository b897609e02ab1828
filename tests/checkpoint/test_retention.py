"""Retention alone: which files are deleted with the checkpoints that referenced them."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.checkpoint.generation import claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.restore import choose
from strandline.checkpoint.retention import Holds, Retention
from strandline.core.errors import FencedError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import MANIFEST
from strandline.storage.remote import open_store
from tests.checkpoint.helpers import Run, manifest, shared_ref
from tests.clock import ManualClock
from tests.storage.faulty import BEFORE, FaultyStore


@pytest.mark.parametrize(
    ("retain", "checkpoints", "left"),
    [
        (1, ["ab", "bcd"], ["ab", "bcd"]),
        (2, ["ab", "abcd", "xde", "xy"], ["ab", "abcd", "abcdxe", "dexy"]),
    ],
    ids=["one file is shared", "files merged by compaction"],
)
def test_a_file_goes_with_its_last_checkpoint(
    retain: int, checkpoints: list[str], left: list[str], jobdir: JobDirectory, clock: ManualClock
) -> None:
    owned = claim(jobdir, clock)
    choose(jobdir, owned)
    owned.set_base(None)
    retention = Retention(jobdir, owned, retain, None, Holds(), clock)
    for number, (files, expected) in enumerate(zip(checkpoints, left, strict=True), 1):
        made = manifest(number, [shared_ref(f"shared/{name}/{name}") for name in files])
        for file in made.files():
            jobdir.put(file.path, b"")
        jobdir.create(manifest_path(CheckpointId(number)), MANIFEST.encode(made))
        retention.confirm(made)
        assert retention.delete_due()
        assert {info.path[-1] for info in jobdir.list("shared")} == set(expected)


def test_a_storage_that_deletes_nothing_is_named_once(
    store: FaultyStore, jobdir: JobDirectory, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """As S3 does for a user without the right to: all checkpoints stayed, and nothing said so."""
    owned = claim(jobdir, clock)
    choose(jobdir, owned)
    owned.set_base(None)
    retention = Retention(jobdir, owned, 1, None, Holds(), clock)
    for number, refused in enumerate([False, True, True, False, True], 1):
        store.script = [("delete", "", BEFORE)] * (9 if refused else 0)
        made = manifest(number)
        jobdir.create(manifest_path(CheckpointId(number)), MANIFEST.encode(made))
        retention.confirm(made)
        assert retention.delete_due() is not refused
    said = [record.getMessage() for record in caplog.records if "not deleted" in record.getMessage()]
    assert len(said) == 2
    assert said[0].endswith("delete: refused")


def test_a_listing_that_a_running_job_outruns(tmp_path: Path, clock: ManualClock) -> None:
    """Each manifest that is listed is subsumed before it is read, some times in a row."""
    store = FaultyStore(open_store("memory://"), clock=clock)
    run = Run(store, tmp_path, clock)
    run.checkpoint()
    left = 3

    def outrun(operation: str, path: str) -> None:
        nonlocal left
        if left and operation == "get" and path.endswith("/_metadata"):
            left -= 1
            store.before = lambda operation, path: None
            run.checkpoint()
            store.before = outrun

    store.before = outrun
    found = choose(run.jobdir)
    assert (found.manifest.checkpoint, found.skipped) == (4, [])


def test_a_driver_that_was_outrun_by_its_successor_is_fenced(tmp_path: Path, clock: ManualClock) -> None:
    """It finds no checkpoint, since its successor has subsumed all that it listed."""
    store = FaultyStore(open_store("memory://"), clock=clock)
    Run(store, tmp_path, clock).checkpoint()
    fenced = claim(JobDirectory(store, "job"), clock)
    successors: list[Run] = []

    def outrun(operation: str, path: str) -> None:
        store.before = lambda operation, path: None
        if operation == "list" and not successors:
            successors.append(Run(store, tmp_path, clock, seed=1))
        elif operation == "get" and path.endswith("/_metadata"):
            successors[0].checkpoint()
        store.before = outrun

    store.before = outrun
    with pytest.raises(FencedError):
        choose(JobDirectory(store, "job"), fenced)
