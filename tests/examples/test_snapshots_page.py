"""Every Python block of docs/snapshots.md, run in order in one namespace, on a real session."""

from __future__ import annotations

import re
from itertools import count

import pytest

from examples._inputs import write_json
from tests.pages import run_page

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_using_snapshots(spark, tmp_path, local_dir, monkeypatch):
    monkeypatch.setattr("strandline.core.settings.tempfile.gettempdir", lambda: str(local_dir))
    files = count()

    def more_payments() -> None:
        number = next(files)
        rows = [
            {"card": f"c{n % 5}", "amount": 10.0 + n, "at": f"2026-01-01T00:{number:02d}:{n:02d}Z"} for n in range(40)
        ]
        write_json(tmp_path / "made" / str(number), rows, files=1)
        (tmp_path / "made" / str(number) / "000.json").rename(tmp_path / "in" / f"{number:03d}.json")

    (tmp_path / "in").mkdir()
    more_payments()
    folders = "in|out|checkpoints|snapshots|another-region"

    def edit(code: str) -> str:
        # Jobs of one partition show as much, but for the one that is rescaled.
        return re.sub(rf'"({folders})/', rf'"{tmp_path}/\1/', code).replace("parallelism=2", "parallelism=1")

    made = run_page("snapshots.md", 10, edit, more_payments=more_payments)
    assert sorted(made["alerts_of"]) == ["variant-a", "variant-b"]
    assert not (tmp_path / "another-region" / "monday" / "_metadata").exists()
