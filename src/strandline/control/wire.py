"""The protocol between a driver and its clients: JSON messages, one on each line, over a Unix socket.

The driver sends Hello to each client that connects. The client sends one Request. The driver answers with any number
of ProgressMessages, and at last a Result or a Refusal. While it works on a request, it sends a line about each second.
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

MAX_REQUEST_BYTES: Final = 1 << 20
MAX_ANSWER_BYTES: Final = 64 << 20

_CREDENTIALS = struct.Struct("3i")


@decodable
class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a driver. If its engine has another version, only `engine` is certain."""

    engine: str
    job: str = ""
    directory: str = ""
    """The checkpoint directory, as a url."""
    pid: int = 0
    since_ms: int = 0
    """When the run began."""


@decodable
class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A command with its arguments."""

    command: str
    engine: str = VERSION
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


@decodable
class ProgressMessage(msgspec.Struct, frozen=True, tag="progress"):
    """The progress of a request; without a total if the total is not known."""

    step: str = ""
    done: int = 0
    total: int = 0
    unit: str = ""


@decodable
class Result(msgspec.Struct, frozen=True, tag="result"):
    """The result of a request."""

    value: msgspec.Raw


@decodable
class Refusal(msgspec.Struct, frozen=True, tag="refused"):
    """The error of a request."""

    failure: Failure


Answer = ProgressMessage | Result | Refusal


def line(message: msgspec.Struct) -> bytes:
    """Return a message encoded as a line."""
    return msgspec.json.encode(message) + b"\n"


def raw(value: Any) -> msgspec.Raw:
    """Return an encoded value to embed in a message; the receiver decodes it when it knows the type."""
    return msgspec.Raw(msgspec.json.encode(value))


def peer(sock: socket.socket) -> tuple[int, int]:
    """Return the pid and the user id of the other end. Those of a listener are from the time of its `listen`."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def is_our_user(sock: socket.socket) -> bool:
    """Whether the other end belongs to our user. All other users are refused, the superuser included."""
    return peer(sock)[1] == os.geteuid()


def version_error(client: str, driver: str) -> ConfigurationError:
    """Return the error for a client and a driver of different versions."""
    return ConfigurationError(
        f"the job's driver is Strandline {driver}, and this is Strandline {client}",
        hint="use the `strandline` command of the environment that the job runs in",
    )
