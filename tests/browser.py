"""A real browser for tests of pages: what goes wrong in it, and what axe finds. Tests are skipped without Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_LACKS = [name for name in ("playwright", "axe_playwright_python") if find_spec(name) is None]

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or bool(_LACKS),
    reason="no Chromium is installed: `apt-get install chromium` brings one"
    if not _LACKS
    else f"{' and '.join(_LACKS)} are not installed: `pip install 'strandline[dev]'` brings them",
)


@dataclass
class Visit:
    """A page in the browser, and what went wrong in it."""

    page: Any
    base: str
    troubles: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        page = self.page
        page.on("console", lambda said: self.troubles.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(self.base) else self.troubles.append(asked.url))

    def check(self, where: str) -> None:
        """Nothing has gone wrong, the page is no wider than the screen, and axe finds nothing."""
        assert self.troubles == [], where
        wide = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{where}: {wide} pixels too wide"
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page)
        assert found.violations_count == 0, f"{where}: {found.generate_report()}"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def open_page(chromium: Any, address: str, width: int = 1280, scheme: str = "light") -> Visit:
    """Open a page by its first address, which leads to one without the token."""
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    base = address.partition("?")[0]
    context.set_default_timeout(90_000)
    here = Visit(context.new_page(), base)
    here.page.goto(address)
    assert here.page.url == base
    return here
