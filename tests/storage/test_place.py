"""A place as data: the client of remote storage is kept, for as long as it would be made the same again."""

from __future__ import annotations

import time
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.storage.place import Place

OPTIONS = {"endpoint": "http://127.0.0.1:9", "region": "us-east-1"}


def test_a_client_is_kept_until_another_would_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(url="s3://bucket/one", options=OPTIONS)
    store = place.store()
    assert Place(url="s3://bucket/one", path="elsewhere", options=dict(OPTIONS)).store() is store
    assert Place(url="s3://bucket/two", options=OPTIONS).store() is not store
    assert Place(url="s3://bucket/one", options={**OPTIONS, "region": "eu-west-1"}).store() is not store
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "another")
    assert place.store() is not store
    monkeypatch.undo()
    assert place.store() is store
    # Nor is one kept for ever whose credentials are in a file that may have been written anew.
    later = time.monotonic() + 3600
    monkeypatch.setattr("time.monotonic", lambda: later)
    assert place.store() is not store
    monkeypatch.undo()
    # A process that was forked has none of the threads by which its parent's client lives.
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert place.store() is not store


def test_a_variable_may_be_taken_away_while_others_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changing(UserDict[str, str]):
        def __iter__(self) -> Iterator[str]:
            return iter(["AWS_GONE", *self.data])

    monkeypatch.setattr("os.environ", Changing(AWS_REGION="us-east-1"))
    place = Place(url="s3://bucket/one", options=OPTIONS)
    assert place.store() is place.store()


def test_a_directory_is_made_whenever_it_is_opened(tmp_path: Path) -> None:
    place = Place(url=(tmp_path / "made").as_uri())
    place.store()
    (tmp_path / "made").rmdir()
    place.store()
    assert (tmp_path / "made").is_dir()
