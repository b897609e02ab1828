"""Savepoints of real state in a bucket of a real server: their files are copied by it."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace

from strandline.checkpoint import kinds
from strandline.checkpoint.folder import folder_at
from strandline.core.errors import NotFoundError
from strandline.snapshot.opening.deletion import delete_snapshot
from strandline.snapshot.opening.listing import verify_snapshot
from strandline.snapshot.savepoints.take import take_savepoint
from strandline.storage.place import Place
from strandline.storage.remote import _ObstoreStore, open_store
from tests.runtime.bench import OPS, Model
from tests.runtime.rescaling import KEYS, Job
from tests.seaweed import Seaweed


@pytest.fixture
def storage(s3: Seaweed) -> Place:
    return Place(url=s3.url(f"it is {uuid4()}"), options=s3.options)


class Lives:
    """A job in a bucket beside what it must answer."""

    def __init__(self, root: Path, storage: Place) -> None:
        self.job = Job(root, storage)
        self._rng, self._model = random.Random(1), Model()

    def live(self, parallelism: int, backend: str) -> None:
        self.job.start(parallelism, backend)
        for _ in range(2):
            events = [(key, self._rng.choice(OPS), self._rng.randrange(5), self._rng.randrange(5)) for key in KEYS]
            wanted = {event[0]: repr(self._model.answer(*event)) for event in events}
            assert dict(self.job.run(events)) == wanted
        self.job.checkpoint()
        self.job.stop()


@pytest.mark.parametrize("backend", ["rocksdb", "filesystem"])
def test_a_native_savepoint_is_copied_by_the_server(
    tmp_path: Path, storage: Place, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "_INLINE_UP_TO_BYTES", 0)
    lives = Lives(tmp_path, storage)
    lives.live(2, backend)
    job = lives.job
    # In another folder of the bucket, opened as such.
    target = Place(url=f"{storage.url}/native", options=storage.options)
    with monkeypatch.context() as patched:
        patched.delattr(_ObstoreStore, "put_file")
        made = take_savepoint(job.manifest(), job.place, target, "native", scratch=tmp_path)
    files = [file for part in made.operators[0].partitions for file in part.files if file.path]
    assert files
    assert verify_snapshot(target.url, storage.options).ok
    # It stands by itself: the job's own files are gone.
    own = folder_at(job.place)
    own.delete([info.path for info in own.list()])
    job.restore_from(target)
    lives.live(3, backend)
    delete_snapshot(target.url, storage.options)
    assert [*folder_at(target).list()] == []


def test_a_canonical_savepoint_in_a_bucket(tmp_path: Path, storage: Place) -> None:
    lives = Lives(tmp_path, storage)
    lives.live(2, "rocksdb")
    job, target = lives.job, replace(storage, path="canonical")
    take_savepoint(job.manifest(), job.place, target, "canonical", scratch=tmp_path)
    assert verify_snapshot(f"{target.url}/canonical", storage.options).ok
    job.restore_from(target)
    lives.live(4, "filesystem")


def test_only_within_a_bucket_and_by_one_who_may(s3: Seaweed) -> None:
    here = open_store(s3.url("here"), s3.options)
    there = open_store("s3a://bucket/there/below/", s3.options)
    top = open_store(s3.url(), s3.options)
    here.put("a/f", b"data")
    assert there.take("g", here, "a/f")
    assert (there.get("g"), top.get("there/below/g")) == (b"data", b"data")
    assert top.take("h", there, "g")
    assert here.take("i", top, "h")
    assert here.get("i") == b"data"
    others = {
        "another bucket": open_store("s3://buckets/here", s3.options),
        "another's key": open_store(s3.url("here"), {**s3.options, "access_key_id": "another"}),
    }
    for name, other in others.items():
        assert not other.take("x", here, "a/f"), name
        assert not here.take("x", other, "a/f"), name
    nobody = others["another's key"]
    assert not nobody.take("x", nobody, "a/f")
    with pytest.raises(NotFoundError):
        here.get("x")
