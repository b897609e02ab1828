"""Nexmark's queries in Flink's SQL, on RocksDB: the suite's text, and the suite's settings.

Query 7 is a ranking within a window, instead of the suite's join of bids with the highest price, which would keep all
bids for ever. Results that Flink takes back (4, 9, 18) have no place in files: the run that is measured discards them,
and another, which is not measured, writes the changes. Times are numbers of microseconds: an event time in Flink's SQL
has milliseconds, and its reader of Parquet reads no time of that kind within a struct.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks._counting import PARTITIONS
from benchmarks._flink import run_program
from benchmarks._harness import EpochCost
from benchmarks._nexmark.answers import Rows
from benchmarks._nexmark.generator import KINDS, SCHEMA, WATERMARK_DELAY
from benchmarks._nexmark.sources import Size

SETTINGS = {
    "parallelism.default": str(PARTITIONS),
    "taskmanager.numberOfTaskSlots": str(PARTITIONS),
    "taskmanager.memory.managed.size": "2g",
    "state.backend.type": "rocksdb",
    "execution.checkpointing.incremental": "true",
    "pipeline.object-reuse": "true",
    "restart-strategy.type": "none",
    "table.local-time-zone": "UTC",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2s",
    "table.exec.mini-batch.size": "50000",
}
"""Managed memory is RocksDB's. Bundles of rows ("mini-batch") are what the suite sets."""
_PROGRAM = Path(__file__).with_name("NexmarkOnFlink.java")
_TYPES = {"bigint": "BIGINT", "string": "STRING", "timestamp": "BIGINT"}


@dataclass(frozen=True, slots=True)
class Statement:
    """One query: its SQL, which columns of which events it reads, and how its results are compared.

    Flink takes the type of a struct's column from its place in the file: columns before one of another type are read.
    """

    sql: str
    columns: dict[str, str]
    updates: bool = False
    """Whether Flink takes results back."""
    times: str = ""
    """Columns of the result that are microseconds."""
    final: str = "true"
    """Which rows are results: at the end of its input, Flink closes the windows of the closing events as well."""
    compared: str = "*"


AUCTION = "id item_name description initial_bid reserve expires seller category extra"

STATEMENTS = {
    "q3": Statement(
        """
        SELECT p.name, p.city, p.state, a.id
        FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
        """,
        {"person": "id name city state", "auction": "id item_name description seller category"},
    ),
    "q4": Statement(
        """
        SELECT category, count(*) AS auctions, avg(CAST(price AS DOUBLE)) AS price FROM (
          SELECT a.id, a.category, max(b.price) AS price
          FROM auction a JOIN bid b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires
          GROUP BY a.id, a.category
        ) GROUP BY category
        """,
        {"auction": "id item_name description category expires", "bid": "auction price"},
        updates=True,
    ),
    "q5": Statement(
        """
        WITH counts AS (
          SELECT window_start, window_end, auction, count(*) AS bids
          FROM TABLE(HOP(TABLE bid, DESCRIPTOR(rowtime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
          GROUP BY window_start, window_end, auction
        )
        SELECT c.window_end AS period_end, c.auction, c.bids
        FROM counts c JOIN (
          SELECT window_start, window_end, max(bids) AS most FROM counts GROUP BY window_start, window_end
        ) m ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.bids >= m.most
        """,
        {"bid": "auction"},
        final="auction >= 0",
    ),
    "q7": Statement(
        """
        SELECT window_end AS period_end, auction, bidder, price, ts, extra FROM (
          SELECT *, row_number() OVER (PARTITION BY window_start, window_end ORDER BY price DESC, ts) AS place
          FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(rowtime), INTERVAL '10' SECOND))
        ) WHERE place <= 1
        """,
        {"bid": "auction bidder price extra"},
        times="ts",
        final="auction >= 0",
    ),
    "q8": Statement(
        """
        SELECT p.id, p.name, p.window_start
        FROM (
          SELECT window_start, window_end, id, name
          FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(rowtime), INTERVAL '10' SECOND))
          GROUP BY window_start, window_end, id, name
        ) p JOIN (
          SELECT window_start, window_end, seller
          FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(rowtime), INTERVAL '10' SECOND))
          GROUP BY window_start, window_end, seller
        ) a ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end
        """,
        {"person": "id name", "auction": "seller"},
    ),
    "q9": Statement(
        """
        SELECT id, item_name, description, initial_bid, reserve, expires, seller, category, extra, ts,
          auction, bidder, price, bid_ts, bid_extra
        FROM (
          SELECT a.*, b.auction, b.bidder, b.price, b.ts AS bid_ts, b.extra AS bid_extra,
            row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts) AS place
          FROM auction a JOIN bid b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires
        ) WHERE place <= 1
        """,
        {"auction": AUCTION, "bid": "auction bidder price extra"},
        updates=True,
        times="expires ts bid_ts",
    ),
    "q11": Statement(
        """
        SELECT bidder, window_start, window_end, count(*) AS bids
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(rowtime), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end
        """,
        {"bid": "bidder"},
        final="bidder >= 0",
        compared="bidder, date_trunc('ms', window_start), date_trunc('ms', window_end), bids",
    ),
    "q18": Statement(
        """
        SELECT auction, bidder, price, channel, url, ts, extra FROM (
          SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY rowtime DESC) AS place FROM bid
        ) WHERE place <= 1
        """,
        {"bid": "auction bidder price channel url extra"},
        updates=True,
        times="ts",
    ),
    "q20": Statement(
        """
        SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.ts AS bid_ts, b.extra AS bid_extra,
          a.item_name, a.description, a.initial_bid, a.reserve, a.ts AS auction_ts, a.expires, a.seller, a.category,
          a.extra AS auction_extra
        FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10
        """,
        {"auction": AUCTION, "bid": "auction bidder price channel url extra"},
        times="bid_ts auction_ts expires",
    ),
}


_CHANGES = "SELECT * FROM TO_CHANGELOG(input => TABLE answer)"


def run_flink(query: str, events: Path, size: Size, directory: Path, every: str) -> list[EpochCost]:
    """Run a query in Flink's SQL to its end and return the costs of the epochs."""
    statement = STATEMENTS[query]
    sink = f"'filesystem', 'format' = 'parquet', 'path' = '{(directory / 'results').as_uri()}'"
    measured = "'blackhole'" if statement.updates else sink
    requests = _run(query, "SELECT * FROM answer", measured, events, directory / "measured", every)
    if statement.updates:
        _run(query, _CHANGES, sink, events, directory / "changes", every)
    return epochs_of(requests, size)


def run_flink_changes(query: str, events: Path, size: Size, directory: Path, every: str) -> list[EpochCost]:
    """Run a query whose results Flink takes back, with all changes written; return the costs of the epochs."""
    sink = f"'filesystem', 'format' = 'parquet', 'path' = '{(directory / 'results').as_uri()}'"
    return epochs_of(_run(query, _CHANGES, sink, events, directory / "changes", every), size)


def _run(query: str, sql: str, sink: str, events: Path, directory: Path, every: str) -> list[int]:
    """Run a query of `answer`, and return when the readers asked for something to read, in milliseconds."""
    requests = directory / "requests.json"
    settings = SETTINGS | {
        "execution.checkpointing.interval": every,
        "execution.checkpointing.dir": (directory / "checkpoints").as_uri(),
    }
    number, unit = WATERMARK_DELAY.split()
    delay = f"INTERVAL '{number}' {unit.removesuffix('s')}"
    answer = f"CREATE VIEW answer AS {STATEMENTS[query].sql}"
    script = [*views(query), answer, f"CREATE TABLE results WITH ('connector' = {sink}) AS {sql}"]
    run_program(_PROGRAM, [str(events), row_type(query), delay, str(requests), *script], settings, directory)
    times: list[int] = json.loads(requests.read_text(encoding="utf-8"))
    return times


def epochs_of(requests: list[int], size: Size) -> list[EpochCost]:
    """Return the cost of each epoch, from when a reader asked for half a file.

    A reader asks for its first half when it starts, and for the next when all rows of the last have left it.
    """
    read = [requests[0], *requests[PARTITIONS:]]
    ends = [read[PARTITIONS * epoch] for epoch in range(size.epochs + 1)]
    return [EpochCost(size.events_per_epoch, end - start) for start, end in pairwise(ends)]


def row_type(query: str) -> str:
    """Return the type of the rows that a query reads: of each struct, the columns that it needs."""
    types = dict(re.findall(r"(\w+): (\w+)", SCHEMA))
    structs = [
        f"{kind} ROW<{', '.join(f'{column} {_TYPES[types[column]]}' for column in columns.split())}>"
        for kind, columns in STATEMENTS[query].columns.items()
    ]
    return f"ROW<event_type INT, ts BIGINT, {', '.join(structs)}>"


def views(query: str) -> list[str]:
    """Return the statements that make a view of each kind of event that a query reads."""
    return [
        f"CREATE VIEW {kind} AS SELECT {', '.join(f'{kind}.{column}' for column in columns.split())}, ts, rowtime "
        f"FROM events WHERE event_type = {KINDS[kind]}"
        for kind, columns in STATEMENTS[query].columns.items()
    ]


def results(query: str, directory: Path) -> Rows:
    """Return the query of the final results: of changes, the rows that were added more often than taken back."""
    statement = STATEMENTS[query]
    times = ", ".join(f"make_timestamp({column}) AS {column}" for column in statement.times.split())
    columns = f"* REPLACE ({times})" if times else "*"
    files = f"read_parquet('{directory}/part-*')"
    if statement.updates:
        added = "sum(CASE WHEN op IN ('INSERT', 'UPDATE_AFTER') THEN 1 ELSE -1 END)"
        files = f"(SELECT * EXCLUDE op FROM {files} GROUP BY ALL HAVING {added} > 0)"
    return Rows(f"SELECT {columns} FROM {files} WHERE {statement.final}", statement.compared)
