"""Every Python block of docs/testing.md, run in order in one namespace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import strandline as sl
from strandline.testing import Harness
from tests.pages import run_page
from tests.testing.test_from_snapshot import saved

_CHECKPOINT = "s3://prod/checkpoints/totals/chk-41"


class Total(sl.KeyedProcess):
    """The function in the job whose checkpoint the page opens."""

    total = sl.Value("int", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.total.value += event.amount
        yield ctx.key, self.total.value


def test_the_page_about_testing(tmp_path: Path) -> None:
    columns = {"schema": "card string, amount int", "output": "card string, total bigint"}
    with Harness(Total(), **columns, key="card", uid="totals") as h:
        h.push(("c1", 7))
        path = saved(tmp_path / "totals", h)
    run_page("testing.md", 9, lambda block: block.replace(_CHECKPOINT, str(path)))
