"""What no client of Kafka does, said to a broker in its own words: a transaction that hangs.

Rows and a group's offset are written in the name of a producer that has told its coordinator of neither. So the broker has
a transaction open there that nothing ends, as after a restart at which it lost what its partitions had to be told.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_PRODUCE, _INIT_PRODUCER_ID, _TXN_OFFSET_COMMIT = 0, 22, 28
_TRANSACTIONAL = 0x10


@dataclass
class HangingProducer:
    """Takes a transactional id; what it writes hangs until the same id ends it."""

    servers: str
    name: str

    def __post_init__(self) -> None:
        asked = _text(self.name) + struct.pack(">i", 60_000)
        _, error, self._id, self._epoch = struct.unpack(">ihqh", self._ask(_INIT_PRODUCER_ID, 0, asked))
        assert error == 0, error

    def produce(self, topic: str, partition: int, values: Sequence[bytes], key: bytes = b"k") -> int:
        """Write rows with a header; return where the first is."""
        batch = self._batch(key, values)
        asked = _text(self.name) + struct.pack(">hi", -1, 10_000)
        asked += struct.pack(">i", 1) + _text(topic) + struct.pack(">iii", 1, partition, len(batch)) + batch
        answer = self._ask(_PRODUCE, 3, asked)
        _, error, offset = struct.unpack_from(">ihq", answer, 4 + 2 + len(topic.encode()) + 4)
        assert error == 0, error
        return int(offset)

    def commit_offset(self, group: str, topic: str, metadata: str) -> None:
        """Have a group say of partition 0 what nobody will know the end of."""
        asked = _text(self.name) + _text(group) + struct.pack(">qh", self._id, self._epoch)
        asked += struct.pack(">i", 1) + _text(topic) + struct.pack(">iiq", 1, 0, 0) + _text(metadata)
        answer = self._ask(_TXN_OFFSET_COMMIT, 0, asked)
        (error,) = struct.unpack_from(">h", answer, len(answer) - 2)
        assert error == 0, error

    def _batch(self, key: bytes, values: Sequence[bytes]) -> bytes:
        records = b"".join(_record(at, key, value) for at, value in enumerate(values))
        checked = struct.pack(
            ">hiqqqhii", _TRANSACTIONAL, len(values) - 1, 1_000, 1_000, self._id, self._epoch, 0, len(values)
        )  # fmt: skip
        checked += records
        body = struct.pack(">ibI", -1, 2, _crc32c(checked)) + checked
        return struct.pack(">qi", 0, len(body)) + body

    def _ask(self, what: int, version: int, body: bytes) -> bytes:
        host, _, port = self.servers.partition(":")
        request = struct.pack(">hhi", what, version, 7) + _text("tests") + body
        with socket.create_connection((host, int(port)), 10) as connection, connection.makefile("rwb") as stream:
            stream.write(struct.pack(">i", len(request)) + request)
            stream.flush()
            (size,) = struct.unpack(">i", stream.read(4))
            answer: bytes = stream.read(size)
        assert struct.unpack_from(">i", answer) == (7,)
        return answer[4:]


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _record(at: int, key: bytes, value: bytes) -> bytes:
    body = b"\0" + _number(0) + _number(at) + _number(len(key)) + key + _number(len(value)) + value
    body += _number(1) + _number(1) + b"h" + _number(2) + b"it"
    return _number(len(body)) + body


def _number(number: int) -> bytes:
    """As Protocol Buffers have signed ones."""
    left, found = (number << 1) ^ (number >> 63), b""
    while left > 0x7F:
        found += bytes([left & 0x7F | 0x80])
        left >>= 7
    return found + bytes([left])


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
