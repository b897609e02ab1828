"""Encodes Strandline's errors for another process, and formats errors for logs without values or credentials."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from typing import Any

import msgspec

from strandline.core import errors
from strandline.core.decoding import decodable
from strandline.core.errors import StrandlineError, discreet


def as_exception(error: BaseException) -> Exception:
    """Return an Exception for any BaseException; the panic of a Rust library is not an Exception."""
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
    """Encode an error. The user's function may set any fields: those that cannot be sent become text."""
    fields = {name: _sendable(value) for name, value in error.fields.items()}
    message, hint, discreet = map(escape_surrogates, (error.message, error.hint, error._discreet))
    return Failure(kind=type(error).__name__, message=message, hint=hint, fields=fields, discreet=discreet)


def _sendable(value: Any) -> Any:
    if value is None or isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    return escape_surrogates(value if isinstance(value, str) else repr(value))


def escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which cannot be encoded: an exception's text may be anything."""
    return text.encode(errors="backslashreplace").decode()


def from_failure(failure: Failure) -> StrandlineError:
    """Rebuild the error in the receiving process."""
    kind = getattr(errors, failure.kind, StrandlineError)
    error: StrandlineError = kind(failure.message, hint=failure.hint, discreet=failure.discreet, **failure.fields)
    return error


def format_error(summary: str, error: BaseException, *, with_values: bool) -> str:
    """Format an unexpected error for a log: with its traceback, or without values: its kind and lines of code."""
    if with_values:
        return f"{summary}\n{''.join(traceback.format_exception(error)).rstrip()}"
    lines = [f"  {f.filename}, line {f.lineno}, in {f.name}" for f in traceback.extract_tb(error.__traceback__)]
    hint = "to log its message, which may quote values, set show_values='logs' in Settings"
    return "\n".join([f"{summary}: {discreet(error)}; {hint}", *lines])


def shortened(text: str, max_chars: int = 2000) -> str:
    """Shorten a text that quotes values: one value may be a whole file."""
    return text if len(text) <= max_chars else f"{text[:max_chars]}… ({len(text):,} characters)"


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets in a text, and credentials as `without_credentials` does."""
    for secret in sorted((s for s in secrets if len(s) >= 4), key=len, reverse=True):
        text = text.replace(secret, "***")
    return without_credentials(text)


def without_credentials(text: str) -> str:
    """Replace the credentials of the urls in a text, and their query strings, which may be signed."""
    text = re.sub(r"://[^/@\s]+@", "://***@", text)
    return re.sub(r"(https?://[^\s?\"]+)\?[^\s\"]*", r"\1?***", text)
