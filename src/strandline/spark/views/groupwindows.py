"""Windows of GROUP BY as Flink writes them, rewritten to Spark's: TUMBLE(at, …), TUMBLE_START(at, …) and their like."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.spark.views.intervals import duration
from strandline.spark.views.rewriting import Piece
from strandline.spark.views.structure import Span
from strandline.spark.views.windowcalls import LENGTHS, MILLISECOND, WindowCalls

_KINDS = ("TUMBLE", "HOP", "SESSION")
_OF_WINDOW = {f"{kind}_{what}": (kind, what) for kind in _KINDS for what in ("START", "END", "ROWTIME", "PROCTIME")}


@dataclass(frozen=True)
class _Window:
    kind: str
    time: str
    lengths: tuple[int, ...]


@dataclass
class GroupWindows(WindowCalls):
    """Rewrites the windows of GROUP BY in one query."""

    _windows: dict[int, _Window] = field(default_factory=dict)
    """By SELECT: the window that it groups by."""

    def rewrite(self) -> None:
        """Rewrite all of them."""
        for at in self.query.calls(_KINDS):
            if self.query.sites[at].clause == "GROUP":
                self._group(at)
        for at in self.query.calls([*_OF_WINDOW]):
            self._of_window(at)
        for at in self.query.calls(["WINDOW", "SESSION_WINDOW"]):
            for span in self.query.arguments(at + 1)[1:]:
                if self.query.words(span.first, "INTERVAL"):
                    start, end = self.query.place(span)
                    self.edits.replace(start, end, Piece(f"'{duration(self.length(span))}'", start))

    def _group(self, at: int) -> None:
        window, time = self._window(at, self.query.tokens[at].word)
        place, end = self.place(at)
        if self._windows.setdefault(self.query.sites[at].block, window) != window:
            raise self.edits.refused(
                "the query groups by two windows: each row would be in all pairs of them", place,
                "group by one window in a SELECT, and join the results",
            )  # fmt: skip
        self.edits.replace(place, end, *self.spark(window.kind, time, window.lengths, place))

    def _of_window(self, at: int) -> None:
        word = self.query.tokens[at].word
        kind, what = _OF_WINDOW[word]
        place, end = self.place(at)
        if what == "PROCTIME":
            raise self.edits.refused(
                f"{word}(…): a view has no time of processing, since a restart would give other results", place,
                f"write {kind}_END(…) of a column with the events' time",
            )  # fmt: skip
        window, _ = self._window(at, kind)
        grouped = self._windows.get(self.query.sites[at].block)
        if grouped != window:
            is_other = "GROUP BY has another window" if grouped else "GROUP BY has no window"
            raise self.edits.refused(
                f"{word}(…): {is_other}", place, f"write GROUP BY {kind}(…) with the same arguments, in the same SELECT"
            )
        name = "session_window" if kind == "SESSION" else "window"
        text = f"{name}.{what.lower()}" if what != "ROWTIME" else f"({name}.end - {MILLISECOND})"
        self.edits.replace(place, end, Piece(text, place))

    def _window(self, at: int, kind: str) -> tuple[_Window, Span]:
        arguments, names = self.query.arguments(at + 1), LENGTHS[kind]
        if len(arguments) != 1 + len(names):
            raise self.wrong(at, kind, arguments, ["a column of time", *names])
        time = " ".join(token.text.lower() for token in self.query.of(arguments[0]))
        return _Window(kind, time, self.lengths(kind, arguments[1:])), arguments[0]
