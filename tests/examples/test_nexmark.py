"""The Nexmark benchmark's events: the suite's proportions, the same for everybody; and what its parts must agree on."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import _flink
from benchmarks._harness import EpochCost
from benchmarks._nexmark import flink, sources
from benchmarks._nexmark.answers import ANSWERS, import_duckdb
from benchmarks._nexmark.generator import (
    ACTIVE_PEOPLE,
    AUCTION,
    AUCTIONS_IN_FLIGHT,
    BID,
    FIRST_ID,
    HOT_BATCH,
    LEAD,
    PERSON,
    SCHEMA,
    Generator,
    closing_events,
    last_auction,
    last_person,
)
from benchmarks._nexmark.noise import Noise
from benchmarks._nexmark.peers import STATEMENTS
from benchmarks._nexmark.queries import QUERIES

EVENTS = 20_000
FIRST = 50_000


@pytest.fixture(scope="module")
def events():
    return Generator(1).events(FIRST, FIRST + EVENTS)


def columns(events, kind, name):
    """Return the numbers of the events of a kind, and their columns."""
    there = np.flatnonzero(events["event_type"].to_numpy() == kind)
    struct = events[name].combine_chunks().take(there)
    assert struct.null_count == 0
    return FIRST + there, {field.name: struct.field(field.name) for field in struct.type}


def test_any_stretch_of_the_stream_is_the_same(events):
    again = Generator(1).events(FIRST + 1000, FIRST + 1100)
    assert again.to_pylist() == events.slice(1000, 100).to_pylist()
    assert Generator(2).events(FIRST + 1000, FIRST + 1100).to_pylist() != again.to_pylist()


def test_one_person_three_auctions_and_forty_six_bids(events):
    kinds = np.bincount(events["event_type"].to_numpy())
    assert kinds.tolist() == [EVENTS // 50, EVENTS * 3 // 50, EVENTS * 46 // 50]
    for kind, name in enumerate(("person", "auction", "bid")):
        assert len(events) - events[name].null_count == kinds[kind]


def test_times_are_ten_thousand_a_second_and_all_different(events):
    times = events["ts"].cast("int64").to_numpy()
    assert np.diff(times).tolist() == [100] * (EVENTS - 1)


def test_people_and_auctions_are_numbered(events):
    numbers, person = columns(events, PERSON, "person")
    assert (person["id"].to_numpy() == FIRST_ID + numbers // 50).all()
    numbers, auction = columns(events, AUCTION, "auction")
    assert np.diff(auction["id"].to_numpy()).tolist() == [1] * (len(numbers) - 1)
    assert auction["id"][0].as_py() == FIRST_ID + FIRST * 3 // 50


def share(found, expected):
    return np.count_nonzero(found == expected) / len(found)


def test_bids_are_for_hot_and_recent_auctions(events):
    numbers, bid = columns(events, BID, "bid")
    newest, auctions = last_auction(numbers), bid["auction"].to_numpy() - FIRST_ID
    hot = newest // HOT_BATCH * HOT_BATCH
    assert share(auctions, hot) == pytest.approx(1 / 2, abs=0.02)
    others = auctions != hot
    assert (auctions[others] >= newest[others] - AUCTIONS_IN_FLIGHT).all()
    assert (auctions <= newest + LEAD).all()
    assert (auctions > newest).any()


@pytest.mark.parametrize(
    ("kind", "name", "who", "place"), [(AUCTION, "auction", "seller", 0), (BID, "bid", "bidder", 1)]
)
def test_three_quarters_are_by_hot_people(events, kind, name, who, place):
    numbers, found = columns(events, kind, name)
    newest, people = last_person(numbers), found[who].to_numpy() - FIRST_ID
    hot = newest // HOT_BATCH * HOT_BATCH + place
    assert share(people, hot) == pytest.approx(3 / 4, abs=0.03)
    assert (people > newest - ACTIVE_PEOPLE).all()
    assert (people <= newest + LEAD).all()


def test_auctions_last_as_long_as_others_are_in_flight(events):
    numbers, auction = columns(events, AUCTION, "auction")
    lengths = auction["expires"].cast("int64").to_numpy() - events["ts"].cast("int64").to_numpy()[numbers - FIRST]
    # A hundred auctions are opened in 1,666 events, of 100 microseconds each.
    assert lengths.min() >= 1000
    assert lengths.mean() == pytest.approx(166_600, rel=0.05)
    assert (auction["reserve"].to_numpy() > auction["initial_bid"].to_numpy()).all()
    assert np.bincount(auction["category"].to_numpy())[10:].min() > len(numbers) / 5 * 0.8


def test_prices_are_spread_over_six_orders_of_magnitude(events):
    _, bid = columns(events, BID, "bid")
    prices = bid["price"].to_numpy()
    assert prices.min() >= 100
    assert prices.max() <= 100_000_000
    assert np.median(prices) == pytest.approx(100_000, rel=0.1)


def test_events_are_about_as_large_as_the_suite_says(events):
    for kind, name, size in ((PERSON, "person", 200), (AUCTION, "auction", 500), (BID, "bid", 100)):
        _, found = columns(events, kind, name)
        # The suite's bids have grown a channel and an address since.
        sizes = [column.nbytes for field, column in found.items() if field not in ("channel", "url")]
        assert sum(sizes) / len(found["extra"]) == pytest.approx(size, rel=0.2)


def test_texts_have_letters_and_all_lengths():
    texts = Noise(1).letters("text", np.arange(1000), 3, 20).to_pylist()
    assert {len(text) for text in texts} == set(range(3, 21))
    assert set("".join(texts)) == set("abcdefghijklmnopqrstuvwxyz ")


def test_values_for_different_things_are_different():
    noise, numbers = Noise(1), np.arange(1000)
    assert (noise.words("a", numbers) != noise.words("b", numbers)).all()


def test_the_closing_events_have_to_do_with_no_other(events):
    closing = closing_events(FIRST + EVENTS)
    assert closing.schema == events.schema
    person, auction, bid = closing["person"][0], closing["auction"][1], closing["bid"][2]
    assert person["id"].as_py() != auction["seller"].as_py()
    assert auction["id"].as_py() != bid["auction"].as_py()
    assert closing["ts"][0].as_py() > events["ts"][-1].as_py()


def test_files_are_epochs_in_the_order_of_their_times(tmp_path):
    size = sources.Size(events_per_epoch=100, epochs=3, warm_up=1)
    sources.write_events(tmp_path / "events", size)
    files = sorted((tmp_path / "events").iterdir())
    assert len(files) == 4
    times = [file.stat().st_mtime for file in files]
    assert times == sorted(set(times))


def test_the_schema_names_the_columns_that_are_written(events):
    names = [column.split(" ")[0] for column in ("event_type int", "ts timestamp", "person", "auction", "bid")]
    assert events.schema.names == names
    for name in ("person", "auction", "bid"):
        for field in events.schema.field(name).type:
            assert f"{field.name}: " in SCHEMA


def test_every_query_has_an_answer_and_all_but_one_a_peer():
    assert list(QUERIES) == list(ANSWERS)
    assert set(QUERIES) - set(STATEMENTS) == {"q4"}
    assert list(QUERIES) == list(flink.STATEMENTS)


def test_without_duckdb_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(SystemExit, match=r"DuckDB is not installed: .*,benchmarks\]"):
        import_duckdb()


def test_flink_reads_the_columns_that_a_query_needs():
    assert flink.row_type("q8") == (
        "ROW<event_type INT, ts BIGINT, person ROW<id BIGINT, name STRING>, auction ROW<seller BIGINT>>"
    )
    assert flink.views("q5") == ["CREATE VIEW bid AS SELECT bid.auction, ts, rowtime FROM events WHERE event_type = 2"]


def test_flinks_epoch_is_over_when_both_halves_of_its_file_were_read():
    size = sources.Size(events_per_epoch=7, epochs=2, warm_up=0)
    # Two readers start at 10, and ask for the halves of two files and of the one that closes all windows.
    requests = [10, 10, 21, 24, 30, 38, 39, 39]
    assert flink.epochs_of(requests, size) == [EpochCost(7, 14), EpochCost(7, 14)]


def test_of_flinks_changes_the_rows_remain_that_were_not_taken_back(tmp_path):
    database = pytest.importorskip("duckdb").connect()
    changes = [
        ("INSERT", 1, 5.0),
        ("UPDATE_BEFORE", 1, 5.0),
        ("UPDATE_AFTER", 2, 6.0),
        ("INSERT", 9, 7.0),
        ("DELETE", 9, 7.0),
    ]
    table = pa.table(dict(zip(("op", "auctions", "price"), zip(*changes, strict=True), strict=True)))
    pq.write_table(table, tmp_path / "part-0")
    assert database.execute(flink.results("q4", tmp_path).gave).fetchall() == [(2, 6.0)]


def test_without_a_compiler_flink_is_unavailable(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(_flink.UnavailableFlinkError, match="there is no javac"):
        _flink.install()
