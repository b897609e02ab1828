"""Errors of ours on their way through Spark, which wraps what its tasks raise into text."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from strandline.core.errors import StrandlineError, UserCodeError
from strandline.core.failure import Failure, from_failure, to_failure

_MARK = "STRANDLINE-ERROR:"
_MARKED = re.compile(re.escape(_MARK) + r"([A-Za-z0-9+/=]+):")
_DATA_EXCEPTION = re.compile(r"\[[A-Z][A-Z_.0-9]*\] .{0,2000}? SQLSTATE: 22\w{3}", re.DOTALL)
"""The error of an expression that rows do not fit, by the SQL standard's class of such errors."""


def mark(error: StrandlineError) -> str:
    """Put an error into text that survives Spark's wrapping."""
    return f"{_MARK}{base64.b64encode(msgspec.msgpack.encode(to_failure(error))).decode()}:"


def find_error(error: BaseException) -> BaseException:
    """Return the error that Spark wrapped, if it is one of ours or the rows' own; else the error itself."""
    if isinstance(error, StrandlineError):
        return error
    said = str(error)
    if marked := _MARKED.search(said):
        return from_failure(msgspec.msgpack.decode(base64.b64decode(marked[1]), type=Failure))
    if found := _DATA_EXCEPTION.search(said):
        return UserCodeError(
            f"rows do not fit an expression of the program: {found[0]}",
            hint="cast to a wider type, drop such rows, or take an expression that gives null for them, as try_cast "
            "does",
        )
    return error


@contextmanager
def marking() -> Iterator[None]:
    """In a task: raise errors of ours so that the driver finds them again."""
    try:
        yield
    except StrandlineError as error:
        raise RuntimeError(mark(error)) from None
