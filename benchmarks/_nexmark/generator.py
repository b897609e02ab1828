"""Nexmark's events: people who open auctions and bid on them, at the suite's standard proportions and rates.

Everything about event n follows from n and the seed alone, so that any stretch of the stream can be made on its own,
and everybody reads the same. Of 50 events, 1 is a person, 3 are auctions, 46 are bids. Three quarters of the auctions
are by a hot seller, half of the bids are for a hot auction, three quarters are by a hot bidder; all others are spread
over what is recent, and a few ids ahead of it. Prices are spread evenly over their logarithms.

Unlike in the suite, whose times are in milliseconds, no two events have the same time: every query has one answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks._nexmark.noise import Noise

PERSON, AUCTION, BID = 0, 1, 2
KINDS = {"person": PERSON, "auction": AUCTION, "bid": BID}
PERSONS, AUCTIONS, BIDS = 1, 3, 46
ROUND = PERSONS + AUCTIONS + BIDS
"""The kinds of any so many events in a row: first the person, then the auctions, then the bids."""
HOT_SELLERS, HOT_AUCTIONS, HOT_BIDDERS = 4, 2, 4
"""One event in so many is for somebody or something that is not hot."""
HOT_BATCH = 100
"""There is one hot id in so many."""
ACTIVE_PEOPLE, AUCTIONS_IN_FLIGHT, LEAD = 1000, 100, 10
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1000, 10, 5
EVENT_US = 100
"""10,000 events a second."""
BASE_US = 1_700_000_000_000_000
WATERMARK_DELAY = "4 seconds"
CLOSING_US = 3_600_000_000
"""How long after everything else the events come that close all windows."""

PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
CITIES = [
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne",
]  # fmt: skip
STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
CHANNELS = 10_000

SCHEMA = (
    "event_type int, ts timestamp, "
    "person struct<id: bigint, name: string, email: string, credit_card: string, city: string, state: string, "
    "extra: string>, "
    "auction struct<id: bigint, item_name: string, description: string, initial_bid: bigint, reserve: bigint, "
    "expires: timestamp, seller: bigint, category: bigint, extra: string>, "
    "bid struct<auction: bigint, bidder: bigint, price: bigint, channel: string, url: string, extra: string>"
)
"""The stream, in Spark's words: one struct of the three is there, as the type of the event says."""

_TIME = pa.timestamp("us", tz="UTC")


class Generator:
    """Makes the events of one seed."""

    def __init__(self, seed: int = 1) -> None:
        self._noise = Noise(seed)
        names = [f"channel-{number}" for number in range(CHANNELS)]
        self._channels = pa.array(HOT_CHANNELS + names)
        url = "https://www.nexmark.com/items/item.htm?query=1"
        self._urls = pa.array([url] * len(HOT_CHANNELS) + [f"{url}&channel_id={n}" for n in range(CHANNELS)])

    def events(self, first: int, last: int) -> pa.Table:
        """Return the events from `first` up to `last`, without the latter."""
        numbers = np.arange(first, last, dtype=np.int64)
        kinds = kinds_of(numbers)
        made = {PERSON: self._persons, AUCTION: self._auctions, BID: self._bids}
        parts = [make(numbers[kinds == kind]) for kind, make in made.items()]
        return _table(kinds, times_of(numbers), parts)

    def _persons(self, numbers: Any) -> dict[str, Any]:
        noise = self._noise
        names = noise.choice("first name", numbers, FIRST_NAMES), noise.choice("last name", numbers, LAST_NAMES)
        mailbox, host = noise.letters("mailbox", numbers, 3, 7), noise.letters("host", numbers, 3, 5)
        card = [noise.below("card", numbers * 4 + part, 10_000).tolist() for part in range(4)]
        return {
            "id": FIRST_ID + last_person(numbers),
            "name": _joined(" ", *names),
            "email": _joined("", mailbox, "@", host, ".com"),
            "credit_card": pa.array([f"{a:04} {b:04} {c:04} {d:04}" for a, b, c, d in zip(*card, strict=True)]),
            "city": noise.choice("city", numbers, CITIES),
            "state": noise.choice("state", numbers, STATES),
            "extra": self._extra("person extra", numbers, PERSON_BYTES - 70),
        }

    def _auctions(self, numbers: Any) -> dict[str, Any]:
        noise = self._noise
        hot = noise.below("seller is hot", numbers, HOT_SELLERS) > 0
        sellers = np.where(hot, last_person(numbers) // HOT_BATCH * HOT_BATCH, self._anybody("seller", numbers))
        # As long as it takes, on average, until as many auctions were opened as are to be in flight.
        longest_us = 2 * AUCTIONS_IN_FLIGHT * ROUND // AUCTIONS * EVENT_US
        initial = noise.prices("initial bid", numbers)
        return {
            "id": FIRST_ID + last_auction(numbers),
            "item_name": noise.letters("item", numbers, 3, 20),
            "description": noise.letters("description", numbers, 3, 100),
            "initial_bid": initial,
            "reserve": initial + noise.prices("reserve", numbers),
            "expires": pa.array(times_of(numbers) + 1000 + noise.below("length", numbers, longest_us), _TIME),
            "seller": FIRST_ID + sellers,
            "category": FIRST_CATEGORY + noise.below("category", numbers, CATEGORIES),
            "extra": self._extra("auction extra", numbers, AUCTION_BYTES - 110),
        }

    def _bids(self, numbers: Any) -> dict[str, Any]:
        noise = self._noise
        newest = last_auction(numbers)
        oldest = np.maximum(newest - AUCTIONS_IN_FLIGHT, 0)
        any_auction = oldest + noise.below("auction", numbers, newest - oldest + 1 + LEAD)
        is_hot_auction = noise.below("auction is hot", numbers, HOT_AUCTIONS) > 0
        is_hot_bidder = noise.below("bidder is hot", numbers, HOT_BIDDERS) > 0
        # The second of its batch: hot bidders are no hot sellers.
        hot_bidder = last_person(numbers) // HOT_BATCH * HOT_BATCH + 1
        is_hot_channel = noise.below("channel is hot", numbers, 2) > 0
        any_channel = len(HOT_CHANNELS) + noise.below("channel", numbers, CHANNELS)
        hot_channel = noise.below("hot channel", numbers, len(HOT_CHANNELS))
        channel = pa.array(np.where(is_hot_channel, hot_channel, any_channel))
        return {
            "auction": FIRST_ID + np.where(is_hot_auction, newest // HOT_BATCH * HOT_BATCH, any_auction),
            "bidder": FIRST_ID + np.where(is_hot_bidder, hot_bidder, self._anybody("bidder", numbers)),
            "price": noise.prices("price", numbers),
            "channel": self._channels.take(channel),
            "url": self._urls.take(channel),
            "extra": self._extra("bid extra", numbers, BID_BYTES - 32),
        }

    def _anybody(self, what: str, numbers: Any) -> Any:
        people = last_person(numbers) + 1
        active = np.minimum(people, ACTIVE_PEOPLE)
        return people - active + self._noise.below(what, numbers, active + LEAD)

    def _extra(self, what: str, numbers: Any, length: int) -> pa.Array:
        return self._noise.letters(what, numbers, length - length // 5, length + length // 5)


def kinds_of(numbers: Any) -> Any:
    """Return which kind of event each number is."""
    rest = numbers % ROUND
    return np.where(rest < PERSONS, PERSON, np.where(rest < PERSONS + AUCTIONS, AUCTION, BID))


def times_of(numbers: Any) -> Any:
    """Return the events' times, in microseconds."""
    return BASE_US + numbers * EVENT_US


def last_person(numbers: Any) -> Any:
    """Return the newest person as of each event, counted from 0."""
    return numbers // ROUND * PERSONS + np.minimum(numbers % ROUND, PERSONS - 1)


def last_auction(numbers: Any) -> Any:
    """Return the newest auction as of each event, counted from 0."""
    return numbers // ROUND * AUCTIONS + np.clip(numbers % ROUND - PERSONS, -1, AUCTIONS - 1)


def closing_events(events: int) -> pa.Table:
    """Return one event of each kind, that have to do with no other, long after the first so many."""
    nobody, text, price = np.array([-1]), pa.array([""]), np.array([0])
    at = times_of(np.full(3, events)) + CLOSING_US
    person = {"id": nobody} | dict.fromkeys(("name", "email", "credit_card", "city", "state", "extra"), text)
    auction = {
        "id": nobody, "item_name": text, "description": text, "initial_bid": price, "reserve": price,
        "expires": pa.array(at[:1], _TIME), "seller": nobody - 1, "category": price, "extra": text,
    }  # fmt: skip
    bid = {"auction": nobody - 1, "bidder": nobody, "price": price, "channel": text, "url": text, "extra": text}
    return _table(np.array([PERSON, AUCTION, BID]), at, [person, auction, bid])


def _table(kinds: Any, times_us: Any, parts: list[dict[str, Any]]) -> pa.Table:
    """Put persons, auctions and bids, columns of each, into one table: a struct each, of which one is not null."""
    columns = [pa.array(kinds, pa.int32()), pa.array(times_us, _TIME)]
    for kind, part in enumerate(parts):
        fields = {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in part.items()}
        there = kinds == kind
        struct = pa.StructArray.from_arrays(list(fields.values()), list(fields))
        columns.append(struct.take(pa.array(np.cumsum(there) - 1, mask=~there)))
    return pa.table(columns, names=["event_type", "ts", "person", "auction", "bid"])


def _joined(separator: str, *parts: Any) -> pa.Array:
    return pa.compute.binary_join_element_wise(*parts, separator)
