"""RocksDB's log format, which its write-ahead logs and its MANIFESTs have, and what their records hold."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import itemgetter
from pathlib import Path

import google_crc32c

from strandline.backends.base import Entry
from strandline.core.errors import CorruptionError

LOST_HINT = (
    "the job restores from its last complete checkpoint; if another program deletes files in local_dir, set another "
    "one in Settings"
)
PIECE_BYTES = 1 << 20
"""The size of the pieces in which logs are read: a multiple of their blocks, so that pieces begin with one."""
BLOCK_BYTES = 32 << 10
_RECORD = struct.Struct("<IHB")
"""Checksum, size and kind of a record: whole, or in parts."""
_CHECKED_FROM = 6
"""The checksum is of the kind and what follows."""
_MASK = 0xA282EAD8
DAMAGED, WHOLE, FIRST, MIDDLE, LAST = range(5)
_KINDS = (WHOLE, FIRST, MIDDLE, LAST)
_BATCH_HEADER = struct.Struct("<QI")
"""The first sequence number of a batch's entries, and their count."""
_DELETE, _PUT, _DATA, _FAMILY_DELETE, _FAMILY_PUT = 0, 1, 3, 4, 5
_NOTHING, _FAMILY_DELETE_RANGE, _DELETE_RANGE = 13, 14, 15
_PUTS = (_PUT, _FAMILY_PUT)
_PAIRS = (*_PUTS, _FAMILY_DELETE_RANGE, _DELETE_RANGE)
_WITH_FAMILY = (_FAMILY_DELETE, _FAMILY_PUT, _FAMILY_DELETE_RANGE)
_WITHOUT_FAMILY = (_DELETE, _PUT, _DATA, _NOTHING, _DELETE_RANGE)
"""The kinds of a batch's entries that are written here or by RocksDB itself."""
_EDIT_FAMILY, _EDIT_ADDS_FAMILY, _EDIT_DROPS_FAMILY, _EDIT_LARGEST_FAMILY = 200, 201, 202, 203
_EDIT_LOGS = (2, 10)
"""The oldest log that a family needs, and the oldest one that any needs."""
_EDIT_NUMBERS = (*_EDIT_LOGS, 3, 4, 9, _EDIT_FAMILY, _EDIT_LARGEST_FAMILY)
"""Fields of a MANIFEST's records that are one number: of logs, files and entries, and of column families."""
_EDIT_TEXTS = (1, _EDIT_ADDS_FAMILY)
_EDIT_IGNORABLE = 1 << 13
"""The bit of fields that older releases of RocksDB can skip."""
_KEY, _VALUE = itemgetter(0), itemgetter(1)
_KEPT_NUMBERS = 1 << 14
"""The encodings of smaller numbers are kept."""


class _Encoded(dict[int, bytes]):
    """By number: what comes before it, and its encoding of variable length."""

    def __init__(self, before: bytes = b"") -> None:
        self._before = before

    def __missing__(self, number: int) -> bytes:
        encoded, rest = bytearray(self._before), number
        while rest > 127:
            encoded.append(rest & 127 | 128)
            rest >>= 7
        encoded.append(rest)
        if number < _KEPT_NUMBERS:
            self[number] = bytes(encoded)
        return bytes(encoded)


_NUMBERS = _Encoded()


def batch_of(sequence: int, family: int, entries: Sequence[Entry]) -> bytes:
    """Return a batch of entries of one column family, of which the first one has this sequence number."""
    put, delete = _heads(_FAMILY_PUT, family), _heads(_FAMILY_DELETE, family)
    values = [*map(_VALUE, entries)]
    pieces: Iterable[Iterable[bytes]]
    if None in values:
        pieces = (
            (delete[len(key)], key) if value is None else (put[len(key)], key, _NUMBERS[len(value)], value)
            for key, value in entries
        )
    else:
        # The same without a step of Python for each entry.
        keys = [*map(_KEY, entries)]
        before, between = map(put.__getitem__, map(len, keys)), map(_NUMBERS.__getitem__, map(len, values))
        pieces = zip(before, keys, between, values, strict=True)
    return _BATCH_HEADER.pack(sequence, len(entries)) + b"".join(chain.from_iterable(pieces))


@cache
def _heads(kind: int, family: int) -> _Encoded:
    """Return by size what comes before a key of a column family."""
    return _Encoded(bytes((kind,)) + _NUMBERS[family])


def framed(batch: bytes, at: int) -> Iterator[bytes]:
    """Yield the records of a batch, with their headers, for a log of `at` bytes."""
    start, size_bytes, has_begun = 0, len(batch), False
    while True:
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < _RECORD.size:
            yield bytes(left)
            at, left = at + left, BLOCK_BYTES
        end = min(size_bytes, start + left - _RECORD.size)
        if end == size_bytes:
            kind = LAST if has_begun else WHOLE
        else:
            kind = MIDDLE if has_begun else FIRST
        payload = batch[start:end]
        yield _RECORD.pack(_masked_crc(bytes((kind,)) + payload), end - start, kind)
        yield payload
        at, start, has_begun = at + _RECORD.size + end - start, end, True
        if end == size_bytes:
            return


def records(data: bytes, start: int) -> Iterator[tuple[int, int, int]]:
    """Yield the kind of each record in `data`, bytes of a log from byte `start` on, and where its payload lies there.

    Records are whole, or in parts. It ends with a damaged one, if there is one.
    """
    at = 0
    while at < len(data):
        left = BLOCK_BYTES - (start + at) % BLOCK_BYTES
        if left < _RECORD.size:
            at += left
            continue
        header = data[at : at + _RECORD.size].ljust(_RECORD.size, b"\0")
        checksum, size, kind = _RECORD.unpack(header)
        first, end = at + _RECORD.size, at + _RECORD.size + size
        is_whole = kind in _KINDS and end <= min(at + left, len(data))
        if not is_whole or _masked_crc(data[at + _CHECKED_FROM : end]) != checksum:
            yield DAMAGED, at, at
            return
        yield kind, first, end
        at = end


def _masked_crc(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


class BatchReader:
    """Reads which entries the batches of a log have, piece by piece, up to a damaged one.

    A piece begins at a record or a block.
    """

    def __init__(self, at: int) -> None:
        self._at = at
        self._head = b""
        self._is_damaged = False

    def read(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield the first sequence number and the count of each batch that ends in the next piece."""
        for kind, first, end in records(data, self._at):
            self._is_damaged |= kind == DAMAGED
            if self._is_damaged:
                return
            if kind in (WHOLE, FIRST):
                self._head = b""
            lacking = _BATCH_HEADER.size - len(self._head)
            self._head += data[first : min(end, first + lacking)]
            if kind in (WHOLE, LAST) and len(self._head) == _BATCH_HEADER.size:
                number, count = _BATCH_HEADER.unpack(self._head)
                yield number, count
        self._at += len(data)


def checked(pieces: Iterable[bytes], at: int, where: str) -> Iterator[bytes]:
    """Yield pieces of a log from byte `at` on; raise CorruptionError if a record in them is damaged."""
    for data in pieces:
        for kind, first, _ in records(data, at):
            if kind == DAMAGED:
                raise _damage(where, at + first)
        at += len(data)
        yield data


def batches(pieces: Iterable[bytes], at: int, where: str) -> Iterator[bytes]:
    """Yield the batches of a log that is given from byte `at` on, in pieces that begin at a record or a block.

    The end of a batch that began before `at` is left out. Raises CorruptionError if a record is damaged.
    """
    parts: list[bytes] = []
    is_inside = at > 0
    for data in pieces:
        for kind, first, end in records(data, at):
            is_inside &= kind in (MIDDLE, LAST)
            if is_inside:
                continue
            if kind == DAMAGED or bool(parts) != (kind in (MIDDLE, LAST)):
                raise _damage(where, at + first)
            parts.append(data[first:end])
            if kind in (WHOLE, LAST):
                yield b"".join(parts)
                parts.clear()
        at += len(data)


def _damage(where: str, at: int) -> CorruptionError:
    return CorruptionError(f"{where}: RocksDB's log is damaged at byte {at}", hint=LOST_HINT)


def puts_of(batch: bytes) -> dict[int, list[tuple[bytes, bytes]]]:
    """Return the keys with their values that a batch writes, by the number of the column family."""
    puts: dict[int, list[tuple[bytes, bytes]]] = {}
    at, end = _BATCH_HEADER.size, len(batch)
    while at < end:
        tag = batch[at]
        at += 1
        family = 0
        if tag in _WITH_FAMILY:
            family, at = _number(batch, at)
        elif tag not in _WITHOUT_FAMILY:
            raise CorruptionError(f"a log of RocksDB has an entry of the unknown kind {tag}")
        if tag == _NOTHING:
            continue
        size, at = _number(batch, at)
        key = batch[at : at + size]
        at += size
        if tag in _PAIRS:
            size, at = _number(batch, at)
            if tag in _PUTS:
                puts.setdefault(family, []).append((key, batch[at : at + size]))
            at += size
    return puts


@dataclass(frozen=True, slots=True)
class Families:
    """The numbers of a database's column families by name: logs have the numbers alone."""

    names: dict[str, int]
    largest: int
    """The largest number that a family ever had."""
    first_log: int
    """RocksDB repeats no older logs than this."""

    @classmethod
    def of(cls, manifest: Path) -> Families:
        """Read a MANIFEST. RocksDB may be writing its end."""
        names: dict[int, str] = {}
        largest = first_log = 0
        for edit in _edits(manifest.read_bytes()):
            family = at = 0
            while at < len(edit):
                tag, at = _number(edit, at)
                if tag in _EDIT_NUMBERS:
                    number, at = _number(edit, at)
                    family = number if tag == _EDIT_FAMILY else family
                    largest = max(largest, number) if tag == _EDIT_LARGEST_FAMILY else largest
                    first_log = max(first_log, number) if tag in _EDIT_LOGS else first_log
                elif tag in _EDIT_TEXTS or tag & _EDIT_IGNORABLE:
                    size, at = _number(edit, at)
                    if tag == _EDIT_ADDS_FAMILY:
                        names[family] = edit[at : at + size].decode()
                    at += size
                elif tag == _EDIT_DROPS_FAMILY:
                    names.pop(family, None)
                else:
                    # Files: what adds and drops families has none.
                    break
        names.pop(0, None)
        return cls({name: number for number, name in names.items()}, max(largest, *names, 0), first_log)


def _edits(data: bytes) -> Iterator[bytes]:
    """Yield the whole records of a MANIFEST. RocksDB may be writing the last one."""
    parts = []
    for kind, first, end in records(data, 0):
        parts.append(data[first:end])
        if kind in (WHOLE, LAST):
            yield b"".join(parts)
            parts.clear()


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of variable length at `at`, and where it ends."""
    number = data[at]
    if number < 128:
        return number, at + 1
    number &= 127
    shift = 7
    while True:
        at += 1
        byte = data[at]
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at + 1
        shift += 7
