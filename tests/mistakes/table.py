"""Mistakes as data: the program in a few lines, the place where it is refused, and the words that must be said.

To add one, add a line to the list of its area, or a module with a list `MISTAKES`: `test_mistakes.py` finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from strandline.core.errors import ConfigurationError
from strandline.testing import Harness

Place = Literal["declaration", "start", "run"]
"""Where a program is when it is refused: it is written, it is about to begin, it has begun."""


@dataclass
class Stage:
    """Where the program of a mistake runs, and how far it has come."""

    directory: Path
    """Its own, empty."""
    spark: Any = None
    """Of mistakes that need one: the session."""
    place: Place = "declaration"
    after: list[Callable[[], None]] = field(default_factory=list)
    """What ends what was started."""

    def run(self, process: Any, *events: Any, **said: Any) -> list[Any]:
        """Start a function, or a stream, in a harness, push events and let it end."""
        if not hasattr(process, "to"):
            said = {"schema": "user string, n bigint, ts timestamp", "key": "user", **said}
            said.setdefault("output", "user string, n bigint")
        self.place = "start"
        with Harness(process, **said) as harness:
            self.place = "run"
            return harness.push(*events) + harness.tick() if events else harness.tick()

    def start(self, job: Any, **said: Any) -> None:
        """Start a job, and wait for its end."""
        self.place = "start"
        run = job.start(self.spark, **said)
        self.after.append(run.stop)
        self.place = "run"
        run.await_termination(60)


@dataclass(frozen=True)
class Mistake:
    """A program that is wrong."""

    name: str
    place: Place
    program: Callable[[Stage], Any]
    said: tuple[str, ...]
    """What the message must have in it, the next step above all."""
    error: type[Exception] = ConfigurationError
    lines: int = 12
    """How long the message may be, at most."""


def mistake(name: str, place: Place, program: Callable[[Stage], Any], *said: str, **more: Any) -> Mistake:
    """Return a row of the table."""
    return Mistake(name, place, program, said, **more)
