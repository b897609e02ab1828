"""A seeded, endless stream of card payments in order of time, with fraud in it.

The same arguments give the same payments, on every machine. Between the ordinary payments of a card's holder two kinds
of fraud are played: a burst of small payments and then a big one, and a payment from a country that the holder cannot
have reached.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from examples.payments.model import BIG_CENTS, SMALL_CENTS, Payment

START = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
COUNTRIES = ("DE", "FR", "GB", "IT", "ES", "US", "BR", "IN", "JP", "AU")


@dataclass(frozen=True, kw_only=True)
class World:
    """What the payments are drawn from."""

    seed: int = 1
    cards: int = 2_000
    merchants: int = 300
    fraud: float = 0.002
    """Share of ordinary payments that a fraud on the same card follows."""
    payments_per_second: float = 20.0
    """Of event time: how dense the payments are, not how fast they are generated."""


@dataclass(frozen=True, slots=True)
class Card:
    """A card and its holder's habits."""

    number: str
    account: str
    country: str
    typical_cents: int


@dataclass(frozen=True, order=True, slots=True)
class _Planned:
    """A payment that will happen; `order` makes the heap's order total and so the stream deterministic."""

    ts: datetime
    order: int
    card: int
    country: str
    amount_cents: int


def payments(world: World) -> Iterator[Payment]:
    """Yield payments for ever, in order of their time; those of one card are strictly increasing in time."""
    rng = random.Random(world.seed)
    cards = _make_cards(world, rng)
    last: dict[int, datetime] = {}
    planned: list[_Planned] = []
    order = payment_id = 0
    clock = START
    while True:
        clock += timedelta(milliseconds=1 + round(rng.expovariate(world.payments_per_second) * 1000))
        holder = rng.randrange(world.cards)
        card = cards[holder]
        todo = [_Planned(clock, order, holder, card.country, _ordinary_amount(card, rng))]
        if rng.random() < world.fraud:
            plan = _card_testing if rng.random() < 0.5 else _foreign_payment
            todo += plan(clock, order + 1, holder, card, rng)
        for one in todo:
            heapq.heappush(planned, one)
        order += len(todo)

        # What is planned later than the clock may still be preceded by another ordinary payment.
        while planned and planned[0].ts <= clock:
            due = heapq.heappop(planned)
            previous = last.get(due.card)
            ts = due.ts if previous is None or due.ts > previous else previous + timedelta(milliseconds=1)
            last[due.card] = ts
            payment_id += 1
            merchant = f"merchant-{rng.randrange(world.merchants):04d}"
            card = cards[due.card]
            yield Payment(payment_id, card.account, card.number, merchant, due.country, due.amount_cents, ts)


def _make_cards(world: World, rng: random.Random) -> list[Card]:
    """Make the cards: most accounts have one, some have two."""
    cards: list[Card] = []
    account = 0
    for number in range(world.cards):
        if not cards or rng.random() < 0.8:
            account += 1
        country = rng.choice(COUNTRIES)
        cards.append(Card(f"card-{number:06d}", f"account-{account:06d}", country, rng.randrange(1_500, 9_000)))
    return cards


def _ordinary_amount(card: Card, rng: random.Random) -> int:
    return max(SMALL_CENTS // 2, round(card.typical_cents * rng.lognormvariate(0, 0.35)))


def _card_testing(start: datetime, order: int, holder: int, card: Card, rng: random.Random) -> list[_Planned]:
    """A thief tries the card with a few small payments, seconds apart, and then buys something big."""
    plan: list[_Planned] = []
    ts = start
    for _ in range(rng.randrange(4, 8)):
        ts += timedelta(milliseconds=rng.randrange(500, 6_000))
        plan.append(_Planned(ts, order + len(plan), holder, card.country, rng.randrange(50, SMALL_CENTS)))
    ts += timedelta(milliseconds=rng.randrange(500, 6_000))
    big = rng.randrange(2 * BIG_CENTS, 10 * BIG_CENTS)
    return [*plan, _Planned(ts, order + len(plan), holder, card.country, big)]


def _foreign_payment(start: datetime, order: int, holder: int, card: Card, rng: random.Random) -> list[_Planned]:
    """A copy of the card is used abroad minutes after its holder used it at home."""
    abroad = rng.choice([country for country in COUNTRIES if country != card.country])
    ts = start + timedelta(seconds=rng.randrange(30, 1_800))
    return [_Planned(ts, order, holder, abroad, _ordinary_amount(card, rng))]
