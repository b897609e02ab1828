"""A query's text with parts replaced, and the way back from its places to those in the user's text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from strandline.core.errors import ConfigurationError

_WIDTH = 100
"""The longest part of a line that an error shows."""


@dataclass(frozen=True)
class Piece:
    """A part of the new text, which stands for the place `at` of the user's text, or is copied from there."""

    text: str
    at: int
    copied: bool = False


@dataclass(frozen=True)
class Rewriting:
    """A user's text, and what Spark is given in its place."""

    source: str
    pieces: Sequence[Piece]

    @cached_property
    def text(self) -> str:
        """The new text."""
        return "".join(piece.text for piece in self.pieces)

    def place(self, at: int) -> int:
        """Return the place in the user's text of a place in the new one."""
        if at >= len(self.text):
            return len(self.source)
        index = bisect_right(self._starts, at) - 1
        piece = self.pieces[index]
        return piece.at + (at - self._starts[index] if piece.copied else 0)

    def place_of(self, line: int, column: int) -> int:
        """Return the place in the user's text of a line, from 1, and a column, from 0, of the new one."""
        lines = self.text.split("\n")
        return self.place(sum(len(each) + 1 for each in lines[: line - 1]) + column)

    def marked(self, message: str, at: int) -> str:
        """Return a message with a place of the user's text: its line and column, and a caret under it."""
        start = self.source.rfind("\n", 0, at) + 1
        number = self.source.count("\n", 0, at) + 1
        line = self.source[start:].split("\n", 1)[0].replace("\t", " ").rstrip()
        column = at - start
        left = max(0, min(column - _WIDTH // 2, len(line) - _WIDTH))
        return (
            f"{message}\n  line {number}, column {column + 1}:\n"
            f"    {line[left : left + _WIDTH].rstrip()}\n    {' ' * (column - left)}^"
        )

    def refused(self, message: str, at: int, hint: str = "") -> ConfigurationError:
        """Return the error of a query that has something wrong at a place of the user's text."""
        return ConfigurationError(self.marked(message, at), hint=hint)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(piece.text) for piece in self.pieces)][:-1]


@dataclass
class Edits:
    """Collects what is replaced in a text. No two parts overlap."""

    source: str
    _edits: list[tuple[int, int, tuple[Piece, ...]]] = field(default_factory=list)

    def replace(self, start: int, end: int, *pieces: Piece) -> None:
        """Replace a part of the text."""
        self._edits.append((start, end, pieces))

    def copy(self, start: int, end: int) -> Piece:
        """Return a part of the text, to be put elsewhere."""
        return Piece(self.source[start:end], start, copied=True)

    def refused(self, message: str, at: int, hint: str = "") -> ConfigurationError:
        """Return the error of a query that has something wrong at a place."""
        return Edits(self.source).done().refused(message, at, hint)

    def done(self) -> Rewriting:
        """Return the text with all replacements."""
        return self.of(self.part(0, len(self.source)))

    def of(self, pieces: Sequence[Piece]) -> Rewriting:
        """Return a text that is made of pieces of this one."""
        return Rewriting(self.source, [piece for piece in pieces if piece.text])

    def part(self, start: int, end: int) -> list[Piece]:
        """Return a part of the text, with the replacements in it."""
        pieces, at = [], start
        for first, last, new in sorted(self._edits, key=lambda edit: edit[:2]):
            if first < start or last > end or (first == last == end < len(self.source)):
                continue
            if first < at:
                raise self.refused(
                    "this is inside of a part that is written for another system", first, "write it as Spark has it"
                )
            pieces += [self.copy(at, first), *new]
            at = last
        return [*pieces, self.copy(at, end)]
