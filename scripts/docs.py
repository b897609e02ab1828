"""Builds the site of the documentation, with the reference, from docs/, examples/ and docstrings: `make docs`.

python scripts/docs.py [DIRECTORY]    build it in DIRECTORY, build/site unless named
"""

from __future__ import annotations

import ast
import logging
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")

import reference
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import MkDocsException

ROOT = Path(__file__).resolve().parent.parent
_PROGRAMS = (
    "guide",
    "windows",
    "aggregates",
    "joins",
    "ttl",
    "bad-records",
    "testing",
    "sql",
    "sql-dialects",
    "sql-suites",
    "sql-files",
)
_STATE = ("snapshots", "writing-state")
_ENDS = ("kafka", "tables", "databases", "sinks")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#:]+)(#[^)]*)?\)")


def site(target: Path) -> None:
    """Build the site; a link that leads nowhere is an error."""
    with tempfile.TemporaryDirectory(prefix="strandline-docs-") as directory:
        staged = Path(directory)
        nav = stage(staged)
        for page in staged.rglob("*.md"):
            page.write_text(_relinked(page, staged), "utf-8")
        build(load_config(str(ROOT / "mkdocs.yml"), docs_dir=directory, site_dir=str(target), nav=nav, strict=True))


def stage(staged: Path) -> list[Any]:
    """Write all pages below a directory, where they stand in the repository; return the navigation."""
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/*.svg")):
        _write(staged / path.relative_to(ROOT), path.read_text("utf-8"))
    for path in ROOT.glob("docs/*/*.png"):
        copy = staged / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for name, text in reference.pages().items():
        _write(staged / "reference" / name, text)
    for path in (*ROOT.glob("examples/[a-z]*.py"), *ROOT.glob("examples/payments/[a-z]*.py")):
        page = staged / path.relative_to(ROOT).with_suffix(".md")
        _write(page, f"# {path.stem}\n\n```python\n{path.read_text('utf-8')}```\n")
    examples = sorted((staged / "examples").rglob("*.md"))
    designs = sorted((staged / "docs/design").glob("*.md"))
    _write(staged / "examples/README.md", "# Examples\n\n" + "".join(map(_example, examples)))
    _write(staged / "docs/design/README.md", "# Design notes\n\n" + "".join(map(_design, designs)))

    def pages(*names: str) -> list[str]:
        return [f"docs/{name}.md" for name in names]

    def all_of(directory: str, files: list[Path]) -> list[str]:
        return [f"{directory}/README.md", *(str(file.relative_to(staged)) for file in files)]

    return [
        "README.md", "docs/README.md",
        {"Programs": pages(*_PROGRAMS)}, {"State": pages(*_STATE)}, {"Sources and sinks": pages(*_ENDS)},
        {"Running": pages("operations", "ui", "metrics", "demo", "replay", "clusters")},
        {"Examples": all_of("examples", examples)},
        {"Reference": [f"reference/{name}" for name in reference.pages()]},
        {"Inside": [
            "ARCHITECTURE.md", *pages("format", "benchmarks", "papers"), {"Design": all_of("docs/design", designs)},
            "CONTRIBUTING.md",
        ]},
        "CHANGELOG.md",
    ]  # fmt: skip


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _example(page: Path) -> str:
    name = str(page).rpartition("/examples/")[2].removesuffix(".md")
    program = ast.parse((ROOT / "examples" / f"{name}.py").read_text("utf-8"))
    return f"- [{name}]({name}.md): {(ast.get_docstring(program) or '').splitlines()[0]}\n"


def _design(page: Path) -> str:
    return f"- [{page.read_text('utf-8').splitlines()[0].lstrip('# ')}]({page.name})\n"


def _relinked(page: Path, staged: Path) -> str:
    """Return a page that links to staged pages; a link to another file of the repository becomes its text."""

    def relinked(link: re.Match[str]) -> str:
        label, target, anchor = link[1], link[2], link[3] or ""
        path = Path(os.path.normpath(page.parent / target))
        for candidate in (
            (path,) if path.suffix in (".md", ".svg", ".png") else (path.with_suffix(".md"), path / "README.md")
        ):
            if candidate.is_file():
                return f"[{label}]({os.path.relpath(candidate, page.parent)}{anchor})"
        return label if (ROOT / path.relative_to(staged)).exists() else link[0]

    return _LINK.sub(relinked, page.read_text("utf-8"))


def main() -> int:
    """Build the site; return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/site"
    try:
        site(target)
    except MkDocsException as error:
        print(error, file=sys.stderr)
        return 1
    print(f"the site is in {target}: open {target / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
