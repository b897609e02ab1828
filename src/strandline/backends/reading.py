"""Readers of a snapshot's files, which need no backend and read only some of the entries."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from itertools import islice, takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, Protocol

from rocksdict import AccessType, Options, Rdict, ReadOptions

from strandline.backends.heap import HEAP_FILE
from strandline.backends.rocksfiles import BLOCK_CHECKED, ErrorTranslation, SstFiles, logs_in
from strandline.backends.rocksoptions import end_of_prefix, set_log
from strandline.core.keygroups import BROADCAST_GROUP, first_key, group_of
from strandline.core.settings import BackendName
from strandline.format.heapfile import read_heap

FileKind = Literal["rocksdb", "heap"]

SELF_CHECKED = (*BLOCK_CHECKED, HEAP_FILE)
"""The endings of files in which readers find damage, so that they may be opened before they are verified."""

_READAHEAD_BYTES = 2 << 20
_ENTRIES = 256
_LOG_BYTES, _LEAST_BUFFER_BYTES = 64 << 20, 1 << 20
_OPEN_FILES = 64
"""Without a limit, RocksDB would read the index of every file when the database is opened."""


def file_kind(backend: BackendName | str) -> FileKind:
    """Return the kind of a backend's files: each backend of that kind can open them."""
    return "rocksdb" if backend == "rocksdb" else "heap"


class PartitionReader(Protocol):
    """One partition's state in a snapshot, read-only."""

    @property
    def states(self) -> Collection[str]:
        """The names of its states."""

    def scan(self, state: str, groups: range) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the entries of a range of key groups, in key order; an absent state has none."""
        ...

    def scan_prefix(self, state: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the entries whose key begins with `prefix`, in key order, and read little else."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...


def open_reader(kind: FileKind, directory: Path) -> PartitionReader:
    """Open a directory that holds every file of one snapshot of one partition, each under its name; files may be links.

    Raises CorruptionError, also during reads, if files of SELF_CHECKED are damaged; all others must be verified.
    """
    return RocksDBReader(directory) if kind == "rocksdb" else _HeapReader(directory)


class _HeapReader:
    def __init__(self, directory: Path) -> None:
        self._states: dict[str, list[tuple[bytes, bytes]]] = {}
        snapshot = directory / HEAP_FILE
        with snapshot.open("rb") as file:
            for state, entries in read_heap(file, str(snapshot)):
                self._states.setdefault(state, []).extend(entries)

    @property
    def states(self) -> Collection[str]:
        return self._states.keys()

    def scan(self, state: str, groups: range) -> Iterator[tuple[bytes, bytes]]:
        return ((key, value) for key, value in self._states.get(state, ()) if group_of(key) in groups)

    def scan_prefix(self, state: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        entries = self._states.get(state, [])
        start = bisect_left(entries, prefix, key=itemgetter(0))
        return takewhile(lambda entry: entry[0].startswith(prefix), islice(entries, start, None))

    def close(self) -> None:
        self._states = {}


class RocksDBReader:
    """A snapshot of a RocksDB database. Opening it changes its directory."""

    def __init__(self, directory: Path) -> None:
        self._translating = ErrorTranslation(directory)
        SstFiles(directory)
        options = Options(raw_mode=True)
        options.set_skip_stats_update_on_db_open(True)
        options.set_max_open_files(_OPEN_FILES)
        set_log(options)
        is_long = sum(log.stat().st_size for log in logs_in(directory).values()) > _LOG_BYTES
        if is_long:
            # Read-only, all of the log would be in memory.
            options.set_disable_auto_compactions(True)
        with self._translating:
            names = Rdict.list_cf(str(directory), options)
            # Of each state.
            options.set_write_buffer_size(max(_LOG_BYTES // len(names), _LEAST_BUFFER_BYTES))
            self._db = Rdict(
                str(directory),
                options,
                column_families=dict.fromkeys(names, options),
                access_type=AccessType.read_write() if is_long else AccessType.read_only(),
            )
            self._families = {name: self._db.get_column_family(name) for name in names if name != "default"}

    @property
    def states(self) -> Collection[str]:
        return self._families.keys()

    def scan(self, state: str, groups: range) -> Iterator[tuple[bytes, bytes]]:
        family, first = self._families.get(state), first_key(groups.start)
        if family is None:
            return
        end = first_key(groups.stop) if groups.stop <= BROADCAST_GROUP else None
        reading = _reading(end, _READAHEAD_BYTES)
        with self._translating:
            entries: Iterator[Any] = iter(family.items(from_key=first, read_opt=reading))
        while some := list(islice(entries, _ENTRIES)):
            yield from some
            first = some[-1][0] + b"\0"
        # `items` is a quarter faster than `_walk`, but ends without an error at a damaged block: `_walk` raises it.
        yield from self._walk(state, first, end, _READAHEAD_BYTES)

    def scan_prefix(self, state: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._walk(state, prefix, end_of_prefix(prefix), 0)

    def _walk(self, state: str, first: bytes, end: bytes | None, readahead_bytes: int) -> Iterator[tuple[bytes, bytes]]:
        family = self._families.get(state)
        if family is None:
            return
        reading = _reading(end, readahead_bytes)
        with self._translating:
            walk = family.iter(reading)
            walk.seek(first)
        while walk.valid():
            yield walk.key(), walk.value()
            walk.next()
        # At a damaged block an iterator ends as it does after the last entry: only its status tells them apart.
        with self._translating:
            walk.status()

    def close(self) -> None:
        for family in [*self._families.values(), self._db]:
            family.close()
        self._families = {}


def _reading(end: bytes | None, readahead_bytes: int) -> ReadOptions:
    """Return options, which must live as long as the iterator: it refers to the bound in them."""
    reading = ReadOptions()
    reading.set_total_order_seek(True)
    reading.set_readahead_size(readahead_bytes)
    if end is not None:
        reading.set_iterate_upper_bound(end)
    return reading
