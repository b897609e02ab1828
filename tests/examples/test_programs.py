"""Each example program, run for real, and what it must give by plain Python."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import strandline as sl
from examples import bad_records, balances, critical_alerts, first_program, states, two_operators, vectorised
from examples._inputs import write_json
from tests.soak import soaking
from tests.spark.harness import settle

pytestmark = pytest.mark.spark


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_dir: Path) -> Path:
    """A directory for the program; working state goes where socket paths are short enough."""
    monkeypatch.setattr("strandline.core.settings.tempfile.gettempdir", lambda: str(local_dir))
    return tmp_path


def run(spark: Any, example: Any, home: Path, rows: list[dict[str, Any]]) -> None:
    write_json(home / "in", rows)
    assert example.build(spark, home).start(spark).await_termination(120)


def parquet(directory: Path) -> Iterator[dict[str, Any]]:
    for path in directory.glob("part-*"):
        yield from pq.read_table(path).to_pylist()


def from_json(directory: Path) -> Iterator[dict[str, Any]]:
    for path in directory.glob("part-*"):
        yield from map(json.loads, path.read_text().splitlines())


def test_first_program(spark, home):
    events = first_program.events()
    run(spark, first_program, home, events)
    counted: Counter[str] = Counter(e["producer"] for e in events if e["v"] > 0)
    expected = {(p, n) for p, count in counted.items() for n in range(3, count + 1, 3)}
    found = Counter((row["producer"], row["seen"]) for row in parquet(home / "out"))
    assert found == Counter(expected)
    assert len(expected) > 50


def test_bad_records(spark, home):
    """Each line is in the sums, or is a dead letter that says where it failed."""
    lines = bad_records.lines()
    bad_records.write_lines(home / "in", lines)
    assert bad_records.build(spark, home).start(spark).await_termination(120)
    paid: Counter[str] = Counter()
    expected: Counter[Any] = Counter()
    for line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            expected["read", line] += 1
            continue
        if row["amount"] == "a lot":
            expected["map", line] += 1
        elif row["customer"] is None:
            expected["key_by", json.dumps({"customer": None, "cents": round(100 * float(row["amount"]))})] += 1
    dead = list(from_json(home / "dead"))
    found = Counter((row["step"], row["event"]) for row in dead if row["step"] != "on_event")
    assert found == expected
    assert {step for step, _ in expected} == {"read", "map", "key_by"}
    # Which payments are above the limit depends on their order; none of them is in a sum.
    for row in from_json(home / "out"):
        paid[row["customer"]] = max(row["paid"], paid[row["customer"]])
    above = [json.loads(row["event"]) for row in dead if row["step"] == "on_event"]
    assert above
    every: Counter[str] = Counter()
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError, ValueError):
            row = json.loads(line)
            every[row["customer"]] += round(100 * float(row["amount"]))
    for customer in ("ann", "bob", "cid"):
        refused = sum(row["cents"] for row in above if row["customer"] == customer)
        assert paid[customer] + refused == every[customer]
        assert 0 < paid[customer] <= 100_000


def test_two_operators(spark, home):
    orders = two_operators.orders()
    run(spark, two_operators, home, orders)
    spent: Counter[str] = Counter()
    for order in orders:
        spent[order["customer"]] += order["amount"]
    rises = {(c, level) for c, total in spent.items() for at, level in two_operators.LEVELS.items() if total >= at}
    assert Counter((r["customer"], r["level"]) for r in from_json(home / "rises")) == Counter(rises)
    members = Counter(level for _, level in rises)
    numbered = {(level, n) for level, count in members.items() for n in range(1, count + 1)}
    assert Counter((r["level"], r["members"]) for r in from_json(home / "members")) == Counter(numbered)
    assert set(members) == {"silver", "gold"}


def test_balances(spark, home):
    movements = balances.movements()
    run(spark, balances, home, movements)
    expected: dict[str, tuple[int, int]] = {}
    for movement in movements:
        balance, events = expected.pop(movement["account"], (0, 0))
        if not movement["closes"]:
            expected[movement["account"]] = (balance + movement["amount"], events + 1)
    with closing(sqlite3.connect(home / "bank.db")) as db:
        found = {account: row for account, *row in db.execute("select account, balance, events from balances")}
    assert {account: tuple(row) for account, row in found.items()} == expected
    assert 20 < len(expected) < 40


def test_vectorised(spark, home):
    readings = vectorised.readings()
    run(spark, vectorised, home, readings)
    counts: Counter[int] = Counter(r["sensor"] for r in readings)
    totals: Counter[int] = Counter()
    for r in readings:
        totals[r["sensor"]] += r["reading"]
    last: dict[int, tuple[int, int]] = {}
    for row in parquet(home / "out"):
        last[row["sensor"]] = max(last.get(row["sensor"], (0, 0)), (row["count"], row["total"]))
    assert last == {sensor: (counts[sensor], totals[sensor]) for sensor in counts}


def test_states(spark, home):
    readings = states.readings()
    run(spark, states, home, readings)
    expected = list(states_by_hand(readings))
    found = sorted(from_json(home / "out"), key=lambda row: row["n"])
    assert found == expected


def states_by_hand(readings: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    history: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for reading in readings:
        of_machine = history[reading["machine"]]
        of_machine.append(reading)
        heat = [r["heat"] for r in of_machine]
        status = [r["status"] for r in of_machine]
        since = len(status) - 1
        while since and status[since - 1] == status[-1]:
            since -= 1
        serviced = max((i for i, s in enumerate(status) if s == "serviced"), default=-1)
        faults = Counter(s for s in status[serviced + 1 :] if s != "ok")
        yield {
            "n": reading["n"],
            "machine": reading["machine"],
            "since": datetime.fromisoformat(of_machine[since]["ts"]).isoformat(),
            "last3": heat[-3:],
            "faults": dict(faults),
            "highest": max(heat),
            # Not sum(): from Python 3.12 on, it rounds once.
            "mean": reduce(add, heat) / len(heat),
        }


def critical_totals(lines: list[str]) -> Counter[tuple[str, datetime, int]]:
    """Return what critical_alerts must give: by message and window, how many critical alerts."""
    failures: Counter[str] = Counter()
    totals: Counter[tuple[str, datetime]] = Counter()
    for line in lines:
        producer, kind, msg, ts = line.split("|")
        at = datetime.fromisoformat(ts)
        if int(kind) == critical_alerts.FAILURE:
            failures[producer] += 1
        elif int(kind) == critical_alerts.LOGIN:
            failures[producer] = 0
        elif int(kind) == critical_alerts.TRANSFER and failures[producer] >= critical_alerts.FAILURES_BEFORE_ALARM:
            totals[f"CRITICAL: {msg}", at.replace(second=at.second // 10 * 10, microsecond=0)] += 1
    return Counter((msg, start, count) for (msg, start), count in totals.items())


def shown_totals(home: Path) -> Counter[tuple[str, datetime, int]]:
    return Counter((r["msg"], datetime.fromisoformat(r["window_start"]), r["count"]) for r in from_json(home / "out"))


def test_critical_alerts(spark, home):
    lines = critical_alerts.events()
    critical_alerts.write(home / "in", lines, files=2)
    assert critical_alerts.build(spark, home).start(spark).await_termination(120)
    expected = critical_totals(lines)
    assert shown_totals(home) == expected
    assert len(expected) > 50


@pytest.mark.parametrize("seed", soaking(range(1, 8)))
def test_critical_alerts_under_kills(spark, home, local_dir, seed):
    lines = critical_alerts.events(seed)
    rng = random.Random(seed)
    settings = sl.Settings(parallelism=2, local_dir=local_dir)
    given = {"trigger": None, "settings": settings, "restart": sl.Restart(attempts=20, delay="50ms")}
    (home / "in").mkdir()
    with critical_alerts.build(
        spark, home, checkpoints=sl.Checkpoints(home / "checkpoints", every="200ms", retain=2), **given
    ).start(spark) as run:
        each = len(lines) // 6 + 1
        for number in range(6):
            critical_alerts.write_file(home / "in", number, lines[number * each : (number + 1) * each])
            if number in (1, 3):
                run.process_all_available(120)
                os.kill(rng.choice(run.status().keepers).pid, signal.SIGKILL)
        settle(run)
        assert run.status().restarts >= 1
    assert shown_totals(home) == critical_totals(lines)
