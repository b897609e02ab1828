"""Calls of functions of windows: their arguments, checked, and Spark's function in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.core.errors import ConfigurationError
from strandline.spark.views.intervals import NoInterval, duration, microseconds
from strandline.spark.views.rewriting import Edits, Piece
from strandline.spark.views.structure import Query, Span

LENGTHS = {"TUMBLE": ("SIZE",), "HOP": ("SLIDE", "SIZE"), "CUMULATE": ("STEP", "SIZE"), "SESSION": ("GAP",)}
"""The lengths that each kind of window has, in their order."""
MILLISECOND = "INTERVAL '0.001' SECOND"
"""How much before its end is a window's time: in Flink it is the last millisecond."""
_EXAMPLES = {
    "TUMBLE": "GROUP BY TUMBLE(at, INTERVAL '1' HOUR), or "
    "FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(at), INTERVAL '1' HOUR))",
    "HOP": "HOP(at, INTERVAL '5' MINUTES, INTERVAL '1' HOUR), with the slide before the size, or "
    "FROM TABLE(HOP(TABLE t, DESCRIPTOR(at), INTERVAL '5' MINUTES, INTERVAL '1' HOUR))",
    "CUMULATE": "FROM TABLE(CUMULATE(TABLE t, DESCRIPTOR(at), INTERVAL '10' MINUTES, INTERVAL '1' HOUR))",
    "SESSION": "GROUP BY SESSION(at, INTERVAL '10' MINUTES), or "
    "FROM TABLE(SESSION(TABLE t PARTITION BY user, DESCRIPTOR(at), INTERVAL '10' MINUTES))",
}


@dataclass
class WindowCalls:
    """Reads the calls of one query."""

    query: Query
    edits: Edits

    def place(self, at: int) -> tuple[int, int]:
        """Return where a call starts and ends."""
        return self.query.tokens[at].start, self.query.tokens[self.query.closing[at + 1]].end

    def copy(self, span: Span) -> Piece:
        """Return a part of the text, to be put elsewhere."""
        return self.edits.copy(*self.query.place(span))

    def spark(self, kind: str, time: Span, lengths: Sequence[int], place: int, offset: int = 0) -> list[Piece]:
        """Return Spark's function of a window. Its size comes first in Spark, and last in Flink."""
        name = "session_window" if kind == "SESSION" else "window"
        texts = [duration(length) for length in reversed(lengths)]
        if offset % lengths[0]:
            texts += [texts[0]] * (len(texts) == 1)
            texts += [duration(offset % lengths[0])]
        rest = "".join(f", '{each}'" for each in texts) + ")"
        return [Piece(f"{name}(", place), self.copy(time), Piece(rest, place)]

    def length(self, span: Span) -> int:
        """Return a length in microseconds."""
        try:
            return microseconds(self.query.of(span))
        except NoInterval as error:
            start, end = self.query.place(span)
            raise self.edits.refused(
                f"{self.query.text[start:end]} is no length of a window: {error}", start,
                "write INTERVAL '10' MINUTES; a window is a fixed number of days, hours, minutes or seconds long",
            ) from None  # fmt: skip

    def lengths(self, kind: str, spans: Sequence[Span]) -> tuple[int, ...]:
        """Return the lengths of a kind of window, checked against each other."""
        lengths = tuple(self.length(span) for span in spans)
        for length, span in zip(lengths, spans, strict=True):
            if length <= 0:
                raise self.edits.refused(
                    f"{kind}: a window is longer than 0", self.query.place(span)[0], "write a longer one"
                )
        place = self.query.place(spans[-1])[0]
        if kind == "HOP" and lengths[0] > lengths[1]:
            raise self.edits.refused(
                f"HOP: windows of {duration(lengths[1])}, one each {duration(lengths[0])}, would leave rows out", place,
                "write the slide first, then the size",
            )  # fmt: skip
        if kind == "CUMULATE" and lengths[1] % lengths[0]:
            raise self.edits.refused(
                f"CUMULATE: {duration(lengths[1])} is no multiple of {duration(lengths[0])}", place,
                "write the step first, then the size, a multiple of it",
            )  # fmt: skip
        return lengths

    def wrong(self, at: int, kind: str, arguments: Sequence[Span], names: Sequence[str]) -> ConfigurationError:
        """Return the error of a call with other arguments than expected."""
        expected = ", ".join(f"[{name}]" if name == "OFFSET" else name for name in names)
        number = f"{len(arguments)} argument{'' if len(arguments) == 1 else 's'}"
        return self.edits.refused(
            f"{self.query.tokens[at].text}(…) has {number}, expected {expected}", self.place(at)[0],
            f"write {_EXAMPLES[kind]}",
        )  # fmt: skip
