"""Snapshots of a RocksDB database as a log that has the whole state: no base is ever uploaded.

Entries whose newest version is in the oldest log are written again, as ordinary changes; then that log can go. So the
log stays within a multiple of the state, and what is written beside the changes is spread over all snapshots. A restore
has RocksDB repeat the log into an empty database, whose column families have the numbers that the log names.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Protocol

from strandline.api.config import Continuous
from strandline.backends.base import Base, Changes, LocalFile
from strandline.backends.logfiles import (
    Log,
    LogFiles,
    drop_others,
    entries_of,
    file_at,
    left_logs,
    newest_of,
    pieces_of,
)
from strandline.backends.options import MIB
from strandline.backends.reading import RocksDBReader
from strandline.backends.rocksempty import empty_database
from strandline.backends.rocksfiles import SstFiles, part_bounds, permanent_kind
from strandline.backends.rockskept import Kept, record
from strandline.backends.rockslive import LiveRecords
from strandline.backends.rockslog import Logging, RocksDBLog
from strandline.backends.walformat import BLOCK_BYTES, PIECE_BYTES, Families, batches, puts_of
from strandline.core.errors import CorruptionError

log = logging.getLogger(__name__)

_LEAST_BUDGET_BYTES = MIB // 4
"""Of one snapshot: an old log ends also while nothing changes."""
_LEAST_LOG_BYTES = 1 * MIB
_LOGS = 8
"""A log is at most this part of all logs, and only whole logs can go."""
_SLACK_BYTES = 64 * MIB
_CHUNK_ENTRIES = 2000
_READ_BYTES = 1 * MIB
"""Read at once, and then looked up."""
_CLEAN_S = 0.2
"""How long one step of the cleaning takes: the thread that writes has other work, too."""
_HOPELESS = 2
"""A log that is this much too long gets a new base with files."""
_SAMPLES = 64
_LEAST_SAMPLES = 16
_NEWEST_SAMPLES = 8
_SAMPLED_KEYS = 200
_SAMPLED_BYTES = 4 * MIB

_Read = tuple[int, dict[str, list[tuple[bytes, bytes]]]]
"""Some bytes of an old log or base, and what they write, by state."""


class Cleanable(Logging, Protocol):
    """The part of the opened database that a log needs to be cleaned."""

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read many keys at once, in order; None where there is no value."""
        ...

    def raw_bytes(self) -> int:
        """Return the size of all keys and values, with old versions that are not merged away."""
        ...

    def begin_log(self) -> int:
        """Begin a new log."""
        ...

    @property
    def families(self) -> Families:
        """The numbers of its column families, which its logs name."""


class ContinuousLog(RocksDBLog):
    """A log that is cleaned from its oldest end."""

    def __init__(
        self,
        directory: Path,
        files: SstFiles,
        logs: LogFiles,
        limits: Continuous,
        database: Cleanable,
        live: LiveRecords | None,
        *,
        goes_on: bool,
        resumed: bool,
    ) -> None:
        """Go on with what `keep_restored` kept if it `goes_on`; if `resumed`, with the log of a keeper that died."""
        super().__init__(directory, logs, database)
        self._files = files
        self._limits = limits
        self._cleanable = database
        self._records = live
        self._oldest: Iterator[_Read] | None = None
        self._reader: RocksDBReader | None = None
        self._sizes: deque[float] = deque(maxlen=_SAMPLES)
        """The state's size as samples of the log show it."""
        self._random = random.Random(0)
        self._names: dict[int, str] = {}
        """The states by the numbers that logs have, once they are needed."""
        self._rewritten_bytes = 0
        self._budget_bytes = 0
        self._is_checked = not resumed
        """Whether the parts that another process has left are known to follow each other."""
        if not resumed and goes_on:
            logs.logs = left_logs(logs.directory)
            self._adopt(self._restored())
        elif live is not None and (kept := Kept.of(live) if resumed else None) is not None:
            self._adopt(kept)
        else:
            logs.forget()

    @property
    def is_long(self) -> bool:
        """Never: no base is uploaded for it."""
        return False

    def append(self, changes: Changes, into: Path) -> list[LocalFile]:
        with self._translating:
            if self.base is not None and not self._is_checked:
                self._logs.cut()
                self._check(self.base)
            if self.base is not None and not self.base.files:
                self._begin_empty(self.base)
        before = self.size_bytes
        files = super().append(changes, into)
        changed = max(0, self.size_bytes - before - self._rewritten_bytes)
        self._rewritten_bytes = 0
        self._budget_bytes = max(int(self._limits.budget * changed), _LEAST_BUDGET_BYTES)
        return files

    def _begin_at(self, base: Base) -> None:
        self._end_cleaning()
        super()._begin_at(base)

    def clean(self) -> bool:
        """Write entries again that only the oldest log has, within the budget, while the log is too long."""
        if self.base is None or not self.size_bytes:
            return False
        if self.base.size_bytes + self.size_bytes <= self._limits.longest_log(0):
            # It is not too long for any state.
            return False
        end_s = time.monotonic() + _CLEAN_S
        with self._translating:
            for _ in range(max(1, _LEAST_SAMPLES - len(self._sizes))):
                self._sample()
            raw_bytes = self._cleanable.raw_bytes()
            longest = self._longest(raw_bytes)
            if self._logs.end > max(longest / _LOGS, _LEAST_LOG_BYTES):
                self._cleanable.begin_log()
            while self.base and self._budget_bytes > 0 and self.base.size_bytes + self.size_bytes > longest:
                if time.monotonic() > end_s:
                    return True
                if self._oldest is None and not self._begin_cleaning():
                    break
                if not self._clean_some(min(self._budget_bytes, _READ_BYTES)) and self.base:
                    self._drop_oldest()
            if self.base and self.base.size_bytes + self.size_bytes > _HOPELESS * self._limits.longest_log(raw_bytes):
                # Much was written again and again with the same value, which the log cannot tell from what counts.
                self._drop_base()
        return False

    def _clean_some(self, wanted_bytes: int) -> bool:
        """Read on in the oldest log, and write again what counts. Return whether there may be more of it."""
        assert self._oldest is not None
        entries: dict[str, dict[bytes, bytes]] = {}
        read_bytes = 0
        while read_bytes < wanted_bytes and (some := next(self._oldest, None)) is not None:
            size_bytes, by_state = some
            read_bytes += size_bytes
            for state, puts in by_state.items():
                entries.setdefault(state, {}).update(puts)
        self._budget_bytes -= read_bytes
        for state, newest in entries.items():
            # In the order of keys, reads find blocks that are in the cache.
            ordered = sorted(newest.items())
            for at in range(0, len(ordered), _CHUNK_ENTRIES):
                self._write_again(state, ordered[at : at + _CHUNK_ENTRIES])
        return read_bytes > 0

    def _sample(self) -> None:
        """Estimate the state's size by how much of a random part of the log still counts."""
        assert self.base is not None
        parts = self._logs.parts_since(self.base.first_log)
        (part,) = self._random.choices(parts, [part.file.size_bytes for part in parts])
        _, _, start, end = part_bounds(part.file.name)
        last = max(start, end - _SAMPLED_BYTES)
        at = max(start, self._random.randint(start, last) // BLOCK_BYTES * BLOCK_BYTES)
        read = list(batches(islice(pieces_of([part], at), _SAMPLED_BYTES // PIECE_BYTES + 1), at, str(part.file.path)))
        if not read:
            return
        # Batches are sorted: keys that change often may all be in one.
        (batch,) = self._random.choices(read, list(map(len, read)))
        read_bytes = counting_bytes = 0
        for state, puts in self._named(batch).items():
            some = puts[:: max(1, len(puts) // _SAMPLED_KEYS)]
            read_bytes += _size_of(some)
            counting_bytes += _size_of(self._counting(state, some))
        self._sizes.append(self.size_bytes * counting_bytes / read_bytes if read_bytes else 0.0)

    def _longest(self, raw_bytes: int) -> float:
        """Return the size from which on the log is too long."""
        sizes = [*self._sizes]
        # The newest samples alone show a state that grows.
        sampled = max((sum(some) / len(some) for some in (sizes, sizes[-_NEWEST_SAMPLES:]) if some), default=raw_bytes)
        # Samples lack what only a base has. They show too much if entries are written again with the same value.
        base_bytes = self.base.size_bytes if self.base is not None else 0
        return self._limits.longest_log(min(sampled + base_bytes, raw_bytes))

    def invalidate(self) -> None:
        """Begin with a base that has all files, at the next snapshot. Before the first write."""
        self._drop_base()
        self._logs.forget()

    def _drop_base(self) -> None:
        self._end_cleaning()
        self._names.clear()
        super()._drop_base()

    def close(self) -> None:
        self._end_cleaning()

    def _too_long(self, base: Base) -> float:
        return _HOPELESS * self._limits.longest_log(self._cleanable.raw_bytes()) + _SLACK_BYTES

    def _restored(self) -> Kept:
        """Return what `keep_restored` has kept."""
        logs = self._logs.logs
        first_log = min(logs) if logs else self._cleanable.begin_log()
        first, _ = next(entries_of(logs.values()), (self._logs.sequence + 1, 0))
        return Kept("base-0", first_log, first - 1)

    def _adopt(self, kept: Kept) -> None:
        """Go on with a base and the parts in the directory."""
        directory, logs = self._logs.directory, self._logs.logs
        for path in directory.glob("base-*"):
            if path.name != kept.base:
                shutil.rmtree(path, ignore_errors=True)
        self._end_cleaning()
        self._bases = int(kept.base.removeprefix("base-") or 0)
        for number in [number for number in logs if number < kept.first_log]:
            del logs[number]
        drop_others(directory, logs)
        base = directory / kept.base
        files = [file_at(path) for path in base.iterdir()] if kept.base else []
        manifests = [file.path for file in files if permanent_kind(file.name) == "manifest"]
        if len(manifests) == len(files):
            # An empty one is made anew: the program may have new states.
            files = []
        elif not self._cleanable.families.names.keys() <= Families.of(manifests[0]).names.keys():
            self.invalidate()
            return
        self.base = Base(base, files, kept.first_log, kept.sequence)
        self._measure()
        self._note()

    def _check(self, base: Base) -> None:
        """Check that parts which another process has left have all entries; else begin with a new base.

        After a kill they have. After a crash of the machine, or if another program deletes files, one may be missing.
        """
        if newest_of(self._own_logs.values(), base.sequence) != self._logs.sequence:
            log.warning("%s: parts of the log are missing: all state is uploaded again", self._logs.directory)
            self._drop_base()
        self._is_checked = True

    def _begin_empty(self, before: Base) -> None:
        """Have snapshots begin with an empty database in place of a base, and the same logs.

        If RocksDB makes none that fits, as another release may, the next snapshot has a base with files.
        """
        self._bases += 1
        into = self._logs.directory / f"base-{self._bases}"
        try:
            path = empty_database(into, self._cleanable.families, before.first_log)
        except CorruptionError as error:
            log.warning("%s", error)
            self._drop_base()
            return
        path = path.rename(path.with_name(self._files.manifest_name(path.name)))
        self._begin_at(replace(before, directory=into, files=[file_at(path)]))

    def _begin_cleaning(self) -> bool:
        """Begin with the oldest log, or a base with files before all logs. Return whether there is one."""
        assert self.base is not None
        if self._has_tables:
            self._oldest = self._entries_of_base(self.base)
            return True
        logs = self._own_logs
        if len(logs) < 2:
            return False
        self._oldest = self._entries_of_log(logs[min(logs)])
        return True

    @property
    def _own_logs(self) -> dict[int, Log]:
        """The logs that snapshots have, as far as they are cut off."""
        assert self.base is not None
        return {number: log for number, log in self._logs.logs.items() if number >= self.base.first_log}

    @property
    def _has_tables(self) -> bool:
        assert self.base is not None
        return any(permanent_kind(file.name) == "table" for file in self.base.files)

    def _drop_oldest(self) -> None:
        assert self.base is not None
        self._end_cleaning()
        if self._has_tables:
            self._sizes.clear()
            self._begin_empty(self.base)
            return
        _, second, *_ = self._own_logs
        first, _ = next(entries_of([self._logs.logs[second]]))
        # The oldest one goes with the next write.
        self.base = replace(self.base, first_log=second, sequence=first - 1)
        self._measure()
        self._note()

    def _end_cleaning(self) -> None:
        self._oldest = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        shutil.rmtree(self._logs.directory / "cleaned", ignore_errors=True)

    def _entries_of_log(self, log: Log) -> Iterator[_Read]:
        for batch in batches(pieces_of(log.parts), 0, f"{self._logs.directory}: {log.number:06}.log"):
            yield len(batch), self._named(batch)

    def _named(self, batch: bytes) -> dict[str, list[tuple[bytes, bytes]]]:
        """Return a batch's puts by state. Families without a name were dropped."""
        names = self._known_names()
        return {names[family]: puts for family, puts in puts_of(batch).items() if family in names}

    def _known_names(self) -> dict[int, str]:
        if not self._names:
            self._names = {number: name for name, number in self._cleanable.families.names.items()}
        return self._names

    def _entries_of_base(self, base: Base) -> Iterator[_Read]:
        into = self._logs.directory / "cleaned"
        into.mkdir()
        for file in base.files:
            os.link(file.path, into / file.name)
        self._reader = RocksDBReader(into)
        for state in sorted({*self._known_names().values()} & {*self._reader.states}):
            some: list[tuple[bytes, bytes]] = []
            for entry in self._reader.scan_prefix(state, b""):
                some.append(entry)
                if len(some) == _CHUNK_ENTRIES:
                    yield _size_of(some), {state: some}
                    some = []
            yield _size_of(some), {state: some}

    def _write_again(self, state: str, entries: list[tuple[bytes, bytes]]) -> None:
        """Write the entries again that count: no newer log may have them.

        One thread writes, so that no newer value can come between the read and the write.
        """
        if counting := self._counting(state, entries):
            self._database.write({state: counting})
            self._rewritten_bytes += _size_of(counting)

    def _counting(self, state: str, entries: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the entries that still have these values."""
        current = self._cleanable.get_many(state, [key for key, _ in entries])
        return [entry for entry, value in zip(entries, current, strict=True) if entry[1] == value]

    def _note(self) -> None:
        if self._records is not None:
            base, kept = self.base, None
            if base is not None:
                name = base.directory.name if self._has_tables else ""
                kept = Kept(name, base.first_log, base.sequence)
            record(self._records, kept)


def _size_of(entries: Iterable[tuple[bytes, bytes]]) -> int:
    return sum(map(len, chain.from_iterable(entries)))
