"""The plot of a query's result, in a real browser: which columns are on which axis, and what it says of itself."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import Visit, chromium, needs_chromium, open_page
from tests.cli.snapshots import Made
from tests.ui.showing import begin, end

__all__ = ["chromium"]

pytestmark = [pytest.mark.long, needs_chromium]

MINUTE = "TIMESTAMP '2026-01-01' + INTERVAL (i) MINUTE AS minute"
SHOP = "['oslo', 'bergen', 'lima'][i % 3 + 1] AS shop"
LINES = {
    # A time is on x, numbers of one size on y.
    f"SELECT i + 1 AS orders, {MINUTE}, 10000 * i AS bytes FROM range(90) t(i)": (
        "orders over minute, from 00:00 to 01:29: 90 points. Least 1 at minute 00:00, most 90 at minute 01:29."
    ),
    f"SELECT {MINUTE}, i AS orders, 2 * i AS rows FROM range(9) t(i)": (
        "orders, rows over minute, from 00:00:00 to 00:08:00: 18 points. "
        "Least 0 at minute 00:00:00 (orders), most 16 at minute 00:08:00 (rows)."
    ),
    # Several rows of a time: a line for each name.
    f"SELECT {MINUTE.replace('(i)', '(i // 3)')}, {SHOP}, i AS orders FROM range(90) t(i)": (
        "oslo, bergen, lima over minute, from 00:00 to 00:29: 90 points. "
        "Least 0 at minute 00:00 (oslo), most 89 at minute 00:29 (lima)."
    ),
    "SELECT DATE '2026-01-01' + CAST(i AS INTEGER) AS day, -i AS n FROM range(60) t(i)": (
        "n over day, from 2026-01-01 to 2026-03-01: 60 points. Least -59 at day 2026-03-01, most 0 at day 2026-01-01."
    ),
    # The first number is on x; several rows at a place are all there.
    "SELECT i % 10 AS size, i AS took FROM range(100) t(i)": (
        "took over size, from 0 to 9: 100 points. Least 0 at size 0, most 99 at size 9."
    ),
    "SELECT CASE WHEN i <> 2 THEN i * i END AS n FROM range(5) t(i)": (
        "n over row, from 1 to 5: 4 points. Least 0 at row 1, most 16 at row 5."
    ),
}  # fmt: skip
NO_PLOT = [
    "SELECT count(*) AS n FROM range(3)",
    "SELECT 'a' AS name FROM range(3)",
    "SELECT NULL::INTEGER AS n FROM range(3)",
    "SELECT 7 AS n WHERE false",
]


@pytest.fixture(scope="module")
def address(snapshots: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    page = begin(
        "strandline.cli.main", "ui", snapshots.checkpoints[0].parents[1], "--port", 0, "--values", "shown",
        "--local-dir", tmp_path_factory.mktemp("local"), stdout=subprocess.PIPE,
    )  # fmt: skip
    assert page.stdout is not None
    try:
        yield page.stdout.readline().strip()
    finally:
        end(page)
        page.stdout.close()


def open_state(chromium: Any, address: str, width: int = 1280, scheme: str = "light") -> Visit:
    here = open_page(chromium, address, width, scheme)
    here.page.click("table a")
    here.page.click("nav >> text=State")
    here.page.wait_for_selector("#sql")
    return here


def run(here: Visit, sql: str) -> None:
    here.page.fill("#sql", sql)
    # Not what the page has of the rows of a table, or of the query before.
    with here.page.expect_response(lambda answer: "/query" in answer.url):
        here.page.keyboard.press("Control+Enter")
    here.page.wait_for_selector("button:text-is('Running…')", state="detached")
    here.page.wait_for_selector("p.told >> text=of checkpoint 2")


def test_a_query_is_suggested_before_another_can_be_typed(chromium: Any, address: str) -> None:
    """When it came later, it was put into what had been typed meanwhile."""
    here = open_page(chromium, address)
    held: list[Any] = []
    here.page.route("**/tables", lambda asked: held.append(asked))
    here.page.click("table a")
    with here.page.expect_request("**/tables"):
        here.page.click("nav >> text=State")
    here.page.wait_for_selector("text=Reading the snapshot…")
    assert here.page.query_selector("#sql") is None
    held[0].continue_()
    here.page.wait_for_selector("#sql")
    assert here.page.input_value("#sql") == "SELECT count(*) AS rows FROM op.value"
    here.page.context.close()


def test_what_is_plotted(chromium: Any, address: str) -> None:
    here = open_state(chromium, address)
    for sql, label in LINES.items():
        run(here, sql)
        here.page.wait_for_selector(f'[role=img][aria-label="{label} The table below has all rows."]')
    for sql in NO_PLOT:
        run(here, sql)
        assert here.page.query_selector(".plot") is None, sql
    # No window has begun, for example.
    run(here, "SELECT NULL::DATE AS at, i AS n FROM range(9) t(i)")
    here.page.wait_for_selector(".plot >> text=No row has a value of both at and n.")
    assert here.troubles == []
    here.page.context.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_bars_and_other_columns(chromium: Any, address: str, width: int, scheme: str) -> None:
    here = open_state(chromium, address, width, scheme)
    run(here, f"SELECT {SHOP}, i * 100 - 50 AS revenue, i AS orders FROM range(3) t(i)")
    bars = [each.inner_text().split() for each in here.page.query_selector_all(".bars tbody tr")]
    assert bars == [["oslo", "-50"], ["bergen", "50"], ["lima", "150"]]
    wide = [each.bounding_box()["width"] for each in here.page.query_selector_all(".bar > span")]
    assert wide[2] == pytest.approx(3 * wide[1], rel=0.05)
    here.check("bars")
    here.page.get_by_role("checkbox", name="orders").check()
    assert here.page.query_selector_all(".bars tbody tr")[2].inner_text().split() == ["lima", "150", "2"]
    here.page.get_by_label("x axis").select_option("orders")
    here.page.wait_for_selector('[role=img][aria-label^="revenue over orders, from 0 to 2: 3 points."]')
    here.check("lines")
    # The choice stays for the next result of the same columns.
    run(here, f"SELECT {SHOP}, i * 100 AS revenue, i AS orders FROM range(9) t(i)")
    here.page.wait_for_selector('[role=img][aria-label^="revenue over orders, from 0 to 8: 9 points."]')
    run(here, "SELECT 'shop ' || i AS shop, i AS n FROM range(1000) t(i)")
    assert len(here.page.query_selector_all(".bars tbody tr")) == 40
    here.page.wait_for_selector("text=The first 40 of 1,000 rows")
    here.check("many bars")
    here.page.context.close()
