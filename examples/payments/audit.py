"""The audit: numbers of a running job that must agree if each payment counts exactly once.

At a checkpoint, the sums in the state of all cards, and the alerts that a reader of the sink sees, are compared with
the books, which count the payments' files in plain Python.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

import strandline as sl
from examples.payments.books import Books
from examples.payments.model import Alert
from examples.payments.monitor import Monitor

_EVERY_S = 8.0
_DOUBT_S = 20.0
"""How long sums may differ before that is said: rows appear a moment after their checkpoint is complete."""


@dataclass(frozen=True)
class Audit:
    """The numbers of one checkpoint that must agree, and whether they do."""

    checkpoint: int
    at_s: float
    payments: int
    """In the state: the sum of all cards' counts."""
    cents: int
    cents_in_files: int | None
    """Of so many payments; None if no file ends there, which would be a fault in itself."""
    alerts: int
    alerts_expected: int
    missing: int
    surplus: int

    @property
    def agrees(self) -> bool:
        """Whether all do."""
        return self.cents == self.cents_in_files and not self.missing and not self.surplus


@dataclass
class AuditedJob:
    """A job, the books that it is compared with, and the newest comparison."""

    name: str
    monitor: Monitor
    books: Books
    since: int = 0
    """The payments before its first one: the alerts of these are not in its sink."""
    run: sl.Run | None = None
    audit: Audit | None = None
    audit_due: bool = False
    _audited_s: float = 0.0
    _differs_s: float = 0.0

    def is_due(self) -> bool:
        """Whether there is a checkpoint to audit, and the last audit was a while ago, or another one is wanted."""
        newest = self.monitor.newest()
        if newest is None or (self.audit and self.audit.checkpoint == newest):
            return False
        return self.audit_due or self._differs_s > 0 or time.monotonic() - self._audited_s > _EVERY_S

    def conclude(self, audit: Audit) -> None:
        """Take the outcome of an audit, but one that differs only if others before it did."""
        self._audited_s = time.monotonic()
        if audit.agrees:
            self._differs_s = 0.0
        elif not self._differs_s:
            self._differs_s = self._audited_s
        if audit.agrees or self._audited_s - self._differs_s > _DOUBT_S:
            self.audit, self.audit_due = audit, False

    def compare(self, checkpoints: Path, is_changed: Callable[[], object]) -> None:
        """Compare the newest checkpoint's sums, and the alerts that are visible with it, with the books.

        `is_changed` says whether a button changes the job at the moment: its checkpoints may become void.
        """
        monitor = self.monitor
        checkpoint, lives = monitor.newest(), monitor.lives
        found = monitor.visible()
        monitor.sample()
        if checkpoint is None or monitor.newest() != checkpoint:
            return
        try:
            payments, cents = sums(checkpoints / self.name / f"chk-{checkpoint}")
        except sl.errors.StrandlineError:
            if not is_changed() and monitor.lives == lives:
                raise
            return
        if payments > self.books.payments or monitor.lives != lives:
            return
        cents_in_files = self.books.cents(payments)
        # Without a file that ends there, the count itself is wrong: nothing is expected of it.
        expected = Counter[Alert]() if cents_in_files is None else self.books.expected(payments, self.since)
        missing, surplus = (expected - found).total(), (found - expected).total()
        counts = payments, cents, cents_in_files, found.total(), expected.total()
        self.conclude(Audit(checkpoint, time.time(), *counts, missing, surplus))


def sums(snapshot: str | Path) -> tuple[int, int]:
    """Return how many payments a snapshot's state has counted, and the sum of their cents."""
    count = cents = 0
    with sl.state.opened(snapshot) as opened:
        for batch in opened.batches("fraud.spent"):
            spent = batch.column("value")
            count += pc.sum(pc.struct_field(spent, "count")).as_py() or 0
            cents += pc.sum(pc.struct_field(spent, "total")).as_py() or 0
    return count, cents
