"""HTML that notebooks show in place of an object's text: titles, facts, tables and code.

It has no style sheet and no script, and no colours but those of marks, which can be seen on light and on dark: text
and tables look as the notebook has them. All text is escaped; only functions of this module make markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from html import escape
from typing import Generic, Protocol, TypeVar

_MUTED = "opacity:.75"
_LEFT = ' style="text-align:left"'
"""Notebooks set cells to the right by default."""
_CODE = "margin:.3em 0;padding:0;background:transparent;color:inherit;white-space:pre-wrap"
_MOST_ROWS = 20
_MOST_CHARS = 200
_MOST_LINES = 12

GOOD, BAD, UNSURE, QUIET = "#2f8f74", "#c8453a", "#b9791b", "#808080"
"""Colours of marks: each has at least 3 : 1 on white and on black."""


class Html(str):
    """Markup. All other text is escaped where it gets into it."""

    __slots__ = ()


def markup(text: object, most: int = _MOST_CHARS) -> Html:
    """Return text as markup, cut if it is long."""
    if isinstance(text, Html):
        return text
    plain = str(text)
    return Html(escape(plain if len(plain) <= most else f"{plain[: most - 1]}…"))


def strong(text: object) -> Html:
    """Return important text."""
    return Html(f"<b>{markup(text)}</b>")


def mark(colour: str, text: object) -> Html:
    """Return text behind a coloured dot."""
    return Html(f'<span style="color:{colour}" aria-hidden="true">●</span> {markup(text)}')


def bar(share: float, colour: str) -> Html:
    """Return a share as a bar, and in numbers."""
    width = round(100 * min(1.0, max(0.0, share)))
    return Html(
        '<span style="display:inline-block;width:4em;height:.6em;background:rgba(128,128,128,.25)">'
        f'<span style="display:block;width:{width}%;height:100%;background:{colour}"></span></span> {width}%'
    )


def card(title: object, *parts: Html | None) -> Html:
    """Return a title with parts below it; None is no part."""
    below = "".join(part for part in parts if part is not None)
    return Html(f'<div style="margin:.2em 0"><div>{markup(title)}</div>{below}</div>')


def line(text: object) -> Html:
    """Return a line of text below a title."""
    return Html(f'<div style="{_MUTED}">{markup(text)}</div>')


def facts(values: Mapping[str, object]) -> Html:
    """Return named values, as many beside each other as there is room for; None is no value."""
    cells = (
        f'<span style="display:inline-block;margin-right:1.2em"><span style="{_MUTED}">{markup(name)}</span> '
        f"{markup(value)}</span>"
        for name, value in values.items()
        if value is not None
    )
    return Html(f"<div>{''.join(cells)}</div>")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> Html:
    """Return a table of the first rows, and how many there are if that is not all."""
    every = list(rows)
    sides = ["" if name in right else _LEFT for name in columns]

    def line_of(tag: str, cells: Sequence[object]) -> str:
        return "".join(f"<{tag}{side}>{markup(cell)}</{tag}>" for cell, side in zip(cells, sides, strict=True))

    body = "".join(f"<tr>{line_of('td', row)}</tr>" for row in every[:_MOST_ROWS])
    left_out = len(every) - _MOST_ROWS
    more = line(f"and {left_out} more") if left_out > 0 else ""
    return Html(f"<table><thead><tr>{line_of('th', columns)}</tr></thead><tbody>{body}</tbody></table>{more}")


def code(text: str) -> Html:
    """Return the first lines of code."""
    lines = text.strip().splitlines()
    left_out = len(lines) - _MOST_LINES
    more = f"\n… and {left_out} more lines" if left_out > 0 else ""
    return Html(f'<pre style="{_CODE}">{escape(chr(10).join(lines[:_MOST_LINES]) + more)}</pre>')


@singledispatch
def render(value: object) -> Html:
    """Return the HTML of an object. A module that knows more than the one of its type registers a function here."""
    return code(repr(value))


class Row(Protocol):
    """A record that can be a row of a table."""

    def html_cells(self) -> dict[str, object]:
        """Return its cells by the names of their columns."""
        ...


R = TypeVar("R", bound=Row)


class Rows(list[R], Generic[R]):
    """A list of records, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        if not self:
            return line("none")
        # The newest are at the end, and of a long list they matter.
        cells = [each.html_cells() for each in self[-_MOST_ROWS:]]
        numbers = [name for name, cell in cells[0].items() if isinstance(cell, int | float)]
        texts = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row.values()] for row in cells]
        older = len(self) - len(cells)
        return Html((line(f"{older} before these") if older else "") + table([*cells[0]], texts, right=numbers))
