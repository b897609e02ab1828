"""What a Spark task and a keeper say to each other over a Unix socket: frames of a kind and a payload.

A conversation about an epoch: BEGIN → (NEED_PROGRAM → PROGRAM →) READY → ROWS… END → OUTPUT… ACK. END says that all
rows have come, and which. Instead of READY a keeper that has applied the epoch already says REPLAY, gets END alone, and
sends the kept output and ack if the rows are those that it has applied. A keeper that cannot go on says FAILED at any
time. Rows flow both ways at once. Control conversations are one POLL, PING or STOP and one
ACK; a PING is answered at once, whatever the keeper is doing. So is a LOOKUP, with FOUND.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from strandline.core.decoding import decodable
from strandline.core.errors import KeeperError
from strandline.core.failure import Failure, from_failure
from strandline.core.ids import CheckpointId, Epoch, Generation, Partition
from strandline.format.manifest import PartitionInfo
from strandline.runtime.state.lookups import LookupEntries, LookupRequest

_HEADER = struct.Struct("<BQ")
_SOCKET_BUFFER_BYTES = 4 << 20

BEGIN: Final = 1
NEED_PROGRAM: Final = 2
PROGRAM: Final = 3
READY: Final = 4
REPLAY: Final = 5
ROWS: Final = 6
END: Final = 7
OUTPUT: Final = 8
ACK: Final = 9
FAILED: Final = 10
POLL: Final = 11
STOP: Final = 12
PING: Final = 13
LOOKUP: Final = 14
FOUND: Final = 15


@decodable
class Instructions(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver tells keepers with every epoch and poll."""

    generation: Generation
    epoch: Epoch
    """The epoch to process; in a poll, the epoch the keeper is expected to have applied."""
    trigger: CheckpointId | None = None
    """The checkpoint to take once the epoch is applied."""
    confirmed: CheckpointId | None = None
    """The newest published checkpoint of this run."""
    pending: CheckpointId | None = None
    """The checkpoint that is being taken; uploads for any other are given up."""
    watermark_us: int | None = None
    """The watermark when the epoch begins: event-time timers up to it are due."""
    fired_us: int | None = None
    """The watermark of the epoch before: timers up to it have fired."""
    now_us: int = 0
    """The clock when the epoch begins: processing-time timers up to it are due."""
    forget: bool = False
    """When stopping: remove the local copies too, because the job will not be restored on this machine soon."""


@decodable
class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """The start of an epoch's conversation."""

    instructions: Instructions
    schema: bytes


@decodable
class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """Keys that somebody wants to see."""

    generation: Generation
    asked: LookupRequest


@decodable
class LookupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a keeper has of them."""

    keeper: str
    """As in its acks."""
    answered: LookupEntries


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How a partition's snapshot for a checkpoint ended."""

    checkpoint: CheckpointId
    info: PartitionInfo | None = None
    failure: str = ""


@decodable
class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """What a keeper tells the driver after an epoch or a poll."""

    uid: str
    partition: Partition
    epoch: Epoch
    pid: int
    host: str
    keeper: str
    """A name that no other process has or had."""
    rows_in: int = 0
    source_rows: int = 0
    """Rows of the stream that stand behind `rows_in`, where Spark has aggregated them before; else 0."""
    rows_out: int = 0
    process_ms: float = 0.0
    pause_ms: float = 0.0
    """How long a checkpoint's synchronous part held the epoch up."""
    restore_ms: float = 0.0
    newest_us: dict[str, int] = {}
    """The newest event times of the epoch, by whose watermark they move."""
    late_rows: int = 0
    failed_events: int = 0
    """Events of the epoch that the function failed for, and that did not end the job."""
    findings: list[str] = []
    """Likely mistakes of the function that the epoch has shown."""
    next_event_us: int | None = None
    """No event-time timer is pending before this time; None: there is none."""
    next_processing_us: int | None = None
    reports: list[Report] = []
    metrics: dict[str, int] = {}


class Connection:
    """A framed, buffered Unix-socket connection. One thread may send while another receives."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        self._sock = sock
        peer = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self.peer_pid, self.peer_uid = peer[:2]
        """The process at the other end, and its user: of one that listens, when it began to."""
        self.heard = False
        """Whether a whole frame has come from the other side."""
        self.is_broken = False
        """Whether it ended before the conversation did: nobody has said why."""

    def check_peer(self, where: Path) -> None:
        """Close and raise KeeperError if the other side is another user's: programs and state go there."""
        if self.peer_uid != os.geteuid():
            self.close()
            raise KeeperError(
                f"{where}: process {self.peer_pid} of user {self.peer_uid} is at the other end, expected our own user "
                f"{os.geteuid()}",
                hint="give a local_dir in Settings below which no other user can write",
            )

    def send(self, kind: int, payload: Any = b"") -> None:
        """Send one frame; `payload` is bytes, a buffer or a message."""
        data = memoryview(msgspec.msgpack.encode(payload) if isinstance(payload, msgspec.Struct) else payload)
        header = _HEADER.pack(kind, data.nbytes)
        if data.nbytes < 65536:
            self._sock.sendall(header + bytes(data))
        else:
            self._sock.sendall(header)
            self._sock.sendall(data)

    def is_coming(self, timeout_s: float) -> bool:
        """Wait so long for something to come from the other side, or for its end; return whether it did."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def receive(self) -> tuple[int, pa.Buffer]:
        """Receive one frame; raise KeeperError when the other side has gone."""
        kind, length = _HEADER.unpack(self._exactly(_HEADER.size))
        payload = self._exactly(length)
        self.heard = True
        return kind, payload

    def expect(self, *kinds: int) -> tuple[int, pa.Buffer]:
        """Receive a frame of one of these kinds; raise the error that a FAILED frame carries."""
        kind, payload = self.receive()
        if kind == FAILED:
            raise from_failure(msgspec.msgpack.decode(payload, type=Failure))
        if kind not in kinds:
            raise KeeperError(f"frame {kind} was received, expected one of {kinds}: the two sides do not fit together")
        return kind, payload

    def close(self) -> None:
        """Close at once, whatever is under way."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()

    def _exactly(self, length: int) -> pa.Buffer:
        buffer = pa.allocate_buffer(length)
        view = memoryview(buffer).cast("B") if length else memoryview(b"")
        at = 0
        while at < length:
            try:
                got = self._sock.recv_into(view[at:])
            except OSError as error:
                self.is_broken = True
                raise KeeperError(f"the connection broke: {error}") from error
            if not got:
                self.is_broken = True
                raise KeeperError("the connection was closed in the middle of an epoch")
            at += got
        return buffer
