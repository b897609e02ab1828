"""The hint STATE_TTL('orders'='1 day') in queries, as Flink has it: how long state of a table's rows is kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from strandline.core.errors import ConfigurationError
from strandline.core.settings import Duration, parse_duration_ms
from strandline.spark.views.catalyst import Catalyst, Plan, id_of, kind_of
from strandline.spark.views.rewriting import Edits, Piece, Rewriting
from strandline.spark.views.structure import Query

_HINT = re.compile(r"\bSTATE_TTL\b\s*(\((?P<arguments>[^()]*)\))?\s*,?", re.IGNORECASE)
_ENTRY = re.compile(r"""\s*(['"])(?P<name>[^'"]+)\1\s*=\s*(['"])(?P<ttl>[^'"]+)\3\s*""")
_EXAMPLE = "write /*+ STATE_TTL('orders'='1 day', 'c'='30 days') */, with names or aliases of tables"
_LONGEST_MS = 100 * 366 * 86_400_000


@dataclass(frozen=True)
class StateTTL:
    """The time to live of a table's rows, by a hint."""

    name: str
    ttl_ms: int
    at: int
    """The place of the name in the text."""


def take_hints(query: Query, edits: Edits) -> list[StateTTL]:
    """Return the hints of a query, and take them out of its text. Raise ConfigurationError for wrong ones."""
    hints: list[StateTTL] = []
    for start, end in _comments(query):
        matches = list(_HINT.finditer(query.text, start, end))
        hints += [hint for match in matches for hint in _entries(match, edits)]
        if matches:
            others = _HINT.sub("", query.text[start + 3 : end - 2]).strip(", \t\r\n")
            edits.replace(start, end, *([Piece(f"/*+ {others} */", start)] if others else []))
    return hints


def _comments(query: Query) -> Iterator[tuple[int, int]]:
    """Yield where comments with hints start and end."""
    ends = [0, *(token.end for token in query.tokens)]
    starts = [*(token.start for token in query.tokens), len(query.text)]
    for end, start in zip(ends, starts, strict=True):
        at = query.text.find("/*+", end, start)
        close = query.text.find("*/", at, start)
        if at >= 0 and close >= 0:
            yield at, close + 2


def _entries(match: re.Match[str], edits: Edits) -> Iterator[StateTTL]:
    at = match.start("arguments")
    for part in (match["arguments"] or "").split(","):
        entry = _ENTRY.fullmatch(part)
        if entry is None:
            raise edits.refused("STATE_TTL has no pairs of a table and a duration", match.start(), _EXAMPLE)
        try:
            ttl_ms = duration_ms(entry["ttl"])
        except ConfigurationError as error:
            raise edits.refused(error.message, at + entry.start("ttl"), error.hint) from None
        yield StateTTL(entry["name"], ttl_ms, at + entry.start("name"))
        at += len(part) + 1


def duration_ms(ttl: Duration, what: str = "STATE_TTL") -> int:
    """Return a time to live in milliseconds. Raise ConfigurationError."""
    ttl_ms = parse_duration_ms(ttl, what)
    if not 0 < ttl_ms <= _LONGEST_MS:
        raise ConfigurationError(
            f"{what} is {ttl!r}, expected more than 0 and at most 100 years",
            hint="leave it out for state that is kept for ever",
        )
    return ttl_ms


def ttls_of_columns(
    catalyst: Catalyst, plan: Plan, ttls: Mapping[str, int], hints: list[StateTTL], rewriting: Rewriting
) -> dict[int, int]:
    """Return the time to live of tables' rows, by the ids of their columns in an analysed plan.

    `ttls` are by tables' names, in lower case. Of hints for a table and for an alias around it, the inner one counts.
    Raise ConfigurationError for a hint that names no table.
    """
    ttls = {**ttls, **{hint.name.lower(): hint.ttl_ms for hint in hints}}
    result: dict[int, int] = {}
    names: set[str] = set()

    def visit(plan: Plan, ttl_ms: int | None) -> None:
        kind = kind_of(plan)
        if kind == "SubqueryAlias":
            name = str(plan.identifier().name()).lower()
            names.add(name)
            ttl_ms = ttls.get(name, ttl_ms)
        elif kind == "LogicalRDD" and ttl_ms is not None:
            result.update((id_of(each), ttl_ms) for each in catalyst.items(plan.output()))
        for child in (*catalyst.items(plan.children()), *catalyst.items(plan.subqueries())):
            visit(child, ttl_ms)

    if ttls:
        visit(plan, None)
    for hint in hints:
        if hint.name.lower() not in names:
            raise rewriting.refused(
                f"STATE_TTL is of '{hint.name}', which is no table of the query, and no alias", hint.at,
                f"it has {', '.join(sorted(each for each in names if not each.startswith('__')))}",
            )  # fmt: skip
    return result
