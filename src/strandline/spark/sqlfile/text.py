"""The text of an SQL program, and errors that show their place in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from strandline.core.errors import ConfigurationError

_WIDTH = 100
"""The longest part of a line that an error shows."""
_SECRET = re.compile(
    r"""[\w.]*(?:password|passwd|secret|token|jaas|credential|access_key|account_key)[\w.]*[`'"]?\s*
    (?: =\s*(?P<bare>[^\s'",;)]+) | =?\s*(?:'(?P<single>[^'\n]*) | "(?P<double>[^"\n]*)) )""",
    re.IGNORECASE | re.VERBOSE,
)
_URL_SECRET = re.compile(r"""(://)[^/@\s'"]+(?=@)|(https?://[^\s?"']+\?)[^\s"']+""")
"""The credentials of a url, and its query string, which may be signed."""


@dataclass(frozen=True)
class Script:
    """The text of a program, or what was typed into the shell, with its name in messages."""

    text: str
    name: str = "input"

    def place(self, at: int) -> str:
        """Return the name, line and column of a position, for messages."""
        return f"{self.name}, line {self.text.count(chr(10), 0, at) + 1}, column {at - self._line_start(at) + 1}"

    def error(self, message: str, at: int, *, hint: str = "") -> ConfigurationError:
        """Return an error at a position."""
        return ConfigurationError(self.located(message, at), hint=hint)

    def located(self, message: str, at: int) -> str:
        """Return a message with its place, the line, and a caret under the position."""
        start = self._line_start(at)
        end = self.text.find("\n", at)
        line = re.sub(r"[\s\x00-\x1f\x7f]", " ", _masked(self.text[start : end if end >= 0 else None])).rstrip()
        column = at - start
        left = max(0, min(column - _WIDTH // 2, len(line) - _WIDTH))
        return f"{self.place(at)}: {message}\n    {line[left : left + _WIDTH]}\n    {' ' * (column - left)}^"

    def _line_start(self, at: int) -> int:
        return self.text.rfind("\n", 0, at) + 1


def _masked(line: str) -> str:
    """Return a line with its literal secrets replaced by asterisks, and as long as before."""
    for match in _SECRET.finditer(line):
        start, end = next(match.span(group) for group in match.groupdict() if match[group] is not None)
        line = line[:start] + "*" * (end - start) + line[end:]
    return _URL_SECRET.sub(lambda match: (match[1] or match[2]).ljust(len(match[0]), "*"), line)
