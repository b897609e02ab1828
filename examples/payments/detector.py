"""Fraud detection as a keyed process function: its state is what it remembers of each card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import strandline as sl
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
    Rules,
    is_unusual,
    testing_score,
    travel_score,
    unusual_score,
)


class FraudDetector(sl.KeyedProcess):
    """Raise alerts for payments that do not look like the card holder's.

    The stream is keyed by `card`, and each card's payments arrive in order: `key_by("card", order_by="payment_id")`.
    """

    spent = sl.Value("struct<count: bigint, total: bigint, squares: bigint>", default=(0, 0, 0))
    last_place = sl.Value("struct<country: string, ts: timestamp>")
    recent = sl.List("struct<ts: timestamp, amount_cents: bigint>")

    def __init__(self, rules: Rules = USUAL) -> None:
        self._rules = rules

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Alert]:
        """Judge one payment by what is known of its card, then remember it."""
        amount, ts = event.amount_cents, event.ts
        recent = self.recent.get()
        if amount >= BIG_CENTS:
            tests = sum(cents <= SMALL_CENTS and ts - when <= TESTING_WINDOW for when, cents in recent)
            if tests >= self._rules.tests:
                yield Alert(event.card, CARD_TESTING, amount, ts, testing_score(tests))

        if self.last_place.exists():
            country, when = self.last_place.value
            if country != event.country and ts - when < TRAVEL_TIME:
                yield Alert(event.card, IMPOSSIBLE_TRAVEL, amount, ts, travel_score(ts - when))

        count, total, squares = self.spent.value
        if is_unusual(amount, count, total, squares, self._rules.deviations):
            yield Alert(event.card, UNUSUAL_AMOUNT, amount, ts, unusual_score(amount, count, total, squares))

        self.spent.value = (count + 1, total + amount, squares + amount * amount)
        self.last_place.value = (event.country, ts)
        self.recent.set([*recent, (ts, amount)][-REMEMBERED_PAYMENTS:])
