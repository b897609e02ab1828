"""The right answers: the queries in DuckDB's SQL over the same events, and the comparison with what a subject gave.

What is compared are final results: of windows, those that are complete by the last watermark; where the last result of
a key counts, that one.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._nexmark.generator import AUCTION, BID, PERSON, WATERMARK_DELAY

_VIEWS = f"""
CREATE VIEW events AS SELECT * FROM read_parquet({{events}});
CREATE VIEW person AS SELECT person.*, ts FROM (SELECT person, ts FROM events WHERE event_type = {PERSON});
CREATE VIEW auction AS SELECT auction.*, ts FROM (SELECT auction, ts FROM events WHERE event_type = {AUCTION});
CREATE VIEW bid AS SELECT bid.*, ts FROM (SELECT bid, ts FROM events WHERE event_type = {BID});
CREATE VIEW watermark AS SELECT max(ts) - INTERVAL {WATERMARK_DELAY} AS reached FROM events;
CREATE VIEW tumbling_bid AS
  SELECT *, time_bucket(INTERVAL 10 SECONDS, ts) + INTERVAL 10 SECONDS AS period_end FROM bid;
"""

_WINNERS = """
SELECT * FROM (
  SELECT a.*, b.auction, b.bidder, b.price, b.ts AS bid_ts, b.extra AS bid_extra
  FROM auction a JOIN bid b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires
) QUALIFY row_number() OVER (PARTITION BY id ORDER BY price DESC, bid_ts) = 1
"""


@dataclass(frozen=True, slots=True)
class Rows:
    """A subject's: the SQL that reads all that it gave, and what of the final results is compared."""

    gave: str
    compared: str = "*"


@dataclass(frozen=True, slots=True)
class Answer:
    """One query's: its SQL, and the SQL that leaves a subject's final results of all that it `gave`."""

    right: str
    final: str


ANSWERS = {
    "q3": Answer(
        """
        SELECT p.name, p.city, p.state, a.id
        FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
        """,
        "SELECT name, city, state, id FROM gave",
    ),
    "q4": Answer(
        f"SELECT category, count(*) AS auctions, round(avg(price), 6) AS price FROM ({_WINNERS}) GROUP BY category",
        """
        SELECT category, auctions, round(price, 6) AS price FROM gave
        QUALIFY row_number() OVER (PARTITION BY category ORDER BY auctions DESC) = 1
        """,
    ),
    "q5": Answer(
        """
        SELECT period_end, auction, bids FROM (
          SELECT period_end, auction, count(*) AS bids FROM (
            SELECT auction, time_bucket(INTERVAL 2 SECONDS, ts) + INTERVAL 2 SECONDS * n AS period_end
            FROM bid, range(1, 6) AS steps(n)
          ) GROUP BY period_end, auction
        ) WHERE period_end <= (SELECT reached FROM watermark)
        QUALIFY bids = max(bids) OVER (PARTITION BY period_end)
        """,
        "SELECT period_end, auction, bids FROM gave",
    ),
    "q7": Answer(
        """
        SELECT period_end, auction, bidder, price, ts, extra FROM tumbling_bid
        WHERE period_end <= (SELECT reached FROM watermark)
        QUALIFY row_number() OVER (PARTITION BY period_end ORDER BY price DESC, ts) = 1
        """,
        "SELECT period_end, auction, bidder, price, ts, extra FROM gave",
    ),
    "q8": Answer(
        """
        SELECT DISTINCT p.id, p.name, time_bucket(INTERVAL 10 SECONDS, p.ts) AS window_start
        FROM person p JOIN auction a
          ON p.id = a.seller AND time_bucket(INTERVAL 10 SECONDS, p.ts) = time_bucket(INTERVAL 10 SECONDS, a.ts)
        WHERE window_start + INTERVAL 10 SECONDS <= (SELECT reached FROM watermark)
        """,
        "SELECT id, name, window_start FROM gave",
    ),
    "q9": Answer(
        f"""
        SELECT id, item_name, description, initial_bid, reserve, expires, seller, category, extra, ts,
          auction, bidder, price, bid_ts, bid_extra
        FROM ({_WINNERS})
        """,
        """
        SELECT id, item_name, description, initial_bid, reserve, expires, seller, category, extra, ts,
          auction, bidder, price, bid_ts, bid_extra
        FROM gave
        """,
    ),
    "q11": Answer(
        """
        SELECT bidder, min(ts) AS window_start, max(ts) + INTERVAL 10 SECONDS AS window_end, count(*) AS bids FROM (
          SELECT bidder, ts, sum(is_first) OVER (PARTITION BY bidder ORDER BY ts) AS session FROM (
            SELECT bidder, ts,
              CASE WHEN ts - lag(ts) OVER (PARTITION BY bidder ORDER BY ts) <= INTERVAL 10 SECONDS THEN 0 ELSE 1 END
              AS is_first
            FROM bid
          )
        ) GROUP BY bidder, session HAVING window_end < (SELECT reached FROM watermark)
        """,
        "SELECT bidder, window_start, window_end, bids FROM gave",
    ),
    "q18": Answer(
        """
        SELECT auction, bidder, price, channel, url, ts, extra FROM bid
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY ts DESC) = 1
        """,
        """
        SELECT auction, bidder, price, channel, url, ts, extra FROM gave
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY ts DESC) = 1
        """,
    ),
    "q20": Answer(
        """
        SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.ts AS bid_ts, b.extra AS bid_extra,
          a.item_name, a.description, a.initial_bid, a.reserve, a.ts AS auction_ts, a.expires, a.seller, a.category,
          a.extra AS auction_extra
        FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10
        """,
        """
        SELECT auction, bidder, price, channel, url, bid_ts, bid_extra, item_name, description, initial_bid, reserve,
          auction_ts, expires, seller, category, auction_extra
        FROM gave
        """,
    ),
}


def import_duckdb() -> Any:
    """Return the module; say what to do if it is not installed."""
    try:
        return importlib.import_module("duckdb")
    except ImportError:
        raise SystemExit(
            "nexmark compares every result with DuckDB's, and DuckDB is not installed: "
            "run .venv/bin/pip install --editable '.[dev,benchmarks]' in the checkout"
        ) from None


def parquet_files(directory: Path) -> Rows:
    """Return the rows of all Parquet files below a directory."""
    return Rows(f"SELECT * FROM read_parquet('{directory}/**/*.parquet')")


def check(subject: str, query: str, events: Path, rows: Rows) -> int:
    """Compare the rows that a subject gave with the right answer; return how many that has."""
    count = compared(subject, query, ANSWERS[query], f"'{events}/*.parquet'", rows)
    if not count:
        raise SystemExit(f"{subject}: query {query} should have results")
    return count


def compared(subject: str, query: str, answer: Answer, events: str, rows: Rows, prepare: str = "") -> int:
    """Compare the rows that a subject gave with an answer; return how many that has.

    `prepare` are statements of DuckDB, that run before the query.
    """
    database = import_duckdb().connect()
    database.execute("SET TimeZone = 'UTC'; SET threads = 2")
    database.execute(_VIEWS.format(events=events) + prepare)
    database.execute(f"CREATE VIEW gave AS {rows.gave}")
    for name, sql in (("wanted", answer.right), ("found", answer.final)):
        database.execute(f"CREATE TABLE {name} AS SELECT {rows.compared} FROM ({sql})")
    differences = {}
    for which, one, other in (("missing", "wanted", "found"), ("too many", "found", "wanted")):
        sql = f"SELECT * FROM {one} EXCEPT ALL SELECT * FROM {other} LIMIT 3"
        differences[which] = database.execute(sql).fetchall()
    (count,) = database.execute("SELECT count(*) FROM wanted").fetchone()
    database.close()
    if any(differences.values()):
        raise SystemExit(f"{subject}: wrong results of {query}, which should have {count:,} rows: {differences}")
    return int(count)
