"""Each view in a real browser, on a real job: no error, nothing from elsewhere, readable, and accessible (axe-core).

With STRANDLINE_SHOTS=docs/ui in the environment, the pictures of the docs are taken, too.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.control import journal
from strandline.control.events import EpochsEnd, EventLog
from strandline.control.recent import EpochStats, OperatorTime
from strandline.core.clock import SystemClock
from strandline.keeper.paths import Places
from tests.browser import Visit, chromium, needs_chromium, open_page
from tests.cli.fabricate import FabricatedJob, alerts
from tests.ui.showing import Shop, begin, end, shown_shop

__all__ = ["alerts", "chromium"]

SHOTS = os.environ.get("STRANDLINE_SHOTS")
PICTURES = {"graph": 900, "checkpoints": 1200, "time": 760, "functions": 800}
"""Views with pictures in the docs, and their heights."""
UIDS = ("detect", "score", "totals")
PLOTTED = """SELECT time_bucket(INTERVAL '20 seconds', value.last) AS last_order, count(*) AS customers,
       count(*) FILTER (value.orders > 1) AS regulars
FROM score.total WHERE value.last > '2026-01-01 00:00:00Z' GROUP BY last_order ORDER BY last_order"""
VIEWS = {
    "graph": ".node", "epochs": ".stacks rect", "checkpoints": "svg.files rect", "partitions": "tbody td",
    "functions": "text=Take samples", "time": "tbody td", "ends": "tbody td", "restarts": "tbody td", "state": "#sql", "key": "input[name=customer]",
    "difference": "select[name=before]",
}  # fmt: skip
"""By name, what a view has when it is drawn."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), needs_chromium]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shown_shop(tmp_path_factory.mktemp("shop")) as made:
        # Some checkpoints, of which the oldest are deleted already, and epochs enough for a bottleneck.
        made.wait_until(lambda status: status.epoch >= 12 and status.checkpoints["completed"] >= 8)
        yield made


def visit(chromium: Any, shop: Shop, width: int = 1280, scheme: str = "light") -> Visit:
    here = open_page(chromium, shop.address, width, scheme)
    here.page.wait_for_selector("table a")
    return here


def open_view(here: Visit, view: str, drawn: str) -> None:
    here.page.click(f'nav a[href$="/{view}"]')
    here.page.wait_for_selector(f'nav a[href$="/{view}"][aria-current=page]')
    here.page.wait_for_selector(drawn)


def shoot(here: Visit, name: str, height: int) -> None:
    """Take a picture for the docs."""
    if SHOTS:
        width = here.page.viewport_size["width"]
        clip = {"x": 0, "y": 0, "width": width, "height": height}
        here.page.screenshot(path=Path(SHOTS) / f"{name}.png", clip=clip, full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_each_view_of_a_running_job(chromium: Any, shop: Shop, width: int, scheme: str) -> None:
    here = visit(chromium, shop, width, scheme)
    here.check("jobs")
    here.page.click("table a")
    for view, drawn in VIEWS.items():
        open_view(here, view, drawn)
        # Live figures have come, and rates need two looks.
        here.page.wait_for_timeout(1200)
        if view == "functions":
            here.page.click("text=Take samples")
            here.page.wait_for_selector(".flame")
        here.check(f"{view} at {width}, {scheme}")
        if (view in PICTURES and (width, scheme) == (1280, "light")) or (view, width, scheme) == ("graph", 390, "dark"):
            shoot(here, f"{view}-{width}-{scheme}", PICTURES[view])
    here.page.context.close()


def test_the_figures_are_those_of_the_job(chromium: Any, shop: Shop) -> None:
    here = visit(chromium, shop)
    here.page.click("table a")
    here.page.wait_for_selector(".node")
    names = [each.inner_text() for each in here.page.query_selector_all(".node h3")]
    assert sorted(names) == ["alerts", "failed", "revenue", "revenue", "score", "till", "web"]
    assert [each.text_content() for each in here.page.query_selector_all(".graph text")] == ["alerts", "dead letters"]
    open_view(here, "time", "tbody td")
    # Kyoto's events are forty minutes behind, and more of one source may be read than of the other.
    assert "'kyoto' of source" in here.page.inner_text(".neck")
    behind = re.search(r"holds the watermark back: it is (\d+) min behind", here.page.inner_text(".neck"))
    assert behind is not None
    assert int(behind[1]) >= 40
    open_view(here, "partitions", "tbody td")
    status = shop.status()
    assert status is not None
    partitions = here.page.query_selector_all("table:has(caption:text('Partitions of')) tbody tr")
    assert len(partitions) == len(status.keepers) == 4
    open_view(here, "checkpoints", "svg.files rect")
    here.page.wait_for_selector("td .state.complete")
    assert here.troubles == []
    here.page.context.close()


def test_state_sql_and_a_key(chromium: Any, shop: Shop) -> None:
    here = visit(chromium, shop)
    here.page.click("table a")
    open_view(here, "state", "text=score.total")
    here.page.click("text=score.shops")
    here.page.wait_for_selector("td:text-is('c-0')")
    here.page.fill("#sql", "SELECT count(*) AS customers, count(DISTINCT customer) AS n FROM score.total")
    here.page.click("button:text-is('Run')")
    here.page.wait_for_selector("th:text-is('customers')")
    customers, distinct = (
        each.inner_text() for each in here.page.query_selector_all("form + div td, form + div + p + div td")[:2]
    )
    assert int(customers) == int(distinct) > 100
    here.page.click("button:text-is('Close')")
    here.page.fill("#sql", PLOTTED)
    here.page.click("button:text-is('Run')")
    here.page.wait_for_selector(".plot canvas")
    here.check("a plot")
    shoot(here, "state-1280-light", 1160)
    here.page.select_option("select[name=snapshot]", "now")
    here.page.wait_for_selector("text=SQL and all rows are of checkpoints")
    here.page.click("text=score.shops")
    here.page.wait_for_selector("text=as of epoch")
    here.check("state")
    assert len(here.page.query_selector_all("section:last-of-type tbody tr")) > 10
    here.page.fill("input[name=customer]", "c-0")
    here.page.click("text=Look up")
    here.page.wait_for_selector("text=1 key as of epoch")
    assert here.page.inner_text("section:last-of-type tbody td") == "c-0"
    open_view(here, "key", "input[name=customer]")
    here.page.fill("input[name=customer]", "c-0")
    here.page.click("text=Look up")
    here.page.wait_for_selector("text=score.timers.event")
    here.check("key")
    # Every third order is this customer's: each checkpoint has another number.
    assert '"orders"' in here.page.inner_text(".now")
    assert len(here.page.query_selector_all("table:has(caption:text-is('score.total at checkpoints')) tbody tr")) > 1
    open_view(here, "difference", "select[name=before]")
    here.page.click("text=Compare >> nth=-1")
    here.page.wait_for_selector("text=Keys of score.total that differ", state="attached")
    here.check("difference")
    assert here.page.query_selector("td:text-is('c-0')") or here.page.query_selector("code:text-is('c-0')")
    here.page.context.close()


def test_buttons_say_what_they_will_do_and_a_stopped_job_can_still_be_seen(chromium: Any, shop: Shop) -> None:
    """It stops the job."""
    here = visit(chromium, shop)
    here.page.click("table a")
    here.page.click("button:text-is('Checkpoint…')")
    assert "Takes a checkpoint now" in here.page.inner_text("dialog")
    here.check("a dialog")
    here.page.keyboard.press("Escape")
    here.page.wait_for_selector("dialog", state="detached")
    here.page.click("button:text-is('Rescale…')")
    assert here.page.is_disabled("dialog button.main")
    here.page.fill("dialog input", "3")
    here.page.click("dialog button.main")
    here.page.wait_for_selector("dialog .done")
    assert "goes on with parallelism 3" in here.page.inner_text("dialog .done")
    here.page.click("dialog >> text=Close")
    open_view(here, "restarts", "td:text-is('a rescale to 3')")
    # A keeper that has done nothing since it was restored is replaced alone.
    while (status := shop.status()) is None or status.epochs < 2:
        time.sleep(0.2)
    os.kill(status.keepers[0].pid, signal.SIGKILL)
    here.page.wait_for_selector("td:text-is('restart after a failure')")
    assert "SIGKILL" in here.page.inner_text("td.wide >> nth=0")
    here.check("restarts after a failure")
    here.page.wait_for_selector(".state.running")
    here.page.click("button:text-is('Stop…')")
    assert "Nothing is processed again" in here.page.inner_text("dialog")
    here.page.click("dialog button.main")
    here.page.wait_for_selector("dialog .done")
    here.page.click("dialog >> text=Close")
    here.page.wait_for_selector(".state.stopped")
    for view in VIEWS:
        open_view(here, view, "main > :nth-child(2)")
        here.page.wait_for_timeout(500)
        here.check(f"{view} of a stopped job")
    here.page.context.close()


def test_the_steps_of_a_key(chromium: Any, shop: Shop) -> None:
    """The last test: the job has stopped, and its program runs again."""
    here = visit(chromium, shop)
    here.page.click("table a")
    look_up(here)
    here.page.click("button:text-is('Each change')")
    here.page.wait_for_selector(".step", timeout=300_000)
    count = here.page.locator("[role=option]").count()
    assert count > 2
    heading = here.page.get_by_role("heading", name=re.compile("^Step "))
    for keys, expected in (
        ("", count), ("ArrowLeft", count - 1), ("ArrowUp", count - 2), ("ArrowRight", count - 1), ("Home", 1),
        ("ArrowLeft", 1), ("End", count), ("ArrowDown", count),
    ):  # fmt: skip
        if keys:
            here.page.press("[role=listbox]", keys)
        assert heading.inner_text().startswith(f"Step {expected} of {count}: epoch ")
    for button, expected in (("First", 1), ("Forward", 2), ("Last", count), ("Back", count - 1)):
        here.page.click(f"button:text-is('{button}')")
        assert heading.inner_text().startswith(f"Step {expected} of {count}: ")
    chosen = here.page.locator("[role=option][aria-selected=true]")
    assert chosen.get_attribute("id") == here.page.get_attribute("[role=listbox]", "aria-activedescendant")
    # Where this machine has the program is nothing for the docs.
    here.page.eval_on_selector("section p code", "path => path.textContent = '/srv/shop/shop.py'")
    shoot(here, "key-1280-light", 1240)
    here.page.context.close()
    # The server has kept it: another page shows it at once.
    for width in (1280, 390):
        for scheme in ("light", "dark"):
            other = visit(chromium, shop, width, scheme)
            other.page.click("table a")
            look_up(other)
            other.page.wait_for_selector(".step")
            other.check(f"steps at {width}, {scheme}")
            other.page.context.close()


def look_up(here: Visit) -> None:
    open_view(here, "key", "input[name=customer]")
    here.page.fill("input[name=customer]", "c-0")
    here.page.click("text=Look up")
    here.page.wait_for_selector("button:text-is('Each change')")


def test_the_last_hours(chromium: Any, alerts: FabricatedJob, tmp_path: Path) -> None:
    """Of a job that left its log of events: three hours, in which an operator was slow for a while."""
    places, directory = Places(tmp_path, alerts.directory.as_uri(), "alerts"), alerts.directory.as_uri()
    places.make()
    places.event_log.parent.mkdir(exist_ok=True)
    log = EventLog(places.event_log, "alerts", directory, SystemClock())
    begin_ms, rng = 1_772_352_009_000, random.Random(7)
    journal.write(places, journal.JournalEntry(
        job="alerts", directory=directory, pid=1, born="1", since_ms=begin_ms, state="stopped",
        at_ms=begin_ms + 10_800_000,
    ))  # fmt: skip
    for at in range(1080):
        slow = 3.2 if 500 < at < 680 else 1.0
        busy = [rng.uniform(1500, 2100) * slow, rng.uniform(700, 900), rng.uniform(250, 350)]
        operators = [OperatorTime(uid, 0, each, 0.0, each / 2) for uid, each in zip(UIDS, busy, strict=True)]
        took_ms = min(sum(busy) + rng.uniform(900, 1300), 10_000.0)
        log.write(EpochsEnd.of([
            EpochStats(at + 1, begin_ms + 10_000 * at, round(40_000 / slow), took_ms, 120.0, 1.0, None, operators)
        ]))  # fmt: skip
    page = begin(
        "strandline.cli.main", "ui", alerts.directory, "--local-dir", tmp_path, "--port", 0, stdout=subprocess.PIPE
    )
    assert page.stdout is not None
    try:
        here = open_page(chromium, page.stdout.readline().strip())
        here.page.click("table a")
        open_view(here, "epochs", ".stacks rect")
        here.check("the last hours")
        shoot(here, "epochs-1280-light", 760)
        assert {*UIDS} <= {*here.page.inner_text(".legend").split()}
        here.page.context.close()
    finally:
        end(page)
        page.stdout.close()
