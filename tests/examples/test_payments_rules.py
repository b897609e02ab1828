"""The fraud rules on hand-made payments: by the batch oracle, and by the process function over plain dicts."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from random import Random
from types import SimpleNamespace

import pytest

from examples.payments.detector import FraudDetector
from examples.payments.generator import World, payments
from examples.payments.model import ALERT_SCHEMA, CARD_TESTING, IMPOSSIBLE_TRAVEL, UNUSUAL_AMOUNT, Alert, Payment
from examples.payments.oracle import oracle

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def pay(seconds: float, cents: int, country: str = "DE", card: str = "c1") -> Payment:
    return Payment(0, "a1", card, "m1", country, cents, NOON + timedelta(seconds=seconds))


class Cell:
    """A value or list state of the current key, kept in a dict."""

    def __init__(self, ctx, default):
        self._ctx, self._default, self._values = ctx, default, {}

    value = property(
        lambda self: self._values.get(self._ctx.key, self._default),
        lambda self, value: self._values.__setitem__(self._ctx.key, value),
    )

    def exists(self):
        return self._ctx.key in self._values

    def get(self):
        return list(self.value)

    def set(self, elements):
        self.value = list(elements)


def detect(events) -> list[Alert]:
    ctx = SimpleNamespace(key=None)
    detector = FraudDetector()
    for name, default in (("spent", FraudDetector.spent.default), ("last_place", None), ("recent", [])):
        setattr(detector, name, Cell(ctx, default))
    found = []
    for event in events:
        ctx.key = event.card
        found.extend(detector.on_event(event, ctx))
    return sorted(found)


@pytest.fixture(params=[oracle, detect], ids=["oracle", "detector"])
def find(request):
    return request.param


def test_quiet_card_raises_nothing(find):
    assert find([pay(i * 10_000, 2_000 + i) for i in range(50)]) == []


def test_four_small_payments_then_a_big_one(find):
    events = [*(pay(i * 5, 100) for i in range(4)), pay(25, 30_000)]
    assert find(events) == [Alert("c1", CARD_TESTING, 30_000, NOON + timedelta(seconds=25), 0.4)]


def test_three_small_payments_are_not_enough(find):
    assert find([*(pay(i * 5, 100) for i in range(3)), pay(25, 30_000)]) == []


def test_small_means_at_most_five_and_big_at_least_two_hundred(find):
    assert len(find([*(pay(i, 500) for i in range(4)), pay(5, 20_000)])) == 1
    assert find([*(pay(i, 501) for i in range(4)), pay(5, 20_000)]) == []
    assert find([*(pay(i, 500) for i in range(4)), pay(5, 19_999)]) == []


def test_small_payments_count_for_exactly_a_minute(find):
    assert len(find([*(pay(i, 100) for i in range(4)), pay(60, 30_000)])) == 1
    assert find([*(pay(i, 100) for i in range(4)), pay(60.001, 30_000)]) == []


def test_only_the_last_ten_payments_are_remembered(find):
    tests = [pay(i, 100) for i in range(4)]
    others = [pay(10 + i, 1_000) for i in range(6)]
    assert len(find([*tests, *others, pay(30, 30_000)])) == 1
    assert find([*tests, *others, pay(20, 1_000), pay(30, 30_000)]) == []


def test_another_card_has_a_memory_of_its_own(find):
    assert find([*(pay(i * 5, 100) for i in range(4)), pay(25, 30_000, card="c2")]) == []


def test_another_country_within_the_hour(find):
    found = find([pay(0, 1_000), pay(900, 1_500, "JP")])
    assert found == [Alert("c1", IMPOSSIBLE_TRAVEL, 1_500, NOON + timedelta(seconds=900), 0.75)]


def test_travel_is_possible_after_an_hour_and_judged_from_the_last_payment(find):
    assert find([pay(0, 1_000), pay(3_600, 1_000, "JP")]) == []
    assert len(find([pay(0, 1_000), pay(3_599, 1_000, "JP")])) == 1
    assert len(find([pay(0, 1_000), pay(10, 1_000, "JP"), pay(20, 1_000)])) == 2


def test_amount_far_above_the_mean(find):
    history = [pay(i * 10_000, 900 if i % 2 else 1_100) for i in range(20)]
    found = find([*history, pay(300_000, 1_601)])
    assert found == [Alert("c1", UNUSUAL_AMOUNT, 1_601, NOON + timedelta(seconds=300_000), 6.01)]
    assert find([*history, pay(300_000, 1_600)]) == []


def test_amounts_are_judged_after_twenty_payments_and_never_for_being_low(find):
    assert find([*(pay(i * 10_000, 1_000) for i in range(19)), pay(300_000, 15_000)]) == []
    assert find([*(pay(i * 10_000, 1_000) for i in range(20)), pay(300_000, 1)]) == []


def test_constant_amounts_have_a_deviation_of_one_cent(find):
    [alert] = find([*(pay(i * 10_000, 1_000) for i in range(20)), pay(300_000, 1_100)])
    assert alert.score == 100.0


def test_one_payment_can_raise_several_alerts(find):
    history = [pay(i * 10_000, 1_000) for i in range(20)]
    tests = [pay(300_000 + i, 100) for i in range(4)]
    kinds = [alert.kind for alert in find([*history, *tests, pay(300_010, 90_000, "JP")])]
    assert kinds == [CARD_TESTING, IMPOSSIBLE_TRAVEL, UNUSUAL_AMOUNT]


def test_alert_fields_are_the_schema():
    assert list(Alert._fields) == [column.split()[0] for column in ALERT_SCHEMA.split(", ")]


@pytest.mark.parametrize("seed", range(5))
def test_detector_and_oracle_agree_however_cards_are_interleaved(seed):
    made = list(islice(payments(World(seed=seed, cards=100, fraud=0.01)), 8_000))
    expected = oracle(made)
    assert len({alert.kind for alert in expected}) == 3
    assert detect(made) == expected
    # Cards in another order, each card's own payments in the same.
    cards = sorted({payment.card for payment in made})
    Random(seed).shuffle(cards)
    assert detect(sorted(made, key=lambda payment: cards.index(payment.card))) == expected
