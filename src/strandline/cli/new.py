"""`strandline new`: creates a project that runs without a change."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from strandline.cli.output import print_json
from strandline.cli.stores import AsJson
from strandline.core.errors import ConfigurationError, ConflictError, UnavailableError
from strandline.core.version import VERSION

_FILES = {
    "app.py": "app.py",
    "test_app.py": "test_app.py",
    "README.md": "README.md",
    "requirements.txt": "requirements.txt",
    "gitignore": ".gitignore",
}
_SQL_FILES = {
    "requirements.txt": "requirements.txt",
    "sql-README.md": "README.md",
    "sql-gitignore": ".gitignore",
    "totals.sql": "totals.sql",
}
_JOB = "@job@"
"""The placeholder of the name in these files."""
_REQUIREMENT = "@strandline@"
"""The placeholder of what installs Strandline."""
_NAME = re.compile(r"[A-Za-z][\w.-]*")


def new(
    directory: Annotated[
        Path, typer.Argument(metavar="NAME", help="The project's directory, not there yet; its job is called as it is.")
    ],
    sql: Annotated[bool, typer.Option("--sql", help="A project in SQL, without Python: totals.sql.")] = False,
    json: AsJson = False,
) -> None:
    """Make a project: a program, its input, and a test of it.

    It runs as it is: `strandline run app.py` in the directory shows results, `python -m pytest` tests. With --sql, the
    program is `totals.sql`, and reads files that are made with it.
    """
    target = Path(os.path.normpath(directory.expanduser().absolute()))
    name = target.name
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"a project cannot be called {name!r}: expected letters, digits, '_', '-' and '.', and a letter first",
            hint="its job is called so, too, as in: strandline new visits",
        )
    if target.exists() or target.is_symlink():
        raise ConflictError(f"{target} is there already", hint="give a name that is not there: nothing is overwritten")
    created = make_project(target, name, is_sql=sql)
    if json:
        print_json({"project": name, "directory": str(target), "files": created})
        return
    print(f"{target}: {', '.join(created)}")
    print(f"next: cd {quote(str(directory))}")
    if sql:
        print("      strandline run totals.sql # results; Ctrl-C ends it")
        print("      strandline sql totals.sql # a shell: SELECT * FROM totals;")
    else:
        print("      strandline run app.py     # results; Ctrl-C ends it")
        print("      python -m pytest")


def requirement() -> str:
    """Return what installs this Strandline for pip: where it was installed from, or its version on the index."""
    with suppress(PackageNotFoundError):
        if record := distribution("strandline").read_text("direct_url.json"):
            origin = json.loads(record)
            if vcs := origin.get("vcs_info"):
                return f"strandline @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
            return f"strandline @ {origin['url']}"
    return f"strandline>={VERSION}"


def make_project(target: Path, name: str, *, is_sql: bool = False) -> list[str]:
    """Create a project whose job has this name, atomically; return its files."""
    texts = _sql_texts() if is_sql else _texts(_FILES)
    hidden = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
        for file, text in texts.items():
            (hidden / file).parent.mkdir(exist_ok=True)
            text = text.replace(_JOB, name).replace(_REQUIREMENT, requirement())
            (hidden / file).write_text(text, encoding="utf-8")
        hidden.chmod(0o755)
        hidden.rename(target)
    except OSError as error:
        raise UnavailableError(f"{target} cannot be made: {error.strerror}", hint="give another directory") from None
    finally:
        # It is gone once it is the target; a signal leaves nothing of it either.
        if hidden is not None:
            shutil.rmtree(hidden, ignore_errors=True)
    return sorted(texts)


def _texts(names: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of a project's files, by their names in the project."""
    home = files("strandline.cli").joinpath("project")
    return {file: home.joinpath(source).read_text(encoding="utf-8") for source, file in names.items()}


def _sql_texts() -> dict[str, str]:
    """Return the files of a project in SQL, with its input: orders of four shops, in three files."""
    texts = _texts(_SQL_FILES)
    cities = {"north": "Oslo", "east": "Riga", "south": "Rome", "west": "Oslo"}
    texts["shops.csv"] = "shop,city\n" + "".join(f"{shop},{city}\n" for shop, city in cities.items())
    shops = list(cities)
    for number in range(3):
        orders = (
            {
                "id": id_,
                "shop": shops[id_ * 7 % 4],
                "amount": f"{5 + id_ * 37 % 90}.50",
                "at": f"2026-01-01T10:{id_:02}:00Z",
            }
            for id_ in range(number * 20, number * 20 + 20)
        )
        texts[f"orders/{number + 1}.json"] = "".join(json.dumps(order) + "\n" for order in orders)
    return texts
