"""Errors of ours on their way from one process to another."""

from __future__ import annotations

import re
import traceback
from typing import Any

import msgspec

from strandline.core import errors
from strandline.core.decoding import decodable
from strandline.core.errors import StrandlineError, discreet


def as_exception(error: BaseException) -> Exception:
    """Return what was raised as an Exception: a Rust library's panic is none."""
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)


@decodable
class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An error as data."""

    kind: str
    message: str
    hint: str = ""
    fields: dict[str, Any] = {}
    discreet: str = ""


def to_failure(error: StrandlineError) -> Failure:
    """Make an error fit for sending, whatever the user's function put into it."""
    fields = {name: _sendable(value) for name, value in error.fields.items()}
    return Failure(
        kind=type(error).__name__, message=_text(error.message), hint=_text(error.hint), fields=fields,
        discreet=_text(error._discreet),
    )  # fmt: skip


def _sendable(value: Any) -> Any:
    if value is None or isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    return _text(value if isinstance(value, str) else repr(value))


def _text(text: str) -> str:
    """Half a surrogate pair is no text, and would end the connection instead of the epoch."""
    return text.encode(errors="backslashreplace").decode()


def from_failure(failure: Failure) -> StrandlineError:
    """Make the error again on the other side."""
    kind = getattr(errors, failure.kind, StrandlineError)
    error: StrandlineError = kind(failure.message, hint=failure.hint, discreet=failure.discreet, **failure.fields)
    return error


def whole(what: str, error: BaseException, *, with_values: bool) -> str:
    """Return what a log has of an error that nobody expected: its traceback, or only its kind and lines.

    Where no values may stand, nothing of what it says, which may quote any, nor of what it came of.
    """
    if with_values:
        return f"{what}\n{''.join(traceback.format_exception(error)).rstrip()}"
    lines = [f"  {f.filename}, line {f.lineno}, in {f.name}" for f in traceback.extract_tb(error.__traceback__)]
    return "\n".join([f"{what}: {discreet(error)}; what it says may quote values, and is not shown here", *lines])


def shortened(text: str, most: int = 2000) -> str:
    """Return a text that quotes values, or its beginning: one of them may be a whole file."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def without_credentials(text: str) -> str:
    """Return a text without the users of its urls, and without their query strings, which may be signed."""
    text = re.sub(r"://[^/@\s]+@", "://***@", text)
    return re.sub(r"(https?://[^\s?\"]+)\?[^\s\"]*", r"\1?***", text)
