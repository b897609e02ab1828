"""The heap file: a whole partition's state in one streamed file. Described in docs/format.md.

`header ‖ block …`, where the header is `magic ‖ version ‖ crc32` and a block is
`kind ‖ index ‖ length ‖ payload ‖ crc32 of all before in the block`, numbers little-endian. A state begins with a
block of its name, and blocks of its entries in key order follow; the last block counts the entries.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from strandline.core.errors import CorruptionError

HEAP_MAGIC = b"SLHEAPS1"
HEAP_VERSION = 1

_HEADER = struct.Struct("<8sI")
_BLOCK = struct.Struct("<BII")
_ENTRY = struct.Struct("<II")
_COUNT = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_BLOCK_BYTES = 256 << 10

_STATE, _ENTRIES, _END = 1, 2, 3

State = tuple[str, Iterable[tuple[bytes, bytes]]]


def write_heap(file: BinaryIO, states: Iterable[State]) -> None:
    """Write states, each a name and its entries in key order, with one block in memory at a time."""
    _checked(file, _HEADER.pack(HEAP_MAGIC, HEAP_VERSION))
    index = count = 0
    for name, entries in states:
        _block(file, _STATE, index, name.encode())
        index += 1
        for pieces in _filled(entries):
            _block(file, _ENTRIES, index, b"".join(pieces))
            index += 1
            count += len(pieces) // 3
    _block(file, _END, index, _COUNT.pack(count))


def _filled(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[list[bytes]]:
    """Group entries into the pieces of blocks: lengths, key and value of each entry."""
    pieces: list[bytes] = []
    size_bytes = 0
    for key, value in entries:
        pieces += (_ENTRY.pack(len(key), len(value)), key, value)
        size_bytes += _ENTRY.size + len(key) + len(value)
        if size_bytes >= _BLOCK_BYTES:
            yield pieces
            pieces, size_bytes = [], 0
    if pieces:
        yield pieces


def _block(file: BinaryIO, kind: int, index: int, payload: bytes) -> None:
    _checked(file, _BLOCK.pack(kind, index, len(payload)), payload)


def _checked(file: BinaryIO, head: bytes, payload: bytes = b"") -> None:
    file.write(head)
    file.write(payload)
    file.write(_CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(head))))


def read_heap(file: BinaryIO, where: str) -> Iterator[tuple[str, list[tuple[bytes, bytes]]]]:
    """Read a heap file block by block: yield (state, entries), and (state, []) where a state begins.

    Raises CorruptionError naming `where` unless every byte up to the end of the file is as written; entries from before
    the error may be wrong.
    """
    size_bytes = os.fstat(file.fileno()).st_size
    _read_header(file, where)
    state: str | None = None
    count = 0
    for kind, payload in _read_blocks(file, size_bytes, where):
        if kind == _STATE:
            state = payload.decode()
            yield state, []
        elif kind == _ENTRIES and state is not None:
            entries = _entries(payload, where)
            count += len(entries)
            yield state, entries
        elif payload != _COUNT.pack(count):
            raise CorruptionError(f"{where}: holds {count} entries, its end says otherwise: it was damaged")


def _read_header(file: BinaryIO, where: str) -> None:
    head = file.read(_HEADER.size)
    checksum = file.read(_CHECKSUM.size)
    if len(head) < _HEADER.size or len(checksum) < _CHECKSUM.size:
        raise CorruptionError(f"{where}: too short for a heap file: it was cut off")
    magic, version = _HEADER.unpack(head)
    if magic != HEAP_MAGIC:
        raise CorruptionError(f"{where}: begins with {magic!r}, expected {HEAP_MAGIC!r}: not a heap file")
    if _CHECKSUM.pack(zlib.crc32(head)) != checksum:
        raise CorruptionError(f"{where}: the checksum of its header does not match: it was damaged")
    if version != HEAP_VERSION:
        raise CorruptionError(
            f"{where}: heap file version {version}, this release reads {HEAP_VERSION}",
            hint="read it with a newer release of strandline",
        )


def _read_blocks(file: BinaryIO, size_bytes: int, where: str) -> Iterator[tuple[int, bytes]]:
    """Yield each block's kind and payload, once it is checked; the end block is the last."""
    index = 0
    while True:
        at = file.tell()
        head = file.read(_BLOCK.size)
        if len(head) < _BLOCK.size:
            raise CorruptionError(f"{where}: ends at byte {at} without an end block: it was cut off")
        kind, actual_index, length = _BLOCK.unpack(head)
        if length + _CHECKSUM.size > size_bytes - at - _BLOCK.size:
            raise CorruptionError(f"{where}: block {index} at byte {at} reaches beyond the end: cut off or damaged")
        payload = file.read(length)
        checksum = file.read(_CHECKSUM.size)
        if _CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(head))) != checksum:
            raise CorruptionError(f"{where}: the checksum of block {index} at byte {at} does not match: it was damaged")
        if actual_index != index or kind not in (_STATE, _ENTRIES, _END):
            raise CorruptionError(f"{where}: found block {actual_index} of kind {kind}, expected block {index}")
        yield kind, payload
        if kind == _END:
            break
        index += 1
    if file.read(1):
        raise CorruptionError(f"{where}: goes on after its end block: it was damaged")


def _entries(payload: bytes, where: str) -> list[tuple[bytes, bytes]]:
    entries: list[tuple[bytes, bytes]] = []
    at, end = 0, len(payload)
    try:
        while at < end:
            key_bytes, value_bytes = _ENTRY.unpack_from(payload, at)
            value_at = at + _ENTRY.size + key_bytes
            at = value_at + value_bytes
            entries.append((payload[value_at - key_bytes : value_at], payload[value_at:at]))
    except struct.error:
        at = -1
    if at != end:
        raise CorruptionError(f"{where}: a block's entries do not fill it: it was damaged")
    return entries
