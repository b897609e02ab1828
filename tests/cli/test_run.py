from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cli.conftest import Command, environment
from tests.cli.forks import Forks
from tests.spark.harness import eventually


def write(path: Path, program: str) -> Path:
    path.write_text(textwrap.dedent(program))
    return path


def test_a_program_finds_itself_as_with_python(process: Command, tmp_path: Path) -> None:
    write(tmp_path / "beside.py", "VALUE = 42\n")
    program = write(
        tmp_path / "app.py",
        """
        import json, os, sys
        import beside
        print(json.dumps([__name__, sys.argv, sys.path[0], beside.VALUE, os.environ["PYSPARK_PYTHON"]]))
        print(os.environ["PYTHONPATH"].split(os.pathsep)[0])
        """,
    )
    found = process("run", program, "a", "--json", "-f", "--", "--help")
    assert (found.code, found.stderr) == (0, "")
    first, second = found.stdout.splitlines()
    args = [str(program), "a", "--json", "-f", "--", "--help"]
    assert json.loads(first) == ["__main__", args, str(tmp_path), 42, sys.executable]
    assert second == str(tmp_path)


def test_a_python_for_the_workers_that_was_chosen_stays(process: Command, tmp_path: Path) -> None:
    program = write(tmp_path / "app.py", "import os; print(os.environ['PYSPARK_PYTHON'])")
    assert process("run", program, PYSPARK_PYTHON="/opt/python").stdout == "/opt/python\n"


@pytest.mark.parametrize(
    ("statement", "code", "said"),
    [("sys.exit()", 0, ""), ("sys.exit(7)", 7, ""), ("sys.exit('no input')", 1, "no input\n")],
)
def test_the_programs_own_exit_code(process: Command, tmp_path: Path, statement: str, code: int, said: str) -> None:
    found = process("run", write(tmp_path / "app.py", f"import sys\n{statement}\n"))
    assert (found.code, found.stderr) == (code, said)


def test_our_errors_are_messages_with_a_next_step(process: Command, tmp_path: Path) -> None:
    program = write(tmp_path / "app.py", "import strandline as sl\nsl.Settings(state_memory='much')\n")
    found = process("run", program)
    assert found.code == 1
    assert (
        found.stderr == "error: state_memory is 'much', expected a size\n  next step: write it like '512MB' or '4GB'\n"
    )


def test_other_errors_are_shown_from_the_program_on(process: Command, tmp_path: Path) -> None:
    program = write(tmp_path / "app.py", "def f():\n    return {}['missing']\n\nf()\n")
    found = process("run", program)
    assert found.code == 1
    assert found.stderr.splitlines()[:2] == [
        "Traceback (most recent call last):",
        f'  File "{program}", line 4, in <module>',
    ]
    assert found.stderr.endswith("KeyError: 'missing'\n")
    assert "runpy" not in found.stderr
    broken = process("run", write(tmp_path / "broken.py", "def f(:\n"))
    assert broken.code == 1
    assert "SyntaxError" in broken.stderr
    assert "runpy" not in broken.stderr


def test_warnings_are_short_lines_unless_the_program_logs_itself(process: Command, tmp_path: Path) -> None:
    warn = "import logging\n{}\nlogging.getLogger('strandline.spark.job.run').warning('look at %s', 'this\\n  next step: none')\n"
    found = process("run", write(tmp_path / "app.py", warn.format("")))
    assert found.stderr == "strandline: WARNING: look at this\n"
    own = process("run", write(tmp_path / "own.py", warn.format("logging.basicConfig(format='mine: %(message)s')")))
    assert own.stderr == "mine: look at this\n  next step: none\n"


def test_without_java_nothing_is_run(process: Command, tmp_path: Path) -> None:
    program = write(tmp_path / "app.py", "print('ran')")
    found = process("run", program, JAVA_HOME=str(tmp_path))
    assert (found.code, found.stdout) == (1, "")
    assert found.stderr.startswith("error: Spark needs Java")
    assert "next step: install Java" in found.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_unwinds_the_program(forks: Forks, tmp_path: Path, number: signal.Signals, code: int) -> None:
    program = write(
        tmp_path / "app.py",
        """
        import time
        try:
            print("ready", flush=True)
            time.sleep(120)
        finally:
            print("unwound", flush=True)
        """,
    )
    assert signalled(forks, program, number) == (code, "ready\nunwound\n", "")


def test_a_program_may_answer_a_signal_itself(forks: Forks, tmp_path: Path) -> None:
    program = write(
        tmp_path / "app.py",
        """
        import time
        try:
            print("ready", flush=True)
            time.sleep(120)
        except KeyboardInterrupt:
            print("my own way out")
        """,
    )
    assert signalled(forks, program, signal.SIGTERM) == (0, "ready\nmy own way out\n", "")


def signalled(forks: Forks, program: Path, number: signal.Signals) -> tuple[int, str, str]:
    """Run a program, send it a signal when it has begun, and return what became of it."""
    driver = forks.begin(["run", str(program)], environment())
    eventually(lambda: forks.printed() == "ready\n", "the program has begun")
    os.kill(driver, number)
    return forks.wait()
