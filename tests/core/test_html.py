"""HTML of notebooks: short, with all text escaped, without colours that a dark notebook would hide."""

from __future__ import annotations

import re

import pytest

from strandline.core.html import (
    BAD,
    GOOD,
    QUIET,
    UNSURE,
    Rows,
    bar,
    card,
    code,
    facts,
    line,
    mark,
    markup,
    render,
    strong,
    table,
)

EVIL = "<script>alert('&\"')</script>"
ESCAPED = "&lt;script&gt;alert(&#x27;&amp;&quot;&#x27;)&lt;/script&gt;"


class Record:
    def __init__(self, number: int) -> None:
        self.number = number

    def html_cells(self) -> dict[str, object]:
        return {"number": self.number, "text": EVIL, "state": mark(GOOD, EVIL)}


@pytest.mark.parametrize(
    "html",
    [
        markup(EVIL), strong(EVIL), mark(BAD, EVIL), line(EVIL), code(EVIL), card(EVIL, line(EVIL), None),
        facts({EVIL: EVIL, "none": None}), table([EVIL], [[EVIL]], right=[EVIL]), Rows([Record(1)])._repr_html_(), render(EVIL),
    ],
)  # fmt: skip
def test_all_text_is_escaped(html: str) -> None:
    assert ESCAPED in html or ESCAPED in html.replace("\\&#x27;", "&#x27;")
    assert "<script" not in html
    assert "None" not in html
    opened = re.findall(r"<(\w+)", html)
    assert sorted(opened) == sorted(re.findall(r"</(\w+)", html)), "each tag is closed"


def test_markup_is_escaped_once() -> None:
    assert markup(strong("a & b")) == "<b>a &amp; b</b>"
    assert str(card(strong("x"))).count("<b>x</b>") == 1


def test_long_values_and_lists_are_cut() -> None:
    assert markup("x" * 1000) == "x" * 199 + "…"
    long = table(["n"], [[n] for n in range(1000)])
    assert long.count("<td") == 20
    assert "and 980 more" in long
    rows = Rows([Record(n) for n in range(1, 1001)])._repr_html_()
    assert "980 before these" in rows
    assert ">1,000<" in rows
    assert code("\n".join("abcdefghijklmnopqrst")).endswith("l\n… and 8 more lines</pre>")
    assert "none" in Rows[Record]()._repr_html_()


def test_a_bar_stays_in_its_frame() -> None:
    assert [re.findall(r"width:(\d+)%", bar(share, GOOD)) for share in (-1.0, 0.5, 7.0)] == [["0"], ["50"], ["100"]]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colour", [GOOD, BAD, UNSURE, QUIET])
@pytest.mark.parametrize("ground", ["#ffffff", "#111111"])
def test_marks_can_be_seen_on_light_and_dark(colour: str, ground: str) -> None:
    dark, light = sorted([luminance(colour), luminance(ground)])
    assert (light + 0.05) / (dark + 0.05) >= 3


def test_only_marks_have_colours() -> None:
    html = card(strong("x"), facts({"a": 1}), table(["a"], [["b"]]), code("c"), line("d"))
    assert not re.search(r"#[0-9a-f]{3}|<style|<script|class=", html)
    assert set(re.findall(r"(?:color|background):([^;\"]+)", html)) <= {"inherit", "transparent"}
