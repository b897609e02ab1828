"""The harness with functions of two connected streams."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from strandline import KeyedCoProcess, KeyedProcess, List, Value
from strandline.core.errors import ConfigurationError, NullKeyError, UserCodeError
from strandline.testing import Harness, Right
from tests.runtime.bench import KINDS
from tests.testing.times import START, at

SECOND = dt.timedelta(seconds=1)
OUT = "id int, said string"
LEFT = "id int, amount bigint, at timestamp"
RIGHT = "method string, order int, at timestamp"


class Match(KeyedCoProcess):
    """Tells what it saw; payments wait for their order, and orders for ten seconds."""

    amount = Value("bigint")
    methods = List("string")

    def on_left(self, order: Any, ctx: Any) -> Any:
        if order.amount is None:
            raise ValueError("no amount")
        if ctx.is_late:
            ctx.emit("late", (ctx.key,))
        self.amount.value = order.amount
        if ctx.timestamp is not None:
            ctx.timers.set(ctx.timestamp + 10 * SECOND)
        for method in self.methods:
            yield ctx.key, f"{order.amount} was paid by {method}"

    def on_right(self, payment: Any, ctx: Any) -> Any:
        self.methods.append(payment.method)
        if self.amount.value is not None:
            yield ctx.key, f"{self.amount.value} is paid by {payment.method}"

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        if not list(self.methods):
            yield ctx.key, f"{self.amount.value} is unpaid"


def match(**given: Any) -> Harness:
    usual: dict[str, Any] = {"schema": LEFT, "right": RIGHT, "key": "id", "right_key": "order", "output": OUT}
    return Harness(Match(), **{**usual, "sides": {"late": "id int"}, **given})


def order(number: int, amount: int | None = 5, time: float | None = 0) -> tuple[Any, ...]:
    return number, amount, None if time is None else at(time)


def payment(number: int, method: str = "card", time: float = 0) -> dict[str, Any]:
    return {"order": number, "method": method, "at": at(time)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_both_sides_share_state_and_it_comes_back_after_a_crash(kind: Any, parallelism: int) -> None:
    with match(backend=kind, parallelism=parallelism) as h:
        numbers = range(20)
        assert h.push(*map(order, numbers)) == []
        assert h.push_right(payment(3, "cash")) == [(3, "5 is paid by cash")]
        h.snapshot()
        for _ in range(2):
            told = h.push_right(*map(payment, numbers))
            assert sorted(told) == [(number, "5 is paid by card") for number in numbers]
            assert h.state(3) == {"amount": 5, "methods": ["cash", "card"]}
            h.crash()
            assert h.state(3) == {"amount": 5, "methods": ["cash"]}
            assert h.output == [(3, "5 is paid by cash")]


def test_one_epoch_of_both() -> None:
    with match() as h:
        assert h.push(order(1), Right(payment(1))) == [(1, "5 is paid by card")]
        assert h.push(Right(payment(2)), order(2)) == [(2, "5 was paid by card")]
        mixed = Right(payment(3, "cash")), order(4), order(3), Right(payment(4)), order(3, 6), Right(payment(3))
        assert h.push(*mixed) == [
            (3, "5 was paid by cash"), (4, "5 is paid by card"), (3, "6 was paid by cash"), (3, "6 is paid by card")
        ]  # fmt: skip
        assert h.epoch == 3
        assert h.push() == h.push_right() == []
        assert h.epoch == 5


def test_an_epoch_of_both_that_fails_is_not_applied() -> None:
    with match() as h:
        h.push(order(1))
        with pytest.raises(
            UserCodeError, match=r"on_left of Match raised for key 2, in the event Record\(id=2.*no amount"
        ):
            h.push(Right(payment(1)), order(2, None))
        assert (h.state(1), h.output, h.epoch) == ({"amount": 5, "methods": []}, [], 1)
        with pytest.raises(NullKeyError, match="'id' is null"):
            h.push_right({"method": "card"})


def test_without_event_time() -> None:
    with match(schema="id int, amount bigint", right="id int, method string", right_key=None) as h:
        h.push((1, 5))
        assert h.push_right({"id": 1, "method": "card"}) == [(1, "5 is paid by card")]
        with pytest.raises(ConfigurationError, match="no event time"):
            h.advance_watermark(at(0))


def test_a_watermark_by_hand_fires_the_timers_of_both() -> None:
    with match(event_time="at") as h:
        h.push(order(1), order(2, time=5))
        h.push_right(payment(2, time=100))
        assert h.watermark is None
        assert h.advance_watermark(at(50)) == [(1, "5 is unpaid")]
        h.push(order(3, time=49))
        assert (h.side("late"), h.late_rows) == ([(3,)], 1)


def test_the_slower_sides_watermark_counts_and_one_without_events_holds_it_back() -> None:
    with match(event_time="at", watermark="2s", right_watermark="5s", parallelism=2) as h:
        h.push(order(1), order(2, time=30))
        assert h.watermark is None
        h.push_right(payment(2, time=4))
        assert h.watermark == at(-1)
        h.push_right(payment(3, time=17), payment(4, time=5))
        assert h.watermark == at(12)
        h.snapshot()
        assert h.push_right(payment(5, time=60)) == [(1, "5 is unpaid")]
        assert h.watermark == at(28)
        h.crash()
        assert h.watermark == at(12)
        assert h.tick() == [(1, "5 is unpaid")]
        h.push(order(6, time=None), Right(payment(7, time=99)))
        assert h.watermark == at(28), "an event without a time moves nothing"


def test_what_is_not_said_of_the_right_stream_is_as_on_the_left() -> None:
    given = {"right": "id int, method string, at timestamp", "right_key": None}
    with match(event_time="at", watermark="2s", **given) as h:
        h.push(order(1, time=30))
        h.push_right({"id": 1, "method": "card", "at": at(12)})
        assert h.watermark == at(10)
    right = RIGHT.replace("at ", "paid_at ")
    with match(event_time="at", watermark="2s", right_event_time="paid_at", right=right) as h:
        h.push(order(1, time=30))
        h.push_right({"order": 1, "method": "card", "paid_at": at(12)})
        assert h.watermark == at(10)


def test_keys_of_several_columns_go_where_their_partner_is() -> None:
    class Count(KeyedCoProcess):
        lefts = Value("bigint", default=0)

        def on_left(self, event: Any, ctx: Any) -> None:
            self.lefts.value += 1

        def on_right(self, event: Any, ctx: Any) -> Any:
            yield *ctx.key, self.lefts.value

    streams = {
        "schema": "a string, b int, x int",
        "key": ["b", "a"],
        "right": "c string, d int",
        "right_key": ["d", "c"],
    }
    with Harness(Count(), **streams, output="b int, a string, n bigint", parallelism=4) as h:
        rows = [(f"key {n}", n) for n in range(30)]
        h.push(*((a, b, 0) for a, b in rows))
        assert sorted(h.push_right(*rows)) == [(n, f"key {n}", 1) for n in range(30)]
        assert h.state((7, "key 7")) == {"lefts": 1}


class Shout(KeyedProcess):
    heard = Value("bigint", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.heard.value += 1
        yield ctx.key, f"{event.said}, {self.heard.value} at {ctx.watermark and (ctx.watermark - START) // SECOND}"


def test_a_chain_goes_on_after_it() -> None:
    chain = match(event_time="at", watermark="0s", parallelism=2).then(Shout(), key="id", output=OUT, uid="shout")
    with chain as h:
        assert h.push(order(1), order(2, time=40), Right(payment(2))) == [(2, "5 is paid by card, 1 at None")]
        h.push_right(payment(2, time=40))
        h.snapshot()
        for _ in range(2):
            assert h.tick() == [(1, "5 is unpaid, 1 at 0")]
            assert (h.state(1, "operator")["amount"], h.state(1, "shout")) == (5, {"heard": 1})
            h.crash()
            assert h.state(2, "shout") == {"heard": 2}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"right": "id in"}, "in"),
        ({"right_key": None}, "key_by: there is no column 'id'; the stream has method, order, at"),
        ({"right_key": []}, "needs at least one column"),
        ({"key": "order"}, "key_by: there is no column 'order'; the stream has id, amount, at"),
        ({"right_key": "method"}, "the keys of the streams differ: id int here, method string there"),
        ({"right_key": ["order", "method"]}, "differ: id int here, order int, method string there"),
        ({"order_by": "method"}, "order_by is for the events of one stream"),
        ({"right_event_time": "at"}, "right_event_time was given, and event_time was not"),
        ({"event_time": "at", "right_watermark": "5s"}, "right_watermark was given, and watermark was not"),
        ({"event_time": "at", "right_event_time": "then"}, "'then' is no column; the stream has method"),
        ({"event_time": "at", "right_event_time": "order"}, "the column 'order' is int, expected timestamp"),
        ({"event_time": "at", "watermark": "1s", "right_watermark": "soon"}, "delay is 'soon'"),
    ],
)
def test_connected_streams_that_cannot_work(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        match(**given)


def test_functions_that_do_not_fit_their_streams() -> None:
    streams: dict[str, Any] = {"schema": "id int, said string", "right": "id int", "key": "id", "output": OUT}
    for more in ({}, {"right": None, "right_key": "id"}):
        with pytest.raises(ConfigurationError, match="Shout is a function of one stream, and right… options"):
            Harness(Shout(), **{**streams, **more})
    with Harness(Shout(), schema="id int, said string", key="id", output=OUT) as h:
        for use in (h.push_right, lambda event: h.push((1, "a"), Right(event))):
            with pytest.raises(ConfigurationError, match="there is no right stream"):
                use((1,))
        with pytest.raises(ConfigurationError, match="has no Broadcast states"):
            h.broadcast_state()
        with pytest.raises(ConfigurationError, match=r"'two': after key_by\(\), process\(\) was given Match"):
            h.then(Match(), key="id", output=OUT, uid="two")


def test_events_that_do_not_fit_their_stream() -> None:
    with match() as h:
        with pytest.raises(ConfigurationError, match=r"the right event .* has unknown amount") as caught:
            h.push_right({"amount": 5})
        assert "make right events that fit" in caught.value.hint
        with pytest.raises(ConfigurationError, match=r"the event .* has unknown method"):
            h.push({"method": "card"})
        for one, shown in ((order(None), "in the event Record(id=None, "), (Right({}), "in the event Record(method=")):  # type: ignore[arg-type]
            with pytest.raises(NullKeyError) as refused:
                h.push(one)
            assert shown in refused.value.message
        assert h.epoch == 0
    for use in (h.push_right, h.broadcast_state):
        with pytest.raises(ConfigurationError, match="closed already"):
            use()
