"""Protocol between Spark tasks and keepers over a Unix socket: frames of a kind and a payload.

An epoch: BEGIN → (NEED_PROGRAM → PROGRAM →) READY → ROWS… END → OUTPUT… ACK. END carries the proof of all rows. A
keeper that has applied the epoch already sends REPLAY instead of READY, gets END alone, and sends the kept output and
ack if the proof is the one of the rows that it applied. A keeper that cannot continue sends FAILED at any time. Rows
flow both ways at once. POLL, PING and STOP each get an ACK, LOOKUP and PROFILE an answer of their own. A keeper answers
PING, LOOKUP and PROFILE in the middle of an epoch, too.
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
from strandline.core.heavykey import HeavyKey
from strandline.core.ids import CheckpointId, Epoch, Generation, Partition
from strandline.format.manifest import PartitionInfo
from strandline.keeper.sampling import Samples
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
LOOKUP_ANSWER: Final = 15
PROFILE: Final = 16
PROFILE_ANSWER: Final = 17


@decodable
class Instructions(msgspec.Struct, frozen=True, kw_only=True):
    """The driver's instructions for keepers in each epoch and poll."""

    generation: Generation
    epoch: Epoch
    """The epoch to process; in a poll, the epoch the keeper is expected to have applied."""
    trigger: CheckpointId | None = None
    """The checkpoint to take once the epoch is applied."""
    confirmed: CheckpointId | None = None
    """The newest published checkpoint of this run."""
    in_flight: list[CheckpointId] = []
    """The checkpoints in progress; keepers cancel uploads for all others."""
    watermark_us: int | None = None
    """The watermark when the epoch begins: event-time timers up to it are due."""
    fired_us: int | None = None
    """The watermark of the epoch before: timers up to it have fired."""
    now_us: int = 0
    """The clock when the epoch begins: processing-time timers up to it are due."""
    resume: bool = False
    """In a poll: a keeper that starts goes on with the state of one that has died on this machine at `epoch`; others
    may have applied the next epoch, which will come again."""
    forget: bool = False
    """In a stop: remove the local copies too, because the job will not restart on this machine soon."""


@decodable
class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of an epoch."""

    instructions: Instructions
    schema: bytes


@decodable
class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """A request to look up keys."""

    generation: Generation
    request: LookupRequest


@decodable
class LookupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A keeper's answer to a look-up."""

    keeper: str
    """As in its acks."""
    entries: LookupEntries


@decodable
class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A request to begin to take samples of what the keeper does or, without `seconds`, to end that and return them."""

    seconds: float | None = None


@decodable
class ProfileAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A keeper's answer to a request for samples."""

    keeper: str
    """As in its acks."""
    samples: Samples | None = None
    """None if it has just begun, or has none: it may have started since."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a partition's snapshot for a checkpoint."""

    checkpoint: CheckpointId
    info: PartitionInfo | None = None
    failure: str = ""


class StandbyState(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a standby of a partition."""

    uid: str
    partition: Partition
    host: str
    checkpoint: CheckpointId | None = None
    """The newest checkpoint of which it has all files; None before the first."""
    total_bytes: int = 0
    """The size of these files."""
    downloaded_bytes: int = 0
    """Since the keeper began."""
    cpu_ms: float = 0.0
    """The processor time of that."""
    failure: str = ""
    """The reason why it does not go on; it tries again."""


@decodable
class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """A keeper's report to the driver after an epoch or a poll."""

    uid: str
    partition: Partition
    epoch: Epoch
    pid: int
    host: str
    keeper: str
    """The unique name of the process."""
    follows: str = ""
    """The name of the keeper that died, with whose state this one went on."""
    rows_in: int = 0
    source_rows: int = 0
    """Rows of the stream that Spark aggregated into `rows_in`; 0 if it did not."""
    rows_out: int = 0
    process_ms: float = 0.0
    wait_ms: float = 0.0
    """The part of `process_ms` in which it waited for rows from Spark."""
    pause_ms: float = 0.0
    """How long a checkpoint's synchronous part delayed the epoch."""
    restore_ms: float = 0.0
    newest_us: dict[str, int] = {}
    """The newest event times of the epoch, by origin."""
    late_rows: int = 0
    failed_events: int = 0
    """Events of the epoch that the function failed for without ending the job."""
    findings: list[str] = []
    """Likely mistakes of the function, detected in the epoch."""
    next_event_us: int | None = None
    """The time before which no event-time timer is pending; None if there is none."""
    next_processing_us: int | None = None
    reports: list[Report] = []
    standbys: list[StandbyState] = []
    """The standbys that the keeper has."""
    recent_rows: float = 0.0
    heaviest_keys: list[HeavyKey] = []
    """The keys with most of the recent rows. They are values of the user's: they may not get into a log."""
    metrics: dict[str, int] = {}


class Connection:
    """A framed, buffered Unix-socket connection. One thread may send while another receives."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        self._sock = sock
        peer = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self.peer_pid, self.peer_uid = peer[:2]
        """The process at the other end, and its user; for a listener, those that called listen()."""
        self.has_received = False
        """Whether a whole frame has come from the other side."""
        self.is_broken = False
        """Whether the other side closed it without a FAILED frame."""

    def check_peer(self, where: Path) -> None:
        """Close and raise KeeperError if the other side is another user's: it gets programs and state."""
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

    def wait(self, timeout_s: float) -> bool:
        """Wait for data or for the end of the connection; return False after the time-out."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def receive(self) -> tuple[int, pa.Buffer]:
        """Receive one frame; raise KeeperError when the other side has gone."""
        kind, length = _HEADER.unpack(self._receive_exactly(_HEADER.size))
        payload = self._receive_exactly(length)
        self.has_received = True
        return kind, payload

    def expect(self, *kinds: int) -> tuple[int, pa.Buffer]:
        """Receive a frame of one of these kinds; raise the error that a FAILED frame carries."""
        kind, payload = self.receive()
        if kind == FAILED:
            raise from_failure(msgspec.msgpack.decode(payload, type=Failure))
        if kind not in kinds:
            raise KeeperError(f"frame {kind} was received, expected one of {kinds}: an unexpected message")
        return kind, payload

    def close(self) -> None:
        """Close at once, even while another thread sends or receives."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()

    def _receive_exactly(self, length: int) -> pa.Buffer:
        buffer = pa.allocate_buffer(length)
        view = memoryview(buffer).cast("B") if length else memoryview(b"")
        at = 0
        while at < length:
            try:
                size = self._sock.recv_into(view[at:])
            except OSError as error:
                self.is_broken = True
                raise KeeperError(f"the connection broke: {error}") from error
            if not size:
                self.is_broken = True
                raise KeeperError("the connection was closed in the middle of an epoch")
            at += size
        return buffer
