"""The operators of views, restored at other parallelisms: what they give afterwards is what one partition would."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from strandline.runtime.operators.patterns.conditions import Call, Column
from strandline.runtime.operators.patterns.pattern import Chain, Repeat, Row
from strandline.runtime.operators.patterns.search import Matching
from strandline.runtime.operators.views.bags import WEIGHT
from strandline.runtime.operators.views.near import Near
from strandline.runtime.operators.views.recomputing import Collecting, Comparing
from strandline.runtime.task.task import EpochTimes
from strandline.types.datatypes import BooleanType, parse_schema
from tests.runtime.bench import Bench
from tests.views.operators import COLUMNS, KEY, ROWS, Bag, Operator, bag
from tests.views.partitions import Partitions
from tests.views.test_asof import as_of
from tests.views.test_match import PREVIOUS, SLOTS
from tests.views.test_match import operator as matching
from tests.views.test_near import LEFT_ROWS, near_joining
from tests.views.test_near import RIGHT_ROWS as NEAR_ROWS
from tests.views.test_operators import RIGHT_ROWS, halves, joining
from tests.views.test_totals import COUNTED, NUMBERS, SUMS, added, totals
from tests.views.watched import Watched

GROWS = Call("GreaterThan", (Column(0), Column(PREVIOUS)), BooleanType())
OPEN = Matching(Chain((Row(0), Repeat(Row(1), 0, None))), {1: GROWS}, SLOTS, skip="to next row")
"""Each row, with those after it that are greater than the one before: open for as long as none is less."""
KEY_TYPE = "struct<k0: string, side: int>"
KEYS: list[Any] = [(text, 0) for text in (None, *"abcdefghijklmnopqrst")]


def changes(rng: random.Random, rows: list[Any], there: Bag) -> list[tuple[Any, Any, int]]:
    """Return changes of some keys, and make them."""
    found = []
    for key in rng.sample(KEYS, 12):
        row, added = rng.randrange(len(rows)), rng.choice([1, 1, 2, -1])
        if there[key, row] + added >= 0:
            there[key, row] += added
            found.append((key, rows[row], added))
    return found


def epochs(which: str, rng: random.Random) -> list[list[tuple[Any, ...]]]:
    """Return the input of an operator in some epochs."""
    left: Bag = Counter()
    right: Bag = Counter()
    found = []
    for _ in range(6):
        match which:
            case "join":
                found.append(halves(changes(rng, ROWS, left), changes(rng, RIGHT_ROWS, right)))
            case "rows":
                found.append([(key, *row, n) for key, row, n in changes(rng, ROWS, left)])
            case "results":
                found.append([(key, *rng.choice(ROWS), 1) for key in rng.sample(KEYS, 12)])
            case "near" | "asof":
                lefts, rights = (
                    [(key, *rng.choice(rows), len(found) * 5 + rng.randrange(12)) for key in rng.sample(KEYS, 12)]
                    for rows in (LEFT_ROWS, NEAR_ROWS)
                )
                gone = (False,) * (which == "asof")
                found.append([
                    *((row, None, key) for key, *row in lefts), *((None, (*row, *gone), key) for key, *row in rights)
                ])  # fmt: skip
            case "match":
                keys = rng.sample(KEYS, 12)
                found.append(
                    [(key, rng.randrange(4), at, 1, len(found) * 5 + rng.randrange(12)) for at, key in enumerate(keys)]
                )
            case _:
                found.append([added(*change) for change in changes(rng, NUMBERS, left)])
    return found


def operator(which: str, kind: str, root: Path) -> Operator:
    key = f"{KEY} {KEY_TYPE}"
    match which:
        case "join":
            return joining("full", KEY_TYPE, kind, root)
        case "near":
            return near_joining("full", Near(-2, 9), True, KEY_TYPE, kind, root)
        case "asof":
            return as_of("left", (0, 0), False, False, KEY_TYPE, kind, root)
        case "match":
            return matching(OPEN, KEY_TYPE, kind, root)
        case "rows":
            process: Any = Collecting(parse_schema(key), parse_schema(COLUMNS))
            return Operator(kind, root, process, KEY_TYPE, f"{COLUMNS}, {WEIGHT} bigint", f"{key}, {COLUMNS}")
        case "results":
            process = Comparing(parse_schema(key), parse_schema(COLUMNS))
            return Operator(kind, root, process, KEY_TYPE, f"{COLUMNS}, {WEIGHT} bigint", COLUMNS)
    return totals(kind, root, KEY_TYPE, SUMS, COUNTED)


@pytest.mark.parametrize("which", ["join", "rows", "results", "totals", "near", "asof", "match"])
def test_key_groups_move_between_partitions(tmp_path: Path, which: str) -> None:
    rng = random.Random(which)
    bench: Bench = operator(which, "rocksdb", tmp_path / "bench")
    assert isinstance(bench, Operator)
    job = Partitions(tmp_path / "job", bench.shape)
    moves = [(2, "rocksdb"), (3, "rocksdb"), (1, "filesystem")]
    for number, rows in enumerate(epochs(which, rng)):
        if number % 2 == 0:
            job.start(*moves[number // 2])
        times = EpochTimes()
        if isinstance(bench, Watched):
            times = EpochTimes(number * 5, 0, number * 5 - 5)
            bench.watermark_us, bench.fired_us = times.watermark_us, times.fired_us
        found, wanted = job.epoch_of([rows], times), bench.epoch_of([rows])
        assert bag(found) == bag(wanted)
        # A match comes when the watermark has passed its rows.
        assert any(row[-1] for row in found) or (which == "match" and number < 2)
        if number % 2 == 1:
            job.checkpoint()
            job.stop()
    bench.close()
