"""Every Python block of docs/guide.md, run in order in one namespace, on a real session."""

from __future__ import annotations

import re

import pytest

from examples._inputs import write_json
from tests.pages import run_page

pytestmark = pytest.mark.spark


def clicks() -> list[dict[str, object]]:
    pages = ["/home", "/search", "/help/contact"]
    return [
        {"user": f"u{n % 4}", "page": pages[n % 3], "ms": 100 * (n % 11), "at": f"2026-01-01T00:00:{n:02d}Z"}
        for n in range(60)
    ]


def test_guide(spark, tmp_path, local_dir, monkeypatch, capsys):
    monkeypatch.setattr("strandline.core.settings.tempfile.gettempdir", lambda: str(local_dir))
    write_json(tmp_path / "in", clicks())
    (tmp_path / "payments").mkdir()
    # The JVM's working directory is where the tests were started.
    run_page("guide.md", 9, lambda code: re.sub(r'"(in|out|checkpoints|payments)/', rf'"{tmp_path}/\1/', code))
    said = capsys.readouterr().out
    assert "'millis'" in said or "`millis`" in said
    assert re.search(r"checkpoint \d+: \+\d+ of \d+ bytes", said)
    assert "ZeroDivisionError" in said
