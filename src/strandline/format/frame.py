"""The frame around every durable file: magic, version, length, payload, checksum."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from strandline.core.decoding import decodable
from strandline.core.errors import CorruptionError

_HEADER = struct.Struct("<8sIQ")
_CHECKSUM_BYTES = 32

R = TypeVar("R", bound=msgspec.Struct)


def frame(magic: bytes, version: int, payload: bytes) -> bytes:
    """Return `magic ‖ version ‖ length ‖ payload ‖ sha256 of all before`."""
    body = _HEADER.pack(magic, version, len(payload)) + payload
    return body + hashlib.sha256(body).digest()


def unframe(data: bytes, magic: bytes, version: int, where: str) -> bytes:
    """Return the payload; raise CorruptionError naming `where` if any part is not as expected."""
    if len(data) < _HEADER.size + _CHECKSUM_BYTES:
        raise CorruptionError(f"{where}: {len(data)} bytes are too few for a file of this kind: it was cut off")
    actual_magic, actual_version, length = _HEADER.unpack_from(data)
    if actual_magic != magic:
        raise CorruptionError(f"{where}: begins with {actual_magic!r}, expected {magic!r}: not a file of this kind")
    if len(data) != _HEADER.size + length + _CHECKSUM_BYTES:
        raise CorruptionError(
            f"{where}: holds {len(data)} bytes, expected {_HEADER.size + length + _CHECKSUM_BYTES}: it was cut off"
        )
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if hashlib.sha256(body).digest() != checksum:
        raise CorruptionError(f"{where}: its checksum does not match: it was damaged")
    if actual_version != version:
        raise CorruptionError(
            f"{where}: format version {actual_version}, this release reads {version}",
            hint="read it with a newer release of strandline",
        )
    return body[_HEADER.size :]


@dataclass(frozen=True)
class RecordFormat(Generic[R]):
    """A kind of framed JSON file, which holds one record; errors call it `what`."""

    magic: bytes
    version: int
    kind: type[R]
    what: str
    check: Callable[[R], str] = lambda record: ""
    """Returns the part of a decoded record that this release cannot read; empty: it can read all."""

    def __post_init__(self) -> None:
        decodable(self.kind)

    def encode(self, record: R) -> bytes:
        """Return the bytes of a record's file."""
        return frame(self.magic, self.version, msgspec.json.encode(record))

    def decode(self, data: bytes, where: str) -> R:
        """Read a file; raise CorruptionError naming `where` unless every byte is as written."""
        payload = unframe(data, self.magic, self.version, where)
        try:
            record = msgspec.json.decode(payload, type=self.kind)
        except msgspec.MsgspecError as error:
            raise CorruptionError(f"{where}: {self.what} does not have the expected fields: {error}") from error
        if problem := self.check(record):
            raise CorruptionError(
                f"{where}: {self.what} says what this release cannot read: {problem}",
                hint="read it with the release that wrote it, or make it anew if that is this one; nothing was touched",
            )
        return record
