"""Every Python block of docs/testing.md, run in order in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_about_testing() -> None:
    text = _PAGE.read_text()
    blocks = list(_BLOCK.finditer(text))
    assert len(blocks) == 4
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], str(_PAGE), "exec"), namespace)
