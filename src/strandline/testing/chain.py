"""The operators of a harness, one reading the other, which apply an epoch together or not at all."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strandline.backends.base import LocalFile
from strandline.core.errors import ConfigurationError
from strandline.core.ids import Epoch
from strandline.runtime.program import Program
from strandline.testing.operator import Operator
from strandline.testing.plans import Before
from strandline.testing.program import side_of
from strandline.testing.rows import RawRows, Rows
from strandline.testing.times import Times

Output = dict[tuple[int, int], list[Any]]
"""Rows by operator and output: 0 is the main one, then come the side outputs."""


class Chain:
    """Operators, and the temporary directory that their backends are in."""

    def __init__(self) -> None:
        self._operators: list[Operator] = []
        self._directory = Path(tempfile.mkdtemp(prefix="strandline-harness-"))
        # Also of a harness that nobody closes.
        self._remove = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._closed = False

    # -- life

    def add(self, program: Program, before: Before | None, reads: int) -> None:
        """Add an operator that reads the output `reads` of the one before, and open it."""
        operator = Operator(program, self._directory / str(len(self._operators)), before, reads)
        operator.open(None, Epoch(0))
        self._operators.append(operator)

    def check_open(self) -> None:
        """Refuse to go on after `close`."""
        if self._closed:
            raise ConfigurationError("Harness: it is closed already", hint="use it inside of its `with` block")

    def snapshot(self) -> list[list[list[LocalFile]]]:
        """Write a snapshot of every operator; its files stay as they are."""
        return [operator.snapshot() for operator in self._operators]

    def fits(self, files: Sequence[Sequence[object]]) -> bool:
        """Whether a snapshot is of as many operators and partitions."""
        return [len(partitions) for partitions in files] == [o.program.parallelism for o in self._operators]

    def restore(self, files: Sequence[Sequence[Sequence[LocalFile]]] | None, epoch: Epoch) -> None:
        """Open every operator anew, with a snapshot's files or with nothing."""
        for at, operator in enumerate(self._operators):
            operator.open(files[at] if files else None, epoch)

    def close(self) -> None:
        """End in an orderly way: each function's `close` is called, and the directory removed."""
        if self._closed:
            return
        self._closed = True
        try:
            for operator in self._operators:
                operator.close()
        finally:
            for operator in self._operators:
                operator.abandon()
            self._remove()

    # -- epochs

    def run(self, epoch: Epoch, times: Times, events: Rows | None) -> Output:
        """Run one epoch, and return what it gave; if it raises, no operator has applied it."""
        found: Output = {}
        given: RawRows | None = None
        try:
            for at, operator in enumerate(self._operators):
                rows = events if given is None else given.rows(operator.reads)
                given = operator.run(epoch, times, rows)
                for side in range(1 + len(operator.program.sides)):
                    found[at, side] = given.records(side)
        except BaseException:
            for operator in self._operators:
                operator.abort()
            raise
        for operator in self._operators:
            operator.commit()
        times.ended(self.first.newest_us)
        return found

    def is_due(self, times: Times) -> bool:
        """Whether some timer may be due."""
        return any(operator.is_due(times) for operator in self._operators)

    # -- which one

    @property
    def programs(self) -> list[Program]:
        """What the operators are, in order."""
        return [operator.program for operator in self._operators]

    @property
    def first(self) -> Operator:
        """The operator that reads the events."""
        return self._operators[0]

    @property
    def main_output(self) -> tuple[int, int]:
        """The place of the last operator's main output."""
        return len(self._operators) - 1, 0

    def find_side(self, name: str) -> tuple[int, int]:
        """Return the place of a side output; of several with the name, the last operator's."""
        programs = self.programs
        having = [at for at, program in enumerate(programs) if name in program.sides]
        at = having[-1] if having else len(programs) - 1
        return at, side_of(programs[at], name)

    def find(self, uid: str | None) -> Operator:
        """Return the operator with a uid, or the only one."""
        self.check_open()
        by_uid = {operator.program.uid: operator for operator in self._operators}
        if uid is None and len(by_uid) == 1:
            return self.first
        if uid not in by_uid:
            known = ", ".join(by_uid)
            raise ConfigurationError(f"Harness: the operator's uid is {uid!r}, expected one of {known}")
        return by_uid[uid]
