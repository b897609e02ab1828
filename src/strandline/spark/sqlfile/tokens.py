"""Tokens of an SQL program: those of a query, up to semicolons, which end statements."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.core.errors import ConfigurationError
from strandline.spark.sqlfile.text import Script
from strandline.spark.views import tokens as views
from strandline.spark.views.tokens import Token

_OPENED = {"'": "this text", '"': "this text", "`": "this name", "/*": "this comment"}


def tokens(script: Script) -> Iterator[Token]:
    """Yield the tokens of a program, the last one of the kind "end". Raise ConfigurationError for an open quote."""
    for token in views.tokens(script.text):
        if token.kind == "sign" and token.text in _OPENED:
            end = "*/" if token.text == "/*" else token.text
            raise script.error(f"{_OPENED[token.text]} has no end", token.start, hint=f"end it with {end}")
        yield token
    yield Token("end", "", len(script.text), len(script.text))


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
