"""Snapshots in a bucket: the same as in directories, though there are no directories there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from strandline.checkpoint.folder import Folder
from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.errors import ConfigurationError, NotFoundError
from strandline.snapshot.opening import snapshot as opened
from strandline.snapshot.opening.deletion import delete_snapshot
from strandline.snapshot.opening.listing import list_snapshots, verify_snapshot
from strandline.snapshot.opening.origin import decide
from strandline.storage.base import ObjectStore
from strandline.storage.remote import open_store
from tests.checkpoint.helpers import Run
from tests.clock import ManualClock
from tests.snapshot.helpers import tree, write_savepoint


class Prefix(Folder):
    """A store whose root is inside of a bucket, as one opened with a path is."""

    @property
    def url(self) -> str:
        return f"s3://bucket/{self.path}".rstrip("/")


@pytest.fixture
def bucket(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A job, and a savepoint beside its checkpoint directory."""
    memory = open_store("memory://")
    Run(Prefix(memory, "ck"), tmp_path, clock, source_bytes=1000).checkpoint()
    write_savepoint(tmp_path / "sp")
    for path, data in tree(tmp_path / "sp").items():
        memory.put(f"sp/{path}", data)

    def opening(url: str, options: Mapping[str, str] | None = None, *, fsync: bool = True) -> ObjectStore:
        assert urlsplit(url).hostname == "bucket", "the credentials of the url are the storage's to use"
        return Prefix(memory, urlsplit(url).path.strip("/"))

    monkeypatch.setattr(opened, "open_store", opening)
    return memory


@pytest.mark.parametrize(
    "asked", ["s3://bucket/ck/job", "s3://bucket/ck/job/chk-1", "s3://me:secret@bucket/ck/job/chk-1/"]
)
def test_checkpoints(bucket: ObjectStore, asked: str) -> None:
    snapshot = opened.open_snapshot(asked)
    assert (snapshot.url, snapshot.folder.url) == ("s3://bucket/ck/job/chk-1", "s3://bucket/ck/job")
    assert "secret" not in snapshot.requested_url
    assert snapshot.lies_in(JobDirectory(Prefix(bucket, "ck"), "job"))
    assert not snapshot.lies_in(JobDirectory(Prefix(bucket, "elsewhere"), "job"))


def test_at_the_root(bucket: ObjectStore, tmp_path: Path) -> None:
    for path, data in tree(tmp_path / "sp").items():
        bucket.put(path, data)
    snapshot = opened.open_snapshot("s3://bucket/")
    assert (snapshot.kind, snapshot.url) == ("savepoint", "s3://bucket")


def test_tools(bucket: ObjectStore) -> None:
    assert {one.url for one in list_snapshots("s3://bucket")} == {"s3://bucket/ck/job/chk-1", "s3://bucket/sp"}
    assert verify_snapshot("s3://bucket/sp").ok
    with pytest.raises(ConfigurationError):
        delete_snapshot("s3://bucket/ck/job/chk-1")
    delete_snapshot("s3://bucket/sp")
    assert [*bucket.list("sp")] == []
    with pytest.raises(NotFoundError, match="s3://bucket/sp: no snapshot there") as caught:
        opened.open_snapshot("s3://bucket/sp")
    assert "nothing is there at all" in caught.value.hint
    with pytest.raises(NotFoundError, match="no snapshot there") as caught:
        opened.open_snapshot("s3://bucket/ck")
    assert "jobs: job" in caught.value.hint


def test_what_a_job_starts_from(bucket: ObjectStore, clock: ManualClock) -> None:
    fork = JobDirectory(Prefix(bucket, "ck"), "fork")
    origin = decide(fork, "s3://me:secret@bucket/ck/job")
    assert (origin.is_own, origin.depends_on) == (False, "s3://bucket/ck/job/chk-1")
    assert origin.restored.requested == "s3://bucket/ck/job"
