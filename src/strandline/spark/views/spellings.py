"""Small spellings of Flink, RisingWave and PostgreSQL that Spark has otherwise."""

from __future__ import annotations

from strandline.spark.views.rewriting import Edits, Piece
from strandline.spark.views.structure import Query

_CASTS = ("CAST", "TRY_CAST")
_TEXTS = ("VARCHAR", "TEXT")
_LISTS = ("STRING_AGG", "LISTAGG")
_VALUES = ("FIRST_VALUE", "LAST_VALUE", "NTH_VALUE", "LAG", "LEAD")
_NOT_LATERAL = ("RIGHT", "FULL")


def respell(query: Query, edits: Edits) -> None:
    """Rewrite all of them."""
    _texts(query, edits)
    _laterals(query, edits)
    _unnests(query, edits)
    _orders(query, edits)
    _nulls(query, edits)


def _texts(query: Query, edits: Edits) -> None:
    """CAST(id AS VARCHAR), id::TEXT: without a length, Spark's type is STRING."""
    closed = {query.closing[call + 1] for call in query.calls(_CASTS)}
    for at, token in enumerate(query.tokens):
        in_cast = query.word(at - 1) == "AS" and at + 1 in closed
        if token.word in _TEXTS and query.text_of(at + 1) != "(" and (in_cast or query.text_of(at - 1) == "::"):
            edits.replace(token.start, token.end, Piece("STRING", token.start))


def _laterals(query: Query, edits: Edits) -> None:
    """FROM t CROSS JOIN UNNEST(t.tags): what names columns needs LATERAL in Spark."""
    for at in query.calls(("UNNEST",)):
        inside = range(at + 2, query.closing[at + 1])
        names = any(query.tokens[each].kind in ("word", "name") and query.text_of(each + 1) != "(" for each in inside)
        join = at - 1
        kind = query.word(join - 1 - (query.word(join - 1) == "OUTER"))
        is_joined = query.word(join) == "JOIN" and kind not in _NOT_LATERAL
        if names and (is_joined or (query.text_of(join) == "," and query.sites[at].clause == "FROM")):
            start = query.tokens[at].start
            edits.replace(start, start, Piece("LATERAL ", start))


def _unnests(query: Query, edits: Edits) -> None:
    """SELECT unnest(tags): in Spark it stands in FROM alone, and the function of rows is explode()."""
    for at in query.calls(("UNNEST",)):
        if query.sites[at].clause == "SELECT":
            edits.replace(query.tokens[at].start, query.tokens[at].end, Piece("explode", query.tokens[at].start))


def _orders(query: Query, edits: Edits) -> None:
    """string_agg(name, ',' ORDER BY name): the order is outside of the arguments in Spark."""
    for at in query.calls(_LISTS):
        depth = query.sites[at].depth + 1
        for each in range(at + 2, query.closing[at + 1]):
            if query.words(each, "ORDER", "BY") and query.sites[each].depth == depth:
                start = query.tokens[each].start
                edits.replace(start, start, Piece(") WITHIN GROUP (", start))


def _nulls(query: Query, edits: Edits) -> None:
    """first_value(x IGNORE NULLS) OVER …: it is behind the arguments in Spark."""
    for at in query.calls(_VALUES):
        closing = query.closing[at + 1]
        if query.word(closing - 2) in ("IGNORE", "RESPECT") and query.word(closing - 1) == "NULLS":
            start, last = query.tokens[closing - 2].start, query.tokens[closing]
            edits.replace(start, start, Piece(") ", start))
            edits.replace(last.start, last.end)
