"""Carries Strandline's errors from tasks to the driver: Spark turns what tasks raise into text, and logs it."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import shake_256
from pathlib import Path

import msgspec
import pyarrow as pa
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

Batches = Iterator[pa.RecordBatch]

_MARK = "STRANDLINE-ERROR:"
_MARKED = re.compile(re.escape(_MARK) + r"([A-Za-z0-9+/=]+):")
_NONCE_BYTES = 16
_FINAL = (UserCodeError, SinkError, ConfigurationError, StateLimitError)
"""Errors that a retry of the task would repeat. User functions may have side effects, so there is no retry."""
FIRST_FAILURE = "strandline.first.failure"
"""The property of a Spark job with the path, on the task's machine, of the file that notes its first final error."""


@dataclass(frozen=True)
class Seal:
    """Encrypts data that only this process and its tasks may read: errors, which may quote events, and programs."""

    _key: bytes = field(repr=False)

    def mark(self, error: StrandlineError) -> str:
        """Encrypt an error into text that `find` recognizes in Spark's error texts."""
        sealed = self.encrypt(msgspec.msgpack.encode(to_failure(error)))
        return f"{_MARK}{base64.b64encode(sealed).decode()}:"

    def find(self, text: str) -> StrandlineError | None:
        """Return the error that a text contains, None if it contains none."""
        for marked in _MARKED.finditer(text):
            with suppress(msgspec.DecodeError):
                return from_failure(msgspec.msgpack.decode(self.decrypt(base64.b64decode(marked[1])), type=Failure))
        return None

    def encrypt(self, data: bytes) -> bytes:
        """Encrypt data for a file or a log."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._crypt(nonce, data)

    def decrypt(self, sealed: bytes) -> bytes:
        """Return the data that was encrypted."""
        return self._crypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:])

    def _crypt(self, nonce: bytes, data: bytes) -> bytes:
        stream = shake_256(self._key + nonce).digest(len(data))
        return (int.from_bytes(data) ^ int.from_bytes(stream)).to_bytes(len(data))


SEAL = Seal(os.urandom(32))
"""The seal of this process, which its tasks get with their function."""


@contextmanager
def sealed_errors(seal: Seal) -> Iterator[None]:
    """In a task: raise errors of Strandline as text that the driver's `Seal.find` recognizes.

    A final error is written to a file: retries of the task, and tasks of the epoch that start later, then fail at once.
    """
    context = TaskContext.get()
    path = context.getLocalProperty(FIRST_FAILURE) if context is not None else None
    if path and (text := _read(path)):
        raise RuntimeError(text)
    try:
        yield
    except StrandlineError as error:
        text = seal.mark(error)
        if path and isinstance(error, _FINAL):
            _write(path, text)
        elif path and isinstance(error, KeeperError) and "pid" in error.fields:
            # A new keeper may replace one that died. If that dies too, the rows are the cause, and the error is final.
            _write(path if _read(path + _DIED) else path + _DIED, text)
        elif path and isinstance(error, VersionMismatchError):
            # The keeper of this version has died: the first attempt of the task noted the reason.
            text = _read(path + _DIED) or text
        raise RuntimeError(text) from None


def run_sealed(seal: Seal, function: Callable[[Batches], Batches], batches: Batches) -> Batches:
    """Run a function of rows in a task of mapInArrow."""
    with sealed_errors(seal):
        yield from function(batches)


_DIED = ".died"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    # The directory exists only on machines with keepers; on others, Spark retries the task.
    with suppress(OSError):
        temporary = Path(f"{path}.{unique_name()}")
        temporary.touch(0o600)
        temporary.write_text(text)
        temporary.rename(path)
