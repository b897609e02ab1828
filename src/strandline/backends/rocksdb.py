"""State larger than memory, in RocksDB: one database a partition, one column family a state.

There is no write-ahead log: what survives a crash is the last snapshot.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from rocksdict import (
    Cache,
    Checkpoint,
    IngestExternalFileOptions,
    Rdict,
    RdictIter,
    ReadOptions,
    SstFileWriter,
    WriteBatch,
    WriteBufferManager,
)

from strandline.backends.base import Changes, Entry, LocalFile
from strandline.backends.options import DEFAULT_TUNING, LEAST_BYTES, MIB, Grouping, MemoryBudget, Tuning
from strandline.backends.rocksfiles import SstFiles, Translating
from strandline.backends.rocksoptions import family_options, reading_from, reading_groups, write_options
from strandline.core.errors import UnavailableError
from strandline.core.keygroups import BROADCAST_GROUP, first_key

# Sorting, and each `Rdict.write`, hold the GIL from start to end: small pieces let the uploads and heartbeats of other
# threads run. Sorted runs of this size make writing random keys twice as fast and reading them a sixth faster.
_RUN_ENTRIES = 20_000
_SORTED_READ_KEYS = 1000
_BATCH_ENTRIES = 2000
_BATCH_BYTES = 1 * MIB
_STALL_S = 0.005
_LOOK_ENTRIES = 4096
_DEFAULT_FAMILY = "default"
_STATISTICS = {
    "flush_written_bytes": "rocksdb.flush.write.bytes",
    "compaction_written_bytes": "rocksdb.compact.write.bytes",
    "compaction_read_bytes": "rocksdb.compact.read.bytes",
    "blob_written_bytes": "rocksdb.blobdb.blob.file.bytes.written",
    "block_cache_hits_count": "rocksdb.block.cache.hit",
    "block_cache_misses_count": "rocksdb.block.cache.miss",
    "stall_us": "rocksdb.stall.micros",
}
_FAMILY_PROPERTIES = {
    "table_readers_bytes": "rocksdb.estimate-table-readers-mem",
    "live_sst_bytes": "rocksdb.live-sst-files-size",
    "live_blob_bytes": "rocksdb.live-blob-file-size",
    "estimated_keys_count": "rocksdb.estimate-num-keys",
    "pending_compaction_bytes": "rocksdb.estimate-pending-compaction-bytes",
}


class RocksDBBackend:
    """The state of one partition in a RocksDB database of its own."""

    keeps_all: Literal[False] = False
    inline: Literal[False] = False
    limit_bytes: None = None

    def __init__(
        self,
        directory: Path,
        states: Sequence[str],
        *,
        memory: MemoryBudget,
        tuning: Tuning = DEFAULT_TUNING,
        groupings: Mapping[str, Grouping] | None = None,
    ) -> None:
        """Open an empty directory, or one that holds every file of one snapshot under its name.

        SST and blob files of the snapshot are only ever read and unlinked, so they may be hard links. States of the
        snapshot that `states` does not name stay in it and are carried along. `groupings`, of states that are read by
        group, may change from one opening to the next.
        """
        self._directory = directory
        self._memory = memory
        self._cache = Cache(memory.block_cache_bytes)
        self._buffers = WriteBufferManager(memory.write_buffer_bytes, False)
        self._groupings = dict(groupings or {})
        self._walks: dict[str, tuple[RdictIter, int]] = {}
        self._written = 0
        self._writing = write_options()
        self._reading_groups = reading_groups()
        self._translating = Translating(directory)
        self.unread: dict[int, BaseException] = {}
        self._reading = Translating(directory, self.unread)
        directory.mkdir(parents=True, exist_ok=True)
        self._files = SstFiles(directory)
        with self._translating:
            self._open(states, memory, tuning)
            self._fit_cache()

    def _open(self, states: Sequence[str], memory: MemoryBudget, tuning: Tuning) -> None:
        self._options = family_options(self._cache, self._buffers, memory, tuning)
        self._options.enable_statistics()
        self._file_bytes = tuning.target_file_bytes
        found = (self._directory / "CURRENT").exists()
        existing = Rdict.list_cf(str(self._directory), self._options) if found else []
        names = sorted({*existing, *states} - {_DEFAULT_FAMILY})
        families = self._family_options = {
            name: family_options(self._cache, self._buffers, memory, tuning, self._groupings.get(name))
            for name in names
        }
        self._db = Rdict(str(self._directory), self._options, column_families=families)
        self._families = {name: self._db.get_column_family(name) for name in names}
        self._handles = {name: self._db.get_column_family_handle(name) for name in names}

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        family = self._family(state)
        values: list[bytes | None] = []
        with self._reading:
            if len(keys) == 1:
                return [family.get(keys[0])]
            for at in range(0, len(keys), _RUN_ENTRIES):
                values += _get_run(family, list(keys[at : at + _RUN_ENTRIES]))
        return values

    def scan(self, state: str, prefix: bytes = b"", first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Walk the entries whose key begins with `prefix`, in key order, as they are when the walk begins."""
        return self._walk(state, reading_from(prefix, None), max(prefix, first))

    def _walk(self, state: str, reading: ReadOptions, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        # `reading` must not be let go of before the iterator, which looks at the bound in it and does not keep it.
        with self._reading:
            walk = self._family(state).iter(reading)
            walk.seek(first)
        while walk.valid():
            yield walk.key(), walk.value()
            walk.next()
        # An iterator that meets a damaged block ends like one that is through: only its status tells.
        with self._reading:
            walk.status()

    def read_group(self, state: str, prefix: bytes) -> list[tuple[bytes, bytes]]:
        grouping = self._groupings.get(state)
        if grouping is None or not grouping.exact or len(prefix) != grouping.size_bytes:
            return list(self._walk(state, reading_from(prefix, grouping), prefix))
        found = []
        with self._reading:
            walk = self._group_walk(state)
            walk.seek(prefix)
            while walk.valid():
                found.append((walk.key(), walk.value()))
                walk.next()
            walk.status()
        return found

    def _group_walk(self, state: str) -> RdictIter:
        """Return an iterator over groups, as a rule the last one again: to make one is most of the work."""
        # Read before one is made: what is written meanwhile makes it old.
        written = self._written
        walk, made = self._walks.get(state, (None, -1))
        if walk is None or made != written:
            walk = self._family(state).iter(self._reading_groups)
            self._walks[state] = walk, written
        return walk

    def release(self, state: str) -> None:
        """Do nothing: this backend keeps the state."""
        self._family(state)

    def clip(self, groups: range) -> None:
        """Delete by ranges, which costs nothing now: merging leaves out later what is in them."""
        with self._translating:
            for family in self._families.values():
                if groups.start:
                    family.delete_range(b"", first_key(groups.start), self._writing)
                family.delete_range(first_key(groups.stop), first_key(BROADCAST_GROUP), self._writing)

    def load(self, state: str, entries: Iterator[tuple[bytes, bytes]]) -> None:
        """Make files of them and take these in as they are: nothing is merged, and no write buffer fills."""
        family, number = self._family(state), 0
        # Beside the database, which takes all files in its directory for its own; what a kill leaves goes with those.
        beside = self._directory.with_name(f"{self._directory.name}-load")
        beside.mkdir(exist_ok=True)
        first = next(entries, None)
        while first is not None:
            path = beside / f"{number}.sst"
            with self._translating:
                made = SstFileWriter(self._family_options[state])
                made.open(str(path))
                made[first[0]] = first[1]
                for count, (key, value) in enumerate(entries, 1):
                    made[key] = value
                    if count % _LOOK_ENTRIES == 0 and made.file_size() >= self._file_bytes:
                        break
                made.finish()
                options = IngestExternalFileOptions()
                options.set_move_files(True)
                family.ingest_external_file([str(path)], options)
            path.unlink(missing_ok=True)
            first, number = next(entries, None), number + 1
        shutil.rmtree(beside, ignore_errors=True)

    def write(self, changes: Changes) -> None:
        """Apply entries in batches that hold the GIL for a few milliseconds each."""
        for state, entries in changes.items():
            self._family(state)
            for batch in _batches(entries):
                self._write_batch(state, batch)
                time.sleep(0)

    def _write_batch(self, state: str, entries: list[Entry]) -> None:
        """Write one batch; while RocksDB stalls writers, wait here without the GIL rather than there with it."""
        while True:
            batch = WriteBatch(raw_mode=True)
            batch.set_default_column_family(self._handles[state])
            put, delete = batch.put, batch.delete
            for key, value in entries:
                if value is None:
                    delete(key)
                else:
                    put(key, value)
            try:
                with self._translating:
                    self._db.write(batch, self._writing)
                return self._forget_walks()
            except UnavailableError as error:
                if "Write stall" not in error.message:
                    raise
            time.sleep(_STALL_S)

    def _forget_walks(self) -> None:
        """Iterators see the state as it was when they were made, and hold on to memtables and files of then."""
        self._written += 1
        self._walks.clear()

    def persist(self, changes: Changes, into: Path) -> list[LocalFile]:
        """Apply the last entries, flush, and hard-link the files of this moment into `into`.

        Merging in the background is not waited for: it would take seconds, and saves few uploads.
        """
        self.write(changes)
        with self._translating:
            for family in self._families.values():
                family.flush(False)
            for family in self._families.values():
                family.flush(True)
            self._forget_walks()
            into.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._db).create_checkpoint(str(into))
            self._fit_cache()
        return sorted(filter(None, map(self._snapshot_file, list(into.iterdir()))), key=lambda file: file.name)

    def _fit_cache(self) -> None:
        """Give the block cache what the indexes and filters of the open files, held outside it, leave of its budget."""
        readers_bytes = self._total(_FAMILY_PROPERTIES["table_readers_bytes"])
        self._cache.set_capacity(max(self._memory.block_cache_bytes - readers_bytes, LEAST_BYTES))

    def _total(self, prop: str) -> int:
        return sum(family.property_int_value(prop) or 0 for family in self._families.values())

    def _snapshot_file(self, path: Path) -> LocalFile | None:
        """Give a file of RocksDB's checkpoint its lasting name, or remove it where a restore can do without."""
        if name := self._files.lasting_name(path.name):
            path = path.rename(path.with_name(name))
            return LocalFile(name, path, path.stat().st_size, shared=True)
        if path.name == "CURRENT" or path.name.startswith("MANIFEST-"):
            return LocalFile(path.name, path, path.stat().st_size, shared=False)
        path.unlink()
        return None

    def move(self, state: str, to: str) -> None:
        """Copy: RocksDB's column families keep their names for life."""
        if state in self._families:
            self.load(to, self.scan(state))
            self.forget(state)

    def forget(self, state: str) -> None:
        family = self._families.pop(state, None)
        if family is not None:
            self._forget_walks()
            del self._handles[state], self._family_options[state]
            with self._translating:
                family.close()
                self._db.drop_column_family(state)

    def metrics(self) -> dict[str, int]:
        """Return memory in use, what is on disk, and what flushes and merges wrote since the backend was opened."""
        with self._translating:
            figures = {
                "block_cache_bytes": self._cache.get_usage(),
                "memtable_bytes": self._buffers.get_usage(),
                "files_count": len(self._db.live_files()),
            }
            figures |= {name: self._total(prop) for name, prop in _FAMILY_PROPERTIES.items()}
            figures["running_merges_count"] = self._db.property_int_value("rocksdb.num-running-compactions") or 0
            return figures | _statistics(self._options.get_statistics() or "")

    def close(self) -> None:
        """Free everything in memory; files stay. What was not persisted is given up."""
        if self._families:
            # Without this, closing would first flush what nobody will read, and wait for merges.
            self._db.cancel_all_background(True)
        self._walks.clear()
        self._handles.clear()
        for family in [*self._families.values(), self._db]:
            with suppress(Exception):
                family.close()
        self._families.clear()

    def _family(self, state: str) -> Rdict:
        try:
            return self._families[state]
        except KeyError:
            known = ", ".join(sorted(self._families)) or "closed"
            raise KeyError(f"state '{state}' is not one of this backend's: {known}") from None


def _get_run(family: Rdict, keys: list[Any]) -> Iterable[bytes | None]:
    """Read a run of keys; sorted ones are found faster, and few are not worth the sorting."""
    if len(keys) < _SORTED_READ_KEYS:
        return family.get(keys) or []
    ordered = sorted(keys)
    found = dict(zip(ordered, family.get(ordered) or [], strict=True))
    return map(found.__getitem__, keys)


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Cut entries into batches, small ones of large values, sorted within runs: neighbours enter a memtable fast."""
    rest = iter(entries)
    while run := list(islice(rest, _RUN_ENTRIES)):
        # A key comes once, so comparing entries never gets to their values.
        run.sort()
        start, size_bytes = 0, 0
        for at, size in enumerate(map(_entry_bytes, run)):
            size_bytes += size
            if at + 1 - start >= _BATCH_ENTRIES or size_bytes >= _BATCH_BYTES:
                yield run[start : at + 1]
                start, size_bytes = at + 1, 0
        if start < len(run):
            yield run[start:]


def _entry_bytes(entry: Entry) -> int:
    return len(entry[0]) + len(entry[1] or b"")


def _statistics(text: str) -> dict[str, int]:
    """Pick our figures out of RocksDB's statistics, lines like `rocksdb.flush.write.bytes COUNT : 17`."""
    counts = {words[0]: int(words[3]) for line in text.splitlines() if (words := line.split())[1:2] == ["COUNT"]}
    return {name: counts.get(ticker, 0) for name, ticker in _STATISTICS.items()}
