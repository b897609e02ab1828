"""Every Python block of docs/testing.md, run in order in one namespace."""

from __future__ import annotations

from tests.pages import run_page


def test_the_page_about_testing() -> None:
    run_page("testing.md", 8)
