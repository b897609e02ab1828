"""The heap backend's own promises: taking over, the limit, the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.backends.heap import HEAP_FILE, HeapBackend
from strandline.core.errors import CorruptionError, StateLimitError

from .conftest import restore_files


def heap(directory: Path, limit_bytes: int | None = None) -> HeapBackend:
    return HeapBackend(directory, ("a", "b"), inline=True, limit_bytes=limit_bytes)


def test_a_released_state_holds_what_changes_give_and_others_what_they_held(tmp_path: Path) -> None:
    backend = heap(tmp_path / "1")
    backend.write({"a": [(b"1", b"x"), (b"2", b"y")], "b": [(b"1", b"kept"), (b"2", b"kept")]})
    taken = dict(backend.scan("a"))
    backend.release("a")
    del taken[b"1"]
    taken[b"3"] = b"z"
    changes = {"a": [*reversed(taken.items()), (b"4", None)], "b": [(b"2", b"new")]}
    files = backend.persist(changes, tmp_path / "s")
    restored = heap(restore_files(files, tmp_path / "2"))
    assert dict(restored.scan("a")) == {b"2": b"y", b"3": b"z"}
    assert dict(restored.scan("b")) == {b"1": b"kept", b"2": b"new"}


def test_a_released_state_is_forgotten_at_the_next_snapshot_without_changes(tmp_path: Path) -> None:
    backend = heap(tmp_path / "1")
    backend.write({"a": [(b"1", b"x")]})
    backend.release("a")
    files = backend.persist({}, tmp_path / "s")
    assert dict(heap(restore_files(files, tmp_path / "2")).scan("a")) == {}


def test_release_frees_the_bytes_and_reading_afterwards_is_a_mistake(tmp_path: Path) -> None:
    backend = heap(tmp_path / "1")
    backend.write({"a": [(b"1", b"x" * 99)], "b": [(b"1", b"y")]})
    assert backend.metrics()["kept_bytes"] == 102
    backend.release("a")
    assert backend.metrics()["kept_bytes"] == 2
    for touch in (
        lambda: backend.get_many("a", [b"1"]),
        lambda: list(backend.scan("a")),
        lambda: backend.write({"a": [(b"1", b"x")]}),
        lambda: backend.release("a"),
    ):
        with pytest.raises(ValueError, match="released"):
            touch()


def test_a_write_beyond_the_limit_changes_nothing(tmp_path: Path) -> None:
    backend = heap(tmp_path / "1", limit_bytes=100)
    backend.write({"a": [(b"1", b"x" * 49)], "b": [(b"1", b"x" * 49)]})
    with pytest.raises(StateLimitError, match="101 bytes") as caught:
        backend.write({"a": [(b"1", b"y" * 48)], "b": [(b"1", b"y" * 51)]})
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (101, 100)
    assert backend.get_many("a", [b"1"]) == [b"x" * 49]
    backend.write({"a": [(b"1", None)], "b": [(b"2", b"y" * 49)]})
    assert backend.metrics()["kept_bytes"] == 100


@pytest.mark.parametrize("released", [True, False])
def test_a_snapshot_beyond_the_limit_leaves_nothing_behind(tmp_path: Path, released: bool) -> None:
    backend = heap(tmp_path / "1", limit_bytes=100)
    if released:
        backend.release("a")
    with pytest.raises(StateLimitError):
        backend.persist({"a": [(b"1", b"x" * 100)]}, tmp_path / "s")
    assert not (tmp_path / "s").exists()
    assert backend.persist({"a": [(b"1", b"x" * 99)]}, tmp_path / "s")


def test_a_source_of_changes_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    backend = heap(tmp_path / "1")
    backend.release("a")

    def failing():
        yield b"1", b"x"
        raise RuntimeError("encoder")

    with pytest.raises(RuntimeError, match="encoder"):
        backend.persist({"a": failing()}, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_size_is_measured_where_the_caller_holds_all(tmp_path: Path) -> None:
    backend = heap(tmp_path / "1")
    backend.release("a")
    backend.persist({"a": [(b"1", b"x" * 9)], "b": [(b"1", b"y")]}, tmp_path / "s")
    assert backend.metrics() == {"kept_entries_count": 1, "kept_bytes": 2, "encoded_bytes": 12}


def test_a_damaged_snapshot_is_refused_by_name(tmp_path: Path) -> None:
    backend = heap(tmp_path / "1")
    files = backend.persist({"a": [(b"1", b"x")]}, tmp_path / "s")
    directory = restore_files(files, tmp_path / "2")
    data = bytearray((directory / HEAP_FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (directory / HEAP_FILE).write_bytes(data)
    with pytest.raises(CorruptionError, match=HEAP_FILE):
        heap(directory)


def test_entries_that_shrink_while_a_scan_walks_are_left_out(tmp_path: Path) -> None:
    backend = heap(tmp_path / "1")
    backend.write({"a": [(b"1", b"x"), (b"2", b"x"), (b"3", b"x")]})
    walk = backend.scan("a")
    assert next(walk) == (b"1", b"x")
    backend.write({"a": [(b"2", None), (b"4", b"late")]})
    assert list(walk) == [(b"3", b"x")]
