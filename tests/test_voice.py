"""The check of names and docstrings (`scripts/voice.py`): what it refuses, and what it lets through."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.voice import problems

REFUSED = {
    '"""What a sink is."""\n': "the docstring begins with 'What'",
    'class Telling:\n    """Where it is said."""\n': "the docstring begins with 'Where'",
    "def read(given: int) -> None: ...\n": "the name 'given'",
    "found = 1\n": "the name 'found'",
    "class A:\n    def __init__(self) -> None:\n        self._told = 1\n": "the name '_told'",
    "# Somebody waits for it.\nx = 1\n": "'Somebody'",
    'def f() -> None:\n    """Write the file.\n\n    Nobody reads it.\n    """\n': "'Nobody'",
}
PLAIN = '''"""Sinks into tables of databases."""

def is_open(options: dict[str, str]) -> bool:
    """Whether the connection is open."""
    message = "nobody is found"  # A string is data.
    return bool(options) and message.found
'''


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "module.py").write_text(text)
    (found,) = problems(tmp_path / "module.py")
    assert REFUSED[text] in found[1]


def test_plain_names_and_sentences_pass(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(PLAIN)
    assert not list(problems(tmp_path / "module.py"))


def test_the_line_of_a_problem_in_a_docstring(tmp_path: Path) -> None:
    (tmp_path / "found.py").write_text('"""Rows.\n\nAs if they were ours.\n"""\n')
    assert [line for line, _ in problems(tmp_path / "found.py")] == [1, 3]
