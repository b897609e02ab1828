"""State larger than memory, in RocksDB: one database a partition, one column family a state.

There is no write-ahead log: what survives a crash is the last snapshot.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DataBlockIndexType,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    UniversalCompactOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from strandline.backends.base import Changes, Entry, LocalFile
from strandline.backends.options import DEFAULT_TUNING, MIB, MIN_BLOCK_CACHE_BYTES, MemoryBudget, Tuning
from strandline.backends.sstfiles import SstFiles
from strandline.core.errors import CorruptionError, UnavailableError

# Sorting, and each `Rdict.write`, hold the GIL from start to end: small pieces let the uploads and heartbeats of other
# threads run. Sorted runs of this size make writing random keys twice as fast and reading them a sixth faster.
_RUN_ENTRIES = 20_000
_SORTED_READ_KEYS = 1000
_BATCH_ENTRIES = 2000
_BATCH_BYTES = 1 * MIB
_STALL_S = 0.005
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
        self, directory: Path, states: Sequence[str], *, memory: MemoryBudget, tuning: Tuning = DEFAULT_TUNING
    ) -> None:
        """Open an empty directory, or one that holds every file of one snapshot under its name.

        SST and blob files of the snapshot are only ever read and unlinked, so they may be hard links. States of the
        snapshot that `states` does not name stay in it and are carried along.
        """
        self._directory = directory
        self._memory = memory
        self._cache = Cache(memory.block_cache_bytes)
        self._buffers = WriteBufferManager(memory.write_buffer_bytes, False)
        self._writing = _write_options()
        directory.mkdir(parents=True, exist_ok=True)
        self._files = SstFiles(directory)
        with _translated(directory):
            self._open(states, memory, tuning)
            self._fit_cache()

    def _open(self, states: Sequence[str], memory: MemoryBudget, tuning: Tuning) -> None:
        self._options = _options(self._cache, self._buffers, memory, tuning)
        found = (self._directory / "CURRENT").exists()
        existing = Rdict.list_cf(str(self._directory), self._options) if found else []
        names = sorted({*existing, *states} - {_DEFAULT_FAMILY})
        families = {name: _options(self._cache, self._buffers, memory, tuning) for name in names}
        self._db = Rdict(str(self._directory), self._options, column_families=families)
        self._families = {name: self._db.get_column_family(name) for name in names}
        self._handles = {name: self._db.get_column_family_handle(name) for name in names}

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read many keys at once, in order; None where there is no value."""
        family = self._family(state)
        values: list[bytes | None] = []
        with _translated(self._directory):
            for at in range(0, len(keys), _RUN_ENTRIES):
                values += _get_run(family, list(keys[at : at + _RUN_ENTRIES]))
        return values

    def scan(self, state: str, prefix: bytes = b"", first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Walk the entries whose key begins with `prefix`, in key order, as they are when the walk begins."""
        reading = ReadOptions()
        reading.set_total_order_seek(True)
        end = _end_of(prefix)
        if end is not None:
            reading.set_iterate_upper_bound(end)
        with _translated(self._directory):
            walk = self._family(state).iter(reading)
            walk.seek(max(prefix, first))
        while walk.valid():
            yield walk.key(), walk.value()
            walk.next()
        # An iterator that meets a damaged block ends like one that is through: only its status tells.
        with _translated(self._directory):
            walk.status()

    def release(self, state: str) -> None:
        """Do nothing: this backend keeps the state."""
        self._family(state)

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
                with _translated(self._directory):
                    return self._db.write(batch, self._writing)
            except UnavailableError as error:
                if "Write stall" not in error.message:
                    raise
            time.sleep(_STALL_S)

    def persist(self, changes: Changes, into: Path) -> list[LocalFile]:
        """Apply the last entries, flush, and hard-link the files of this moment into `into`.

        Merging in the background is not waited for: it would take seconds, and saves few uploads.
        """
        self.write(changes)
        with _translated(self._directory):
            for family in self._families.values():
                family.flush(False)
            for family in self._families.values():
                family.flush(True)
            into.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._db).create_checkpoint(str(into))
            self._fit_cache()
        return sorted(filter(None, map(self._snapshot_file, list(into.iterdir()))), key=lambda file: file.name)

    def _fit_cache(self) -> None:
        """Give the block cache what the indexes and filters of the open files, held outside it, leave of its budget."""
        readers_bytes = self._total(_FAMILY_PROPERTIES["table_readers_bytes"])
        self._cache.set_capacity(max(self._memory.block_cache_bytes - readers_bytes, MIN_BLOCK_CACHE_BYTES))

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

    def metrics(self) -> dict[str, int]:
        """Return memory in use, what is on disk, and what flushes and merges wrote since the backend was opened."""
        with _translated(self._directory):
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


def _end_of(prefix: bytes) -> bytes | None:
    """Return the first key behind all that begin with `prefix`, or None where there is no such key."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None


def _statistics(text: str) -> dict[str, int]:
    """Pick our figures out of RocksDB's statistics, lines like `rocksdb.flush.write.bytes COUNT : 17`."""
    counts = {words[0]: int(words[3]) for line in text.splitlines() if (words := line.split())[1:2] == ["COUNT"]}
    return {name: counts.get(ticker, 0) for name, ticker in _STATISTICS.items()}


def _options(cache: Cache, buffers: WriteBufferManager, memory: MemoryBudget, tuning: Tuning) -> Options:
    """Return the options of the database and of each of its column families."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.enable_statistics()
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 * MIB)
    options.set_manifest_preallocation_size(64 << 10)
    options.set_max_manifest_file_size(1 * MIB)
    options.set_max_open_files(_open_files())
    options.set_skip_stats_update_on_db_open(True)
    options.set_write_buffer_manager(buffers)
    options.set_write_buffer_size(memory.memtable_bytes)
    options.set_max_write_buffer_number(4)
    options.set_compression_type(getattr(DBCompressionType, tuning.compression)())
    options.set_block_based_table_factory(_table(cache, tuning))
    _set_merging(options, tuning)
    if tuning.blob_min_bytes:
        _set_blobs(options, tuning)
    return options


def _write_options() -> WriteOptions:
    writing = WriteOptions()
    setattr(writing, "disable_wal", True)  # noqa: B010  an attribute, though its type stub says method
    writing.no_slowdown = True
    return writing


def _table(cache: Cache, tuning: Tuning) -> BlockBasedOptions:
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(tuning.block_bytes)
    table.set_bloom_filter(tuning.bloom_bits, False)
    table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    return table


def _set_merging(options: Options, tuning: Tuning) -> None:
    options.set_level_zero_file_num_compaction_trigger(tuning.merge_trigger)
    options.set_level_zero_slowdown_writes_trigger(tuning.merge_trigger * 2 + 20)
    options.set_level_zero_stop_writes_trigger(tuning.merge_trigger * 3 + 40)
    options.set_target_file_size_base(tuning.target_file_bytes)
    if tuning.style == "level":
        options.set_compaction_style(DBCompactionStyle.level())
        options.set_max_bytes_for_level_multiplier(float(tuning.level_multiplier))
        return
    universal = UniversalCompactOptions()
    universal.size_ratio = tuning.size_ratio
    universal.min_merge_width = tuning.min_merge_width
    if tuning.max_merge_width:
        universal.max_merge_width = tuning.max_merge_width
    universal.max_size_amplification_percent = tuning.max_space_percent
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_universal_compaction_options(universal)


def _set_blobs(options: Options, tuning: Tuning) -> None:
    options.set_enable_blob_files(True)
    options.set_min_blob_size(tuning.blob_min_bytes)
    options.set_blob_file_size(tuning.target_file_bytes)
    options.set_blob_compression_type(getattr(DBCompressionType, tuning.compression)())
    options.set_enable_blob_gc(True)
    options.set_blob_gc_age_cutoff(tuning.blob_gc_age)
    options.set_blob_gc_force_threshold(tuning.blob_gc_force)


def _open_files() -> int:
    """Return how many files RocksDB may hold open: all of them (-1, the fastest) where the process may open enough."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return -1 if soft == resource.RLIM_INFINITY or soft >= 1 << 16 else max(soft // 4, 64)


@contextmanager
def _translated(directory: Path) -> Iterator[None]:
    """Turn RocksDB's errors, which are bare `Exception`s whose text begins with a kind, into ours."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"state directory {directory}: {error}") from error
    except Exception as error:
        if type(error) is not Exception:
            raise
        message = f"state directory {directory}: {error}"
        if str(error).startswith("Corruption") or "No such file" in str(error):
            raise CorruptionError(message, hint="the job restores from its last complete checkpoint") from error
        raise UnavailableError(message, hint="look for a full or failing disk") from error
