"""A cursor over the tokens of a statement: takes the expected ones, and raises errors at their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from strandline.spark.sqlfile.statements import Name
from strandline.spark.sqlfile.text import Script
from strandline.spark.views.tokens import Token


class Cursor:
    """The tokens of a statement, the last one of the kind "end", and the next of them."""

    def __init__(self, script: Script, statement: Sequence[Token]) -> None:
        self.script = script
        self.tokens = statement
        self.next = 0

    def name(self, what: str) -> Name:
        """Take a name of one part."""
        token = self.peek()
        if token.kind not in ("word", "name"):
            self.fail(f"expected {what}, found {text_of(token)}")
        self.next += 1
        if self.peek().text == ".":
            self.fail(f"expected {what}, and found one with a '.'", token.start, hint="names here have one part")
        return Name(token.value, token.start)

    def text(self, what: str) -> Token:
        """Take a text in quotes."""
        token = self.peek()
        if token.kind != "text":
            self.fail(f"expected {what}, found {text_of(token)}", hint="write it in quotes")
        self.next += 1
        return token

    def peek(self, ahead: int = 0) -> Token:
        """Return a token without taking it; behind the last one, the last one."""
        return self.tokens[min(self.next + ahead, len(self.tokens) - 1)]

    def before(self) -> Token:
        """Return the token that was taken last."""
        return self.tokens[self.next - 1]

    def accept(self, *words: str) -> bool:
        """Take these words if they come next."""
        if all(self.peek(ahead).word == word for ahead, word in enumerate(words)):
            self.next += len(words)
            return True
        return False

    def accept_sign(self, sign: str) -> bool:
        """Take this sign if it comes next."""
        if self.peek().kind == "sign" and self.peek().text == sign:
            self.next += 1
            return True
        return False

    def expect(self, word: str, where: str) -> None:
        """Take this word."""
        if not self.accept(word):
            self.fail(f"expected {word} {where}, found {text_of(self.peek())}")

    def expect_sign(self, sign: str, where: str) -> None:
        """Take this sign."""
        if not self.accept_sign(sign):
            self.fail(f"expected '{sign}' {where}, found {text_of(self.peek())}")

    def fail(self, message: str, at: int | None = None, *, hint: str = "") -> NoReturn:
        """Raise an error at a position, by default that of the next token."""
        raise self.script.error(message, self.peek().start if at is None else at, hint=hint)


def text_of(token: Token) -> str:
    """Return a token for messages; a text may be a secret."""
    if token.kind == "end":
        return "the end of the statement" if token.text else "the end of the file"
    return "a text" if token.kind == "text" else f"'{token.text:.40}'"
