"""Nexmark's queries as Strandline programs: built-in aggregates, windows, joins, and functions where these do not fit.

Each takes the three streams of events and returns the stream of its results. Flink's SQL changes results that it gave
before; here a result that is given stands, unless the query's own text says that the last one of a key counts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import strandline as sl
from benchmarks._nexmark.generator import AUCTION, BID, PERSON, WATERMARK_DELAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOCAL_STATES = ("OR", "ID", "CA")
CATEGORY = 10


@dataclass(frozen=True)
class Events:
    """The events of a job's one source, told apart."""

    persons: sl.Stream
    auctions: sl.Stream
    bids: sl.Stream

    @classmethod
    def of(cls, df: DataFrame) -> Events:
        """Return the streams of people, auctions and bids, with event time."""
        events = sl.stream(df).watermark("ts", WATERMARK_DELAY)
        return cls(
            persons=events.where(f"event_type = {PERSON}").select("person.*", "ts"),
            auctions=events.where(f"event_type = {AUCTION}").select("auction.*", "ts"),
            bids=events.where(f"event_type = {BID}").select("bid.*", "ts"),
        )


# -- 3: who in three states sells in category 10, and which auctions are theirs? A join over the whole history.


class LocalSellers(sl.KeyedCoProcess):
    """Keyed by seller. Auctions wait until the person is known, the person stays for all auctions to come."""

    person = sl.Value("struct<name: string, city: string, state: string>")
    waiting = sl.List("bigint")

    def on_left(self, auction: Any, ctx: sl.Context) -> Iterable[Any]:
        person = self.person.value
        if person is not None:
            yield (*person, auction.id)
        else:
            self.waiting.append(auction.id)

    def on_right(self, person: Any, ctx: sl.Context) -> Iterable[Any]:
        self.person.value = (person.name, person.city, person.state)
        for auction in self.waiting.get():
            yield (person.name, person.city, person.state, auction)
        self.waiting.clear()


def local_item_suggestion(events: Events) -> sl.Stream:
    """Query 3."""
    auctions = events.auctions.where(f"category = {CATEGORY}").select("id", "seller")
    persons = events.persons.where(f"state in {LOCAL_STATES}").select("id", "name", "city", "state")
    return (
        auctions.key_by("seller")
        .connect(persons.key_by("id"))
        .process(LocalSellers(), output="name string, city string, state string, id bigint", uid="sellers")
    )


# -- 9 and 4: the winning bid of each auction, and what winning bids are on average.


BID_FOR_IT = "struct<auction: bigint, bidder: bigint, price: bigint, ts: timestamp, extra: string>"
PRICE_FOR_IT = "struct<auction: bigint, price: bigint, ts: timestamp>"


class WinningBid(sl.KeyedCoProcess):
    """Keyed by auction. The highest bid while the auction is open wins, the first of several that are as high."""

    auction = sl.Value(
        "struct<id: bigint, item_name: string, description: string, initial_bid: bigint, reserve: bigint, "
        "expires: timestamp, seller: bigint, category: bigint, extra: string, ts: timestamp>"
    )
    best = sl.Value(BID_FOR_IT)
    early = sl.List(BID_FOR_IT, ttl=sl.TTL("1s", time="event"))

    def on_left(self, auction: Any, ctx: sl.Context) -> None:
        self.auction.value = auction
        ctx.timers.set(auction.expires + timedelta(microseconds=1))
        for bid in self.early.get():
            self._consider(bid, auction)
        self.early.clear()

    def on_right(self, bid: Any, ctx: sl.Context) -> None:
        auction = self.auction.value
        if auction is not None:
            self._consider(bid, auction)
        else:
            self.early.append(bid)

    def on_timer(self, timer: sl.Timer, ctx: sl.Context) -> Iterable[Any]:
        if self.best.value is not None:
            yield (*self.auction.value, *self.best.value)
        self.auction.clear()
        self.best.clear()

    def _consider(self, bid: Any, auction: Any) -> None:
        if auction.ts <= bid.ts <= auction.expires:
            best = self.best.value
            if best is None or bid.price > best.price or (bid.price == best.price and bid.ts < best.ts):
                self.best.value = bid


class WinningPrice(WinningBid):
    """The same for fewer columns."""

    auction = sl.Value("struct<id: bigint, category: bigint, ts: timestamp, expires: timestamp>")
    best = sl.Value(PRICE_FOR_IT)
    early = sl.List(PRICE_FOR_IT, ttl=sl.TTL("1s", time="event"))


def winning_bids(events: Events) -> sl.Stream:
    """Query 9."""
    bids = events.bids.select("auction", "bidder", "price", "ts", "extra")
    return (
        events.auctions.key_by("id")
        .connect(bids.key_by("auction"))
        .process(
            WinningBid(),
            output="id bigint, item_name string, description string, initial_bid bigint, reserve bigint, "
            "expires timestamp, seller bigint, category bigint, extra string, ts timestamp, "
            "auction bigint, bidder bigint, price bigint, bid_ts timestamp, bid_extra string",
            uid="winners",
        )
    )


def average_price_of_category(events: Events) -> sl.Stream:
    """Query 4. The last result of a category counts: the one of the most auctions."""
    auctions, bids = events.auctions.select("id", "category", "ts", "expires"), events.bids
    winners = (
        auctions.key_by("id")
        .connect(bids.select("auction", "price", "ts").key_by("auction"))
        .process(
            WinningPrice(),
            output="id bigint, category bigint, ts timestamp, expires timestamp, "
            "auction bigint, price bigint, bid_ts timestamp",
            uid="winners",
        )
    )
    return winners.key_by("category").agg(auctions=sl.agg.count(), price=sl.agg.avg("price"), uid="averages")


# -- 5: which auctions had the most bids in the last ten seconds? Every two seconds.


def hottest(key: Any, window: Any, counts: list[Any]) -> Iterator[Any]:
    """Return the auctions with the most bids."""
    most = max(count.bids for count in counts)
    return ((count.auction, most) for count in counts if count.bids == most)


def hot_items(events: Events) -> sl.Stream:
    """Query 5."""
    counts = events.bids.key_by("auction").window(sl.Sliding("10s", every="2s")).agg(bids=sl.agg.count(), uid="counts")
    return (
        counts.select_expr("auction", "bids", "window_end as period_end")
        .key_by("period_end")
        .window(sl.Tumbling("2s"))
        .process(hottest, output="auction bigint, bids bigint", uid="hottest")
        .select("period_end", "auction", "bids")
    )


# -- 7: the highest bid of each ten seconds; the first of several that are as high.


def higher(a: Any, b: Any) -> Any:
    """Return the higher of two bids."""
    return b if b.price > a.price or (b.price == a.price and b.ts < a.ts) else a


def highest_bid(events: Events) -> sl.Stream:
    """Query 7: first of each part of the bidders, so that all partitions share the work, then of all."""
    bids = events.bids.select_expr("bidder % 64 as part", "auction", "bidder", "price", "ts", "extra")
    parts = bids.key_by("part").window(sl.Tumbling("10s")).reduce(higher, uid="parts")
    return (
        parts.select_expr("window_end as period_end", "auction", "bidder", "price", "ts", "extra")
        .key_by("period_end")
        .window(sl.Tumbling("10s"))
        .reduce(higher, uid="highest")
        .select("period_end", "auction", "bidder", "price", "ts", "extra")
    )


# -- 8: who came and opened an auction within the same ten seconds?


def new_users(events: Events) -> sl.Stream:
    """Query 8: sellers are counted first, so that each is there once."""
    window = sl.Tumbling("10s")
    sellers = events.auctions.key_by("seller").window(window).count(uid="sellers").select("seller")
    persons = events.persons.select("id", "name")
    return (
        persons.key_by("id")
        .window_join(sellers.key_by("seller"), window, uid="newcomers")
        .select("id", "name", "window_start")
    )


# -- 11: how many bids did somebody make before ten seconds of silence?


def user_sessions(events: Events) -> sl.Stream:
    """Query 11."""
    return (
        events.bids.select("bidder")
        .key_by("bidder")
        .window(sl.Session("10s"))
        .fold("bids bigint", 0, lambda bids, bid: bids + 1, merge=operator.add, uid="sessions")
    )


# -- 18: everybody's last bid for each auction. The last result of the two counts.


class LastBid(sl.KeyedBatchProcess):
    """Vectorised: the newest bid of each key in a batch, where it is newer than what is known."""

    last = sl.Value("timestamp")

    def on_batch(self, batch: pa.RecordBatch, ctx: sl.BatchContext) -> pa.RecordBatch:
        keys, key_of = ctx.keys.unique()
        times = batch.column("ts").cast(pa.int64()).to_numpy()
        by_key = np.lexsort((times, key_of))
        newest = by_key[np.flatnonzero(np.diff(key_of[by_key], append=len(keys)))]
        known = self.last.get_many(keys).cast(pa.int64()).fill_null(np.iinfo(np.int64).min).to_numpy()
        newer = newest[times[newest] > known]
        bids = batch.take(pa.array(newer))
        self.last.put_many(ctx.keys.take(newer), bids.column("ts"))
        return bids


def last_bids(events: Events) -> sl.Stream:
    """Query 18."""
    bids = events.bids.select("auction", "bidder", "price", "channel", "url", "ts", "extra")
    output = "auction bigint, bidder bigint, price bigint, channel string, url string, ts timestamp, extra string"
    return bids.key_by("bidder", "auction").process(LastBid(), output=output, uid="last")


# -- 20: bids for auctions of category 10, with the auction. A join over the whole history.


class Expanded(sl.KeyedCoProcess):
    """Keyed by auction. Bids wait until the auction is known; those for other categories are forgotten then."""

    auction = sl.Value(
        "struct<item_name: string, description: string, initial_bid: bigint, reserve: bigint, ts: timestamp, "
        "expires: timestamp, seller: bigint, category: bigint, extra: string>"
    )
    other = sl.Value("boolean")
    waiting = sl.List(
        "struct<auction: bigint, bidder: bigint, price: bigint, channel: string, url: string, ts: timestamp, "
        "extra: string>"
    )

    def on_left(self, auction: Any, ctx: sl.Context) -> Iterable[Any]:
        if auction.category == CATEGORY:
            row = self.auction.value = auction[1:]
            for bid in self.waiting.get():
                yield (*bid, *row)
        else:
            self.other.value = True
        self.waiting.clear()

    def on_right(self, bid: Any, ctx: sl.Context) -> Iterable[Any]:
        auction = self.auction.value
        if auction is not None:
            yield (*bid, *auction)
        elif not self.other.value:
            self.waiting.append(bid)


def expanded_bids(events: Events) -> sl.Stream:
    """Query 20."""
    auctions = events.auctions.select(
        "id", "item_name", "description", "initial_bid", "reserve", "ts", "expires", "seller", "category", "extra"
    )
    bids = events.bids.select("auction", "bidder", "price", "channel", "url", "ts", "extra")
    output = (
        "auction bigint, bidder bigint, price bigint, channel string, url string, bid_ts timestamp, bid_extra string, "
        "item_name string, description string, initial_bid bigint, reserve bigint, auction_ts timestamp, "
        "expires timestamp, seller bigint, category bigint, auction_extra string"
    )
    return auctions.key_by("id").connect(bids.key_by("auction")).process(Expanded(), output=output, uid="expanded")


QUERIES: dict[str, Callable[[Events], sl.Stream]] = {
    "q3": local_item_suggestion,
    "q4": average_price_of_category,
    "q5": hot_items,
    "q7": highest_bid,
    "q8": new_users,
    "q9": winning_bids,
    "q11": user_sessions,
    "q18": last_bids,
    "q20": expanded_bids,
}
