"""What a driver and those who ask it something say to each other: JSON, a line each, over a Unix socket.

The driver says Hello to whoever connects. It is sent one Request, and answers with any number of Progress lines and a
Result or a Refused, which is the last. While it works on a request, no second goes by for long without a line.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any, Final

import msgspec

from strandline.core.decoding import decodable
from strandline.core.errors import ConfigurationError
from strandline.core.failure import Failure
from strandline.core.version import VERSION

MOST_REQUEST_BYTES: Final = 1 << 20
MOST_ANSWER_BYTES: Final = 64 << 20

_CREDENTIALS = struct.Struct("3i")


@decodable
class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers here. Of an engine of another version, only that is certain."""

    engine: str
    job: str = ""
    directory: str = ""
    """The checkpoint directory, as a url."""
    pid: int = 0
    since_ms: int = 0
    """When the run began."""


@decodable
class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    command: str
    engine: str = VERSION
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


@decodable
class ProgressMessage(msgspec.Struct, frozen=True, tag="progress"):
    """How far a request is. Without a total, that is not known."""

    step: str = ""
    done: int = 0
    total: int = 0
    unit: str = ""


@decodable
class Result(msgspec.Struct, frozen=True, tag="result"):
    """What came of a request."""

    value: msgspec.Raw


@decodable
class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Why nothing came of it."""

    failure: Failure


Answer = ProgressMessage | Result | Refused


def line(message: msgspec.Struct) -> bytes:
    """Return a message as it is sent."""
    return msgspec.json.encode(message) + b"\n"


def raw(value: Any) -> msgspec.Raw:
    """Return what stands in a message as it is, to be understood by who knows its type."""
    return msgspec.Raw(msgspec.json.encode(value))


def peer(sock: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end: of one that listens, as they were when it began to."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def is_our_user(sock: socket.socket) -> bool:
    """Whether our own user is at the other end; nobody else is spoken to, the superuser included."""
    return peer(sock)[1] == os.geteuid()


def version_error(client: str, driver: str) -> ConfigurationError:
    """Return the error of two sides that may not understand each other."""
    return ConfigurationError(
        f"the job's driver is Strandline {driver}, and this is Strandline {client}",
        hint="use the `strandline` command of the environment that the job runs in",
    )
