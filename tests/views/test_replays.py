"""Rows of keys that are given once more after a restore, because what computes results of them is new."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strandline.runtime.operators.views.bags import WEIGHT
from strandline.runtime.operators.views.recomputing import Collecting
from strandline.runtime.program import pickle_process
from strandline.types.datatypes import parse_schema
from tests.soak import BACKENDS
from tests.views.operators import COLUMNS, KEY, KEY_TYPES, ROWS, Operator, exact, row_of

KEY_TYPE, KEYS = KEY_TYPES["text"]


def collecting(*, replays: bool = False) -> Any:
    process = Collecting(parse_schema(f"{KEY} {KEY_TYPE}"), parse_schema(COLUMNS))
    process.own_replays = replays
    return process


def row(at_key: int, at_row: int, weight: int = 1) -> tuple[Any, ...]:
    return (KEYS[at_key], *row_of(at_key, ROWS[at_row]), weight)


def texts(rows: list[tuple[Any, ...]]) -> Counter[str]:
    return Counter(map(exact, rows))


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("in_memory", [True, False])
def test_all_keys_are_given_once(tmp_path: Path, kind: str, in_memory: bool) -> None:
    bench = Operator(
        kind, tmp_path, collecting(), KEY_TYPE, f"{COLUMNS}, {WEIGHT} bigint", f"{KEY} {KEY_TYPE}, {COLUMNS}"
    )
    bench.epoch_of([[row(0, 0), row(0, 4), row(1, 1), row(2, 2), row(3, 3)]])
    bench.epoch_of([[row(3, 3, -1)]])
    files = bench.snapshot()
    bench.program = msgspec.structs.replace(bench.program, process=pickle_process(collecting(replays=True), "op"))
    bench.restore(files, bench.epoch)
    bench.keep_nothing_in_memory(not in_memory)
    added = [[row(0, 5), row(1, 1, -1)]]
    wanted = texts([row(0, 0), row(0, 4), row(0, 5), row(2, 2), (KEYS[1], *[None] * 4, 0)])
    # An epoch that is given up gives all keys again.
    assert texts(bench.epoch_of(added, abort=True)) == wanted
    assert texts(bench.epoch_of(added)) == wanted
    assert texts(bench.epoch_of([[row(2, 0)]])) == texts([row(2, 0), row(2, 2)])
    bench.close()


def test_an_epoch_without_rows_gives_all_keys(tmp_path: Path) -> None:
    bench = Operator(
        "rocksdb", tmp_path, collecting(), KEY_TYPE, f"{COLUMNS}, {WEIGHT} bigint", f"{KEY} {KEY_TYPE}, {COLUMNS}"
    )
    bench.epoch_of([[row(0, 0), row(2, 2)]])
    files = bench.snapshot()
    bench.program = msgspec.structs.replace(bench.program, process=pickle_process(collecting(replays=True), "op"))
    bench.restore(files, bench.epoch)
    assert texts(bench.epoch_of([])) == texts([row(0, 0), row(2, 2)])
    assert bench.epoch_of([]) == []
    bench.close()
