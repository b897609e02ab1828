"""A target in this process: what it holds, and how it fails."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import strandline as sl
from strandline.core.errors import FencedError
from strandline.testing.sinks.trial import Trial
from tests.ends import inprocess

LEDGERS: dict[str, Ledger] = {}


class Ledger:
    """What a target holds: rows, records and claims, and how it fails."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.marks: dict[tuple[str, int], str] = {}
        self.generations: Counter[str] = Counter()
        self.transactions: list[tuple[int, list[int]]] = []
        self.before: Callable[[], None] = lambda: None
        """Called before a transaction commits."""
        self.after: Callable[[], None] = lambda: None
        """Called when it has, before anybody is told."""
        self.lock = threading.Lock()
        self.silent: set[int] = set()
        """Lanes in which nobody answers."""
        self.bad: set[int] = set()
        """Rows that are refused, each with all others of its transaction."""


class BadRowError(Exception):
    pass


class Kept(sl.sinks.Target):
    """A target in this process, found by its name: it is pickled on its way to tasks."""

    refusing = (BadRowError,)

    def __init__(self, name: str, *, parallel: bool = True) -> None:
        self.name, self.parallel = name, parallel

    def claim(self, writer: sl.sinks.Writer) -> None:
        ledger = LEDGERS[self.name]
        ledger.before()
        if ledger.generations[writer.sink] > writer.generation:
            raise FencedError("claimed by a newer one")
        ledger.generations[writer.sink] = writer.generation

    def connect(self, writer: sl.sinks.Writer, lane: int) -> sl.sinks.Connection:
        return KeptLane(LEDGERS[self.name], writer, lane)


class KeptLane(sl.sinks.Connection):
    def __init__(self, ledger: Ledger, writer: sl.sinks.Writer, lane: int) -> None:
        self.ledger, self.writer, self.lane = ledger, writer, lane

    def reached(self) -> str | None:
        return self.ledger.marks.get((self.writer.sink, self.lane))

    def write(self, batches: Sequence[pa.RecordBatch], since: str | None, mark: str) -> None:
        self.ledger.before()
        if self.lane in self.ledger.silent:
            away()
        with self.ledger.lock:
            if self.ledger.generations[self.writer.sink] > self.writer.generation:
                raise FencedError("claimed by a newer one")
            if self.reached() != since:
                raise sl.errors.ConflictError("another task writes this lane")
            numbers = [n for batch in batches for n in batch["n"].to_pylist()]
            if self.ledger.bad & set(numbers):
                raise BadRowError("no place for a row of these")
            self.ledger.rows += numbers
            self.ledger.transactions.append((self.lane, numbers))
            self.ledger.marks[self.writer.sink, self.lane] = mark
        self.ledger.after()


def trial_of(ledger: Any, *, parallel: bool = True) -> Trial:
    session: Any = inprocess.Session()
    make = lambda: sl.sinks.Transactional(Kept(ledger.name, parallel=parallel))  # noqa: E731
    return Trial(session, make=make, visible=lambda: list(ledger.rows))


def away() -> None:
    raise ConnectionError("nobody listens")


@contextmanager
def taken_away(ledger: Ledger) -> Iterator[None]:
    ledger.before = away
    yield
    ledger.before = lambda: None


@contextmanager
def muted(ledger: Ledger) -> Iterator[None]:
    ledger.after = away
    yield
    ledger.after = lambda: None


def waiting_files(trial: Trial) -> list[Path]:
    return [path for path in Path(trial.storage).rglob("*") if path.is_file()]
