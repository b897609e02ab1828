"""Every Python block of the pages on windows, joins, aggregates and TTL, run in order; and what their pipelines give."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from examples._inputs import write_json
from strandline.testing import Harness, events
from tests.pages import run_page

_START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Source:
    """A streaming DataFrame over a few rows, which are an epoch, and what a pipeline on it gives."""

    def __init__(self, spark: Any, root: Path, local_dir: Path, schema: str, rows: list[dict[str, Any]]) -> None:
        write_json(root / "in", rows, files=1)
        self.df = spark.readStream.schema(schema).json(str(root / "in"))
        self._spark = spark
        self._checkpoints = sl.Checkpoints(root / "checkpoints")
        self._settings = sl.Settings(parallelism=1, local_dir=local_dir, state_memory="128MB")

    def results(self, stream: sl.Stream) -> Counter[Any]:
        """Return the rows of a stream, times as seconds since the start."""
        sink = sl.sinks.memory()
        given: dict[str, Any] = {"checkpoints": self._checkpoints, "settings": self._settings}
        given |= {"restart": sl.Restart.never(), "trigger": "available-now"}
        assert sl.Job("page", sinks=[stream.to(sink)], **given).start(self._spark).await_termination(120)
        return Counter(tuple(map(_seconds, row)) for row in sink.rows)


def at(seconds: int) -> str:
    return (_START + dt.timedelta(seconds=seconds)).isoformat()


def _seconds(value: Any) -> Any:
    return int((value.astimezone(dt.UTC) - _START).total_seconds()) if isinstance(value, dt.datetime) else value


@pytest.fixture
def source(spark: Any, tmp_path: Path, local_dir: Path) -> Any:
    def make(schema: str, rows: list[dict[str, Any]]) -> Source:
        return Source(spark, tmp_path, local_dir, schema, rows)

    return make


def test_databases() -> None:
    page = run_page("databases.md", 1)
    assert repr(page["log"].target) == "table movements of PostgreSQL at db.example.com, database bank"
    assert repr(page["local"].target) == f"table balances of {Path.cwd()}/bank.db"
    assert not Path("bank.db").exists()


def test_bad_records() -> None:
    page = run_page("bad-records.md", 6)
    with Harness(page["sums"]) as h:
        h.push(
            ("ann", "1", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)), ("ann", "x", dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
        )
        (row,) = h.advance_watermark(dt.datetime(2026, 1, 1, 0, 0, 10, tzinfo=dt.UTC))
        assert (row.total, len(h.dead_letters)) == (1.0, 1)


@pytest.mark.spark
def test_rows_that_cannot_be_read(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"customer": "ann"}\n{"customer": "bo\n')
    good, bad = run_page("bad-records.md", 6)["from_kafka"](spark.readStream.text(str(tmp_path / "in")))
    kept, dead = sl.sinks.memory(name="kept"), sl.sinks.memory(name="dead")
    checkpoints, settings = sl.Checkpoints(tmp_path / "ck"), sl.Settings(parallelism=1, local_dir=local_dir)
    job = sl.Job(
        "reading",
        sinks=[good.to(kept), bad.to(dead)],
        checkpoints=checkpoints,
        settings=settings,
        trigger="available-now",
    )
    assert job.start(spark).await_termination(120)
    assert [tuple(row) for row in kept.rows] == [("ann",)]
    assert [(row.step, row.event) for row in dead.rows] == [("read", '{"customer": "bo')]


@pytest.mark.spark
def test_windows(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = "user string, amount bigint, ts timestamp"
    page = run_page("windows.md", 5, df=source(schema, []).df)
    assert isinstance(page["job"], sl.Job)
    assert page["top"].columns == ["user", "window_start", "window_end", "amount", "ts"]
    assert page["sums"].columns == ["user", "window_start", "window_end", "n", "total"]
    assert page["best"].columns == ["user", "window_start", "window_end", "amount"]
    # Once more, on events of a test's.
    monkeypatch.setattr(sl, "stream", lambda events: events)
    monkeypatch.setattr(sl, "Job", lambda name, **given: None)
    page = run_page("windows.md", 5, df=events(schema))
    with Harness(page["totals"]) as h:
        given = [("ann", 1, 5), ("bob", 3, 55), ("ann", 4, 75)]
        # The first of these are late for a minute that has been given: it comes again, whole.
        for rows in (given, [("ann", 2, 20), ("bob", 5, 10), ("eve", 6, 300)]):
            h.push(*((user, amount, _START + dt.timedelta(seconds=second)) for user, amount, second in rows))
            h.tick()
        found = Counter(tuple(map(_seconds, row)) for row in h.output)
    first, again = [("ann", 0, 60, 1), ("bob", 0, 60, 3)], [("ann", 0, 60, 3), ("bob", 0, 60, 8)]
    assert found == Counter([*first, *again, ("ann", 60, 120, 4)])


@pytest.mark.spark
def test_joins(source: Any) -> None:
    orders = [(0, 1, 9.5), (60, 2, 8.0), (120, 3, 7.0), (9000, 9, 1.0)]
    rows = [
        {"kind": "order", "at": at(second), "order_id": number, "amount": amount, "customer": "c", "currency": "EUR"}
        for second, number, amount in orders
    ]
    rows += [{"kind": "payment", "at": at(100), "order_id": 1, "method": "card"}]
    rows += [{"kind": "payment", "at": at(119 + 31 * 60), "order_id": 3, "method": "cash"}]
    rows.sort(key=lambda row: row["at"])
    made = source(
        "kind string, at timestamp, order_id bigint, customer string, currency string, amount double, method string, "
        "limit double, version bigint",
        rows,
    )
    page = run_page("joins.md", 6, df=made.df, order_df=made.df, payment_df=made.df)
    assert page["paid"].columns == ["order_id", "amount", "method"]
    assert page["both"].columns[-4:] == ["paid_at", "paid_method", "window_start", "window_end"]
    assert page["converted"].columns[-3:] == ["amount", "rate_at", "rate_rate"]
    assert page["suspicious"].columns == ["customer", "amount"]
    # The payment of the third order comes a minute too late.
    assert made.results(page["joined"]) == Counter(
        [
            (1, 0, "c", "EUR", 9.5, 100, "card"),
            (2, 60, "c", "EUR", 8.0, None, None),
            (3, 120, "c", "EUR", 7.0, None, None),
        ]
    )


@pytest.mark.spark
def test_aggregates(source: Any) -> None:
    given = [(1, "up", 1), (2, "down", 2), (9, "up", 3), (14, "up", 4), (8, "up", 5), (40, "end", 6)]
    made = source(
        "msg string, count bigint, ts timestamp",
        [{"ts": at(second), "msg": message, "count": count} for second, message, count in given],
    )
    visits = made.df.selectExpr("msg as page", "msg as user", "count as latency_ms", "ts")
    page = run_page("aggregates.md", 3, df=made.df, visit_df=visits)
    assert page["pages"].columns == ["page", "window_start", "window_end", "visitors", "latency"]
    assert page["upgraded"].columns == ["msg", "window_start", "window_end", "n", "amount", "most"]
    assert page["counts"].columns == ["msg", "n", "total"]
    assert page["sums"].columns == ["msg", "window_start", "window_end", "count"]
    assert made.results(page["totals"]) == Counter([("up", 0, 10, 3, 9), ("down", 0, 10, 1, 2), ("up", 10, 20, 1, 4)])


def test_ttl() -> None:
    page = run_page("ttl.md", 1)
    with Harness(
        page["Sessions"](),
        schema="user string, page string, at timestamp",
        key="user",
        output="user string, is_new boolean, visits bigint, recent bigint",
        event_time="at",
    ) as h:
        start = h.now

        def visit() -> tuple[Any, ...]:
            (row,) = h.push({"user": "ann", "page": "/", "at": h.now})
            return tuple(row)

        assert [visit(), visit()] == [("ann", True, 1, 1), ("ann", False, 2, 2)]
        h.advance_clock("31 min")
        assert visit() == ("ann", True, 3, 3), "event time has not moved"
        h.advance_watermark(start + dt.timedelta(hours=2))
        h.advance_clock("2h")
        assert visit() == ("ann", True, 4, 1)
