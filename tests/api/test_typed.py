"""Programs as type checkers see them: states have the types of their values, and mistakes with them are errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import python_of

_ROOT = Path(__file__).parents[2]
_MISTAKES = """
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


_TYPES = """
from datetime import timedelta
from typing import Any
import strandline as sl

class P(sl.KeyedCoProcess):
    n = sl.Value("bigint", default=0, ttl=sl.TTL("1h"))
    last = sl.Value("timestamp", was="latest")
    row = sl.Value("struct<a: int>")
    words = sl.List("string", expires="list", ttl=sl.TTL("1h"))
    by_word = sl.Map[str, int]("string", "bigint")
    anything = sl.Map("string", "map<int, int>")
    top = sl.Reducing[int]("bigint", max)

    def on_left(self, order: Any, ctx: sl.Context) -> None:
        reveal_type(self.n.value)  # int
        reveal_type(self.last.value)  # datetime.datetime | None
        reveal_type(self.row.value)  # Any
        reveal_type(self.words.get())  # list[str]
        reveal_type(self.by_word)  # typing.MutableMapping[str, int]
        reveal_type(self.anything)  # typing.MutableMapping[Any, Any]
        reveal_type(self.top.value)  # int
        self.n.value += 1
        self.n.value = None
        self.last.value = ctx.timestamp + timedelta(seconds=5)
        ctx.timers.set(ctx.timestamp + timedelta(seconds=5))

    def on_right(self, customer: Any, context: sl.Context) -> Any:
        if context.timestamp is None:
            return ()
"""


_GUIDE = "# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls"
"""As an editor checks the guide's programs: functions have no annotations there, and their bodies are checked."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy prints of all programs."""
    directory = tmp_path_factory.mktemp("typed")
    programs = {"mistakes": _MISTAKES, "typed": _TYPES, "guide": _GUIDE + python_of("guide.md")}
    for name, program in programs.items():
        (directory / f"{name}.py").write_text(program)
    # With the settings of the whole check, whose cache it has then: another setting would have both begin anew.
    command = [sys.executable, "-m", "mypy", *map(str, directory.glob("*.py"))]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False).stdout


def expected(program: str) -> dict[int, str]:
    return {at: line.partition("  # ")[2] for at, line in enumerate(program.splitlines(), 1) if "  # " in line}


def test_mypy_finds_states_that_are_taken_for_their_values(printed: str) -> None:
    found = re.findall(r"mistakes\.py:(\d+): error: .*\[([a-z-]+)\]$", printed, re.M)
    assert {int(at): code for at, code in found} == expected(_MISTAKES), printed


def test_states_have_the_types_of_their_values(printed: str) -> None:
    found = re.findall(r'typed\.py:(\d+): note: Revealed type is "(.*)"$', printed, re.M)
    assert {int(at): kind for at, kind in found} == expected(_TYPES), printed
    assert "typed.py:" not in re.sub(r".*note: Revealed.*", "", printed), printed


def test_the_guide_s_programs_are_typed(printed: str) -> None:
    assert "checked 3 source files" in printed, printed
    assert "guide.py:" not in printed, printed
