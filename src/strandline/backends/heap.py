"""Backends for state that fits in memory: the caller holds live objects, and a snapshot is one heap file."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from strandline.backends.base import Changes, Entry, LocalFile
from strandline.core.errors import StateLimitError, UnavailableError
from strandline.core.keygroups import BROADCAST_GROUP, group_of
from strandline.format.heapfile import read_heap, write_heap

HEAP_FILE = "state.heap"


class HeapBackend:
    """Serves `memory` (inline, with a limit) and `filesystem` (its file is uploaded, no limit).

    The entries of a restored snapshot stay encoded until the caller takes each state over (`scan`, then `release`).
    A state that is never released works as a plain store of bytes.
    """

    keeps_all: Literal[True] = True
    changelog: None = None
    live: None = None
    unread: Mapping[int, BaseException] = {}

    def __init__(self, directory: Path, states: Sequence[str], *, inline: bool, limit_bytes: int | None) -> None:
        """Open the snapshot in `directory`, or start empty if there is none."""
        self.inline = inline
        self.limit_bytes = limit_bytes
        kept: dict[str, dict[bytes, bytes]] = {state: {} for state in states}
        snapshot = directory / HEAP_FILE
        if snapshot.exists():
            with snapshot.open("rb") as file:
                for state, entries in read_heap(file, str(snapshot)):
                    kept.setdefault(state, {}).update(entries)
        self._kept: dict[str, dict[bytes, bytes] | None] = {**kept}
        self._kept_bytes = self._encoded_bytes = 0
        self._measure()

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._entries(state).get, keys))

    def scan(self, state: str, prefix: bytes = b"", first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        kept = self._entries(state)
        for key in sorted(key for key in list(kept) if key.startswith(prefix) and key >= first):
            value = kept.get(key)
            if value is not None:
                yield key, value

    def read_group(self, state: str, prefix: bytes) -> list[tuple[bytes, bytes]]:
        return list(self.scan(state, prefix))

    def release(self, state: str) -> None:
        self._kept_bytes -= _size(self._entries(state))
        self._kept[state] = None

    def clip(self, groups: range) -> None:
        for state in self._kept:
            kept = self._entries(state)
            self._kept[state] = {
                key: value for key, value in kept.items() if group_of(key) in groups or group_of(key) == BROADCAST_GROUP
            }
        self._measure()

    def load(self, state: str, entries: Iterator[tuple[bytes, bytes]]) -> None:
        self._entries(state).update(entries)
        self._measure()

    def write(self, changes: Changes) -> None:
        """Apply all entries, or none if they would exceed the limit."""
        lists = {state: list(entries) for state, entries in changes.items()}
        size_bytes = self._kept_bytes + sum(_growth(self._entries(state), lists[state]) for state in lists)
        self._check_limit(size_bytes)
        for state, entries in lists.items():
            _apply(self._entries(state), entries)
        self._kept_bytes = self._encoded_bytes = size_bytes

    def persist(self, changes: Changes, into: Path) -> list[LocalFile]:
        """Write one file: the kept entries with the changes applied, and of released states exactly the changes.

        Sorting holds the encoded entries of one released state in memory at a time.
        """
        kept = {state: entries for state, entries in changes.items() if self._kept.get(state) is not None}
        self.write(kept)
        target = into / HEAP_FILE
        try:
            into.mkdir(parents=True)
            try:
                with target.open("wb") as file:
                    write_heap(file, self._snapshot(changes))
            except BaseException:
                shutil.rmtree(into, ignore_errors=True)
                raise
        except OSError as error:
            raise UnavailableError(f"cannot write the snapshot {target}: {error}") from error
        return [LocalFile(HEAP_FILE, target, target.stat().st_size, shared=False)]

    def _snapshot(self, changes: Changes) -> Iterator[tuple[str, Iterable[tuple[bytes, bytes]]]]:
        size_bytes = 0
        for state in sorted(self._kept):
            kept = self._kept[state]
            if kept is None:
                entries = sorted((key, value) for key, value in changes.get(state, ()) if value is not None)
            else:
                entries = sorted(kept.items())
            size_bytes += sum(len(key) + len(value) for key, value in entries)
            self._check_limit(size_bytes)
            yield state, entries
        self._encoded_bytes = size_bytes

    def move(self, state: str, to: str) -> None:
        if state in self._kept:
            self._entries(to).update(self._entries(state))
            del self._kept[state]

    def forget(self, state: str) -> None:
        if state in self._kept:
            self._kept_bytes -= _size(self._entries(state))
            del self._kept[state]

    def metrics(self) -> dict[str, int]:
        """Return the number and size of the entries held here, and the state's last measured encoded size."""
        return {
            "kept_entries_count": sum(len(entries) for entries in self._kept.values() if entries is not None),
            "kept_bytes": self._kept_bytes,
            "encoded_bytes": self._encoded_bytes,
        }

    def close(self) -> None:
        self._kept = {}

    def _measure(self) -> None:
        self._kept_bytes = sum(_size(entries) for entries in self._kept.values() if entries is not None)
        self._encoded_bytes = self._kept_bytes

    def _entries(self, state: str) -> dict[bytes, bytes]:
        if state not in self._kept:
            raise KeyError(f"state '{state}' is not one of this backend's: {', '.join(sorted(self._kept)) or 'closed'}")
        entries = self._kept[state]
        if entries is None:
            raise ValueError(f"state '{state}' was released: its entries are the caller's")
        return entries

    def _check_limit(self, size_bytes: int) -> None:
        if self.limit_bytes is not None and size_bytes > self.limit_bytes:
            raise StateLimitError(
                f"state of this partition would be {size_bytes} bytes, the memory backend takes {self.limit_bytes}",
                hint="raise memory_backend_limit, or use the filesystem or rocksdb backend",
                size_bytes=size_bytes,
                limit_bytes=self.limit_bytes,
            )


def _size(entries: dict[bytes, bytes]) -> int:
    return sum(map(len, entries)) + sum(map(len, entries.values()))


def _growth(kept: dict[bytes, bytes], entries: list[Entry]) -> int:
    """Return the number of bytes by which the entries would make the state grow."""
    size_bytes = 0
    for key, value in entries:
        old = kept.get(key)
        size_bytes -= 0 if old is None else len(key) + len(old)
        size_bytes += 0 if value is None else len(key) + len(value)
    return size_bytes


def _apply(kept: dict[bytes, bytes], entries: list[Entry]) -> None:
    for key, value in entries:
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = value
