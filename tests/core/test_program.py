"""Where in a program something was written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from strandline.core.program import line_of_program
from strandline.plan.columns import Columns
from strandline.plan.graph import SourceNode

HERE = Path(__file__)


def test_the_line_is_that_of_whoever_calls_us() -> None:
    lines = HERE.read_text().splitlines()
    asked, made = line_of_program(), SourceNode(Columns(()), name="clicks")
    number = 1 + next(at for at, line in enumerate(lines) if line.startswith("    asked, made ="))
    # The second one through what a dataclass makes.
    assert asked == made.line == f"test_program.py:{number}"


def test_a_program_without_a_file() -> None:
    code = "from strandline.core.program import line_of_program\nprint(line_of_program())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "<string>:2\n"


def test_the_program_of_a_process(tmp_path: Path) -> None:
    """A module that `-m` runs may import others of its package, which its file alone cannot."""
    (tmp_path / "app.py").write_text("from strandline.core.program import ProgramFile\nprint(ProgramFile.of_process())")

    def run(*args: str) -> str:
        done = subprocess.run([sys.executable, *args], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    expected = f"ProgramFile(path='{tmp_path}/app.py', arguments=['--from', 'x'], folder='{tmp_path}')"
    assert run("app.py", "--from", "x") == expected
    assert run("-m", "app") == "None"
