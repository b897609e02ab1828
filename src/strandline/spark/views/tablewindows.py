"""Table functions of windows as Flink and RisingWave write them, rewritten to subqueries with Spark's windows.

FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(at), INTERVAL '1' HOUR)) is Flink's, and has the column window_time, too;
FROM tumble(t, at, INTERVAL '1 hour') is RisingWave's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.spark.views.intervals import seconds
from strandline.spark.views.rewriting import Piece
from strandline.spark.views.structure import Span
from strandline.spark.views.windowcalls import LENGTHS, MILLISECOND, WindowCalls

_BEFORE = frozenset({"FROM", "JOIN", "LATERAL", ","})


@dataclass(frozen=True)
class _Function:
    """A call, and what it says."""

    kind: str
    rows: Span
    keys: Sequence[Span]
    time: Span
    lengths: tuple[int, ...]
    offset: int
    has_time: bool
    """Whether there is a column window_time."""
    place: int


@dataclass
class TableWindows(WindowCalls):
    """Rewrites the table functions of one query."""

    def rewrite(self) -> None:
        """Rewrite all of them."""
        for at in self.query.calls([*LENGTHS]):
            wrapped = self._is_wrapped(at)
            if wrapped or self._is_relation(at):
                self._rewrite(at, wrapped)

    def _is_wrapped(self, at: int) -> bool:
        return self.query.words(at - 2, "TABLE") and self.query.text_of(at - 1) == "("

    def _is_relation(self, at: int) -> bool:
        """Whether a call stands in FROM, with the arguments of a table function."""
        query, arguments = self.query, self.query.arguments(at + 1)
        if query.sites[at].clause != "FROM" or query.text_of(at - 1).upper() not in _BEFORE:
            return False
        is_flink = any(query.word(span.first) in ("TABLE", "DATA") for span in arguments)
        return is_flink or (len(arguments) >= 3 and query.is_name(arguments[0]))

    def _rewrite(self, at: int, wrapped: bool) -> None:
        query = self.query
        start, end = self.place(at)
        if wrapped:
            closing = query.closing.get(at - 1, -1)
            if closing != query.closing[at + 1] + 1:
                raise self.edits.refused(
                    f"TABLE(…) has more in it than {query.tokens[at].text}(…)", query.tokens[at - 2].start
                )
            start, end = query.tokens[at - 2].start, query.tokens[closing].end
        function = self._function(at, start)
        match function.kind:
            case "CUMULATE":
                before, after = self._cumulate(function)
            case "SESSION":
                before, after = self._session(function)
            case _:
                before, after = self._slide(function)
        first, last = query.place(function.rows)
        self.edits.replace(start, first, *before)
        self.edits.replace(last, end, *after)

    # -- what stands before and after the rows

    def _slide(self, function: _Function) -> tuple[list[Piece], list[Piece]]:
        place = function.place
        window = self.spark(function.kind, function.time, function.lengths, place, function.offset)
        last = ".end AS window_end"
        before = [Piece("(SELECT *, ", place), *window, Piece(".start AS window_start, ", place), *window]
        if function.has_time:
            before += [Piece(f"{last}, ", place), *window]
            last = f".end - {MILLISECOND} AS window_time"
        return [*before, Piece(f"{last} FROM ", place)], [Piece(")", place)]

    def _cumulate(self, function: _Function) -> tuple[list[Piece], list[Piece]]:
        """Each window of the size begins as often as the step fits in it, and ends a step later each time."""
        place, (step, size), offset = function.place, function.lengths, function.offset
        columns = f"__window.start AS window_start, window_end{_time_of('window_end', function)}"
        before = [
            Piece(f"(SELECT * EXCEPT (__window, __first, window_end), {columns} FROM (SELECT *, ", place),
            *self.spark("TUMBLE", function.time, (step,), place, offset),
            Piece(".end AS __first FROM (SELECT *, ", place),
            *self.spark("TUMBLE", function.time, (size,), place, offset),
            Piece(" AS __window FROM ", place),
        ]
        ends = f"explode(sequence(__first, __window.end, {seconds(step)}))"
        return before, [Piece(f")) LATERAL VIEW {ends} AS window_end)", place)]

    def _session(self, function: _Function) -> tuple[list[Piece], list[Piece]]:
        """Rows are joined with the sessions of their key."""

        def piece(text: str) -> Piece:
            return Piece(text, function.place)

        time = self.copy(function.time)
        keys = [self.copy(key) for key in function.keys]
        groups = [each for key in keys for each in (key, piece(", "))]
        equal = [each for key in keys for each in (piece("l."), key, piece(" <=> s."), key, piece(" AND "))]
        session = self.spark("SESSION", function.time, function.lengths, function.place)
        end = "s.__window.end"
        columns = f"s.__window.start AS window_start, {end} AS window_end{_time_of(end, function)}"
        after = [
            piece(" AS l JOIN (SELECT "), *groups, *session, piece(" AS __window FROM "), self.copy(function.rows),
            piece(" GROUP BY "), *groups, *session, piece(") AS s ON "), *equal,
            piece("l."), time, piece(" >= s.__window.start AND l."), time, piece(f" < {end})"),
        ]  # fmt: skip
        return [piece(f"(SELECT l.*, {columns} FROM ")], after

    # -- arguments

    def _function(self, at: int, place: int) -> _Function:
        query = self.query
        kind = query.tokens[at].word
        names = ["DATA", "TIMECOL", *LENGTHS[kind], *(["OFFSET"] if kind != "SESSION" else [])]
        arguments = query.arguments(at + 1)
        spans: dict[str, Span] = {}
        for name, span in zip(names, arguments, strict=False):
            if query.text_of(span.first + 1) == "=>":
                name, span = query.word(span.first), Span(span.first + 2, span.end)
            if name not in names or name in spans or span.first == span.end:
                raise self.wrong(at, kind, arguments, names)
            spans[name] = span
        if len(arguments) > len(names) or not {*names} - {"OFFSET"} <= spans.keys():
            raise self.wrong(at, kind, arguments, names)
        rows, keys = self._rows(kind, spans["DATA"])
        has_time = query.words(spans["TIMECOL"].first, "DESCRIPTOR")
        lengths = self.lengths(kind, [spans[name] for name in LENGTHS[kind]])
        offset = self.length(spans["OFFSET"]) if "OFFSET" in spans else 0
        return _Function(kind, rows, keys, self._time(spans["TIMECOL"]), lengths, offset, has_time, place)

    def _rows(self, kind: str, span: Span) -> tuple[Span, list[Span]]:
        """Return the rows of TABLE t PARTITION BY (…), and the columns that they are parted by."""
        query = self.query
        first = span.first + (query.words(span.first, "TABLE") and span.end - span.first > 1)
        end = next((at for at in range(first, span.end) if query.words(at, "PARTITION", "BY")), span.end)
        keys: list[Span] = []
        if end < span.end:
            if kind != "SESSION":
                raise self.edits.refused(
                    f"PARTITION BY in {kind}(…): its windows are the same for all rows", query.tokens[end].start,
                    "leave it out, and GROUP BY the columns",
                )  # fmt: skip
            keys = query.arguments(end + 2) if end + 2 in query.closing else [Span(end + 2, span.end)]
        rows = Span(first, end)
        is_query = rows.first in query.closing and query.closing[rows.first] == rows.end - 1
        if not query.is_name(rows) and (not is_query or kind == "SESSION"):
            raise self.edits.refused(
                f"{kind}(…) of rows that have no name", query.place(span)[0],
                "name them before: WITH t AS (SELECT …), and write TABLE t",
            )  # fmt: skip
        return rows, [self._column(key, "a column of PARTITION BY") for key in keys]

    def _time(self, span: Span) -> Span:
        if self.query.words(span.first, "DESCRIPTOR") and self.query.closing.get(span.first + 1) == span.end - 1:
            span = Span(span.first + 2, span.end - 1)
        return self._column(span, "the time of a window")

    def _column(self, span: Span, what: str) -> Span:
        if span.end - span.first == 1 and self.query.is_name(span):
            return span
        raise self.edits.refused(
            f"{what} is the name of a column",
            self.query.place(span)[0],
            "compute it in a query before: WITH t AS (SELECT …)",
        )


def _time_of(end: str, function: _Function) -> str:
    return f", {end} - {MILLISECOND} AS window_time" if function.has_time else ""
