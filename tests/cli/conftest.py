from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from strandline.cli.main import app
from tests.cli.fabricate import alerts
from tests.cli.forks import Forks
from tests.control.serving import serve

__all__ = ["alerts", "serve"]

ROOT = Path(__file__).parents[2]


class Outcome:
    """What a command gave."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code = code
        self.stdout = stdout
        self.stderr = stderr

    @property
    def json(self) -> list[Any]:
        """Every line of standard output, each of which must be JSON."""
        return [json.loads(line) for line in self.stdout.splitlines()]


Command = Callable[..., Outcome]


@pytest.fixture
def strandline() -> Command:
    """The command, inside this process, which keeps its own environment, arguments and path."""

    def run(*args: object) -> Outcome:
        with patch.dict(os.environ), patch.object(sys, "argv", sys.argv), patch.object(sys, "path", sys.path.copy()):
            result = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="strandline")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run


def environment(**more: str) -> dict[str, str]:
    """An environment in which `python -m strandline.cli.main` works and nothing speaks of colours or storage."""
    kept = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS", "STRANDLINE_STORAGE_OPTIONS")}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), **more}


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """What commands are forked from."""
    made = Forks(tmp_path_factory.mktemp("commands"))
    yield made
    made.end()


@pytest.fixture
def process(forks: Forks) -> Command:
    """The command, in a process of its own."""

    def run(*args: object, **env: str) -> Outcome:
        forks.begin([*map(str, args)], environment(**env))
        return Outcome(*forks.wait())

    return run
