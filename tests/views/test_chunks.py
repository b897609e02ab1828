"""A join's rows in chunks: what comes is written to the last one alone, and lookups see all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import CorruptionError
from strandline.format.keys import KeyCodec
from strandline.runtime.operators.views import chunks
from strandline.runtime.operators.views.joins import Joining
from strandline.runtime.state.vectors import EntryTable
from strandline.types.datatypes import LongType, parse_schema
from tests.runtime.looking import find
from tests.soak import BACKENDS
from tests.views.operators import KEY, Operator

KEY_TYPE = "struct<k0: bigint>"
LEFT, RIGHT, WEIGHT = "id bigint", "name string", "__strandline_weight bigint"


@pytest.fixture(params=BACKENDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Operator:
    process = Joining("inner", parse_schema(LEFT), parse_schema(RIGHT), parse_schema(f"{LEFT}, {RIGHT}"))
    halves = f"left struct<{LEFT}, {WEIGHT}>, right struct<{RIGHT}, {WEIGHT}>"
    return Operator(request.param, tmp_path, process, KEY_TYPE, halves, f"{LEFT}, {RIGHT}")


def lefts(*ids: int, weight: int = 1) -> list[Any]:
    """Return rows of one key."""
    return [((each, weight), None, (1,)) for each in ids]


def rights(*names: str) -> list[Any]:
    return [(None, (each, 1), (1,)) for each in names]


def chunks_of(bench: Operator) -> dict[int, tuple[int, list[int]]]:
    """Return a key's chunks, by number: how many are full, and the ids of the rows."""
    found = find(bench, "left", (1,), key_schema=f"`{KEY}` {KEY_TYPE}")
    return {
        number: (each["full"], [entry["row"]["id"] for entry in each["rows"]]) for number, each in found.value.items()
    }


def test_rows_that_come_are_written_to_the_last_chunk(bench: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 3)
    bench.epoch_of([lefts(1, 2)])
    assert chunks_of(bench) == {0: (0, [1, 2])}
    bench.epoch_of([lefts(3, 4, 5, 6, 7)])
    assert chunks_of(bench) == {0: (2, [7]), 1: (0, [1, 2, 3]), 2: (0, [4, 5, 6])}
    bench.keep_nothing_in_memory(True)
    bench.write(bench.freeze())
    bench.epoch_of([])
    bench.epoch_of([lefts(8)])
    assert chunks_of(bench) == {0: (2, [7, 8]), 1: (0, [1, 2, 3]), 2: (0, [4, 5, 6])}
    # The full chunks are read when the other side changes.
    assert sorted(bench.epoch_of([rights("a")])) == [(each, "a", 1) for each in range(1, 9)]
    bench.epoch_of([lefts(9)])
    assert chunks_of(bench)[0] == (3, [])


def test_rows_that_are_taken_back(bench: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 2)
    bench.epoch_of([lefts(*range(9))])
    bench.epoch_of([lefts(*range(5), weight=-1)])
    assert chunks_of(bench) == {0: (2, []), 1: (0, [5, 6]), 2: (0, [7, 8])}
    bench.epoch_of([lefts(*range(5, 9), weight=-1)])
    assert chunks_of(bench) == {}
    bench.epoch_of([lefts(4)])
    assert chunks_of(bench) == {0: (0, [4])}


def test_an_epoch_that_is_given_up(bench: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 2)
    bench.epoch_of([lefts(1, 2, 3)])
    bench.epoch_of([lefts(4, 5)], abort=True)
    bench.epoch_of([lefts(*range(1, 4), weight=-1)], abort=True)
    assert chunks_of(bench) == {0: (1, [3]), 1: (0, [1, 2])}


def test_a_chunk_that_is_missing_is_noticed(bench: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 2)
    bench.epoch_of([lefts(1, 2, 3, 4, 5)])
    (table,) = (each for each in bench.task.store._tables if each.name == "left")
    assert isinstance(table, EntryTable)
    (name,) = (each for each in table._slots.index if each.endswith(KeyCodec([LongType()]).encode_sub(2)))
    table.put(table.find([name]), [None])
    table.commit()
    with pytest.raises(CorruptionError, match="1 of 2 full chunks of a join's rows are missing"):
        bench.epoch_of([rights("a")])


def test_keys_are_listed(bench: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 2)
    rows = [((each, 1), None, (key,)) for key in (1, 2, 3) for each in range(5)]
    bench.epoch_of([rows[:10]])
    bench.write(bench.freeze())
    bench.keep_nothing_in_memory(True)
    bench.epoch_of([rows[10:]])
    codec = bench.task.store.keys.codec
    keys = bench.task.store.some_keys("left", 10)
    assert sorted(codec.decode(key)[1] for key in keys) == [(1,), (2,), (3,)]
    assert len(bench.task.store.some_keys("left", 2)) == 2
    assert [len(entries) for entries in bench.task.store.kept("left", keys)] == [3, 3, 3]
