"""Errors of table libraries as one line of text, without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from strandline.core.failure import shortened, without_secrets

_PUBLIC = re.compile(r"endpoint|region|allow_http|timeout|type|warehouse|py-io-impl|path", re.IGNORECASE)
_MAX_LENGTH = 400
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def describe_error(error: Exception, options: Mapping[str, str]) -> str:
    """Return an error as one line of text, without the values of options that may be secrets."""
    text = _ANSI.sub("", str(error))
    text = without_secrets(text, [str(value) for key, value in options.items() if not _PUBLIC.search(key)])
    text = re.sub(r"[\s↳]+", " ", text).strip()
    return f"{type(error).__name__}: {shortened(text, _MAX_LENGTH)}"


_DENIED = re.compile(
    r"status(?: code)?:? 40[13]|AccessDenied|SignatureDoesNotMatch|InvalidAccessKeyId|ExpiredToken|NoSuchBucket"
    r"|privileges|Unauthorized|Forbidden|[Pp]ermission denied|password authentication failed|ACCESS_DENIED"
)


def is_access_error(error: Exception) -> bool:
    """Whether access was denied: another attempt fails until credentials or privileges change."""
    return isinstance(error, PermissionError) or bool(_DENIED.search(str(error)))
