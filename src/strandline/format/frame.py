"""The frame around every durable file: magic, version, length, payload, checksum."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from strandline.core.errors import CorruptionError

_HEADER = struct.Struct("<8sIQ")
_CHECKSUM_BYTES = 32

R = TypeVar("R", bound=msgspec.Struct)


def frame(magic: bytes, version: int, payload: bytes) -> bytes:
    """Return `magic ‖ version ‖ length ‖ payload ‖ sha256 of all before`."""
    body = _HEADER.pack(magic, version, len(payload)) + payload
    return body + hashlib.sha256(body).digest()


def unframe(data: bytes, magic: bytes, versions: Sequence[int], where: str) -> tuple[int, bytes]:
    """Return version and payload; raise CorruptionError naming `where` if anything is off."""
    if len(data) < _HEADER.size + _CHECKSUM_BYTES:
        raise CorruptionError(f"{where}: {len(data)} bytes are too few for a file of this kind: it was cut off")
    found_magic, version, length = _HEADER.unpack_from(data)
    if found_magic != magic:
        raise CorruptionError(f"{where}: begins with {found_magic!r}, expected {magic!r}: not a file of this kind")
    if len(data) != _HEADER.size + length + _CHECKSUM_BYTES:
        raise CorruptionError(
            f"{where}: holds {len(data)} bytes, expected {_HEADER.size + length + _CHECKSUM_BYTES}: it was cut off"
        )
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if hashlib.sha256(body).digest() != checksum:
        raise CorruptionError(f"{where}: its checksum does not match: it was damaged")
    if version not in versions:
        raise CorruptionError(
            f"{where}: format version {version}, this release reads {', '.join(map(str, versions))}",
            hint="read it with a newer release of strandline",
        )
    return version, body[_HEADER.size :]


def frame_record(magic: bytes, version: int, record: msgspec.Struct) -> bytes:
    """Return a record as a framed JSON file."""
    return frame(magic, version, msgspec.json.encode(record))


def unframe_record(data: bytes, magic: bytes, version: int, kind: type[R], what: str, where: str) -> R:
    """Read a framed JSON file; raise CorruptionError naming `where`, and `what` it is, if anything is off."""
    _, payload = unframe(data, magic, (version,), where)
    try:
        return msgspec.json.decode(payload, type=kind)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"{where}: {what} does not have the expected fields: {error}") from error
