"""The books: what the payments in the files must lead to, counted file by file with plain dictionaries.

`oracle` says the same of a whole history at once. The books are kept while payments arrive, so that what a job's state
and sink hold at any of its checkpoints can be compared with them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from examples.payments.files import path_of, read_file
from examples.payments.model import (
    BIG_CENTS,
    CARD_TESTING,
    IMPOSSIBLE_TRAVEL,
    REMEMBERED_PAYMENTS,
    SMALL_CENTS,
    TESTING_WINDOW,
    TRAVEL_TIME,
    UNUSUAL_AMOUNT,
    USUAL,
    Alert,
    Payment,
    Rules,
    is_unusual,
    testing_score,
    travel_score,
    unusual_score,
)

_SHOWN = 12


@dataclass
class _Card:
    count: int = 0
    total: int = 0
    squares: int = 0
    country: str = ""
    last: datetime | None = None
    recent: deque[tuple[datetime, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED_PAYMENTS))


@dataclass
class Books:
    """The sums after each file, and all alerts. One thread reads files, others may ask."""

    directory: Path
    rules: Rules = USUAL
    alerts: list[Alert] = field(default_factory=list)
    newest: deque[Payment] = field(default_factory=lambda: deque(maxlen=_SHOWN))
    """The last payments that arrived."""
    _payments: list[int] = field(default_factory=lambda: [0])
    """After each file: the payments so far; in the next two the cents and the alerts."""
    _cents: list[int] = field(default_factory=lambda: [0])
    _alerts: list[int] = field(default_factory=lambda: [0])
    _cards: defaultdict[str, _Card] = field(default_factory=lambda: defaultdict(_Card))

    @property
    def payments(self) -> int:
        """How many payments have arrived."""
        return self._payments[-1]

    def read(self) -> bool:
        """Enter the next file; return whether there was one."""
        path = path_of(self.directory, len(self._payments))
        if not path.exists():
            return False
        count, cents = self._payments[-1], self._cents[-1]
        for payment in read_file(path):
            count, cents = count + 1, cents + payment.amount_cents
            self._enter(payment)
        # The payments last: they say up to where everything is entered.
        self._alerts.append(len(self.alerts))
        self._cents.append(cents)
        self._payments.append(count)
        return True

    def cents(self, payments: int) -> int | None:
        """Return the sum of the first payments; None if no file ends there, or none that was read."""
        file = self._file(payments)
        return None if file is None else self._cents[file]

    def expected(self, payments: int, since: int = 0) -> Counter[Alert]:
        """Return the alerts that the first payments raise, without those of the first `since` ones.

        Raises LookupError if no file that was read ends there.
        """
        end, begin = self._file(payments), self._file(since)
        if end is None or begin is None:
            raise LookupError(f"no file that was read ends after {since if begin is None else payments} payments")
        return Counter(self.alerts[self._alerts[begin] : self._alerts[end]])

    def _file(self, payments: int) -> int | None:
        at = bisect_left(self._payments, payments)
        return at if at < len(self._payments) and self._payments[at] == payments else None

    def _enter(self, payment: Payment) -> None:
        card, amount, ts = self._cards[payment.card], payment.amount_cents, payment.ts
        if amount >= BIG_CENTS:
            tests = sum(cents <= SMALL_CENTS and ts - when <= TESTING_WINDOW for when, cents in card.recent)
            if tests >= self.rules.tests:
                self.alerts.append(Alert(payment.card, CARD_TESTING, amount, ts, testing_score(tests)))
        if card.last is not None and card.country != payment.country and ts - card.last < TRAVEL_TIME:
            self.alerts.append(Alert(payment.card, IMPOSSIBLE_TRAVEL, amount, ts, travel_score(ts - card.last)))
        if is_unusual(amount, card.count, card.total, card.squares, self.rules.deviations):
            score = unusual_score(amount, card.count, card.total, card.squares)
            self.alerts.append(Alert(payment.card, UNUSUAL_AMOUNT, amount, ts, score))
        card.count, card.total, card.squares = card.count + 1, card.total + amount, card.squares + amount * amount
        card.country, card.last = payment.country, ts
        card.recent.append((ts, amount))
        self.newest.append(payment)
