"""The structure of a query's text, as far as its tokens show it: calls, clauses, and the SELECT of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from strandline.spark.views.tokens import Token, closings, tokens

_CLAUSES = frozenset({"SELECT", "FROM", "WHERE", "GROUP", "HAVING", "QUALIFY", "ORDER"})
_SET_OPERATORS = frozenset({"UNION", "INTERSECT", "EXCEPT", "MINUS"})
_QUERY_STARTS = frozenset({"SELECT", "WITH", "FROM", "VALUES", "TABLE"})


@dataclass(frozen=True, slots=True)
class Site:
    """The place of a token in the query."""

    block: int
    """The number of its SELECT."""
    clause: str
    """The clause of that: SELECT, FROM, WHERE, GROUP…; "" in the arguments of a function in FROM."""
    depth: int
    """How many parentheses are open."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens from one index up to another."""

    first: int
    end: int


class Query:
    """A query's text as tokens, with the place of each in the query."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokens(text)
        self.closing = closings(self.tokens)

    @cached_property
    def sites(self) -> list[Site]:
        """The place of each token. A parenthesis belongs to what is around it."""
        sites: list[Site] = []
        around: list[Site] = []
        site, blocks = Site(0, "", 0), 0
        for at, token in enumerate(self.tokens):
            word = token.word
            if token.text == ")" and token.kind == "sign" and around:
                site = around.pop()
            elif word in _SET_OPERATORS and not (word == "EXCEPT" and at and self.tokens[at - 1].text == "*"):
                blocks += 1
                site = Site(blocks, "", site.depth)
            elif (word in _CLAUSES and self._is_clause(at)) or (token.text == "|>" and token.kind == "sign"):
                site = Site(site.block, word, site.depth)
            sites.append(site)
            if token.text == "(" and token.kind == "sign":
                around.append(site)
                if self.word(at + 1) in _QUERY_STARTS and self.text_of(at + 2) != "(":
                    blocks += 1
                    site = Site(blocks, "", site.depth + 1)
                else:
                    site = Site(site.block, "" if site.clause == "FROM" else site.clause, site.depth + 1)
        return sites

    def _is_clause(self, at: int) -> bool:
        word = self.tokens[at].word
        if self.text_of(at - 1) == ".":
            return False
        if word in ("GROUP", "ORDER"):
            return self.word(at + 1) == "BY"
        return not (word == "FROM" and self.word(at - 1) == "DISTINCT")

    def word(self, at: int) -> str:
        """Return a token's word in upper case, "" if there is none."""
        return self.tokens[at].word if 0 <= at < len(self.tokens) else ""

    def words(self, at: int, *words: str) -> bool:
        """Whether these words begin at an index."""
        return all(self.word(at + number) == word for number, word in enumerate(words))

    def text_of(self, at: int) -> str:
        """Return a token's text; "" if there is none, or if it is quoted."""
        if 0 <= at < len(self.tokens) and self.tokens[at].kind in ("word", "number", "sign"):
            return self.tokens[at].text
        return ""

    def calls(self, names: Sequence[str]) -> list[int]:
        """Return the indexes of functions with these names that are called."""
        return [
            at
            for at, token in enumerate(self.tokens)
            if token.word in names and at + 1 in self.closing and self.text_of(at - 1) != "."
        ]

    def arguments(self, opening: int) -> list[Span]:
        """Return the arguments between parentheses."""
        closing = self.closing[opening]
        return self.split(Span(opening + 1, closing), ",")

    def split(self, span: Span, *separators: str) -> list[Span]:
        """Return the parts of a span between separators, signs or words, outside of parentheses."""
        if span.first == span.end:
            return []
        parts, first, at = [], span.first, span.first
        while at < span.end:
            if at in self.closing:
                at = self.closing[at]
            elif self.text_of(at).upper() in separators:
                parts.append(Span(first, at))
                first = at + 1
            at += 1
        return [*parts, Span(first, span.end)]

    def of(self, span: Span) -> list[Token]:
        """Return the tokens of a span."""
        return self.tokens[span.first : span.end]

    def place(self, span: Span) -> tuple[int, int]:
        """Return where a span starts and ends in the text."""
        inside = self.of(span)
        return (inside[0].start, inside[-1].end) if inside else (self.tokens[span.first].start,) * 2

    def is_name(self, span: Span) -> bool:
        """Whether a span is a name, with or without what qualifies it."""
        inside = self.of(span)
        return len(inside) % 2 == 1 and all(
            token.kind in ("word", "name") if number % 2 == 0 else token.text == "."
            for number, token in enumerate(inside)
        )
