"""The same alerts by plain batch computation: what the stream's result is compared with.

Shared with the detector are only the numbers and formulas of `model`. Each rule looks at a card's whole history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

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


def oracle(payments: Iterable[Payment], rules: Rules = USUAL) -> list[Alert]:
    """Return every alert that these payments must raise, sorted. Only the order of each card's own payments matters."""
    histories: dict[str, list[Payment]] = defaultdict(list)
    for payment in payments:
        histories[payment.card].append(payment)
    found: list[Alert] = []
    for history in histories.values():
        found.extend(_card_testing(history, rules.tests))
        found.extend(_impossible_travel(history))
        found.extend(_unusual_amounts(history, rules.deviations))
    return sorted(found)


def _card_testing(history: list[Payment], needed: int) -> Iterator[Alert]:
    for index, big in enumerate(history):
        if big.amount_cents < BIG_CENTS:
            continue
        before = history[max(0, index - REMEMBERED_PAYMENTS) : index]
        tests = [p for p in before if p.amount_cents <= SMALL_CENTS and p.ts >= big.ts - TESTING_WINDOW]
        if len(tests) >= needed:
            yield Alert(big.card, CARD_TESTING, big.amount_cents, big.ts, testing_score(len(tests)))


def _impossible_travel(history: list[Payment]) -> Iterator[Alert]:
    for here, there in pairwise(history):
        if here.country != there.country and there.ts < here.ts + TRAVEL_TIME:
            yield Alert(there.card, IMPOSSIBLE_TRAVEL, there.amount_cents, there.ts, travel_score(there.ts - here.ts))


def _unusual_amounts(history: list[Payment], deviations: int) -> Iterator[Alert]:
    amounts = [payment.amount_cents for payment in history]
    totals = accumulate(amounts, initial=0)
    squares = accumulate((amount * amount for amount in amounts), initial=0)
    for earlier, (payment, total, square) in enumerate(zip(history, totals, squares, strict=False)):
        if is_unusual(payment.amount_cents, earlier, total, square, deviations):
            score = unusual_score(payment.amount_cents, earlier, total, square)
            yield Alert(payment.card, UNUSUAL_AMOUNT, payment.amount_cents, payment.ts, score)
