"""Logs that the backend writes in RocksDB's format, and changes that wait for RocksDB to get them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api.config import Changelog
from strandline.backends import rocksdb
from strandline.backends.rocksdb import RocksDBBackend
from strandline.backends.waiting import Waiting, merged
from strandline.backends.walformat import BLOCK_BYTES, BatchReader, batch_of, batches, framed, puts_of

from .conftest import BUDGET, restore_files

sizes = st.integers(0, 300) | st.sampled_from([127, 128, 16_383, 16_384, 70_000])
entries = st.lists(st.tuples(st.integers(1, 40), st.none() | sizes), min_size=1, max_size=8)


@given(
    st.lists(entries, min_size=1, max_size=4), st.integers(0, 3 * BLOCK_BYTES), st.sampled_from([1, 127, 128, 40_000])
)
def test_batches_are_read_as_they_were_written(
    given_batches: list[list[tuple[int, int | None]]], at: int, family: int
) -> None:
    start = at - at % BLOCK_BYTES
    # As after other records: up to its first byte, a block is one that was not whole.
    filler = b"".join(framed(bytes(max(0, at - start - 7)), start)) if at - start >= 7 else b""
    data, end, sequence = filler, start + len(filler), 1
    written, numbers = [], []
    for number, batch in enumerate(given_batches):
        some = [(b"%d" % number * key, None if size is None else bytes([number + 1]) * size) for key, size in batch]
        piece = b"".join(framed(batch_of(sequence, family, some), end))
        numbers.append((sequence, len(some)))
        data, end, sequence = data + piece, end + len(piece), sequence + len(some)
        written.append([(key, value) for key, value in some if value is not None])
    read = [batch for batch in batches([data], start, "log") if any(batch)]
    assert [puts_of(batch).get(family, []) for batch in read] == written
    assert [each for each in BatchReader(start).read(data) if each[0]] == numbers


@pytest.mark.parametrize("left", range(16))
def test_rocksdb_repeats_batches_that_end_near_the_end_of_a_block(tmp_path: Path, left: int) -> None:
    backend = RocksDBBackend(tmp_path / "db", ["a"], memory=BUDGET, changelog=Changelog())
    backend.changelog.append({}, tmp_path / "1")
    assert backend._logs is not None
    # Header of a record and of a batch; kind, family, and the sizes of a key and of a value of so many bytes.
    value = bytes(BLOCK_BYTES - left - 7 - 12 - (1 + 1 + 1 + 4 + 3))
    backend.write({"a": [(b"\0\0\0a", value)]})
    assert backend._logs.end == BLOCK_BYTES - left
    model = {b"\0\0\0a": value} | {b"\0\0\0%c" % n: bytes([n]) * n * 1000 for n in range(100, 120)}
    for key, value in model.items():
        backend.write({"a": [(key, value)]})
    files = backend.changelog.append({}, tmp_path / "2")
    backend.close()
    restored = RocksDBBackend(restore_files(files, tmp_path / "restored"), ["a"], memory=BUDGET)
    assert dict(restored.scan("a")) == model
    restored.close()


keys = st.sampled_from([b"", b"\0", b"\0\0", b"\0\1", b"\1", b"\1\xff", b"\xff"])


@given(
    st.dictionaries(keys, st.binary(max_size=2)),
    st.lists(st.dictionaries(keys, st.none() | st.binary(max_size=2), min_size=1), max_size=3),
    st.lists(keys),
    keys,
    keys,
)
def test_changes_that_wait_are_read_as_if_they_were_stored(
    stored: dict[bytes, bytes],
    changes: list[dict[bytes, bytes | None]],
    asked: list[bytes],
    prefix: bytes,
    first: bytes,
) -> None:
    waiting, model = Waiting(()), dict(stored)
    for some in changes:
        waiting.add("a", [*some.items()])
        model |= some  # type: ignore[arg-type]
    found = waiting.get_many("a", asked, lambda missing: [stored.get(key) for key in missing])
    assert found == ([model.get(key) for key in asked] if changes else None)
    in_order = iter(sorted((k, v) for k, v in stored.items() if k.startswith(prefix) and k >= first))
    expected = sorted((k, v) for k, v in model.items() if v is not None and k.startswith(prefix) and k >= first)
    assert list(merged(in_order, waiting.scan("a", prefix, first))) == expected
    assert (waiting.size_bytes > 0) == bool(changes)
    waiting.drop("a")
    assert waiting.states == waiting.of("a") == []
    assert waiting.get_many("a", asked, lambda _: []) is None


def test_readers_in_other_threads_never_see_a_value_that_was_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While changes go from one place to the other."""
    monkeypatch.setattr(rocksdb, "_WAITING_SHARE", 0.01)
    backend = RocksDBBackend(tmp_path / "db", ["a"], memory=BUDGET, changelog=Changelog())
    backend.changelog.append({}, tmp_path / "1")
    wanted = [b"\0\0%03d" % n for n in range(200)]
    backend.write({"a": [(key, b"%09d" % 0) for key in wanted]})
    faults: list[object] = []
    is_over = threading.Event()

    def read() -> None:
        newest = [b""] * len(wanted)
        while not is_over.is_set():
            for found in (backend.get_many("a", wanted), [value for _, value in backend.scan("a")]):
                if len(found) != len(wanted) or any(a is None or a < b for a, b in zip(found, newest, strict=True)):
                    faults.append(found)
                newest = [value or b"" for value in found]

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for version in range(1, 300):
        backend.write({"a": [(key, b"%09d" % version) for key in wanted]})
    is_over.set()
    for thread in threads:
        thread.join()
    backend.close()
    assert not faults
