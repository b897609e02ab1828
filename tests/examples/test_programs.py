"""Each example program, run for real, and what it must give by plain Python."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from examples import first_program, states, two_operators, vectorised
from examples._inputs import write_json

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
            "mean": sum(heat) / len(heat),
        }
