"""The site of the documentation: it builds, has every public name, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import strandline as sl

_ROOT = Path(__file__).parent.parent.parent
_LOADED = re.compile(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(https?:)?//|<link[^>]*href=["']?https?://[^>]*>|
                         url\(["']?(https?:)?//|@import\s+["'](https?:)?//""", re.VERBOSE)  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run([sys.executable, _ROOT / "scripts/docs.py", target], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_the_reference_has_every_public_name(site: Path) -> None:
    pages = "".join(page.read_text("utf-8") for page in (site / "reference").glob("*.html"))
    titles = [re.sub(r"<[^>]*>", "", title) for title in re.findall(r"<h[12] id=[^>]*>(.*?)<a ", pages)]
    named = {name for title in titles for name in re.findall(r"\bsl\.(\w+)", title)}
    assert set(sl.__all__) <= named
    assert any(title.startswith("IncompatibleStateError") for title in titles)


def test_search_finds_the_guide_and_the_reference(site: Path) -> None:
    index = (site / "search/search_index.json").read_text("utf-8")
    assert '"location":"docs/guide.html' in index
    assert '"location":"reference/state.html#slvalue"' in index


def test_reading_it_needs_no_network(site: Path) -> None:
    loads = [
        f"{page.relative_to(site)}: {match[0]}"
        for page in (*site.rglob("*.html"), *site.rglob("*.css"))
        for match in _LOADED.finditer(page.read_text("utf-8"))
    ]
    assert not loads
