"""Entries read group by group: what filters may leave out, and what an iterator that is kept must not hide."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from strandline.backends.base import Entry
from strandline.backends.options import Grouping
from strandline.backends.rocksdb import RocksDBBackend
from strandline.core.errors import CorruptionError

from .conftest import BUDGET, restore_files
from .test_rocksdb import damaged

FIXED = Grouping(4, exact=True)
TEXT = Grouping(4, exact=False)


def opened(directory: Path, grouping: Grouping | None) -> RocksDBBackend:
    return RocksDBBackend(directory, ["a"], memory=BUDGET, groupings={"a": grouping} if grouping else {})


def random_entries(rng: random.Random, *, exact: bool) -> dict[bytes, bytes]:
    """Return entries of groups with 4-byte prefixes, or with shorter and longer ones that none begins with another."""
    groups = [
        rng.randbytes(4) if exact else rng.randbytes(rng.randrange(1, 9)).replace(b"\0", b"\1") + b"\0"
        for _ in range(300)
    ]
    return {rng.choice(groups) + rng.randbytes(8): rng.randbytes(20) for _ in range(1500)}


def groups_of(entries: dict[bytes, bytes], *, exact: bool) -> dict[bytes, list[tuple[bytes, bytes]]]:
    found: dict[bytes, list[tuple[bytes, bytes]]] = {}
    for key, value in sorted(entries.items()):
        found.setdefault(key[:4] if exact else key[: key.index(b"\0") + 1], []).append((key, value))
    return found


@pytest.mark.parametrize("grouping", [FIXED, TEXT], ids=["fixed", "text"])
def test_groups_are_found_in_memtables_and_files_and_nowhere_else(tmp_path: Path, grouping: Grouping) -> None:
    rng = random.Random(5)
    backend = opened(tmp_path / "db", grouping)
    model: dict[bytes, bytes] = {}
    for step in range(6):
        new = random_entries(rng, exact=grouping.exact)
        gone = set(rng.sample(sorted(model), len(model) // 3)) - new.keys()
        model = {**{key: value for key, value in model.items() if key not in gone}, **new}
        deletions: list[Entry] = [(key, None) for key in sorted(gone)]
        backend.write({"a": [*deletions, *new.items()]})
        groups = groups_of(model, exact=grouping.exact)
        for prefix, entries in groups.items():
            assert backend.read_group("a", prefix) == entries
        for prefix in groups_of(random_entries(rng, exact=grouping.exact), exact=grouping.exact):
            assert backend.read_group("a", prefix) == groups.get(prefix, [])
        if step % 2:
            backend.persist({}, tmp_path / f"s{step}")
    backend.close()


def test_filters_say_which_groups_are_not_there(tmp_path: Path) -> None:
    backend = opened(tmp_path / "db", FIXED)
    for step in range(3):
        backend.persist(
            {"a": [(b"%04d" % number + b"sub", b"v") for number in range(step, 2000, 3)]}, tmp_path / f"{step}"
        )
    before = useful(backend)
    assert all(backend.read_group("a", b"x%03d" % number) == [] for number in range(500))
    # In each file, but for the few that a filter takes for others.
    assert useful(backend) - before > 3 * 450
    backend.close()


def useful(backend: RocksDBBackend) -> int:
    lines = (backend._options.get_statistics() or "").splitlines()
    return sum(
        int(line.split()[-1])
        for line in lines
        if line.startswith(
            (
                "rocksdb.last.level.seek.filtered",
                "rocksdb.non.last.level.seek.filtered",
                "rocksdb.bloom.filter.prefix.useful",
            )
        )
    )


@pytest.mark.parametrize("later", [None, FIXED, TEXT, Grouping(6, exact=False), Grouping(3, exact=True)])
@pytest.mark.parametrize("earlier", [None, FIXED, TEXT])
def test_files_written_with_another_grouping_are_read(
    tmp_path: Path, earlier: Grouping | None, later: Grouping | None
) -> None:
    rng = random.Random(6)
    entries = random_entries(rng, exact=True)
    old = opened(tmp_path / "old", earlier)
    half = dict(sorted(entries.items())[::2])
    files = old.persist({"a": half.items()}, tmp_path / "s")
    old.close()
    backend = opened(restore_files(files, tmp_path / "new"), later)
    for written in (half, entries):
        backend.write({"a": [(key, value) for key, value in entries.items() if key in written]})
        for size_bytes in (3, 4, 5, 6, 7):
            groups: dict[bytes, list[tuple[bytes, bytes]]] = {}
            for key, value in sorted(written.items()):
                groups.setdefault(key[:size_bytes], []).append((key, value))
            for prefix in {key[:size_bytes] for key in entries}:
                assert backend.read_group("a", prefix) == groups.get(prefix, [])
    backend.close()


def test_what_was_written_is_seen_at_once(tmp_path: Path) -> None:
    """A read that begins after a write is over finds it, whatever iterator an earlier read has left."""
    backend = opened(tmp_path / "db", FIXED)
    written, failed, over = 0, [], threading.Event()

    def write() -> None:
        nonlocal written
        for number in range(1, 600):
            backend.write({"a": [(b"%04d" % number + b"sub", b"v")]})
            if number % 150 == 0:
                backend.persist({}, tmp_path / f"s{number}")
            written = number
        over.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not over.is_set():
        number = written
        if number and not backend.read_group("a", b"%04d" % number):
            failed.append(number)
    thread.join()
    assert not failed
    backend.write({"a": [(b"0007sub", None)]})
    assert backend.read_group("a", b"0007") == []
    backend.close()


def test_a_closed_database_is_free_though_groups_were_read(tmp_path: Path) -> None:
    for _ in range(2):
        backend = opened(tmp_path / "db", FIXED)
        assert backend.read_group("a", b"none") == []
        backend.close()


@pytest.mark.parametrize("grouping", [None, FIXED, TEXT])
def test_damage_is_an_error_not_an_empty_group(tmp_path: Path, grouping: Grouping | None) -> None:
    backend = opened(tmp_path / "db", grouping)
    files = backend.persist({"a": [(b"%04d" % number, os.urandom(100)) for number in range(3000)]}, tmp_path / "s")
    backend.close()
    backend = opened(damaged(files, tmp_path / "bad"), grouping)
    with pytest.raises(CorruptionError, match="state directory"):
        backend.read_group("a", b"0000")
    backend.close()
