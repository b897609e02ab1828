"""The entries of a snapshot's files, read without opening a backend on them: for whoever needs but some of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal, Protocol

from rocksdict import AccessType, Options, Rdict, ReadOptions

from strandline.backends.heap import HEAP_FILE
from strandline.backends.rocksfiles import SstFiles, Translating
from strandline.core.keygroups import BROADCAST_GROUP, first_key, group_of
from strandline.core.settings import BackendName
from strandline.format.heapfile import read_heap

FileKind = Literal["rocksdb", "heap"]


def file_kind(backend: BackendName | str) -> FileKind:
    """Return what a backend's files are: those of one kind can be opened by each backend of that kind."""
    return "rocksdb" if backend == "rocksdb" else "heap"


class SnapshotReader(Protocol):
    """One partition's state in a snapshot, read-only."""

    @property
    def states(self) -> Collection[str]:
        """The names of the states that it holds."""

    def scan(self, state: str, groups: range) -> Iterator[tuple[bytes, bytes]]:
        """Walk the entries of a range of key groups, in key order; none of a state that is not there."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


def open_reader(kind: FileKind, directory: Path) -> SnapshotReader:
    """Open a directory that holds every file of one snapshot of one partition, each under its name; files may be links.

    Raises CorruptionError, then or while they are read, if files are damaged that `fetch` did not verify.
    """
    return _RocksDBReader(directory) if kind == "rocksdb" else _HeapReader(directory)


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

    def close(self) -> None:
        self._states = {}


class _RocksDBReader:
    def __init__(self, directory: Path) -> None:
        self._translating = Translating(directory)
        SstFiles(directory)
        options = Options(raw_mode=True)
        options.set_skip_stats_update_on_db_open(True)
        with self._translating:
            names = Rdict.list_cf(str(directory), options)
            self._db = Rdict(
                str(directory),
                options,
                column_families=dict.fromkeys(names, options),
                access_type=AccessType.read_only(),
            )
            self._families = {name: self._db.get_column_family(name) for name in names if name != "default"}

    @property
    def states(self) -> Collection[str]:
        return self._families.keys()

    def scan(self, state: str, groups: range) -> Iterator[tuple[bytes, bytes]]:
        family = self._families.get(state)
        if family is None:
            return
        # `reading` must live as long as the iterator, which looks at the bound in it and does not keep it.
        reading = ReadOptions()
        reading.set_total_order_seek(True)
        reading.set_readahead_size(2 << 20)
        if groups.stop <= BROADCAST_GROUP:
            reading.set_iterate_upper_bound(first_key(groups.stop))
        with self._translating:
            walk = family.iter(reading)
            walk.seek(first_key(groups.start))
        while walk.valid():
            yield walk.key(), walk.value()
            walk.next()
        # An iterator that meets a damaged block ends like one that is through: only its status tells.
        with self._translating:
            walk.status()

    def close(self) -> None:
        for family in [*self._families.values(), self._db]:
            family.close()
        self._families = {}
