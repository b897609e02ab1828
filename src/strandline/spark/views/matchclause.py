"""The text of MATCH_RECOGNIZE, taken apart: its clauses, the pattern, and the places of expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from strandline.core.errors import ConfigurationError
from strandline.core.times import LONGEST_MS
from strandline.runtime.operators.patterns.pattern import (
    Chain,
    Choice,
    Pattern,
    Repeat,
    Row,
    can_be_empty,
)
from strandline.runtime.operators.patterns.search import Skip
from strandline.spark.views.intervals import NoInterval, microseconds
from strandline.spark.views.rewriting import Edits, Piece, Rewriting
from strandline.spark.views.structure import Query, Span

WORD = "MATCH_RECOGNIZE"
EXAMPLE = (
    "write FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY at MEASURES A.x AS x PATTERN (A B+) "
    "DEFINE B AS B.x > LAST(A.x))"
)
_CLAUSES = (
    ("PARTITION", "BY"), ("ORDER", "BY"), ("MEASURES",), ("ONE", "ROW", "PER", "MATCH"),
    ("ALL", "ROWS", "PER", "MATCH"), ("AFTER", "MATCH", "SKIP"), ("PATTERN",), ("SUBSET",), ("DEFINE",),
)  # fmt: skip
"""In the order in which they are written."""
_MANY = 1_000
_BEFORE_TABLE = frozenset({"FROM", "JOIN", ",", "(", "LATERAL"})


@dataclass(frozen=True)
class OrderTerm:
    """A term of ORDER BY."""

    column: Span
    is_descending: bool
    nulls_last: bool


@dataclass(frozen=True)
class MatchClause:
    """A table with MATCH_RECOGNIZE behind it."""

    number: int
    table: Span
    at: int
    """The index of the word MATCH_RECOGNIZE."""
    end: int
    """The index after its last token."""
    keys: Sequence[Span]
    order: Sequence[OrderTerm]
    measures: Sequence[tuple[str, Span]]
    """Names, and expressions."""
    pattern: Pattern
    pattern_text: str
    variables: Sequence[str]
    """Their names in upper case: patterns have their numbers."""
    within_us: int | None
    skip: Skip
    skip_to: tuple[bool, frozenset[int]] | None
    """If the search goes on at a row of some variables: whether at the first one, and which they are."""
    sets: Mapping[str, frozenset[int]]
    """By name: a variable, or those of a SUBSET."""
    conditions: Mapping[int, Span]

    @property
    def name(self) -> str:
        """The name of its rows in Spark's session."""
        return f"__match_{self.number}"


@dataclass(frozen=True)
class Matches:
    """The clauses of a query, and the texts around them."""

    query: Query
    edits: Edits
    clauses: Sequence[MatchClause]

    def refused(self, message: str, at: int, hint: str = "") -> ConfigurationError:
        """Return the error of a query that has something wrong at a token."""
        return self.edits.refused(message, self.query.tokens[at].start, hint)

    @property
    def outer(self) -> Rewriting:
        """The query, with a name in place of each table with its clause."""
        return self.edits.of(self._part(0, len(self.query.text)))

    def table(self, clause: MatchClause) -> Rewriting:
        """Return the query of the rows that a clause is about."""
        start, end = self.query.place(clause.table)
        return self.edits.of([*self._with(clause), Piece("SELECT * FROM ", start), *self._part(start, end)])

    def _part(self, start: int, end: int) -> list[Piece]:
        pieces, at = list[Piece](), start
        for clause in sorted(self.clauses, key=lambda clause: clause.table.first):
            first, last = self.query.place(Span(clause.table.first, clause.end))
            if first >= at and last <= end:
                pieces += [*self.edits.part(at, first), Piece(f"`{clause.name}`", first)]
                at = last
        return [*pieces, *self.edits.part(at, end)]

    def _with(self, clause: MatchClause) -> list[Piece]:
        """Return the queries of WITH that come before a clause."""
        query, at, last = self.query, 1, 0
        if not query.words(0, "WITH"):
            return []
        while (
            opening := next((n for n in range(at, clause.table.first) if query.words(n - 1, "AS")), None)
        ) is not None:
            closing = query.closing.get(opening, len(query.tokens))
            if closing >= clause.table.first:
                break
            last, at = closing, closing + 1
            if query.text_of(at) != ",":
                break
        if not last:
            return []
        end = query.tokens[last].end
        return [*self._part(0, end), Piece(" ", end)]


def match_clauses(query: Query, edits: Edits) -> Matches:
    """Return the clauses of a query, those inside of others before these. Raise ConfigurationError for wrong ones."""
    places = [
        at
        for at, token in enumerate(query.tokens)
        if token.word == WORD and query.text_of(at + 1) == "(" and query.text_of(at - 1) != "."
    ]
    return Matches(query, edits, [_Reader(query, edits, at).clause(number) for number, at in enumerate(places, 1)])


@dataclass
class _Reader:
    """Reads one clause."""

    query: Query
    edits: Edits
    at: int
    variables: dict[str, int] = field(default_factory=dict)

    def clause(self, number: int) -> MatchClause:
        query, at = self.query, self.at
        closing = query.closing.get(at + 1)
        if closing is None:
            raise self._refused("MATCH_RECOGNIZE: its parenthesis is not closed", at + 1)
        parts = self._parts(Span(at + 2, closing))
        for words in (("ORDER", "BY"), ("PATTERN",)):
            if words not in parts:
                what = " ".join(words)
                why = "which says what a match is" if what == "PATTERN" else "which says in which order rows are taken"
                raise self._refused(f"MATCH_RECOGNIZE has no {what}, {why}", at)
        if ("ALL", "ROWS", "PER", "MATCH") in parts:
            place = parts["ALL", "ROWS", "PER", "MATCH"].first - 4
            hint = (
                "leave it out, and join the matches with the table: … ON t.k = m.k AND t.at BETWEEN m.first AND m.last"
            )
            raise self._refused("ALL ROWS PER MATCH: a match gives one row here", place, hint)
        if (one := parts.get(("ONE", "ROW", "PER", "MATCH"))) and one.first < one.end:
            raise self._refused("ONE ROW PER MATCH has more behind it", one.first)
        pattern, text, within_us = self._pattern(parts["PATTERN",])
        sets = {name: frozenset({number}) for name, number in self.variables.items()}
        if subset := parts.get(("SUBSET",)):
            sets |= self._subsets(subset)
        skip, skip_to = self._skip(parts.get(("AFTER", "MATCH", "SKIP")), sets, pattern)
        return MatchClause(
            number=number, table=self._table(), at=at, end=closing + 1,
            keys=self._columns(parts.get(("PARTITION", "BY")), "PARTITION BY"), order=self._order(parts["ORDER", "BY"]),
            measures=self._measures(parts.get(("MEASURES",))), pattern=pattern, pattern_text=text,
            variables=list(self.variables), within_us=within_us, skip=skip, skip_to=skip_to, sets=sets,
            conditions=self._conditions(parts.get(("DEFINE",))),
        )  # fmt: skip

    def _parts(self, inside: Span) -> dict[tuple[str, ...], Span]:
        """Return what stands behind the words of each clause."""
        query, starts, at, last = self.query, list[tuple[int, tuple[str, ...]]](), inside.first, -1
        while at < inside.end:
            for place, words in enumerate(_CLAUSES[last + 1 :], last + 1):
                if query.words(at, *words) and (at == inside.first or self._ends_clause(at, words)):
                    starts.append((at, words))
                    last = place
                    break
            else:
                if not starts:
                    raise self._refused(f"MATCH_RECOGNIZE begins with {query.tokens[at].text}", at)
            at = query.closing.get(at, at) + 1
        ends = [place for place, _ in starts[1:]] + [inside.end]
        return {words: Span(place + len(words), end) for (place, words), end in zip(starts, ends, strict=True)}

    def _ends_clause(self, at: int, words: Sequence[str]) -> bool:
        """Whether words are those of a clause, and not the name of a column."""
        before, after = self.query.text_of(at - 1), self.query.text_of(at + len(words))
        return before not in (",", ".") and self.query.word(at - 1) != "AS" and (words != ("PATTERN",) or after == "(")

    def _table(self) -> Span:
        """Return the table in front: a name, a query in parentheses, or a table function."""
        query, first = self.query, self.at - 1
        opened = {end: start for start, end in query.closing.items()}
        if first in opened:
            first = opened[first]
            if query.tokens[first - 1].kind == "word" and query.text_of(first - 1).upper() not in _BEFORE_TABLE:
                first -= 1
        else:
            while first > 1 and query.text_of(first - 1) == ".":
                first -= 2
        if first < 1 or query.text_of(first - 1).upper() not in _BEFORE_TABLE:
            raise self._refused(
                "MATCH_RECOGNIZE stands directly behind a table, or behind a query in parentheses", self.at,
                "write the alias behind it: FROM t MATCH_RECOGNIZE (…) AS m",
            )  # fmt: skip
        return Span(first, self.at)

    # -- clauses

    def _columns(self, span: Span | None, what: str) -> list[Span]:
        columns = self._list(span, what)
        for each in columns:
            self._check_column(each, what)
        return columns

    def _check_column(self, span: Span, what: str) -> None:
        if not self.query.is_name(span) or span.end - span.first != 1:
            raise self._refused(
                f"{what} has more than the name of a column", span.first,
                "compute it in a query before: FROM (SELECT *, … AS k FROM t) MATCH_RECOGNIZE (PARTITION BY k …)",
            )  # fmt: skip

    def _order(self, span: Span) -> list[OrderTerm]:
        terms = []
        for each in self._list(span, "ORDER BY"):
            words = [self.query.word(at) for at in range(each.first + 1, each.end)]
            is_descending = words[:1] == ["DESC"]
            rest = words[words[:1] in (["ASC"], ["DESC"]) :]
            if rest not in ([], ["NULLS", "FIRST"], ["NULLS", "LAST"]):
                self._check_column(each, "ORDER BY")
            nulls_last = rest == ["NULLS", "LAST"] or (not rest and is_descending)
            terms.append(OrderTerm(Span(each.first, each.first + 1), is_descending, nulls_last))
            self._check_column(terms[-1].column, "ORDER BY")
        if terms[0].is_descending:
            raise self._refused(
                "MATCH_RECOGNIZE: rows are taken in the order of their times, and ORDER BY … DESC is the opposite",
                span.first + 1, "leave DESC out, and turn the pattern round",
            )  # fmt: skip
        return terms

    def _measures(self, span: Span | None) -> list[tuple[str, Span]]:
        measures = []
        for each in self._list(span, "MEASURES"):
            if each.end - each.first < 3 or not self.query.words(each.end - 2, "AS"):
                raise self._refused("a measure has no name", each.first, "write MEASURES LAST(A.price) AS price")
            measures.append((self.query.tokens[each.end - 1].value, Span(each.first, each.end - 2)))
        return measures

    def _conditions(self, span: Span | None) -> dict[int, Span]:
        conditions: dict[int, Span] = {}
        for each in self._list(span, "DEFINE"):
            name = self.query.tokens[each.first].value.upper()
            if not self.query.words(each.first + 1, "AS") or each.end - each.first < 3:
                raise self._refused("DEFINE: a variable has no condition", each.first, "write DEFINE A AS A.price > 10")
            if name not in self.variables:
                names = ", ".join(self.variables)
                raise self._refused(f"DEFINE {name}: the pattern has no such variable", each.first, f"it has {names}")
            if self.variables[name] in conditions:
                raise self._refused(f"DEFINE {name}: it has a condition already", each.first, "join them by AND")
            conditions[self.variables[name]] = Span(each.first + 2, each.end)
        return conditions

    def _subsets(self, span: Span) -> dict[str, frozenset[int]]:
        """SUBSET U = (A, B), …"""
        query, sets = self.query, dict[str, frozenset[int]]()
        for each in self._list(span, "SUBSET"):
            name = query.tokens[each.first].value.upper()
            opening = each.first + 2
            if query.text_of(each.first + 1) != "=" or query.closing.get(opening) != each.end - 1:
                raise self._refused("SUBSET has no variables", each.first, "write SUBSET U = (A, B)")
            if name in self.variables:
                raise self._refused(f"SUBSET {name}: the pattern has a variable of this name", each.first)
            sets[name] = frozenset(self._variable(part.first) for part in query.arguments(opening))
        return sets

    def _skip(
        self, span: Span | None, sets: Mapping[str, frozenset[int]], pattern: Pattern
    ) -> tuple[Skip, tuple[bool, frozenset[int]] | None]:
        """AFTER MATCH SKIP PAST LAST ROW | TO NEXT ROW | TO [FIRST | LAST] A"""
        if span is None or self._is(span, "PAST", "LAST", "ROW"):
            return "past last row", None
        if self._is(span, "TO", "NEXT", "ROW"):
            return "to next row", None
        query, size = self.query, span.end - span.first
        is_first = query.words(span.first + 1, "FIRST") and size == 3
        name = query.tokens[span.end - 1].value.upper()
        if not query.words(span.first, "TO") or size != 2 + (query.word(span.first + 1) in ("FIRST", "LAST")):
            raise self._refused(
                "AFTER MATCH SKIP has not the form of one of its kinds", span.first,
                "write PAST LAST ROW, TO NEXT ROW, TO FIRST A or TO LAST A",
            )  # fmt: skip
        if name not in sets:
            raise self._refused(
                f"AFTER MATCH SKIP TO {name}: the pattern has no such variable",
                span.end - 1,
                f"it has {', '.join(sets)}",
            )
        if is_first and isinstance(first := _first_of(pattern), Row) and first.variable in sets[name]:
            raise self._refused(
                f"AFTER MATCH SKIP TO FIRST {name}: it is the first row, where the same match begins again", span.first,
                "write TO NEXT ROW, or another variable",
            )  # fmt: skip
        return "to row", (is_first, sets[name])

    def _is(self, span: Span, *words: str) -> bool:
        return span.end - span.first == len(words) and self.query.words(span.first, *words)

    # -- the pattern

    def _pattern(self, span: Span) -> tuple[Pattern, str, int | None]:
        query, opening = self.query, span.first
        closing = query.closing.get(opening)
        if closing is None or closing >= span.end:
            raise self._refused("PATTERN has no parentheses", opening - 1, "write PATTERN (A B+ C)")
        pattern, at = self._choice(opening + 1, closing)
        if at < closing:
            raise self._refused(f"PATTERN: {query.tokens[at].text} is not expected here", at, "write PATTERN (A B+ C)")
        if can_be_empty(pattern):
            raise self._refused(
                "the pattern matches no row at all, too, and such a match has no place among the rows", opening,
                "have a variable that takes a row: A+ in place of A*",
            )  # fmt: skip
        within = Span(closing + 1, span.end)
        text = query.text[query.tokens[opening].start : query.tokens[span.end - 1].end]
        if within.first == within.end:
            return pattern, " ".join(text.split()), None
        if not query.words(within.first, "WITHIN"):
            raise self._refused(f"{query.tokens[within.first].text} is not expected behind the pattern", within.first)
        try:
            within_us = microseconds(query.of(Span(within.first + 1, within.end)))
        except NoInterval as error:
            raise self._refused(
                f"WITHIN: {error}", within.first, "write WITHIN INTERVAL '1' HOUR, of a fixed length"
            ) from None
        if not 0 < within_us <= LONGEST_MS * 1000:
            raise self._refused("WITHIN: a match takes longer than 0, and at most 10,000 years", within.first)
        return pattern, " ".join(text.split()), within_us

    def _choice(self, at: int, end: int) -> tuple[Pattern, int]:
        parts = []
        while True:
            part, at = self._chain(at, end)
            parts.append(part)
            if at == end or self.query.text_of(at) != "|":
                return (parts[0] if len(parts) == 1 else Choice(tuple(parts))), at
            at += 1

    def _chain(self, at: int, end: int) -> tuple[Pattern, int]:
        parts: list[Pattern] = []
        while at < end and self.query.text_of(at) not in ("|", ")"):
            part, at = self._part(at)
            part, at = self._repeated(part, at, end)
            parts.append(part)
        if not parts:
            raise self._refused("PATTERN: a variable is missing here", min(at, end), "write PATTERN (A B+ C)")
        return (parts[0] if len(parts) == 1 else Chain(tuple(parts))), at

    def _part(self, at: int) -> tuple[Pattern, int]:
        query = self.query
        if query.text_of(at) == "(":
            pattern, end = self._choice(at + 1, query.closing[at])
            return pattern, end + 1
        token = query.tokens[at]
        if token.kind not in ("word", "name") or (token.word == "PERMUTE" and query.text_of(at + 1) == "("):
            hint = "a pattern has variables, ( ), |, *, +, ? and {n,m}"
            raise self._refused(f"PATTERN: {token.text} is not supported", at, hint)
        return Row(self.variables.setdefault(token.value.upper(), len(self.variables))), at + 1

    def _repeated(self, part: Pattern, at: int, end: int) -> tuple[Pattern, int]:
        """Return a part with its quantifier, and the place after it."""
        query, sign = self.query, self.query.text_of(at)
        bounds: tuple[int, int | None] | None = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign)
        after = at + 1
        if sign == "{":
            after = next((each for each in range(at, end) if query.text_of(each) == "}"), end)
            bounds = self._bounds(Span(at + 1, after))
            after += 1
        if bounds is None:
            return part, at
        is_greedy = after >= end or query.text_of(after) != "?"
        return Repeat(part, *bounds, is_greedy), after + (not is_greedy)

    def _bounds(self, span: Span) -> tuple[int, int | None]:
        """{n}, {n,}, {,m}, {n,m}"""
        tokens = self.query.of(span)
        texts = [token.text for token in tokens]
        numbers = [int(text) for text in texts if text.isdigit()]
        shape = ["n" if text.isdigit() else text for text in texts]
        if shape not in (["n"], ["n", ","], [",", "n"], ["n", ",", "n"]):
            raise self._refused("PATTERN: a quantifier has not the form {n}, {n,}, {,m} or {n,m}", span.first - 1)
        least = numbers[0] if shape[0] == "n" else 0
        most = None if shape == ["n", ","] else numbers[-1]
        if most is not None and (most < least or most == 0):
            raise self._refused(f"PATTERN: {{{''.join(texts)}}} is no number of rows", span.first - 1)
        if max(numbers) > _MANY:
            raise self._refused(f"PATTERN: more than {_MANY} repetitions", span.first - 1, "write * or +")
        return least, most

    # -- tokens

    def _variable(self, at: int) -> int:
        name = self.query.tokens[at].value.upper()
        if name not in self.variables:
            raise self._refused(f"{name}: the pattern has no such variable", at, f"it has {', '.join(self.variables)}")
        return self.variables[name]

    def _list(self, span: Span | None, what: str) -> list[Span]:
        parts = [] if span is None else self.query.split(span, ",")
        if span is not None and (not parts or any(part.first == part.end for part in parts)):
            raise self._refused(f"MATCH_RECOGNIZE: {what} has nothing behind it, or behind a comma", span.first - 1)
        return parts

    def _refused(self, message: str, at: int, hint: str = EXAMPLE) -> ConfigurationError:
        return self.edits.refused(message, self.query.tokens[min(at, len(self.query.tokens) - 1)].start, hint)


def _first_of(pattern: Pattern) -> Pattern:
    """Return what a pattern certainly begins with."""
    match pattern:
        case Chain((first, *_)):
            return _first_of(first)
        case Repeat(part, least) if least:
            return _first_of(part)
    return pattern
