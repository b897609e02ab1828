"""Checks names, docstrings and comments against the voice that CONTRIBUTING.md describes.

    python scripts/voice.py [PATH…]

Without paths it checks `ROOMS`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS: tuple[str, ...] = ("scripts/voice.py", "src/strandline")
NAMES = frozenset(
    ("asked", "behind", "found", "given", "heard", "listed", "made", "own", "said", "shown", "taken", "told")
)
"""Participles and pronouns. As a whole name they say that something happened, and not what the value is."""
OPENERS = frozenset(("how", "what", "when", "where", "whether", "which", "who", "whose"))
"""First words of a docstring that asks instead of saying what the module, class or function is or does.

A function may begin with "Whether": it returns a boolean.
"""
WORDS = re.compile(r"\b(anybody|nobody|somebody|whoever|as if)\b", re.IGNORECASE)
"""Words for people in place of programs, and comparisons in place of facts."""
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def problems(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the reason of each problem in a Python file."""
    text = path.read_text(encoding="utf-8")
    if path.stem in NAMES:
        yield 1, f"the module's name '{path.stem}' does not say what it holds"
    for node in ast.walk(ast.parse(text)):
        for line, name in _names(node):
            if name.strip("_").lower() in NAMES:
                yield line, f"the name '{name}' does not say what the value is"
        if isinstance(node, (*_DEFINITIONS, ast.Module)) and (docstring := ast.get_docstring(node)):
            first = re.split(r"\W", docstring, maxsplit=1)[0]
            is_question = first.lower() in OPENERS
            if is_question and not (first == "Whether" and isinstance(node, _DEFINITIONS[1:])):
                yield getattr(node, "lineno", 1), f"the docstring begins with '{first}': say what it is or does"
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_prose = token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""'))
        if is_prose and (match := WORDS.search(token.string)):
            line = token.start[0] + token.string[: match.start()].count("\n")
            yield line, f"'{match[0]}': name the program, process or value that is meant"


def _names(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the names that a node binds."""
    if isinstance(node, _DEFINITIONS):
        yield node.lineno, node.name
    elif isinstance(node, ast.arg):
        yield node.lineno, node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.lineno, node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.lineno, node.attr


def main() -> int:
    """Print the problems of the named paths, or of all rooms that are checked; return the exit code."""
    count = 0
    for room in sys.argv[1:] or ROOMS:
        path = ROOT / room
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for line, reason in sorted(problems(file)):
                print(f"{file.relative_to(ROOT)}:{line}: {reason}")
                count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
