"""The first programs, each run as a user runs it, by its `main`: what its oracle says comes of it, a keeper killed or not."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import strandline as sl
from examples import (
    dead_letters,
    dedup,
    enrichment,
    fraud_rules,
    prices_as_of,
    rolling_alert,
    sessions,
    top_pages,
    unpaid_orders,
    visit_counter,
)
from examples._inputs import read_json
from strandline.core import failpoints
from strandline.testing import Harness

Row = dict[str, Any]

Program = Callable[[Any], list[Row]]
Main = Callable[..., list[Row]]


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.soak)], ids=["undisturbed", "killed"])
def run(request: pytest.FixtureRequest, main: Main) -> Program:
    """Run a program's main, and among the soak tests once more while a keeper is killed."""
    return partial(main, killed=request.param)


@pytest.fixture
def run_killed(main: Main) -> Program:
    return partial(main, killed=True)


@pytest.fixture
def main(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_dir: Path) -> Main:
    """Run a program's main with the tests' session, and if it is to be, kill a keeper behind its second epoch."""
    runs: list[sl.Run] = []
    start = sl.Job.start

    def started(job: sl.Job, session: SparkSession) -> sl.Run:
        job.restart = sl.Restart(delay="50ms")
        # Else it is over before there is a checkpoint.
        job.checkpoints = replace(job.checkpoints, every=0)
        runs.append(start(job, session))
        return runs[-1]

    def kill() -> None:
        while not runs:
            time.sleep(0.01)
        os.kill(runs[0].status().keepers[0].pid, signal.SIGKILL)

    # Working state goes where socket paths are short enough.
    monkeypatch.setattr("strandline.core.settings.tempfile.gettempdir", lambda: str(local_dir))
    monkeypatch.setattr(sl, "session", lambda name: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)

    def run(program: Any, killed: bool) -> list[Row]:
        if killed:
            monkeypatch.setattr(sl.Job, "start", started)
            failpoints.arm("epoch.done", kill, at=2)
        program.main(tmp_path)
        if killed:
            assert runs[0].status().restarts >= 1
        return read_json(tmp_path / "out")

    return run


def counted(rows: Iterable[Row], *columns: str) -> Counter[str]:
    """Return rows as they can be compared, however often one is there: some of their columns, or all."""
    found = [{name: row.get(name) for name in columns} if columns else row for row in rows]
    return Counter(json.dumps(row, sort_keys=True) for row in found)


@pytest.mark.spark
def test_visit_counter(run: Program) -> None:
    assert counted(run(visit_counter)) == counted(visit_counter.expected(visit_counter.visits()))


def test_visits_are_forgotten() -> None:
    given = {"schema": "user string", "key": "user", "output": "user string, visit bigint, greeting string"}
    with Harness(visit_counter.Visits(), **given) as harness:
        harness.push(("ann",), ("bob",))
        harness.advance_clock("20 days")
        assert harness.push(("ann",)) == [("ann", 2, "again")]
        harness.advance_clock("20 days")
        assert harness.push(("ann",), ("bob",)) == [("ann", 3, "again"), ("bob", 1, "hello")]


@pytest.mark.spark
def test_sessions(run: Program) -> None:
    columns = ("user", "clicks", "entry", "exit")
    assert counted(run(sessions), *columns) == counted(sessions.expected(sessions.clicks()), *columns)


@pytest.mark.spark
def test_fraud_rules(run: Program) -> None:
    found = counted(run(fraud_rules))
    assert found == counted(fraud_rules.expected(fraud_rules.payments(), fraud_rules.rules()))
    assert len(found) > 20


@pytest.mark.spark
def test_dedup(run: Program) -> None:
    columns = ("id", "text")
    assert counted(run(dedup), *columns) == counted(dedup.expected(dedup.messages()), *columns)


@pytest.mark.spark
def test_top_pages(run: Program) -> None:
    columns = ("site", "minute", "rank", "page", "views")
    assert counted(run(top_pages), *columns) == counted(top_pages.expected(top_pages.views()), *columns)


@pytest.mark.spark
def test_unpaid_orders(run_killed: Program) -> None:
    found = counted(run_killed(unpaid_orders))
    assert found == counted(unpaid_orders.expected(*unpaid_orders.orders_and_payments()))
    assert sum("not paid" in row for row in found) > 20


@pytest.mark.spark
@pytest.mark.long
def test_prices_as_of(run_killed: Program) -> None:
    expected = prices_as_of.expected(prices_as_of.trades(), prices_as_of.prices())
    assert counted(run_killed(prices_as_of), "share", "worth") == counted(expected, "share", "worth")


@pytest.mark.spark
def test_rolling_alert(run: Program) -> None:
    found = counted(run(rolling_alert))
    assert found == counted(rolling_alert.expected(rolling_alert.readings()))
    assert len(found) > 10


@pytest.mark.spark
def test_dead_letters(run: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    totals, number = dead_letters.expected(dead_letters.payments())
    last: dict[str, tuple[int, int]] = {}
    for row in run(dead_letters):
        last[row["customer"]] = max(last.get(row["customer"], (0, 0)), (row["payments"], row["cents"]))
    assert last == totals
    bad = read_json(tmp_path / "bad")
    assert len(bad) == number
    assert Counter(row["reason"] for row in bad).keys() == {
        "the key column 'customer' is null",
        "InvalidOperation: [<class 'decimal.ConversionSyntax'>]",
    }
    assert f"… {number} rows" in capsys.readouterr().out


@pytest.mark.spark
def test_enrichment(run: Program) -> None:
    last: dict[str, Row] = {}
    for row in run(enrichment):
        last[row["country"]] = max(last.get(row["country"], row), row, key=lambda row: row["clicks"])
    assert counted(last.values()) == counted(enrichment.expected(enrichment.clicks()))
