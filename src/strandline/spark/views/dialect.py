"""Rewrites what Flink and RisingWave write and Spark does not to Spark's SQL, token by token.

What a rewriting does not touch is Spark's to parse: nothing is understood here but the places of words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from strandline.core.errors import ConfigurationError
from strandline.spark.views.groupwindows import GroupWindows
from strandline.spark.views.hints import take_hints
from strandline.spark.views.matchclause import Matches, match_clauses
from strandline.spark.views.rewriting import Edits, Piece, Rewriting
from strandline.spark.views.spellings import respell
from strandline.spark.views.structure import Query, Span
from strandline.spark.views.tablewindows import TableWindows
from strandline.spark.views.temporal import rewrite_versions

_STARTS = frozenset({"SELECT", "FROM", "VALUES", "TABLE", "MAP", "REDUCE"})
_STATEMENTS = frozenset({"INSERT", "DELETE", "MERGE", "UPDATE"})
_ENDS_OF_ORDER = frozenset({"LIMIT", "OFFSET", "UNION", "INTERSECT", "EXCEPT", "MINUS"})
_PRESENT = ("PROCTIME", "CURRENT_", "LOCALTIME", "NOW")
_COMPARISONS = ("<", "<=", ">", ">=")
_AFTER_COLUMN = frozenset(
    {"FROM", "AS", "IS", "IN", "LIKE", "ILIKE", "RLIKE", "BETWEEN", "AND", "OR", "DIV", "COLLATE"}
)
"""What follows a column named stream, and not the word STREAM."""


def rewritten(text: str, columns: Iterable[str] = ()) -> Rewriting:
    """Return a query as Spark parses it. Raise ConfigurationError, also for MATCH_RECOGNIZE, which Spark has not."""
    matches = matches_in(text, columns)
    for clause in matches.clauses:
        raise matches.refused(
            "MATCH_RECOGNIZE is of rows of a stream with a watermark: tables alone have none", clause.at,
            "read a stream that has one",
        )  # fmt: skip
    return matches.outer


def matches_in(
    text: str, columns: Iterable[str] = (), times: Mapping[str, tuple[str, bool]] = MappingProxyType({})
) -> Matches:
    """Return a query as Spark parses it, and its clauses of MATCH_RECOGNIZE. Raise ConfigurationError.

    `columns` are those of its tables; `times` are the columns of tables that FOR SYSTEM_TIME AS OF is about: see
    `rewrite_versions`.
    """
    query, edits = Query(text), Edits(text)
    _check_query(query, edits)
    take_hints(query, edits)
    if "stream" not in {name.lower() for name in columns}:
        _drop_stream(query, edits)
    respell(query, edits)
    _versions(query, edits, times)
    _match_conditions(query, edits)
    _distinct_on(query, edits)
    GroupWindows(query, edits).rewrite()
    TableWindows(query, edits).rewrite()
    return match_clauses(query, edits)


def _check_query(query: Query, edits: Edits) -> None:
    """Refuse statements, which Spark would execute, and WITH … INSERT INTO."""
    every = range(len(query.tokens))
    first = next((at for at in every if query.tokens[at].text != "("), None)
    if first is None:
        raise ConfigurationError("sql() was given no query", hint='write sql("SELECT …", orders=orders)')
    if query.words(first, "WITH"):
        starts = _STARTS | _STATEMENTS
        first = next((at for at in every if query.word(at) in starts and _follows_with(query, at)), first)
    if query.words(first, "FROM"):
        first = next((at for at in every if query.words(at, "INSERT") and query.sites[at].depth == 0), first)
    if query.word(first) not in _STARTS | {"WITH"}:
        token = query.tokens[first]
        raise edits.refused(
            f"sql() was given a statement that begins with {token.text}, expected a query", token.start,
            "give it a SELECT; spark.sql() executes other statements",
        )  # fmt: skip


def _follows_with(query: Query, at: int) -> bool:
    return query.text_of(at - 1) == ")" and query.sites[at].depth == 0


def _drop_stream(query: Query, edits: Edits) -> None:
    """SELECT STREAM …"""
    for at, token in enumerate(query.tokens[:-1]):
        after = query.tokens[at + 1]
        is_column = after.word in _AFTER_COLUMN or (after.kind == "sign" and after.text not in "*(")
        if token.word == "STREAM" and query.word(at - 1) == "SELECT" and not is_column:
            edits.replace(token.start, after.start)


def _versions(query: Query, edits: Edits, times: Mapping[str, tuple[str, bool]]) -> None:
    """FOR SYSTEM_TIME AS OF o.at: Spark has it for times that are not columns."""
    for at, token in enumerate(query.tokens):
        if not query.words(at, "FOR", "SYSTEM_TIME", "AS", "OF"):
            continue
        time = query.tokens[at + 4] if at + 4 < len(query.tokens) else token
        after = query.tokens[at + 5].kind if at + 5 < len(query.tokens) else "sign"
        if time.word.startswith(_PRESENT):
            raise edits.refused(
                "FOR SYSTEM_TIME AS OF the time of processing: after a restart, rows would be joined with others",
                token.start,
                "leave it out: a join is kept up to date with the newest rows; or join as of a column with ASOF JOIN",
            )
        is_column = time.kind in ("word", "name") and after != "text" and query.text_of(at + 5) != "("
        if is_column and not rewrite_versions(query, edits, at, times):
            raise edits.refused(
                "FOR SYSTEM_TIME AS OF a column: the table does not say since when each of its rows is valid",
                token.start,
                'its stream needs watermark("at"), and sl.table order_by="at"; '
                "or name the column: o LEFT ASOF JOIN r MATCH_CONDITION (o.at >= r.at) ON o.currency = r.currency",
            )


def _match_conditions(query: Query, edits: Edits) -> None:
    """ASOF [LEFT] JOIN r ON o.k = r.k AND o.at >= r.at: Spark has LEFT before it, and MATCH_CONDITION."""
    for at, token in enumerate(query.tokens):
        if token.word != "ASOF":
            continue
        if query.words(at + 1, "LEFT"):
            join = at + 2 + query.words(at + 2, "OUTER")
            edits.replace(token.start, query.tokens[join].start, Piece("LEFT ASOF ", token.start))
        else:
            join = at + 1
        if not query.words(join, "JOIN"):
            continue
        site = query.sites[at]
        condition = next(
            (each for each in range(join, len(query.tokens))
             if query.word(each) in ("ON", "USING", "MATCH_CONDITION") and query.sites[each].depth == site.depth),
            None,
        )  # fmt: skip
        if condition is None or query.word(condition) != "ON":
            continue
        end = next(
            (each for each in range(condition + 1, len(query.tokens))
             if query.sites[each].depth <= site.depth and _ends_condition(query, each, condition)),
            len(query.tokens),
        )  # fmt: skip
        parts = query.split(Span(condition + 1, end), "AND")
        ordered = [part for part in parts if any(query.text_of(each) in _COMPARISONS for each in _outside(query, part))]
        if len(ordered) != 1:
            raise edits.refused(
                f"ASOF JOIN has {len(ordered)} comparisons of times in ON, expected one", query.tokens[condition].start,
                "write ON o.currency = r.currency AND o.at >= r.at",
            )  # fmt: skip
        rest = [part for part in parts if part is not ordered[0]]
        start = query.tokens[condition].start
        pieces = [Piece("MATCH_CONDITION (", start), edits.copy(*query.place(ordered[0])), Piece(")", start)]
        for number, part in enumerate(rest):
            pieces += [Piece(" AND " if number else " ON ", start), edits.copy(*query.place(part))]
        edits.replace(start, query.tokens[end - 1].end, *pieces)


def _ends_condition(query: Query, at: int, condition: int) -> bool:
    site = query.sites[at]
    joins = ("JOIN", "LEFT", "RIGHT", "FULL", "INNER", "CROSS", "NATURAL", "ASOF", "LATERAL", "WINDOW")
    return (
        site.clause != query.sites[condition].clause
        or site.block != query.sites[condition].block
        or query.word(at) in joins
        or query.text_of(at) in (",", ";")
        or (query.text_of(at) == ")" and site.depth < query.sites[condition].depth)
    )


def _outside(query: Query, span: Span) -> Iterable[int]:
    """Yield the indexes of a span that are outside of parentheses."""
    at = span.first
    while at < span.end:
        yield at
        at = query.closing.get(at, at) + 1


def _distinct_on(query: Query, edits: Edits) -> None:
    """SELECT DISTINCT ON (room) … ORDER BY room, at DESC: the first row of each room."""
    for at, token in enumerate(query.tokens):
        if not (query.words(at, "DISTINCT", "ON") and query.word(at - 1) == "SELECT" and at + 2 in query.closing):
            continue
        block, closing = query.sites[at].block, query.closing[at + 2]
        inside = [
            each for each in range(at, len(query.tokens))
            if query.sites[each].block == block and query.sites[each].depth == query.sites[at].depth
        ]  # fmt: skip
        order = next((each for each in inside if query.words(each, "ORDER", "BY")), None)
        words = {query.word(each) for each in inside}
        if order is None or "QUALIFY" in words or closing + 1 >= len(query.tokens):
            why = "it has QUALIFY, too" if order is not None else "which row of each is not defined without ORDER BY"
            raise edits.refused(
                f"DISTINCT ON: {why}", token.start, "write QUALIFY row_number() OVER (PARTITION BY … ORDER BY …) = 1"
            )
        end = next(
            (each for each in inside
             if each > order and (_ends_order(query, each) or query.text_of(each) == ";")),
            inside[-1] + 1,
        )  # fmt: skip
        numbers = [span for span in query.split(Span(order + 2, end), ",") if query.of(span)[0].kind == "number"]
        if numbers:
            raise edits.refused(
                "DISTINCT ON: ORDER BY the number of a column", query.place(numbers[0])[0], "write the column's name"
            )
        edits.replace(token.start, query.tokens[closing + 1].start)
        start, stop = query.tokens[order].start, query.tokens[end - 1].end
        keys = Span(at + 3, closing)
        before = Piece("QUALIFY row_number() OVER (PARTITION BY ", token.start)
        edits.replace(start, start, before, edits.copy(*query.place(keys)), Piece(" ", start))
        has_limit = query.word(end) in ("LIMIT", "OFFSET")
        edits.replace(stop, stop, Piece(") = 1", start), *([Piece(" ", start), edits.copy(start, stop)] * has_limit))


def _ends_order(query: Query, at: int) -> bool:
    """Whether the terms of ORDER BY end here: OFFSET may be the name of a column."""
    is_name = query.text_of(at - 1) in (",", ".") or query.word(at - 1) == "BY"
    return query.word(at) in _ENDS_OF_ORDER and not is_name
