"""`strandline new`: creates a project that runs without a change."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
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
_JOB = "@job@"
"""The placeholder of the name in these files."""
_REQUIREMENT = "@strandline@"
"""The placeholder of what installs Strandline."""
_NAME = re.compile(r"[A-Za-z][\w.-]*")


def new(
    directory: Annotated[
        Path, typer.Argument(metavar="NAME", help="The project's directory, not there yet; its job is called as it is.")
    ],
    json: AsJson = False,
) -> None:
    """Make a project: a program, its input, and a test of it.

    It runs as it is: `strandline run app.py` in the directory shows results, `python -m pytest` tests.
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
    created = make_project(target, name)
    if json:
        print_json({"project": name, "directory": str(target), "files": created})
        return
    print(f"{target}: {', '.join(created)}")
    print(f"next: cd {quote(str(directory))}")
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


def make_project(target: Path, name: str) -> list[str]:
    """Create a project whose job has this name, atomically; return its files."""
    hidden = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
        for source, file in _FILES.items():
            text = files("strandline.cli").joinpath("project", source).read_text(encoding="utf-8")
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
    return sorted(_FILES.values())
