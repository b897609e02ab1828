"""Tokens of a query's text: words, quoted names, texts, numbers and signs, each with its place, without comments.

Strings, quoted names and comments are those of Spark's grammar.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["word", "name", "text", "number", "sign", "end"]

_TOKEN = re.compile(
    r"""(?P<space>\s+ | --(?:\\\n|[^\r\n])*)
    | (?P<comment>/\*)
    | (?P<text>[rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*"
        | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    | (?P<name>`(?:[^`]|``)*`)
    | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w))
    | (?P<word>\w+)
    | (?P<sign><=> | => | >= | <= | <> | != | == | :: | -> | \|\| | \|> | .)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = {quote: re.compile(rf"\\(u[0-9a-fA-F]{{4}}|.)|{quote}{quote}", re.DOTALL) for quote in "'\""}
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_COMMENT_SIGN = re.compile(r"/\*|\*/")


@dataclass(frozen=True, slots=True)
class Token:
    """A token, from `start` up to `end` of the text."""

    kind: Kind
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The word in upper case; "" for another token."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def value(self) -> str:
        """The text without quotes and escapes; that of other tokens as it is."""
        if self.kind == "name":
            return self.text[1:-1].replace("``", "`")
        if self.kind != "text":
            return self.text
        if self.text[0] == "$":
            tag = self.text.index("$", 1) + 1
            return self.text[tag:-tag]
        return self.text[2:-1] if self.text[0] in "rR" else _ESCAPE[self.text[0]].sub(_unescape, self.text[1:-1])


def tokens(text: str) -> list[Token]:
    """Return the tokens of a text. A quote without an end is a sign, and so is a comment: Spark refuses it."""
    result: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, "a sign is any character"
        start, at = at, match.end()
        if match["comment"]:
            end = _comment_end(text, start)
            if end is None:
                return [*result, Token("sign", match["comment"], start, len(text))]
            at = end
        for kind in ("word", "name", "text", "number", "sign"):
            if match[kind] is not None:
                result.append(Token(kind, match[kind], start, at))
    return result


def closings(parts: Sequence[Token]) -> dict[int, int]:
    """Return, by the index of each opening parenthesis, that of the one which closes it."""
    pairs, opened = {}, []
    for at, token in enumerate(parts):
        if token.kind == "sign" and token.text == "(":
            opened.append(at)
        elif token.kind == "sign" and token.text == ")" and opened:
            pairs[opened.pop()] = at
    return pairs


def _comment_end(text: str, start: int) -> int | None:
    """Return the end of a comment, which may have others in it; None if it has no end."""
    depth = 0
    for match in _COMMENT_SIGN.finditer(text, start):
        depth += 1 if match[0] == "/*" else -1
        if not depth:
            return match.end()
    return None


def _unescape(match: re.Match[str]) -> str:
    escaped = match[1]
    if escaped is None:
        return match[0][0]
    if escaped[0] == "u" and len(escaped) == 5:
        return chr(int(escaped[1:], 16))
    return _ESCAPED.get(escaped, escaped)
