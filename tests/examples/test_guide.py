"""Every Python block of docs/guide.md, run in order in one namespace, on a real session."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples._inputs import write_json

pytestmark = pytest.mark.spark

_GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def clicks() -> list[dict[str, object]]:
    pages = ["/home", "/search", "/help/contact"]
    return [
        {"user": f"u{n % 4}", "page": pages[n % 3], "ms": 100 * (n % 11), "at": f"2026-01-01T00:00:{n:02d}Z"}
        for n in range(60)
    ]


def test_guide(spark, tmp_path, local_dir, monkeypatch, capsys):
    text = _GUIDE.read_text()
    blocks = list(_BLOCK.finditer(text))
    assert len(blocks) > 8
    monkeypatch.setattr("strandline.core.settings.tempfile.gettempdir", lambda: str(local_dir))
    write_json(tmp_path / "in", clicks())
    (tmp_path / "payments").mkdir()
    namespace: dict[str, object] = {"__name__": "guide"}
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        # The JVM's working directory is where the tests were started.
        code = re.sub(r'"(in|out|checkpoints|payments)/', rf'"{tmp_path}/\1/', block[1])
        exec(compile("\n" * line + code, str(_GUIDE), "exec"), namespace)
    said = capsys.readouterr().out
    assert "'millis'" in said or "`millis`" in said
    assert re.search(r"checkpoint \d+: \+\d+ of \d+ bytes", said)
    assert "ZeroDivisionError" in said
