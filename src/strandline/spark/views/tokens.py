"""Tokens of a query's text: words, quoted names, texts, numbers and signs, each with its place, without comments."""

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
        """The text without its quotes."""
        if self.kind == "name":
            return self.text[1:-1].replace("``", "`")
        return self.text[1:-1] if self.kind == "text" and self.text[0] in "'\"" else self.text


def tokens(text: str) -> list[Token]:
    """Return the tokens of a text. A quote without an end is a sign: Spark refuses it."""
    result, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, "a sign is any character"
        start, at = at, match.end()
        if match["comment"]:
            at = comment_end(text, start) or len(text)
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


def comment_end(text: str, start: int) -> int | None:
    """Return the end of a comment, which may have others in it; None if it has no end."""
    depth = 0
    for match in _COMMENT_SIGN.finditer(text, start):
        depth += 1 if match[0] == "/*" else -1
        if not depth:
            return match.end()
    return None
