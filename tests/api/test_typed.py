"""What type checkers say of a state that is taken for its value, as far as types can say it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PROGRAM = """
# mypy: enable-error-code="truthy-bool"
from typing import Any
import strandline as sl

class P(sl.KeyedProcess):
    n = sl.Value("bigint")
    items = sl.List("bigint")
    top = sl.Reducing("bigint", max)

    def on_event(self, event: Any, ctx: sl.Context) -> Any:
        if self.n: pass  # truthy-bool
        _ = not self.top  # truthy-bool
        _ = self.n == 0  # comparison-overlap
        _ = self.items == []  # comparison-overlap
        _ = self.n + 1  # operator
        _ = self.n > 3  # operator
        _ = len(self.n)  # arg-type
        for _ in self.n: pass  # attr-defined
        _ = self.n[0]  # index
        self.items[0] = 5  # index
        self.n.get()  # attr-defined
        self.n = 5  # assignment
        ctx.timers.set(5000)  # arg-type
        if self.items: pass
        if self.n.value and self.top.value > 3: pass
"""


def test_mypy_finds_states_that_are_taken_for_their_values(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    # With the settings of the whole check, whose cache it has then: another setting would have both begin anew.
    command = [sys.executable, "-m", "mypy", str(program)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    found = {int(at): code for at, code in re.findall(r"program\.py:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.M)}
    expected = {at: line.partition("  # ")[2] for at, line in enumerate(_PROGRAM.splitlines(), 1) if "  # " in line}
    assert found == expected, done.stdout + done.stderr
