"""Expressions of MATCH_RECOGNIZE: what Spark parses of them, and the values of a match that they are about.

`A.price > LAST(B.price, 1)` is, in the condition of A, `price > v`, where v is a column that the match has: the value
of `price` in a row of B. Spark parses both, and never sees a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from strandline.spark.views.matchclause import MatchClause, Matches
from strandline.spark.views.rewriting import Piece
from strandline.spark.views.structure import Span

_ROWS = frozenset({"FIRST", "LAST", "PREV"})
_AGGREGATES = frozenset({"COUNT", "SUM", "AVG", "MEAN", "MIN", "MAX"})
_ROWTIME = "MATCH_ROWTIME"
_REFUSED = {
    "NEXT": "give the next row a variable, PATTERN (A B), and compare with A in the condition of B",
    "MATCH_PROCTIME": "after a restart it would be another one: MATCH_ROWTIME() is the time of the last row",
    "CLASSIFIER": "a match gives one row, with columns of the variables that it names",
    "MATCH_NUMBER": "number the matches where you read them",
    "PERMUTE": "write the orders out, with |",
}
_MOST_ROWS = 1_000


@dataclass(frozen=True)
class MatchValue:
    """A value that a match holds, or one of the row before the current one."""

    how: Literal["first", "last", "before", "aggregate"]
    pieces: Sequence[Piece]
    """What Spark parses: the expression of a row, or of an aggregate function."""
    variables: frozenset[int] | None
    """None: all rows of the match."""
    count: int
    """How many rows come before the one that is meant: from the first, the last, or the current one."""
    before: int
    """How many rows before that one is the value's."""
    name: str
    """The column that Spark sees in its place: no other value has this name."""
    at: int
    """The index of its first token."""


@dataclass
class MatchExpressions:
    """Reads the expressions of one clause."""

    matches: Matches
    clause: MatchClause
    columns: frozenset[str]
    """Names of the rows' columns, in lower case."""
    time: str
    """The column of ORDER BY."""
    values: dict[str, MatchValue] = field(default_factory=dict)
    """By what tells them apart."""

    def of_condition(self, variable: int) -> list[Piece]:
        """Return a condition, in which the columns of its own row are columns."""
        return self._rewritten(self.clause.conditions[variable], variable)

    def of_measure(self, span: Span) -> list[Piece]:
        """Return a measure, in which all columns are those of the last row of the match."""
        return self._rewritten(span, None)

    def _rewritten(self, span: Span, current: int | None) -> list[Piece]:
        return self._pieces(span, lambda at: self._value_at(at, current))

    def _pieces(self, span: Span, change: Callable[[int], tuple[list[Piece], int] | None]) -> list[Piece]:
        """Return a part of the text; `change` returns what is in place of some tokens, and the index after these."""
        query, part = self.matches.query, self.matches.edits.part
        pieces, at, start = list[Piece](), span.first, query.place(span)[0]
        while at < span.end:
            if (changed := change(at)) is None:
                at += 1
                continue
            pieces += [*part(start, query.tokens[at].start), *changed[0]]
            at = changed[1]
            start = query.tokens[at - 1].end
        return [*pieces, *part(start, query.place(span)[1])]

    def _value_at(self, at: int, current: int | None) -> tuple[list[Piece], int] | None:
        """Return what is in place of the value that begins at a token, if one does."""
        query, word = self.matches.query, self.matches.query.word(at)
        if word in ("FINAL", "RUNNING") and query.word(at + 1) in _ROWS | _AGGREGATES:
            # A match gives one row, at its end; a condition is of the match so far.
            return [], at + 1
        if at + 1 in query.closing and query.text_of(at - 1) != ".":
            after = query.closing[at + 1] + 1
            if word in _REFUSED:
                raise self.matches.refused(f"MATCH_RECOGNIZE: {word} is not supported", at, _REFUSED[word])
            if word == _ROWTIME:
                time = [Piece("`" + self.time.replace("`", "``") + "`", query.tokens[at].start)]
                return self._column(MatchValue("last", time, None, 0, 0, "", at), after), after
            if word in _ROWS:
                return self._of_row(at, current), after
            if word in _AGGREGATES:
                return self._aggregate(at), after
        if (variables := self._variables_at(at)) is not None:
            column = query.tokens[at + 2]
            pieces = [self.matches.edits.copy(column.start, column.end)]
            if current is not None and current in variables:
                return pieces, at + 3
            return self._column(MatchValue("last", pieces, variables, 0, 0, "", at), at + 3), at + 3
        if current is None and self._is_column(at):
            pieces = [self.matches.edits.copy(query.tokens[at].start, query.tokens[at].end)]
            return self._column(MatchValue("last", pieces, None, 0, 0, "", at), at + 1), at + 1
        return None

    def _of_row(self, at: int, current: int | None) -> list[Piece]:
        """FIRST(A.price), LAST(A.price, 1), PREV(A.price)"""
        query, word = self.matches.query, self.matches.query.word(at)
        arguments = query.arguments(at + 1)
        if len(arguments) not in (1, 2):
            raise self.matches.refused(f"{word} has {len(arguments)} arguments, expected 1 or 2", at)
        count = int(word == "PREV")
        if len(arguments) == 2:
            number = query.of(arguments[1])
            if len(number) != 1 or not number[0].text.isdigit() or int(number[0].text) > _MOST_ROWS:
                raise self.matches.refused(
                    f"{word}: how many rows before or after is no number up to {_MOST_ROWS}", arguments[1].first
                )
            count = int(number[0].text)
        pieces, variables = self._of_one(arguments[0])
        is_current = current is not None and (variables is None or current in variables)
        after = query.closing[at + 1] + 1
        if word == "PREV":
            how: Literal["before", "last"] = "before" if is_current else "last"
            return self._column(MatchValue(how, pieces, None if is_current else variables, 0, count, "", at), after)
        if word == "LAST" and not count and is_current:
            start = query.tokens[at].start
            return [Piece("(", start), *pieces, Piece(")", start)]
        side: Literal["first", "last"] = "first" if word == "FIRST" else "last"
        return self._column(MatchValue(side, pieces, variables, count, 0, "", at), after)

    def _aggregate(self, at: int) -> list[Piece]:
        query, start = self.matches.query, self.matches.query.tokens[at].start
        after = query.closing[at + 1] + 1
        if query.words(after, "FILTER"):
            raise self.matches.refused(
                "MATCH_RECOGNIZE: FILTER is not supported", after, "sum(CASE WHEN … THEN A.x END)"
            )
        inside, variables = self._of_one(Span(at + 2, after - 1)) if after - at > 3 else ([], None)
        pieces = [Piece(f"{query.tokens[at].text}(", start), *inside, Piece(")", start)]
        return self._column(MatchValue("aggregate", pieces, variables, 0, 0, "", at), after)

    def _of_one(self, span: Span) -> tuple[list[Piece], frozenset[int] | None]:
        """Return an expression without the variable of its columns, and that variable: None for all rows."""
        seen: dict[frozenset[int] | None, int] = {}

        def change(at: int) -> tuple[list[Piece], int] | None:
            query = self.matches.query
            if at + 1 in query.closing and query.word(at) in _ROWS | _AGGREGATES | {_ROWTIME, *_REFUSED}:
                raise self.matches.refused(
                    f"MATCH_RECOGNIZE: {query.word(at)} inside of another function of rows", at, "use one of the two"
                )
            if (variables := self._variables_at(at)) is not None:
                seen[variables] = at
                column = query.tokens[at + 2]
                return [self.matches.edits.copy(column.start, column.end)], at + 3
            if self._is_column(at):
                seen[None] = at
            return None

        pieces = self._pieces(span, change)
        if len(seen) > 1:
            raise self.matches.refused(
                "MATCH_RECOGNIZE: columns of several variables in one function", max(seen.values()),
                "a function is of the rows of one variable, or of a SUBSET; columns without one are of all rows",
            )  # fmt: skip
        return pieces, next(iter(seen), None)

    def _variables_at(self, at: int) -> frozenset[int] | None:
        """Return the variables of A.price, if that begins at a token."""
        query = self.matches.query
        token, name = query.tokens[at], query.tokens[at].value
        if token.kind not in ("word", "name") or query.text_of(at + 1) != "." or query.text_of(at - 1) == ".":
            return None
        if name.upper() not in self.clause.sets and name.lower() not in self.columns:
            raise self.matches.refused(
                f"MATCH_RECOGNIZE: the pattern has no variable {name}", at, f"it has {', '.join(self.clause.variables)}"
            )
        return self.clause.sets.get(name.upper())

    def _is_column(self, at: int) -> bool:
        query, token = self.matches.query, self.matches.query.tokens[at]
        is_name = token.kind in ("word", "name") and query.text_of(at - 1) != "." and query.word(at - 1) != "AS"
        follows = query.tokens[at + 1 : at + 2]
        is_other = bool(follows) and (follows[0].kind == "text" or follows[0].text == "(")
        return is_name and not is_other and token.value.lower() in self.columns

    def _column(self, value: MatchValue, after: int) -> list[Piece]:
        """Return the column that Spark sees in place of a value, which is known from now on."""
        text = " ".join("".join(piece.text for piece in value.pieces).split())
        key = f"{value.how} {value.count} {value.before} {sorted(value.variables or [-1])} {text}"
        start, end = self.matches.query.place(Span(value.at, after))
        if key not in self.values:
            name = " ".join(self.matches.query.text[start:end].split()).replace("`", "")
            names = {*self.columns, *(each.name.lower() for each in self.values.values())}
            while name.lower() in names:
                name += "'"
            self.values[key] = replace(value, name=name)
        return [Piece(f"`{self.values[key].name}`", start)]
