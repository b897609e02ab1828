from __future__ import annotations

import itertools
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from strandline.core.errors import ConflictError, UnavailableError
from strandline.storage.remote import open_store
from strandline.storage.retrying import RetryingStore
from tests.storage.faulty import AFTER, BEFORE, MIDDLE, FaultyStore


@pytest.fixture
def faulty() -> FaultyStore:
    return FaultyStore(open_store("memory://"))


def retrying(faulty: FaultyStore, delays: list[float] | None = None, attempts: int = 4) -> RetryingStore:
    sleep = delays.append if delays is not None else lambda s: None
    return RetryingStore(faulty, attempts=attempts, first_delay_s=1.0, sleep=sleep, rng=random.Random(0))


def test_delays_grow_are_bounded_and_end(faulty: FaultyStore) -> None:
    delays: list[float] = []
    faulty.script = [("get", "k", BEFORE)] * 8
    with pytest.raises(UnavailableError):
        retrying(faulty, delays, attempts=8).get("k")
    assert len(faulty.calls) == 8
    assert len(delays) == 7
    for delay, full in zip(delays, [1, 2, 4, 5, 5, 5, 5], strict=True):
        assert full / 2 <= delay <= full


def test_a_deletion_that_takes_long_is_not_tried_again(faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a client that waits for a broker that is away."""
    clock = itertools.count(step=2)
    monkeypatch.setattr("strandline.storage.retrying.time", SimpleNamespace(monotonic=lambda: next(clock)))
    faulty.script = [("delete", "k", BEFORE)] * 5 + [("get", "k", BEFORE)] * 5
    with pytest.raises(UnavailableError):
        retrying(faulty, attempts=5).delete(["k"])
    assert len(faulty.calls) == 3
    with pytest.raises(UnavailableError):
        retrying(faulty, attempts=5).get("k")
    assert len(faulty.calls) == 3 + 5


def test_a_lost_answer_to_create_is_a_success(faulty: FaultyStore) -> None:
    faulty.script = [("create", "m", AFTER)]
    retrying(faulty).create("m", b"mine")
    assert faulty.inner.get("m") == b"mine"


def test_a_lost_answer_does_not_hide_a_conflict(faulty: FaultyStore) -> None:
    faulty.inner.put("m", b"theirs")
    faulty.script = [("create", "m", BEFORE)]
    with pytest.raises(ConflictError):
        retrying(faulty).create("m", b"mine")
    assert faulty.inner.get("m") == b"theirs"


def test_a_conflict_at_once_is_a_conflict_even_with_the_same_bytes(faulty: FaultyStore) -> None:
    faulty.inner.put("m", b"same")
    with pytest.raises(ConflictError):
        retrying(faulty).create("m", b"same")


@pytest.mark.parametrize("when", [BEFORE, AFTER, MIDDLE])
def test_every_operation_survives_a_fault(faulty: FaultyStore, tmp_path: Path, when: str) -> None:
    store = retrying(faulty)
    (tmp_path / "f").write_bytes(b"file")
    faulty.script = [("*", "", when)]
    store.put("a", b"1")
    faulty.script = [("*", "", when)]
    store.put_file("b", tmp_path / "f")
    faulty.script = [("*", "", when)]
    store.get_file("b", tmp_path / "g")
    assert (tmp_path / "g").read_bytes() == b"file"
    faulty.script = [("*", "", when)]
    assert store.head("a").size_bytes == 1
    faulty.script = [("*", "", when)]
    assert sorted(i.path for i in store.list("")) == ["a", "b"]
    faulty.script = [("*", "", when)]
    store.delete(p for p in ("a", "b"))
    assert list(faulty.inner.list("")) == []
    assert faulty.script == []
