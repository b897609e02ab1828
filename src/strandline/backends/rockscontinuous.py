"""Snapshots of a RocksDB database as a log that has the whole state: no base is ever uploaded.

Entries whose newest version is in the oldest log are written again, as ordinary changes; then that log can go. So the
log stays within a multiple of the state, and what is written beside the changes is spread over all snapshots. A restore
has RocksDB repeat the log into an empty database, whose column families have the numbers that the log names.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Protocol

import msgspec
from rocksdict import Checkpoint, Options, Rdict

from strandline.api.config import Continuous
from strandline.backends.base import Base, Changes, LocalFile
from strandline.backends.options import MIB
from strandline.backends.reading import RocksDBReader
from strandline.backends.rocksfiles import SstFiles, part_bounds, permanent_kind
from strandline.backends.rockslive import LiveRecords
from strandline.backends.rockslog import Log, Logging, Part, RocksDBLog, log_directory
from strandline.backends.walformat import BLOCK_BYTES, PIECE_BYTES, BatchReader, Families, batches, puts_of
from strandline.core.errors import CorruptionError, UnavailableError

_RECORD = "log"
_LEAST_BUDGET_BYTES = MIB // 4
"""Of one snapshot: an old log ends also while nothing changes."""
_LEAST_LOG_BYTES = 1 * MIB
_LOGS = 8
"""A log is at most this part of all logs, and only whole logs can go."""
_SLACK_BYTES = 64 * MIB
_CHUNK_ENTRIES = 2000
_READ_BYTES = 16 * MIB
"""What is read before it is looked up: the more at once, the fewer blocks of RocksDB are read."""
_HOPELESS = 2
"""A log that is this much too long gets a new base with files."""
_SAMPLES = 64
_LEAST_SAMPLES = 16
_SAMPLED_KEYS = 200
_SAMPLED_BYTES = 4 * MIB


class Cleanable(Logging, Protocol):
    """The part of the opened database that a log needs which cleans itself."""

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read many keys at once, in order; None where there is no value."""
        ...

    def raw_bytes(self) -> int:
        """Return the size of all keys and values, with old versions that are not merged away."""
        ...

    def begin_log(self) -> None:
        """Have RocksDB begin a new log soon."""
        ...

    @property
    def families(self) -> Families:
        """The numbers of its column families, which its logs name."""


class _Record(msgspec.Struct, frozen=True):
    """The log's beginning, for another opening of the same database."""

    base: str
    """The name of the base's directory, or nothing for an empty base."""
    first_log: int


def keep_restored(database: Path) -> bool:
    """Keep links of the files of a restored snapshot, before RocksDB changes them, in an empty log directory.

    Return whether a log can go on with them; with no files at all, it can.
    """
    folder = log_directory(database)
    shutil.rmtree(folder, ignore_errors=True)
    paths = list(database.iterdir())
    kinds = {path: permanent_kind(path.name) for path in paths}
    if paths and "manifest" not in kinds.values():
        return False
    base = folder / "base-0"
    base.mkdir(parents=True)
    for path, kind in kinds.items():
        if kind is not None:
            os.link(path, (folder if kind == "part" else base) / path.name)
    return True


class ContinuousLog(RocksDBLog):
    """A log that is cleaned from its oldest end."""

    def __init__(
        self,
        directory: Path,
        files: SstFiles,
        limits: Continuous,
        database: Cleanable,
        live: LiveRecords | None,
        *,
        goes_on: bool,
        resumed: bool,
    ) -> None:
        """Go on with what `keep_restored` kept if it `goes_on`; if `resumed`, with the log of a keeper that died."""
        super().__init__(directory, files, database)
        self._limits = limits
        self._cleanable = database
        self._records = live
        self._oldest: Iterator[tuple[int, dict[str, list[tuple[bytes, bytes]]]]] | None = None
        self._reader: RocksDBReader | None = None
        self._sizes: deque[float] = deque(maxlen=_SAMPLES)
        """The state's size as samples of the log show it."""
        self._random = random.Random(0)
        self._rewritten_bytes = 0
        self._budget_bytes = 0
        record = self._read_record() if resumed else _Record("base-0", 0) if goes_on else None
        if record is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        else:
            self._adopt(record, newest=None if resumed else database.newest_entry())

    @property
    def is_long(self) -> bool:
        """Never: no base is uploaded for it."""
        return False

    def append(self, changes: Changes, into: Path) -> list[LocalFile]:
        base = self._usable_base
        if base is not None and not base.files:
            self._begin_empty(base)
        before = self.size_bytes
        files = super().append(changes, into)
        changed = max(0, self.size_bytes - before - self._rewritten_bytes)
        self._rewritten_bytes = 0
        self._budget_bytes = max(int(self._limits.budget * changed), _LEAST_BUDGET_BYTES)
        return files

    def begin_at(self, base: Base) -> None:
        super().begin_at(base)
        self._end_cleaning()
        self._note()

    def clean(self) -> None:
        """Write entries again that only the oldest log has, within the budget, while the log is too long."""
        if self.base is None or self.size_bytes <= _LEAST_LOG_BYTES:
            return
        with self._translating:
            for _ in range(max(1, _LEAST_SAMPLES - len(self._sizes))):
                self._sample()
            raw_bytes = self._cleanable.raw_bytes()
            longest = self._longest(raw_bytes)
            if self._logs[max(self._logs)].size_bytes > max(longest / _LOGS, _LEAST_LOG_BYTES):
                self._cleanable.begin_log()
            while self._budget_bytes > 0 and self.base.size_bytes + self.size_bytes > longest:
                if self._oldest is None and not self._begin_cleaning():
                    break
                if not self._clean_some(min(self._budget_bytes, _READ_BYTES)):
                    self._drop_oldest()
            if self.base.size_bytes + self.size_bytes > _HOPELESS * self._limits.longest_log(raw_bytes):
                # Much was written again and again with the same value, which the log cannot tell from what counts.
                self.base = None

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
        parts = [part for log in self._logs.values() for part in log.parts]
        (part,) = self._random.choices(parts, [part.file.size_bytes for part in parts])
        _, _, start, end = part_bounds(part.file.name)
        last = max(start, end - _SAMPLED_BYTES)
        at = max(start, self._random.randint(start, last) // BLOCK_BYTES * BLOCK_BYTES)
        read = list(batches(islice(_pieces_of([part], at), _SAMPLED_BYTES // PIECE_BYTES + 1), at))
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
        sizes = self._sizes
        return self._limits.longest_log(min(sum(sizes) / len(sizes), raw_bytes) if sizes else raw_bytes)

    def invalidate(self) -> None:
        """Begin with a base that has all files, at the next snapshot."""
        self._end_cleaning()
        self.__dict__.pop("_names", None)
        self.base = None
        self._logs.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

    def close(self) -> None:
        self._end_cleaning()

    def _too_long(self, base: Base) -> float:
        return _HOPELESS * self._limits.longest_log(self._cleanable.raw_bytes()) + _SLACK_BYTES

    def _adopt(self, record: _Record, newest: int | None) -> None:
        """Go on with the base and the parts in the directory, whose newest entry has the number `newest`, if known."""
        for path in self._directory.glob("base-*"):
            if path.name != record.base:
                shutil.rmtree(path, ignore_errors=True)
        self._bases = int(record.base.removeprefix("base-") or 0)
        self._logs = {number: log for number, log in self._stored_logs().items() if number >= record.first_log}
        base = self._directory / record.base
        tables = [_file(path) for path in base.iterdir()] if record.base else []
        first_log = record.first_log or min(self._logs, default=0)
        if all(permanent_kind(file.name) == "manifest" for file in tables):
            # An empty one is made anew: the program may have new states.
            tables = []
        elif not self._cleanable.families.names.keys() <= _families_of(tables).names.keys():
            self.invalidate()
            return
        self.base = Base(base, tables, first_log, 0)
        self._measure()
        self._copied = self._newest_copied() if newest is None else newest
        self._note()

    def _stored_logs(self) -> dict[int, Log]:
        """Return the logs with the whole parts in the directory; delete files that a kill has left incomplete."""
        bounds: dict[int, dict[int, tuple[int, str, Path]]] = {}
        for path in sorted(self._directory.glob("*.log")):
            number, tag, start, end = part_bounds(path.name)
            known_end, *_ = bounds.setdefault(number, {}).get(start, (start,))
            if path.stat().st_size == end - start and end > known_end:
                # Of two that begin there, one is merged of the other one and those behind it.
                bounds[number][start] = end, tag, path
        logs: dict[int, Log] = {}
        kept: set[Path] = set()
        for number, parts in sorted(bounds.items()):
            at = 0
            while (part := parts.get(at)) is not None:
                end, tag, path = part
                logs.setdefault(number, Log(number, tag, [])).parts.append(Part(_file(path), 0))
                kept.add(path)
                at = end
            if number in logs:
                logs[number].size_bytes = at
        for path in self._directory.glob("*.log"):
            if path not in kept:
                path.unlink()
        return logs

    def _newest_copied(self) -> int:
        """Return the number of the newest entry that a part has."""
        for log in reversed(self._logs.values()):
            reader, newest = BatchReader(0), 0
            for piece in _pieces_of(log.parts):
                for first, count in reader.read(piece):
                    newest = first + count - 1
            if newest:
                return newest
        return 0

    def _begin_empty(self, before: Base) -> None:
        """Have snapshots begin with an empty database in place of a base, and the same logs."""
        self._bases += 1
        into = self._directory / f"base-{self._bases}"
        path = _empty_database(into, self._cleanable.families, before.first_log or min(self._logs, default=0))
        path = path.rename(path.with_name(self._files.manifest_name(path.name)))
        self.begin_at(replace(before, directory=into, files=[_file(path)]))

    def _begin_cleaning(self) -> bool:
        """Begin with the oldest log, or a base with files before all logs. Return whether there is one."""
        assert self.base is not None
        if self._has_tables:
            self._oldest = self._entries_of_base(self.base)
            return True
        if len(self._logs) < 2:
            return False
        self._oldest = self._entries_of_log(self._logs[min(self._logs)])
        return True

    @property
    def _has_tables(self) -> bool:
        assert self.base is not None
        return any(permanent_kind(file.name) == "table" for file in self.base.files)

    def _drop_oldest(self) -> None:
        assert self.base is not None
        self._end_cleaning()
        if self._has_tables:
            self._begin_empty(self.base)
            return
        oldest = self._logs.pop(min(self._logs))
        self.base = replace(self.base, first_log=min(self._logs))
        self._measure()
        self._note()
        for part in oldest.parts:
            part.file.path.unlink(missing_ok=True)

    def _end_cleaning(self) -> None:
        self._oldest = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        shutil.rmtree(self._directory / "cleaned", ignore_errors=True)

    def _entries_of_log(self, log: Log) -> Iterator[tuple[int, dict[str, list[tuple[bytes, bytes]]]]]:
        for batch in batches(_pieces_of(log.parts)):
            yield len(batch), self._named(batch)

    @cached_property
    def _names(self) -> dict[int, str]:
        """The states by the numbers that logs have."""
        return {number: name for name, number in self._cleanable.families.names.items()}

    def _named(self, batch: bytes) -> dict[str, list[tuple[bytes, bytes]]]:
        """Return a batch's puts by state. Families without a name were dropped."""
        return {self._names[family]: puts for family, puts in puts_of(batch).items() if family in self._names}

    def _entries_of_base(self, base: Base) -> Iterator[tuple[int, dict[str, list[tuple[bytes, bytes]]]]]:
        into = self._directory / "cleaned"
        into.mkdir()
        for file in base.files:
            os.link(file.path, into / file.name)
        self._reader = RocksDBReader(into)
        for state in sorted({*self._names.values()} & {*self._reader.states}):
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
        """Record where the log begins, before the files that it no longer needs are deleted."""
        if self._records is not None and self.base is not None:
            base = self.base.directory.name if self._has_tables else ""
            self._records.write(_RECORD, msgspec.json.encode(_Record(base, self.base.first_log)))

    def _read_record(self) -> _Record | None:
        assert self._records is not None
        try:
            return msgspec.json.decode(self._records.read(_RECORD), type=_Record)
        except UnavailableError:
            return None


def _empty_database(into: Path, families: Families, first_log: int) -> Path:
    """Make an empty database with these column families under their numbers; return its MANIFEST, the only file.

    RocksDB does not repeat logs before the one that a MANIFEST names, and entries of families that it does not have.
    """
    into.mkdir(parents=True)
    scratch, linked = into / "database", into / "linked"
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(scratch), options)
    try:
        by_number = {number: name for name, number in families.names.items()}
        dropped = []
        for number in range(1, families.largest + 1):
            name = by_number.get(number)
            if name is None:
                name = f"#{number}"
                dropped.append(name)
            database.create_column_family(name, Options(raw_mode=True)).close()
        for name in dropped:
            database.drop_column_family(name)
        Checkpoint(database).create_checkpoint(str(linked))
    finally:
        database.close()
    (path,) = linked.glob("MANIFEST-*")
    path = path.rename(into / path.name)
    shutil.rmtree(scratch)
    shutil.rmtree(linked)
    empty = Families.of(path)
    if empty.names != families.names or empty.largest < families.largest or empty.first_log > first_log > 0:
        raise CorruptionError(
            f"{path}: an empty database has the families {empty}, expected {families} and the logs from {first_log} on"
        )
    return path


def _families_of(files: Sequence[LocalFile]) -> Families:
    (manifest,) = [file.path for file in files if permanent_kind(file.name) == "manifest"]
    return Families.of(manifest)


def _pieces_of(parts: Iterable[Part], first: int = 0) -> Iterator[bytes]:
    """Yield the bytes of parts that follow each other, from byte `first` of the log on."""
    for part in parts:
        start = part_bounds(part.file.name)[2]
        at = max(start, first)
        with part.file.path.open("rb") as file:
            file.seek(at - start)
            # Pieces begin with a block, or with a part.
            while data := file.read(PIECE_BYTES - at % PIECE_BYTES):
                at += len(data)
                yield data


def _file(path: Path) -> LocalFile:
    return LocalFile(path.name, path, path.stat().st_size, shared=True)


def _size_of(entries: Iterable[tuple[bytes, bytes]]) -> int:
    return sum(map(len, chain.from_iterable(entries)))
