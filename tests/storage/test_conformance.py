"""What every ObjectStore must do, run against each of them."""

from __future__ import annotations

import hashlib
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.clock import SystemClock
from strandline.core.errors import ConfigurationError, ConflictError, NotFoundError
from strandline.storage.base import ObjectStore
from strandline.storage.remote import open_store
from strandline.storage.retrying import RetryingStore
from tests.storage.faulty import FaultyStore
from tests.storage.faultyhttp import FaultyHttp

KINDS: dict[str, Callable[[Path], ObjectStore]] = {
    "local": lambda tmp: open_store(str(tmp / "a store")),
    "memory": lambda tmp: open_store("memory://"),
    "retrying-faulty-memory": lambda tmp: RetryingStore(
        FaultyStore(open_store("memory://"), seed=7, rate=0.4), attempts=40, sleep=lambda s: None, rng=random.Random(1)
    ),
    "job-directory": lambda tmp: JobDirectory(open_store(f"file://{tmp}/jobs"), "job-1"),
}


@pytest.fixture(params=[*KINDS, "s3", "retrying-faulty-s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param in KINDS:
        yield KINDS[request.param](tmp_path)
        return
    server = request.getfixturevalue("s3")
    url = server.url(f"conformance/{uuid.uuid4()}")
    if request.param == "s3":
        yield open_store(url, server.options)
        return
    proxy = FaultyHttp(server.options["endpoint"], seed=len(request.node.name), rate=0.3)
    yield RetryingStore(open_store(url, {**server.options, "endpoint": proxy.endpoint}), first_delay_s=0.01)
    proxy.close()


def paths(store: ObjectStore, prefix: str) -> list[str]:
    return sorted(info.path for info in store.list(prefix))


@pytest.mark.parametrize("data", [b"", b"x", b"\0" * 100_000])
def test_put_get_head(store: ObjectStore, data: bytes) -> None:
    store.put("a/b/c", data)
    assert store.get("a/b/c") == data
    info = store.head("a/b/c")
    assert (info.path, info.size_bytes) == ("a/b/c", len(data))
    assert abs(info.modified_ms - SystemClock().now_ms()) < 600_000


def test_put_replaces(store: ObjectStore) -> None:
    store.put("k", b"old and longer")
    store.put("k", b"new")
    assert store.get("k") == b"new"


def test_create_writes_once(store: ObjectStore) -> None:
    store.create("chk-1/_metadata", b"first")
    with pytest.raises(ConflictError, match="chk-1/_metadata"):
        store.create("chk-1/_metadata", b"second")
    assert store.get("chk-1/_metadata") == b"first"


def test_create_has_one_winner_among_threads(store: ObjectStore) -> None:
    won: list[int] = []

    def compete(number: int) -> None:
        try:
            store.create("generations/1", b"%d" % number)
        except ConflictError:
            return
        won.append(number)

    threads = [threading.Thread(target=compete, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get("generations/1") == b"%d" % won[0]


def test_absent_objects(store: ObjectStore, tmp_path: Path) -> None:
    for read in (store.get, store.head, lambda path: store.get_file(path, tmp_path / "t")):
        with pytest.raises(NotFoundError, match="no/such"):
            read("no/such")
    assert not list(tmp_path.glob("*t*.part")), "nothing half-written stays"
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("size", [0, 1, 5 << 20, (17 << 20) + 3])
def test_files_stream_both_ways(store: ObjectStore, tmp_path: Path, size: int) -> None:
    source = tmp_path / "source.sst"
    source.write_bytes(random.Random(size).randbytes(size))
    assert store.put_file("shared/ab/file", source) == hashlib.sha256(source.read_bytes()).hexdigest()
    assert store.head("shared/ab/file").size_bytes == size
    target = tmp_path / "in" / "target.sst"
    target.parent.mkdir()
    store.get_file("shared/ab/file", target)
    assert target.read_bytes() == source.read_bytes()
    assert list(target.parent.iterdir()) == [target]


def test_get_file_replaces_only_when_complete(store: ObjectStore, tmp_path: Path) -> None:
    target = tmp_path / "t"
    target.write_bytes(b"old")
    with pytest.raises(NotFoundError):
        store.get_file("absent", target)
    assert target.read_bytes() == b"old"


def test_upload_of_an_absent_file(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"gone\.sst"):
        store.put_file("x", tmp_path / "gone.sst")
    assert paths(store, "") == []


def test_list_is_by_folder(store: ObjectStore) -> None:
    for path in ("chk-1/_metadata", "chk-1/f", "chk-11/f", "shared/aa/x", "shared/ab/y"):
        store.put(path, b"12")
    assert paths(store, "chk-1") == ["chk-1/_metadata", "chk-1/f"]
    assert paths(store, "shared") == ["shared/aa/x", "shared/ab/y"]
    assert paths(store, "nothing") == []
    assert len(paths(store, "")) == 5
    assert {info.size_bytes for info in store.list("")} == {2}


def test_delete_ignores_what_is_absent(store: ObjectStore) -> None:
    for i in range(5):
        store.put(f"d/{i}", b"x")
    store.delete([])
    store.delete(["d/none", "d/0", "d/never", "d/1", "d/2", "e/f/g"])
    assert paths(store, "") == ["d/3", "d/4"]
    store.delete(["d/3", "d/3", "d/4"])
    assert paths(store, "") == []


def test_delete_takes_any_iterable(store: ObjectStore) -> None:
    store.put("a", b"x")
    store.delete(path for path in ["a"])
    assert paths(store, "") == []


def test_unusual_names(store: ObjectStore) -> None:
    for name in ("a b/ü%20.base", "_spark_metadata/0.compact", "x/é~!"):
        store.put(name, name.encode())
        assert store.get(name) == name.encode()
        assert name in paths(store, "")


def test_a_path_that_leaves_the_root_is_refused(store: ObjectStore) -> None:
    with pytest.raises(ConfigurationError):
        store.put("../outside", b"x")


def test_an_object_of_another_store_is_taken_or_nothing_happens(store: ObjectStore, tmp_path: Path) -> None:
    """Whoever asks copies it himself, then: no bytes are lost, whatever the two stores are."""
    for source in (open_store(f"file://{tmp_path}/other"), open_store("memory://")):
        source.put("from/here", b"data")
        if store.take("to/there", source, "from/here"):
            source.delete(["from/here"])
            assert store.get("to/there") == b"data"
            store.delete(["to/there"])
        assert paths(store, "to") == []
        assert not store.take("to/there", source, "never/there")
        assert paths(store, "to") == []


def test_between_local_directories_an_object_is_taken(tmp_path: Path) -> None:
    here, there = open_store(f"file://{tmp_path}/here"), open_store(f"file://{tmp_path}/there")
    there.put("from", b"data")
    assert RetryingStore(here).take("a/to", RetryingStore(there), "from")
    assert (tmp_path / "here" / "a" / "to").samefile(tmp_path / "there" / "from")
    assert not list(tmp_path.rglob("*.writing"))
