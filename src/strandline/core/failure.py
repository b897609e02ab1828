"""Encodes our errors for another process, and formats errors for logs without values or credentials."""

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
    """Encode an error; fields that cannot be sent, since the user's function may set any, become text."""
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
    """Escape lone surrogates, which cannot be encoded and would end the connection instead of the epoch."""
    return text.encode(errors="backslashreplace").decode()


def from_failure(failure: Failure) -> StrandlineError:
    """Rebuild the error in the receiving process."""
    kind = getattr(errors, failure.kind, StrandlineError)
    error: StrandlineError = kind(failure.message, hint=failure.hint, discreet=failure.discreet, **failure.fields)
    return error


def whole(what: str, error: BaseException, *, with_values: bool) -> str:
    """Format an unexpected error for a log: with its traceback, or only with its kind and lines.

    Without values, its message, which may quote some, and its cause are left out.
    """
    if with_values:
        return f"{what}\n{''.join(traceback.format_exception(error)).rstrip()}"
    lines = [f"  {f.filename}, line {f.lineno}, in {f.name}" for f in traceback.extract_tb(error.__traceback__)]
    return "\n".join([f"{what}: {discreet(error)}; what it says may quote values, and is not shown here", *lines])


def shortened(text: str, most: int = 2000) -> str:
    """Cut a text that quotes values to a length: one value may be a whole file."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets in a text, and credentials as `without_credentials` does."""
    for secret in sorted((each for each in secrets if len(each) >= 4), key=len, reverse=True):
        text = text.replace(secret, "***")
    return without_credentials(text)


def without_credentials(text: str) -> str:
    """Replace the credentials of the urls in a text, and their query strings, which may be signed."""
    text = re.sub(r"://[^/@\s]+@", "://***@", text)
    return re.sub(r"(https?://[^\s?\"]+)\?[^\s\"]*", r"\1?***", text)
