"""What an object store answers, said in words: against a real server on loopback."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from msgspec.structs import replace

from strandline.checkpoint.generation import claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.publish import publish
from strandline.checkpoint.start import save_start
from strandline.core.clock import SystemClock
from strandline.core.errors import ConfigurationError, NotFoundError, UnavailableError
from strandline.snapshot.opening.listing import verify_snapshot
from strandline.snapshot.savepoints.take import FORMS, take_savepoint
from strandline.storage.base import ObjectStore
from strandline.storage.place import Place
from strandline.storage.remote import open_store
from strandline.storage.retrying import RetryingStore
from tests.runtime.rescaling import KEYS, Job
from tests.seaweed import Seaweed
from tests.storage.faultyhttp import FaultyHttp

OPERATIONS: dict[str, Callable[[ObjectStore, Path], object]] = {
    "get": lambda store, tmp: store.get("k"),
    "get_file": lambda store, tmp: store.get_file("k", tmp / "k"),
    "put": lambda store, tmp: store.put("k", b"1"),
    "put_file": lambda store, tmp: store.put_file("k", Path(__file__)),
    "create": lambda store, tmp: store.create("k", b"1"),
    "list": lambda store, tmp: list(store.list("a")),
    "delete": lambda store, tmp: store.delete(["k", "l"]),
}


@pytest.mark.parametrize("operation", [*OPERATIONS, "head"])
def test_a_gateway_without_a_route_does_not_say_that_objects_are_gone(
    s3: Seaweed, tmp_path: Path, operation: str
) -> None:
    with closing(FaultyHttp(s3.options["endpoint"])) as proxy:
        store = open_store(s3.url(f"r-{uuid4().hex}"), {**s3.options, "endpoint": proxy.endpoint})
        store.put("k", b"1")
        with pytest.raises(NotFoundError, match="no such object"):
            store.head("m")
        proxy.misroutes = True
        with pytest.raises(UnavailableError, match="404"):
            {**OPERATIONS, "head": lambda store, _: store.head("k")}[operation](store, tmp_path)
        proxy.misroutes = False
        assert store.get("k") == b"1"
        assert store.head("k").size_bytes == 1
        store.delete(["k", "l"])
        with pytest.raises(NotFoundError):
            store.get("k")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("access_key_id", "ANOTHERKEY", "InvalidAccessKeyId"),
        ("secret_access_key", "not-the-key", "SignatureDoesNotMatch"),
    ],
)
def test_wrong_credentials_are_said_at_once_and_not_shown(
    s3: Seaweed, tmp_path: Path, operation: str, option: str, value: str, words: str
) -> None:
    options = {**s3.options, option: value}

    def wait(seconds: float) -> None:
        raise AssertionError("nothing is tried again")

    store = RetryingStore(open_store(s3.url("d"), options), sleep=wait)
    with pytest.raises(ConfigurationError, match=f"{s3.url('d')}/.*{words}: ") as caught:
        OPERATIONS[operation](store, tmp_path)
    assert "credentials" in caught.value.hint
    said = f"{caught.value!s}{caught.value!r}"
    assert not [secret for secret in (value, options["secret_access_key"]) if secret in said]


@pytest.mark.parametrize("operation", ["get", "list"])
def test_a_bucket_that_is_not_there(s3: Seaweed, tmp_path: Path, operation: str) -> None:
    with pytest.raises(ConfigurationError, match=r"s3://no-such-bucket/d/.*: NoSuchBucket: ") as caught:
        OPERATIONS[operation](open_store("s3://no-such-bucket/d", s3.options), tmp_path)
    assert "create the bucket" in caught.value.hint


@pytest.mark.parametrize("operation", ["put", "put_file"])
def test_an_upload_in_parts_that_is_forgotten_begins_again(s3: Seaweed, tmp_path: Path, operation: str) -> None:
    proxy = FaultyHttp(s3.options["endpoint"])
    storage = open_store(s3.url(str(uuid4())), {**s3.options, "endpoint": proxy.endpoint})
    store = RetryingStore(storage, sleep=lambda seconds: None)
    data = bytes(12 << 20)
    proxy.forgets = 2
    (tmp_path / "f").write_bytes(data)
    store.put("k", data) if operation == "put" else store.put_file("k", tmp_path / "f")
    assert proxy.forgets == 0
    assert store.get("k") == data
    proxy.close()


def test_the_answers_to_all_creates_are_lost(s3: Seaweed, tmp_path: Path) -> None:
    """The service has made the object, and the library tries again: what conflicts is one's own."""
    proxy = FaultyHttp(s3.options["endpoint"], lost_creates=True)
    storage = Place(url=s3.url(f"lost-{uuid4()}"), options={**s3.options, "endpoint": proxy.endpoint})
    jobdir = JobDirectory(storage.store(), "job")
    claimed = claim(jobdir, SystemClock())
    save_start(jobdir, claimed, {"offsets/0": b"1"}, [], SystemClock())
    job = Job(tmp_path, storage)
    job.start(2, "filesystem")
    job.run([(key, "set_value", n, 0) for n, key in enumerate(KEYS)])
    job.checkpoint()
    job.stop()
    publish(jobdir, claimed, replace(job.manifest(), generation=claimed.generation))
    for form in FORMS:
        take_savepoint(job.manifest(), job.place, replace(storage, path=form), form, scratch=tmp_path)
        assert verify_snapshot(f"{storage.url}/{form}", storage.options).ok
    assert proxy.happened["create lost"] >= 6
    proxy.close()
