"""Tokens of an SQL program: words, names, texts, numbers and signs, each with its place, without comments.

Strings, quoted names and comments are those of Spark's grammar, so that a semicolon in one of them ends no statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from strandline.core.errors import ConfigurationError
from strandline.spark.sqlfile.text import Script
from strandline.spark.views import tokens as views

_TOKEN = re.compile(
    r"""(?P<space>\s+ | --(?:\\\n|[^\r\n])*)
    | (?P<comment>/\*)
    | (?P<raw>[rR](?:'[^']*'|"[^"]*"))
    | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | (?P<name>`(?:[^`]|``)*`)
    | (?P<open>['"`])
    | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w))
    | (?P<word>\w+)
    | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = {quote: re.compile(rf"\\(u[0-9a-fA-F]{{4}}|.)|{quote}{quote}", re.DOTALL) for quote in "'\""}
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_OPENED = {"'": "this text", '"': "this text", "`": "this name"}


class Token(views.Token):
    """A token of a program; the last one is of the kind "end"."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """The text without quotes and escapes; that of other tokens as it is."""
        if self.kind == "name":
            return self.text[1:-1].replace("``", "`")
        if self.kind != "text":
            return self.text
        if self.text[0] in "rR":
            return self.text[2:-1]
        return _ESCAPE[self.text[0]].sub(_unescape, self.text[1:-1])


def tokens(script: Script) -> Iterator[Token]:
    """Yield the tokens of a program, the last one of the kind "end". Raise ConfigurationError for an open quote."""
    at, text = 0, script.text
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, "a sign is any character"
        kind, start, at = match.lastgroup, at, match.end()
        if kind == "comment":
            end = views.comment_end(text, start)
            if end is None:
                raise script.error("this comment has no end", start, hint="end it with */")
            at = end
        elif kind == "open":
            hint = f"end it with {match[0]}"
            raise script.error(f"{_OPENED[match[0]]} has no end", start, hint=hint)
        elif kind == "raw":
            yield Token("text", match[0], start, at)
        elif kind in ("text", "name", "number", "word", "sign"):
            yield Token(kind, match[0], start, at)  # type: ignore[arg-type]
    yield Token("end", "", len(text), len(text))


def statements(script: Script) -> Iterator[list[Token]]:
    """Yield the tokens of each statement: those up to a semicolon, which becomes the token of the kind "end"."""
    statement: list[Token] = []
    for token in tokens(script):
        is_semicolon = token.kind == "sign" and token.text == ";"
        if not is_semicolon and token.kind != "end":
            statement.append(token)
        elif statement:
            yield [*statement, Token("end", token.text, token.start, token.end)]
            statement = []


def is_complete(text: str) -> bool:
    """Whether a text ends with a semicolon, outside of quotes and comments, or has no token."""
    last = None
    try:
        for token in tokens(Script(text)):
            last = token if token.kind != "end" else last
    except ConfigurationError:
        return False
    return last is None or last.text == ";"


def _unescape(match: re.Match[str]) -> str:
    escaped = match[1]
    if escaped is None:
        return match[0][0]
    if escaped[0] == "u" and len(escaped) == 5:
        return chr(int(escaped[1:], 16))
    return _ESCAPED.get(escaped, escaped)
