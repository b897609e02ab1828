"""The backend for state larger than memory: a RocksDB database for each partition, a column family for each state.

RocksDB's own write-ahead log is off. With a changelog, or if it `is_live`, the backend writes a log itself, and RocksDB
gets the changes later; else only the last snapshot survives a kill.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice, starmap
from operator import itemgetter
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

from strandline.api.config import Changelog, Continuous
from strandline.backends.base import Changes, Entry, LocalFile
from strandline.backends.logfiles import Log, LogFiles, log_directory, put_into
from strandline.backends.options import DEFAULT_TUNING, LEAST_BYTES, MIB, Grouping, MemoryBudget, Tuning
from strandline.backends.rockscontinuous import ContinuousLog
from strandline.backends.rocksfiles import ErrorTranslation, SstFiles, check_manifest, logs_in
from strandline.backends.rockskept import keep_restored
from strandline.backends.rockslive import LiveRecords
from strandline.backends.rockslog import BasedLog, RocksDBLog
from strandline.backends.rocksoptions import (
    family_options,
    group_read_options,
    prefix_read_options,
    set_log,
    write_options,
)
from strandline.backends.waiting import Waiting, merged
from strandline.backends.walformat import Families
from strandline.core.errors import UnavailableError
from strandline.core.keygroups import BROADCAST_GROUP, first_key

# A sort and an `Rdict.write` hold the GIL from start to end: small batches let the uploads and heartbeats of other
# threads run. Sorted runs of this size make writes of random keys twice as fast and reads of them a sixth faster.
_RUN_ENTRIES = 20_000
_SORTED_READ_KEYS = 1000
_BATCH_ENTRIES = 2000
_BATCH_BYTES = 1 * MIB
_STALL_S = 0.005
_WAITING_SHARE = 0.75
"""Changes that RocksDB does not have yet take at most this part of the memory of its write buffers."""
_UNFLUSHED_BYTES = 64 * MIB
"""The size of a live database's log from which on RocksDB flushes: another process would have to repeat it. A write
waits for the flush if the log has twice that size."""
_KEY, _VALUE = itemgetter(0), itemgetter(1)
_LOADED_ENTRIES = 256
_DEFAULT_FAMILY = "default"
_TABLE_FIGURE = re.compile(r"raw (key|value) size=(\d+)")
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
        changelog: Changelog | Continuous | None = None,
        is_live: bool = False,
        resumed: int | None = None,
    ) -> None:
        """Open an empty directory, or one that holds every file of one snapshot under its name.

        SST and blob files of the snapshot are only read and unlinked, so they may be hard links. States of the snapshot
        that `states` does not name stay in the database and in later snapshots. `groupings`, of states that are read
        by group, may change from one opening to the next. `changelog` are the limits of its log, if snapshots have one.

        With `is_live`, what was written survives a kill of the process: another one of this machine opens the same
        directory with `resumed`, the version that it last noted; UnavailableError if the database is at another one.
        """
        self._directory = directory
        self._memory = memory
        self._cache = Cache(memory.block_cache_bytes)
        self._buffers = WriteBufferManager(memory.write_buffer_bytes, False)
        self._groupings = dict(groupings or {})
        self._walks: dict[str, tuple[RdictIter, int]] = {}
        self._written = 0
        self._waiting = Waiting(self._groupings)
        self._writing = write_options()
        self._reading_groups = group_read_options()
        self._translating = ErrorTranslation(directory)
        self.unread: dict[int, BaseException] = {}
        self._reading = ErrorTranslation(directory, self.unread)
        self.changelog: RocksDBLog | None = None
        directory.mkdir(parents=True, exist_ok=True)
        logs = LogFiles(log_directory(directory))
        live = self.live = LiveRecords(directory, logs) if is_live else None
        self._logs = None if live is None and changelog is None else logs
        self._numbers: dict[str, int] = {}
        self._flushing: tuple[int, int] | None = None
        before, repeated = None, list[Log]()
        if live is not None and resumed is not None:
            before = live.names()
            logs.logs, oldest = live.left(resumed)
            repeated = [log for number, log in logs.logs.items() if number >= oldest]
            put_into(directory, repeated)
        goes_on = False
        if isinstance(changelog, Continuous) and before is None:
            goes_on = keep_restored(directory)
        self._files = SstFiles(directory, before)
        logs.tag = self._files.tag
        with self._translating:
            self._open(states, memory, tuning)
            self._fit_cache()
        try:
            if live is not None:
                self._begin_live(live, resumed, has_log=bool(repeated))
            if isinstance(changelog, Changelog):
                self.changelog = BasedLog(directory, logs, changelog, self)
            elif changelog is not None:
                with self._translating:
                    self.changelog = ContinuousLog(
                        directory, self._files, logs, changelog, self, live, goes_on=goes_on, resumed=before is not None
                    )
        except BaseException:
            # Another opening of the directory would find it locked.
            self.close()
            raise

    def _open(self, states: Sequence[str], memory: MemoryBudget, tuning: Tuning) -> None:
        self._options = family_options(self._cache, self._buffers, memory, tuning)
        set_log(self._options)
        self._options.enable_statistics()
        self._file_bytes = tuning.target_file_bytes
        is_snapshot = (self._directory / "CURRENT").exists()
        existing = Rdict.list_cf(str(self._directory), self._options) if is_snapshot else []
        names = sorted({*existing, *states} - {_DEFAULT_FAMILY})
        families = self._family_options = {
            name: family_options(self._cache, self._buffers, memory, tuning, self._groupings.get(name))
            for name in names
        }
        self._db = Rdict(str(self._directory), self._options, column_families=families)
        self._families = {name: self._db.get_column_family(name) for name in names}
        self._handles = {name: self._db.get_column_family_handle(name) for name in names}

    @property
    def families(self) -> Families:
        """The numbers of the column families."""
        path = self._directory / "CURRENT"
        try:
            return Families.of(self._directory / path.read_text().strip())
        except FileNotFoundError:
            # RocksDB has begun a new one meanwhile.
            return Families.of(self._directory / path.read_text().strip())

    def raw_bytes(self) -> int:
        """Return the size of all keys and values before compression, with old versions that are not merged away."""
        size_bytes = self._total("rocksdb.size-all-mem-tables") + self._total(_FAMILY_PROPERTIES["live_blob_bytes"])
        size_bytes += self._waiting.size_bytes
        for family in self._families.values():
            figures = dict(_TABLE_FIGURE.findall(family.property_value("rocksdb.aggregated-table-properties") or ""))
            size_bytes += int(figures.get("key", 0)) + int(figures.get("value", 0))
        return size_bytes

    def begin_log(self) -> int:
        """Begin a new log, and return its number: RocksDB repeats it if its files are as they are now, or older."""
        assert self._logs is not None
        # RocksDB has fewer entries, unless there was no log for some time.
        self._logs.sequence = max(self._logs.sequence, self._db.latest_sequence_number())
        self._logs.begin(max([*logs_in(self._directory), *self._logs.logs, self._logs.number]) + 1)
        return self._logs.number

    def _begin_live(self, live: LiveRecords, resumed: int | None, *, has_log: bool) -> None:
        if resumed is None:
            live.begin(self._files.names)
            return
        assert self._logs is not None
        if has_log and self._db.latest_sequence_number() < self._logs.sequence:
            raise UnavailableError(
                f"{self._directory}: RocksDB ends with entry {self._db.latest_sequence_number()}, and its log with "
                f"entry {self._logs.sequence}"
            )
        live.begin(self._files.names)
        self._begin_flushed()
        # Again: the opening has flushed the logs that the last note needs.
        live.note(resumed)

    def _begin_flushed(self) -> None:
        """Begin a new log: RocksDB's files have all that is in older ones."""
        if self._logs is not None:
            self._logs.unflushed = self.begin_log(), self._logs.sequence
            self._flushing = None

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        family = self._family(state)
        with self._reading:
            overlaid = self._waiting.get_many(state, keys, lambda some: _get_runs(family, some))
            return _get_runs(family, keys) if overlaid is None else overlaid

    def scan(self, state: str, prefix: bytes = b"", first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the entries whose key begins with `prefix`, in key order, as they are at the start."""
        # A generator: no change is written between these two lines and the first step of the walk.
        changes = self._waiting.scan(state, prefix, first)
        stored = self._walk(state, prefix_read_options(prefix, None), max(prefix, first))
        yield from merged(stored, changes) if changes else stored

    def _walk(self, state: str, reading: ReadOptions, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        # `reading` must live as long as the iterator, which refers to the bound in it.
        with self._reading:
            walk = self._family(state).iter(reading)
            walk.seek(first)
        while walk.valid():
            yield walk.key(), walk.value()
            walk.next()
        # At a damaged block an iterator ends as it does after the last entry: only its status tells them apart.
        with self._reading:
            walk.status()

    def read_group(self, state: str, prefix: bytes) -> list[tuple[bytes, bytes]]:
        grouping = self._groupings.get(state)
        if grouping is None:
            return list(self.scan(state, prefix))
        if not grouping.exact or len(prefix) != grouping.size_bytes:
            return list(self._walk(state, prefix_read_options(prefix, grouping), prefix))
        entries = []
        with self._reading:
            walk = self._group_walk(state)
            walk.seek(prefix)
            while walk.valid():
                entries.append((walk.key(), walk.value()))
                walk.next()
            walk.status()
        return entries

    def _group_walk(self, state: str) -> RdictIter:
        """Return an iterator over groups, the last one if nothing was written since: making one is most of the work."""
        # Read the count before the iterator is made: a write in between makes it outdated.
        written = self._written
        walk, walk_written = self._walks.get(state, (None, -1))
        if walk is None or walk_written != written:
            walk = self._family(state).iter(self._reading_groups)
            self._walks[state] = walk, written
        return walk

    def release(self, state: str) -> None:
        """Check the name only: this backend keeps the state."""
        self._family(state)

    def clip(self, groups: range) -> None:
        """Delete ranges, which takes no time now: later merges leave out their entries."""
        self._invalidate_log()
        with self._translating:
            for family in self._families.values():
                if groups.start:
                    family.delete_range(b"", first_key(groups.start), self._writing)
                family.delete_range(first_key(groups.stop), first_key(BROADCAST_GROUP), self._writing)

    def load(self, state: str, entries: Iterator[tuple[bytes, bytes]]) -> None:
        """Write SST files and ingest them: nothing is merged, and no write buffer fills."""
        self._invalidate_log()
        family, number = self._family(state), 0
        # RocksDB treats all files in its directory as its own. After a kill, this one is removed with the database.
        folder = self._directory.with_name(f"{self._directory.name}-load")
        folder.mkdir(exist_ok=True)
        some = list(islice(entries, _LOADED_ENTRIES))
        while some:
            path = folder / f"{number}.sst"
            with self._translating:
                writer = SstFileWriter(self._family_options[state])
                writer.open(str(path))
                while some and writer.file_size() < self._file_bytes:
                    deque(starmap(writer.__setitem__, some), 0)
                    some = list(islice(entries, _LOADED_ENTRIES))
                writer.finish()
                options = IngestExternalFileOptions()
                options.set_move_files(True)
                family.ingest_external_file([str(path)], options)
            path.unlink(missing_ok=True)
            number += 1
        shutil.rmtree(folder, ignore_errors=True)
        # Again: entries may be written as they are read.
        self._invalidate_log()

    def write(self, changes: Changes) -> None:
        """Apply entries in batches that hold the GIL for a few milliseconds each."""
        if self._logs is not None:
            # A kill leaves what was noted after the last write.
            self._bound_logs(self._logs)
        is_logged = self.live is not None or (self.changelog is not None and self.changelog.first_log is not None)
        if is_logged and self._logs is not None and not self._logs.unflushed[0]:
            # What was done before is in no log that is there.
            self._flush_all()
        for state, entries in changes.items():
            self._family(state)
            waits = is_logged and not self._waiting.is_direct(state)
            if not waits:
                self._catch_up(state)
            for batch in _batches(entries, in_order=not waits):
                if is_logged:
                    self._log(state, batch)
                if waits:
                    self._waiting.add(state, batch)
                else:
                    self._write_batch(state, batch)
                if self._waiting.size_bytes > self._memory.write_buffer_bytes * _WAITING_SHARE:
                    self._catch_up()
                time.sleep(0)

    def _log(self, state: str, batch: list[Entry]) -> None:
        assert self._logs is not None
        if state not in self._numbers:
            self._numbers = self.families.names
        with self._translating:
            self._logs.write(self._numbers[state], batch)

    def _catch_up(self, *states: str) -> None:
        """Write changes into RocksDB that it does not have yet, by default of all states."""
        for state in states or self._waiting.states:
            for batch in _batches(self._waiting.of(state), in_order=True):
                self._write_batch(state, batch)
                time.sleep(0)
            self._waiting.drop(state)

    def _bound_logs(self, logs: LogFiles) -> None:
        """Delete logs that nothing needs, and let RocksDB flush if another process would have to repeat much."""
        if self.changelog is not None:
            self.changelog.prune()
        needed = [logs.number]
        if self.changelog is not None and (first := self.changelog.first_log) is not None:
            needed.append(first)
        if self.live is not None:
            needed.append(self.live.first_log)
            self._flush_in_time(logs)
        with self._translating:
            logs.drop_before(min(needed))

    def _flush_in_time(self, logs: LogFiles) -> None:
        size_bytes = logs.size_bytes(logs.unflushed[0])
        if size_bytes > 2 * _UNFLUSHED_BYTES:
            self._flush_all()
        elif self._flushing is not None:
            if not self._total("rocksdb.num-immutable-mem-table"):
                logs.unflushed, self._flushing = self._flushing, None
        elif size_bytes > _UNFLUSHED_BYTES:
            self._catch_up()
            with self._translating:
                self._flushing = self.begin_log(), logs.sequence
                for family in self._families.values():
                    family.flush(False)

    def _write_batch(self, state: str, entries: list[Entry]) -> None:
        """Write one batch; while RocksDB stalls writers, sleep without the GIL instead of waiting there with it."""
        while True:
            batch = WriteBatch(raw_mode=True)
            batch.set_default_column_family(self._handles[state])
            put, delete = batch.put, batch.delete
            if None in map(_VALUE, entries):
                for key, value in entries:
                    if value is None:
                        delete(key)
                    else:
                        put(key, value)
            else:
                # The same without a step of Python for each entry.
                deque(starmap(put, entries), 0)
            try:
                with self._translating:
                    self._db.write(batch, self._writing)
                return self._drop_walks()
            except UnavailableError as error:
                if "Write stall" not in error.message:
                    raise
            time.sleep(_STALL_S)

    def _drop_walks(self) -> None:
        """Drop the iterators, which see the state at the time of their making, and keep its memtables and files."""
        self._written += 1
        self._walks.clear()

    def persist(self, changes: Changes, into: Path) -> list[LocalFile]:
        """Apply the last entries, flush, and hard-link the current files into `into`.

        It does not wait for merges in the background, which would take seconds and save few uploads.
        """
        self.write(changes)
        return self.link(into)

    def link(self, into: Path) -> list[LocalFile]:
        """Flush, and link RocksDB's own checkpoint into a folder. Return the files that a restore needs.

        A new log begins after it.
        """
        self._catch_up()
        with self._translating:
            self._flush()
            self._drop_walks()
            into.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._db).create_checkpoint(str(into))
            # It copies the MANIFEST of this directory, which RocksDB itself has not read since the opening.
            check_manifest(into)
            Rdict.list_cf(str(into), self._options)
            self._fit_cache()
            self._begin_flushed()
        return sorted(filter(None, map(self._snapshot_file, list(into.iterdir()))), key=lambda file: file.name)

    def _flush_all(self) -> None:
        """Flush all that was written, and begin a new log."""
        self._catch_up()
        with self._translating:
            self._flush()
            self._begin_flushed()

    def _flush(self) -> None:
        for wait in (False, True):
            for family in self._families.values():
                family.flush(wait)

    def _fit_cache(self) -> None:
        """Set the block cache's size to its budget less the indexes and filters of open files, which are outside it."""
        readers_bytes = self._total(_FAMILY_PROPERTIES["table_readers_bytes"])
        self._cache.set_capacity(max(self._memory.block_cache_bytes - readers_bytes, LEAST_BYTES))

    def _total(self, prop: str) -> int:
        return sum(family.property_int_value(prop) or 0 for family in self._families.values())

    def _snapshot_file(self, path: Path) -> LocalFile | None:
        """Give a file of RocksDB's checkpoint its permanent name, or remove it if a restore does not need it."""
        if name := self._files.permanent_name(path.name):
            path = path.rename(path.with_name(name))
            return LocalFile(name, path, path.stat().st_size, shared=True)
        is_manifest = path.name.startswith("MANIFEST-")
        if is_manifest and self.changelog is not None:
            path = path.rename(path.with_name(self._files.manifest_name(path.name)))
            return LocalFile(path.name, path, path.stat().st_size, shared=True)
        if self.changelog is None and (is_manifest or path.name == "CURRENT"):
            return LocalFile(path.name, path, path.stat().st_size, shared=False)
        path.unlink()
        return None

    def move(self, state: str, to: str) -> None:
        """Copy the entries, since RocksDB cannot rename column families."""
        if state in self._families:
            self.load(to, self.scan(state))
            self.forget(state)

    def forget(self, state: str) -> None:
        family = self._families.pop(state, None)
        if family is not None:
            self._invalidate_log()
            self._waiting.drop(state)
            self._drop_walks()
            del self._handles[state], self._family_options[state]
            self._numbers = {}
            with self._translating:
                family.close()
                self._db.drop_column_family(state)

    def _invalidate_log(self) -> None:
        """Forget the log: the next write, or snapshot, flushes and begins another one."""
        if self._logs is not None:
            self._logs.unflushed = 0, 0
        if self.changelog is not None:
            self.changelog.invalidate()

    def metrics(self) -> dict[str, int]:
        """Return memory in use, sizes on disk, and the bytes that flushes and merges wrote since the opening."""
        with self._translating:
            figures = {
                "block_cache_bytes": self._cache.get_usage(),
                "memtable_bytes": self._buffers.get_usage() + self._waiting.size_bytes,
                "files_count": len(self._db.live_files()),
            }
            figures |= {name: self._total(prop) for name, prop in _FAMILY_PROPERTIES.items()}
            figures["log_bytes"] = self.changelog.size_bytes if self.changelog is not None else 0
            figures["running_merges_count"] = self._db.property_int_value("rocksdb.num-running-compactions") or 0
            return figures | _statistics(self._options.get_statistics() or "")

    def close(self) -> None:
        """Free all memory; files stay. Changes since the last `persist` are lost, unless it is live."""
        if self._families:
            # Without this, `close` would first flush memtables, which are not needed, and wait for merges.
            self._db.cancel_all_background(True)
        self._walks.clear()
        self._handles.clear()
        if self.changelog is not None:
            self.changelog.close()
        for family in [*self._families.values(), self._db]:
            with suppress(Exception):
                family.close()
        self._families.clear()
        if self._logs is not None:
            self._logs.close()
        if self.live is not None:
            self.live.close()

    def _family(self, state: str) -> Rdict:
        try:
            return self._families[state]
        except KeyError:
            known = ", ".join(sorted(self._families)) or "closed"
            raise KeyError(f"state '{state}' is not one of this backend's: {known}") from None


def _get_runs(family: Rdict, keys: Sequence[bytes]) -> list[bytes | None]:
    if len(keys) == 1:
        return [family.get(keys[0])]
    values: list[bytes | None] = []
    for at in range(0, len(keys), _RUN_ENTRIES):
        values += _get_run(family, list(keys[at : at + _RUN_ENTRIES]))
    return values


def _get_run(family: Rdict, keys: list[Any]) -> Iterable[bytes | None]:
    """Read a run of keys, in sorted order, which is faster, unless they are few."""
    if len(keys) < _SORTED_READ_KEYS:
        return family.get(keys) or []
    ordered = sorted(keys)
    values = dict(zip(ordered, family.get(ordered) or [], strict=True))
    return map(values.__getitem__, keys)


def _batches(entries: Iterable[Entry], *, in_order: bool) -> Iterator[list[Entry]]:
    """Cut entries into batches of limited size, if `in_order` sorted within runs: so they enter a memtable faster."""
    rest = iter(entries)
    while run := list(islice(rest, _RUN_ENTRIES)):
        if in_order:
            # A comparison of keys takes less time than one of pairs.
            run.sort(key=_KEY)
        for start in range(0, len(run), _BATCH_ENTRIES):
            batch = run[start : start + _BATCH_ENTRIES]
            if sum(map(len, filter(None, chain.from_iterable(batch)))) < _BATCH_BYTES:
                yield batch
            else:
                yield from _cut(batch)


def _cut(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Cut large entries into batches of limited size."""
    start, size_bytes = 0, 0
    for at, (key, value) in enumerate(entries, 1):
        size_bytes += len(key) + len(value or b"")
        if size_bytes >= _BATCH_BYTES or at == len(entries):
            yield entries[start:at]
            start, size_bytes = at, 0


def _statistics(text: str) -> dict[str, int]:
    """Parse our figures from RocksDB's statistics, lines like `rocksdb.flush.write.bytes COUNT : 17`."""
    counts = {words[0]: int(words[3]) for line in text.splitlines() if (words := line.split())[1:2] == ["COUNT"]}
    return {name: counts.get(ticker, 0) for name, ticker in _STATISTICS.items()}
