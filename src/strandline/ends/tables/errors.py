"""What libraries of table formats say, in one line, and without what it must not hold."""

from __future__ import annotations

import re
from collections.abc import Mapping

_OPEN = re.compile(r"endpoint|region|allow_http|timeout|type|warehouse|py-io-impl|path", re.IGNORECASE)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def in_a_line(error: Exception, options: Mapping[str, str], most: int = 400) -> str:
    """Return an error as text. Of options, only what is known to be no secret may be quoted."""
    text = _ANSI.sub("", str(error))
    secrets = [str(value) for key, value in options.items() if not _OPEN.search(key) and len(str(value)) >= 4]
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = re.sub(r"://[^/@\s]+@", "://***@", text)
    text = re.sub(r"(https?://[^\s?\"]+)\?[^\s\"]*", r"\1?***", text)
    text = re.sub(r"[\s↳]+", " ", text).strip()
    return f"{type(error).__name__}: {text if len(text) <= most else text[:most] + '…'}"


_REFUSED = re.compile(
    r"status(?: code)?:? 40[13]|AccessDenied|SignatureDoesNotMatch|InvalidAccessKeyId|ExpiredToken|NoSuchBucket"
    r"|privileges|Unauthorized|Forbidden|[Pp]ermission denied|password authentication failed|ACCESS_DENIED"
)


def is_refused(error: Exception) -> bool:
    """Whether an answer is the same until somebody changes who asks, or what for."""
    return isinstance(error, PermissionError) or bool(_REFUSED.search(str(error)))
