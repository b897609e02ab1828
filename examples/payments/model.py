"""The records, and the numbers that the fraud rules are made of.

Amounts are whole cents, so that sums and comparisons are exact: the streaming and the batch answer can be required to
be equal, not merely close.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from math import sqrt
from typing import NamedTuple

PAYMENT_SCHEMA = (
    "payment_id bigint, account string, card string, merchant string, country string, amount_cents bigint, ts timestamp"
)
ALERT_SCHEMA = "card string, kind string, amount_cents bigint, ts timestamp, score double"

CARD_TESTING = "card_testing"
"""Several small payments within a minute, then a big one: a stolen card is tried out, then emptied."""
SMALL_CENTS = 500
BIG_CENTS = 20_000
TESTING_WINDOW = timedelta(seconds=60)
REMEMBERED_PAYMENTS = 10
"""How many of a card's last payments the rule looks at."""

IMPOSSIBLE_TRAVEL = "impossible_travel"
"""Two payments in different countries, less than an hour apart."""
TRAVEL_TIME = timedelta(hours=1)

UNUSUAL_AMOUNT = "unusual_amount"
"""A payment many standard deviations above the card's mean so far."""
HISTORY_NEEDED = 20

KINDS = (CARD_TESTING, IMPOSSIBLE_TRAVEL, UNUSUAL_AMOUNT)


class Rules(NamedTuple):
    """The limits that may be set otherwise: what is remembered of a card does not depend on them."""

    tests: int = 4
    """How many small payments before a big one are card testing."""
    deviations: int = 6
    """How many standard deviations above the mean are an unusual amount."""


USUAL = Rules()


class Payment(NamedTuple):
    """One card payment. The field names are the columns of PAYMENT_SCHEMA; `ts` is in UTC."""

    payment_id: int
    account: str
    card: str
    merchant: str
    country: str
    amount_cents: int
    ts: datetime


class Alert(NamedTuple):
    """One finding. The field names are the columns of ALERT_SCHEMA; alerts sort by card, kind, amount, time."""

    card: str
    kind: str
    amount_cents: int
    ts: datetime
    score: float


def testing_score(tests: int) -> float:
    """Return how sure card testing is, from the number of small payments before the big one."""
    return round(tests / REMEMBERED_PAYMENTS, 2)


def travel_score(gap: timedelta) -> float:
    """Return how impossible the travel is: 1 for no time at all, 0 for just enough."""
    return round(1 - gap / TRAVEL_TIME, 3)


def is_unusual(amount: int, count: int, total: int, squares: int, deviations: int) -> bool:
    """Compare a payment with `count` earlier ones of this sum and sum of squares, in whole numbers only."""
    excess = count * amount - total
    return count >= HISTORY_NEEDED and excess > 0 and excess**2 > deviations**2 * (count * squares - total**2)


def unusual_score(amount: int, count: int, total: int, squares: int) -> float:
    """Return by how many standard deviations (at least one cent) the payment is above the mean."""
    deviation = max(1.0, sqrt(count * squares - total**2) / count)
    return round((amount - total / count) / deviation, 2)
