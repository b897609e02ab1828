"""Errors of ours on their way through Spark, which wraps what its tasks raise into text, and logs that."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import shake_256
from pathlib import Path

import msgspec
from pyspark import TaskContext

from strandline.core.errors import (
    ConfigurationError,
    KeeperError,
    SinkError,
    StateLimitError,
    StrandlineError,
    UserCodeError,
    VersionMismatchError,
)
from strandline.core.failure import Failure, from_failure, to_failure
from strandline.core.ids import unique_name

_MARK = "STRANDLINE-ERROR:"
_MARKED = re.compile(re.escape(_MARK) + r"([A-Za-z0-9+/=]+):")
_NONCE_BYTES = 16
_FINAL = (UserCodeError, SinkError, ConfigurationError, StateLimitError)
"""What fails in the same way if Spark runs the task again; what was called may do things each time it is."""
FIRST_FAILURE = "strandline.first.failure"
"""The property of a Spark job under which its tasks find where to note what has failed, a path on their machine."""


@dataclass(frozen=True)
class Seal:
    """Encrypts what only its owner is to read: errors, which may quote events, and which Spark logs; and programs."""

    _key: bytes = field(repr=False)

    def mark(self, error: StrandlineError) -> str:
        """Put an error into text that survives Spark's wrapping."""
        sealed = self.encrypt(msgspec.msgpack.encode(to_failure(error)))
        return f"{_MARK}{base64.b64encode(sealed).decode()}:"

    def find(self, text: str) -> StrandlineError | None:
        """Return the error that was put into a text, if there is one."""
        for marked in _MARKED.finditer(text):
            with suppress(msgspec.DecodeError):
                return from_failure(msgspec.msgpack.decode(self.decrypt(base64.b64decode(marked[1])), type=Failure))
        return None

    def encrypt(self, data: bytes) -> bytes:
        """Return data as it may lie in a file, or stand in a log."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._crypt(nonce, data)

    def decrypt(self, sealed: bytes) -> bytes:
        """Return what `encrypt` was given."""
        return self._crypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:])

    def _crypt(self, nonce: bytes, data: bytes) -> bytes:
        stream = shake_256(self._key + nonce).digest(len(data))
        return (int.from_bytes(data) ^ int.from_bytes(stream)).to_bytes(len(data))


SEAL = Seal(os.urandom(32))
"""This process' own: what it gives to tasks goes there with their function."""


@contextmanager
def marking(seal: Seal) -> Iterator[None]:
    """In a task: raise errors of ours so that the driver finds them again.

    What fails for good is noted: Spark would run the task again, and others of the epoch that have not begun.
    """
    context = TaskContext.get()
    noted = context.getLocalProperty(FIRST_FAILURE) if context is not None else None
    if noted and (text := _read(noted)):
        raise RuntimeError(text)
    try:
        yield
    except StrandlineError as error:
        text = seal.mark(error)
        if noted and isinstance(error, _FINAL):
            _write(noted, text)
        elif noted and isinstance(error, KeeperError) and "pid" in error.fields:
            # Another one may take its place. If that dies, too, it is what they do that ends them.
            _write(noted if _read(noted + _DIED) else noted + _DIED, text)
        elif noted and isinstance(error, VersionMismatchError):
            # The keeper that would have fitted has died: what became of it was said when the task ran before.
            text = _read(noted + _DIED) or text
        raise RuntimeError(text) from None


_DIED = ".died"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    # Its directory is there where keepers are; elsewhere a task runs again as ever.
    with suppress(OSError):
        made = Path(f"{path}.{unique_name()}")
        made.touch(0o600)
        made.write_text(text)
        made.rename(path)
