"""The RocksDB backend's own promises: names, files, damage, memory."""

from __future__ import annotations

import os
import resource
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from strandline.backends.base import Backend, LocalFile
from strandline.backends.options import DEFAULT_TUNING, MIB, MemoryBudget, Tuning
from strandline.backends.reading import open_reader
from strandline.backends.rocksdb import RocksDBBackend, _batches
from strandline.core.errors import ConfigurationError, CorruptionError, UnavailableError
from strandline.core.keygroups import first_key

from .conftest import BUDGET, Lab, restore_files
from .test_conformance import contents, numbered


def shared(files: list[LocalFile]) -> dict[str, bytes]:
    return {file.name: file.path.read_bytes() for file in files if file.shared}


def test_two_futures_of_one_snapshot_never_share_a_new_name(rocks: Lab) -> None:
    origin = rocks.open()
    base = origin.persist({"a": numbered(1000, b"base")}, rocks.place())
    seen = shared(base)
    futures = [origin, rocks.restore(base), rocks.restore(base)]
    for step in range(12):  # enough to merge files, too
        for number, backend in enumerate(futures):
            files = backend.persist({"a": numbered(1000, b"%d of %d" % (step, number))}, rocks.place())
            for name, data in shared(files).items():
                assert seen.setdefault(name, data) == data
    for number, backend in enumerate(futures):
        assert contents(backend, "a") == dict(numbered(1000, b"11 of %d" % number))


def test_names_survive_chains_of_restores(rocks: Lab) -> None:
    backend = rocks.open()
    seen: dict[str, bytes] = {}
    for step in range(5):
        files = backend.persist({"a": [(b"%d" % step, b"v")]}, rocks.place())
        assert len(shared(files)) == step + 1
        for name, data in shared(files).items():
            assert seen.setdefault(name, data) == data
        backend = rocks.restore(files)
    assert len(seen) == 5
    assert len(contents(backend, "a")) == 5


def test_an_unchanged_state_adds_no_shared_file(rocks: Lab) -> None:
    backend = rocks.open()
    first = backend.persist({"a": numbered(1000)}, rocks.place())
    second = backend.persist({}, rocks.place())
    assert shared(first) == shared(second)


def test_shared_files_are_hard_links_and_the_rest_is_small(rocks: Lab) -> None:
    backend = rocks.open()
    for step in range(30):
        files = backend.persist({"a": numbered(100, b"%d" % step), "b": numbered(10)}, rocks.place())
    for file in files:
        assert file.shared == (file.path.suffix in (".sst", ".blob"))
        if file.shared:
            assert file.path.stat().st_nlink > 1
    own = [file for file in files if not file.shared]
    assert sorted(file.name.split("-")[0] for file in own) == ["CURRENT", "MANIFEST"]
    assert sum(file.size_bytes for file in own) < 64 << 10


def test_only_the_listed_files_are_needed(rocks: Lab) -> None:
    backend = rocks.open()
    files = backend.persist({"a": numbered(10), "b": numbered(20)}, rocks.place())
    for missing in files:
        directory = restore_files([file for file in files if file is not missing], rocks.place())
        if missing.name == "CURRENT":  # without it, RocksDB takes a directory for an empty one
            continue
        with pytest.raises(CorruptionError):
            rocks.open(directory)
    assert contents(rocks.restore(files), "b") == dict(numbered(20))


def test_files_of_two_snapshots_are_not_mixed(rocks: Lab) -> None:
    base = rocks.open().persist({"a": numbered(10)}, rocks.place())
    futures = [rocks.restore(base).persist({"a": numbered(10, b"%d" % n)}, rocks.place()) for n in range(2)]
    both = {file.name: file for files in futures for file in files}
    directory = restore_files(list(both.values()), rocks.place())
    with pytest.raises(CorruptionError, match="two snapshots"):
        rocks.open(directory)


def damaged(files: list[LocalFile], directory: Path, at: float = 0) -> Path:
    """Restore with copies, a byte of each SST file flipped: in its first data block, or that far through its bytes."""
    directory.mkdir()
    for file in files:
        data = bytearray(file.path.read_bytes())
        if file.shared:
            data[200 + int(at * len(data))] ^= 0xFF
        (directory / file.name).write_bytes(data)
    return directory


def test_a_damaged_block_is_an_error_not_an_end(rocks: Lab) -> None:
    entries = [(key, os.urandom(100)) for key, _ in numbered(5000)]
    files = rocks.open().persist({"a": entries}, rocks.place())
    backend = rocks.open(damaged(files, rocks.place()))
    with pytest.raises(CorruptionError, match="state directory"):
        backend.get_many("a", [entries[0][0]])
    with pytest.raises(CorruptionError, match="state directory"):
        list(backend.scan("a"))


def all_read(backend: Backend) -> list[object]:
    keys = [key for key, _ in grouped(range(8))]
    prefixes = [first_key(group) for group in range(8)]
    return [backend.get_many("a", keys), list(backend.scan("a")), [backend.read_group("a", each) for each in prefixes]]


def grouped(groups: range) -> list[tuple[bytes, bytes]]:
    return [(first_key(group) + b"%d" % number, os.urandom(30)) for group in groups for number in range(9)]


def test_whatever_is_zeroed_in_an_sst_file_is_an_error_or_of_no_effect(rocks: Lab) -> None:
    """Also the range deletions, and the sequence numbers of loaded files, without which these would be deleted."""
    backend = rocks.open()
    backend.persist({"a": grouped(range(8))}, rocks.place())
    backend.clip(range(4))
    backend.persist({"a": grouped(range(1))}, rocks.place())
    backend.load("a", iter(grouped(range(4, 6))))
    files = backend.persist({}, rocks.place())
    expected = all_read(backend)
    assert all_read(rocks.restore(files)) == expected
    errors = cases = 0
    for file in filter(lambda file: file.shared, files):
        data = file.path.read_bytes()
        for at in range(0, len(data), 96):
            directory = rocks.place()
            for other in files:
                restored = other.path.read_bytes()
                if other is file:
                    restored = data[:at] + bytes(len(data[at : at + 96])) + data[at + 96 :]
                directory.mkdir(exist_ok=True)
                (directory / other.name).write_bytes(restored)
            cases += 1
            try:
                assert all_read(rocks.open(directory)) == expected
            except CorruptionError:
                errors += 1
    assert errors > 0.9 * cases > 40, (errors, cases)


def test_a_damaged_manifest_is_in_no_snapshot_and_is_not_restored(rocks: Lab) -> None:
    """RocksDB reads over zeros in it, and the state in the files that it does not know then is gone without an error."""
    backend, expected = rocks.open(), dict(numbered(30))
    for start in range(0, 30, 10):
        files = backend.persist({"a": numbered(30)[start : start + 10]}, rocks.place())
    (live,) = (path for path in rocks.root.rglob("MANIFEST-*") if (path.parent / "LOCK").exists())
    (copy,) = (file.path for file in files if file.name.startswith("MANIFEST-"))
    data = live.read_bytes()
    assert copy.read_bytes() == data
    ends = range(7, len(data), 23)
    zeroed = [data[:at] + bytes(len(data) - at) for at in ends] + [data[:at] + bytes(9) + data[at + 9 :] for at in ends]
    for damaged in [*zeroed, *(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in ends)]:
        _overwrite(live, damaged)
        with pytest.raises(CorruptionError):
            backend.persist({}, rocks.place())
    for damaged in [*zeroed, *(data[:at] for at in ends)]:
        copy.write_bytes(damaged)
        with suppress(CorruptionError):
            # It may end between two records: not even RocksDB tells that from a whole one.
            assert contents(rocks.restore(files), "a") == expected or damaged == data[: len(damaged)]
    _overwrite(live, data)
    assert contents(rocks.restore(backend.persist({}, rocks.place())), "a") == expected


def _overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)


def test_a_file_of_another_life_is_not_taken_for_the_one_of_its_name(rocks: Lab) -> None:
    lives = [rocks.open().persist({"a": [(b"key", os.urandom(30))]}, rocks.place()) for _ in range(2)]
    (mine, other) = (next(file for file in files if file.shared) for files in lives)
    assert mine.size_bytes == other.size_bytes
    directory = restore_files(lives[0], rocks.place())
    (directory / mine.name).unlink()
    shutil.copyfile(other.path, directory / mine.name)
    with pytest.raises(CorruptionError, match="unique ID"):
        rocks.open(directory).get_many("a", [b"key"])


@pytest.mark.parametrize("at", [0, 0.5])
def test_a_reader_that_meets_a_damaged_block_is_not_through(rocks: Lab, at: float) -> None:
    entries = [(key, os.urandom(100)) for key, _ in numbered(5000)]
    files = rocks.open().persist({"a": entries}, rocks.place())
    found = []
    reader = open_reader("rocksdb", damaged(files, rocks.place(), at))
    with pytest.raises(CorruptionError):
        found.extend(reader.scan("a", range(128)))
    assert found == entries[: len(found)]
    assert (len(found) > 0) == (at > 0)
    reader.close()


def test_errors_name_the_directory_and_the_next_step(rocks: Lab) -> None:
    directory = rocks.place()
    rocks.open(directory)
    with pytest.raises(UnavailableError, match="lock") as caught:
        rocks.open(directory)
    assert str(directory) in caught.value.message
    assert caught.value.hint


def test_too_many_open_files_are_not_taken_for_a_full_disk(rocks: Lab) -> None:
    directory, limits = rocks.place(), resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 3, limits[1]))
    try:
        with pytest.raises(UnavailableError, match="oo many open files") as caught:
            rocks.open(directory)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "ulimit -n" in caught.value.hint
    assert "disk" not in caught.value.hint


def test_batches_are_bounded_and_sorted_within_runs() -> None:
    entries: list[tuple[bytes, bytes | None]] = [(b"%d" % (n * 7919 % 50_000), b"v") for n in range(50_000)]
    batches = list(_batches(iter(entries), in_order=True))
    assert max(map(len, batches)) <= 2000
    assert sorted(entry for batch in batches for entry in batch) == sorted(entries)
    run = [entry[0] for batch in batches[:10] for entry in batch]
    assert run == sorted(run)
    large = list(_batches([(b"%d" % n, b"x" * (1 << 19)) for n in range(9)], in_order=False))
    assert [len(batch) for batch in large] == [2, 2, 2, 2, 1]


def test_loaded_entries_come_into_files_of_limited_size(tmp_path: Path) -> None:
    entries = numbered(3000, os.urandom(100))
    tuning = Tuning(target_file_bytes=64 << 10, compression="none")
    backend = RocksDBBackend(tmp_path / "db", ["a"], memory=BUDGET, tuning=tuning)
    backend.load("a", iter(entries))
    files = [file for file in backend.persist({}, tmp_path / "s") if file.shared]
    assert len(files) > 3
    assert max(file.size_bytes for file in files) < 3 * tuning.target_file_bytes
    assert contents(backend, "a") == dict(entries)
    backend.close()


def test_writes_faster_than_flushes_wait_and_lose_nothing(tmp_path: Path) -> None:
    small = MemoryBudget(block_cache_bytes=1 * MIB, write_buffer_bytes=1 * MIB)
    backend = RocksDBBackend(tmp_path / "db", ["a"], memory=small)
    value = os.urandom(1 << 18)
    backend.write({"a": [(b"%04d" % number, value) for number in range(300)]})
    assert [key for key, _ in backend.scan("a")] == [b"%04d" % number for number in range(300)]
    assert backend.metrics()["memtable_bytes"] < 8 * MIB
    backend.close()


def test_the_memory_budget_holds(tmp_path: Path) -> None:
    budget = MemoryBudget(block_cache_bytes=2 * MIB, write_buffer_bytes=4 * MIB)
    states = [f"s{number}" for number in range(8)]
    backend = RocksDBBackend(tmp_path / "db", states, memory=budget)
    for state in states:
        backend.write({state: numbered(20_000, os.urandom(100))})
    backend.persist({}, tmp_path / "s")
    for state in states:
        backend.get_many(state, [key for key, _ in numbered(20_000)])
    figures = backend.metrics()
    assert figures["block_cache_bytes"] + figures["table_readers_bytes"] <= budget.block_cache_bytes * 1.05
    assert figures["table_readers_bytes"] > 8 * 20_000
    assert figures["memtable_bytes"] <= budget.write_buffer_bytes * 1.25
    assert figures["flush_written_bytes"] > 8 * 20_000 * 10
    backend.close()


def test_a_budget_too_small_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="block_cache_bytes is 7"):
        MemoryBudget(block_cache_bytes=7, write_buffer_bytes=MIB)


@pytest.mark.parametrize(
    "tuning",
    [Tuning(style="level"), Tuning(blob_min_bytes=64), Tuning(compression="none", max_merge_width=4)],
    ids=["level", "blob", "narrow"],
)
def test_every_tuning_restores_what_another_wrote(tmp_path: Path, tuning: Tuning) -> None:
    backend = RocksDBBackend(tmp_path / "1", ["a"], memory=BUDGET, tuning=tuning)
    entries = [(key, os.urandom(100)) for key, _ in numbered(3000)]
    for step in range(10):
        files = backend.persist({"a": entries[step::10]}, tmp_path / f"s{step}")
    backend.close()
    restored = RocksDBBackend(restore_files(files, tmp_path / "2"), ["a"], memory=BUDGET, tuning=DEFAULT_TUNING)
    assert contents(restored, "a") == dict(entries)
    files = restored.persist({"a": [(entries[0][0], None)]}, tmp_path / "again")
    restored.close()
    shutil.rmtree(tmp_path / "2")
    back = RocksDBBackend(restore_files(files, tmp_path / "3"), ["a"], memory=BUDGET, tuning=tuning)
    assert contents(back, "a") == dict(entries[1:])
    back.close()
