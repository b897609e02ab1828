"""Errors of ours on their way through Spark, which wraps what its tasks raise into text."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from strandline.core.errors import StrandlineError
from strandline.keeper import protocol as p
from strandline.keeper.protocol import Failure

_MARK = "STRANDLINE-ERROR:"


def mark(error: StrandlineError) -> str:
    """Put an error into text that survives Spark's wrapping."""
    return f"{_MARK}{base64.b64encode(msgspec.msgpack.encode(p.to_failure(error))).decode()}:"


def unmark(text: str) -> StrandlineError | None:
    """Find an error in a text made by `mark`, whatever Spark put around it."""
    found = re.search(re.escape(_MARK) + r"([A-Za-z0-9+/=]+):", text)
    return p.from_failure(msgspec.msgpack.decode(base64.b64decode(found[1]), type=Failure)) if found else None


@contextmanager
def marking() -> Iterator[None]:
    """In a task: raise errors of ours so that the driver finds them again."""
    try:
        yield
    except StrandlineError as error:
        raise RuntimeError(mark(error)) from None
