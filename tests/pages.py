"""The Python blocks of a page in docs/, run in order in one namespace."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_DOCS = Path(__file__).parent.parent / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def python_of(page: str) -> str:
    """Return a page's Python blocks as one module, each line where it stands in the page."""
    text = (_DOCS / page).read_text()
    lines = [""] * text.count("\n")
    for block in _BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        lines[first : first + block[1].count("\n")] = block[1].splitlines()
    return "\n".join(lines)


def run_page(page: str, at_least: int, edit: Callable[[str], str] = str, **given: Any) -> dict[str, Any]:
    """Run a page of at least so many blocks, each edited first; return the names they made, and those given to them."""
    path = _DOCS / page
    text = path.read_text()
    found = list(_BLOCK.finditer(text))
    assert len(found) >= at_least
    # Not `__main__`, and no module that can be imported: classes travel by value, as those of a script do.
    namespace: dict[str, Any] = {**given, "__name__": "page"}
    for block in found:
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + edit(block[1]), str(path), "exec"), namespace)
    return namespace
