"""A first task on the page, by what it says: find the key that has many of a job's rows. In a real browser."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest

from tests.browser import chromium, needs_chromium, open_page
from tests.ui.showing import Shop, begin, end
from tests.ui.test_browser import shop, visit

__all__ = ["chromium", "shop"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), needs_chromium]


def test_a_newcomer_finds_the_hot_key(chromium: Any, shop: Shop) -> None:
    """From the list of jobs: every third order is of the customer c-0."""
    here = visit(chromium, shop)
    here.page.click("table >> text=shop")
    here.page.click("nav >> text=Partitions")
    here.page.wait_for_selector("main >> text=One key, customer=c-0, has about")
    text = here.page.inner_text("main")
    share, error = map(int, re.findall(r"customer=c-0, has about (\d+) % \(± (\d+) %\)", text)[0])
    assert abs(share - 33.3) <= 2 * error + 2
    assert "more partitions do not divide a key" in text
    assert here.page.inner_text("table:has(caption:text-is('Heaviest keys of score')) tbody td >> nth=0") == "c-0"
    here.check("a hot key")
    here.page.context.close()


def test_where_values_are_hidden_the_share_is_shown_and_the_key_is_not(chromium: Any, shop: Shop) -> None:
    page = begin("strandline.cli.main", "ui", "--local-dir", shop.local_dir, "--port", 0, stdout=subprocess.PIPE)
    assert page.stdout is not None
    try:
        here = open_page(chromium, page.stdout.readline().strip())
        here.page.click("table >> text=shop")
        here.page.click("nav >> text=Partitions")
        here.page.wait_for_selector("main >> text=/One key has about \\d+ % .* of this operator's rows/")
        here.page.wait_for_selector("text=Heaviest keys of score")
        here.page.wait_for_selector("text=strandline ui --values shown")
        # Not in what the server sends, either.
        sent = here.page.evaluate(
            """async () => {
                const [job] = (await (await fetch("api/jobs")).json()).jobs;
                const reader = (await fetch(`api/jobs/${job.id}/events`)).body.getReader();
                const { value } = await reader.read();
                await reader.cancel();
                return new TextDecoder().decode(value);
            }"""
        )
        assert '"heaviest_keys":[{"key":{}' in sent
        assert "c-0" not in sent + here.page.content()
        here.check("a hidden hot key")
        here.page.context.close()
    finally:
        end(page)
        page.stdout.close()
