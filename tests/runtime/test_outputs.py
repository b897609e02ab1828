"""What user functions may give back."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pyarrow as pa
import pytest

from strandline.core.errors import OutputError
from strandline.runtime.task.outputs import OutputBuilder
from strandline.types.datatypes import parse_schema
from strandline.types.records import record_type

Named = namedtuple("Named", "k n")
WANTED = [{"k": "a", "n": 1}, {"k": None, "n": None}]


@pytest.fixture
def build() -> OutputBuilder:
    return OutputBuilder("detect", parse_schema("k string, n int"))


@pytest.mark.parametrize(
    "rows",
    [
        [{"k": "a", "n": 1}, {"n": None, "k": None}],
        [("a", 1), (None, None)],
        [["a", 1], [None, None]],
        [{"k": "a", "n": 1}, (None, None)],
        [Named("a", 1), (None, None)],
        [record_type(["k", "n"])._make(["a", 1]), [None, None]],
    ],
)
def test_rows(build: OutputBuilder, rows: list[Any]) -> None:
    batch = build.from_rows(rows)
    assert batch.to_pylist() == WANTED
    assert batch.schema == build.schema


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"k": "a"}, "misses n; expected the columns k, n"),
        ({"k": "a", "n": 1, "z": 2}, "has unknown z; expected the columns k, n"),
        ({"k": "a", "m": 1}, "misses n and has unknown m"),
        ({}, "misses k, n"),
        (("a",), "has 1 values, expected 2: k, n"),
        (("a", 1, 2), "has 3 values, expected 2"),
        ("ab", "an output row is 'ab', a str; expected a dict or a tuple of k, n"),
        (None, "an output row is None, a NoneType"),
        (5, "an output row is 5, a int"),
        ({"k": "a", "n": "x"}, "the output column 'n' is int"),
        (("a", 1 << 40), "the output column 'n' is int"),
        (("a", 1.5), "the output column 'n' is int"),
        (("a", True), "the output column 'n' is int"),
        ((5, 1), "the output column 'k' is string"),
    ],
)
@pytest.mark.parametrize("good", [0, 2])
def test_rows_that_do_not_fit_are_shown(build: OutputBuilder, row: Any, said: str, good: int) -> None:
    with pytest.raises(OutputError) as caught:
        build.from_rows([("a", 1)] * good + [row] + [("a", 1)] * good)
    error = caught.value
    assert error.message.startswith("operator 'detect': ")
    assert said in error.message
    assert repr(row) in error.message
    assert error.operator == "detect"
    assert error.hint


class Row(tuple[Any, ...]):
    """As PySpark's: each object has its own names."""

    def __new__(cls, **named: Any) -> Row:
        row = super().__new__(cls, named.values())
        row.__fields__ = list(named)
        return row


Swapped = namedtuple("Swapped", "n k")


@pytest.mark.parametrize(
    "rows",
    [
        [Swapped(1, "a"), Swapped(None, None)],
        [record_type(["n", "k"])._make([1, "a"]), (None, None)],
        [Row(n=1, k="a"), Row(k=None, n=None)],
        [Named("a", 1), Swapped(None, None)],
    ],
)
def test_names_win_over_positions(build: OutputBuilder, rows: list[Any]) -> None:
    assert build.from_rows(rows).to_pylist() == WANTED


@pytest.mark.parametrize("row", [Row(k="a", m=1), namedtuple("Other", "k m")("a", 1)])
def test_names_that_are_no_columns_are_refused(build: OutputBuilder, row: Any) -> None:
    with pytest.raises(OutputError, match="misses n and has unknown m") as caught:
        build.from_rows([row])
    assert repr(row) in caught.value.message


def test_rows_with_a_name_twice_are_refused(build: OutputBuilder) -> None:
    twice = Row(k="a", m=1)
    twice.__fields__ = ["k", "k"]
    with pytest.raises(OutputError, match="has a name twice"):
        build.from_rows([twice])


def test_a_table_that_stays_in_pieces_is_refused_rather_than_cut(build: OutputBuilder) -> None:
    pieces = [pa.record_batch({"k": ["a"], "n": [1]})] * 2
    with pytest.raises(OutputError, match="too large for one batch"):
        build._one(pieces, "on_batch returned")


def test_a_column_of_nothing_but_nulls_fits_any_type(build: OutputBuilder) -> None:
    batch = build.from_arrow(pa.table({"k": ["a"], "n": pa.nulls(1)}))
    assert batch.to_pylist() == [{"k": "a", "n": None}]


@pytest.mark.parametrize("make", [pa.RecordBatch.from_pydict, pa.Table.from_pydict])
def test_arrow_columns_are_matched_by_name_and_cast_if_nothing_is_lost(build: OutputBuilder, make: Any) -> None:
    batch = build.from_arrow(make({"n": pa.array([1, None], pa.int64()), "k": ["a", None]}))
    assert batch.to_pylist() == WANTED
    assert batch.schema == build.schema


def test_a_table_of_many_pieces_is_one_batch(build: OutputBuilder) -> None:
    table = pa.table({"k": pa.chunked_array([["a"], ["b", "c"]]), "n": pa.chunked_array([[1, 2], [3]])})
    batch = build.from_arrow(table)
    assert batch.to_pylist() == [{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": "c", "n": 3}]


def test_nothing_is_an_output(build: OutputBuilder) -> None:
    assert build.from_arrow(None) is None
    assert build.from_arrow(build.schema.empty_table()) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([("a", 1)], "on_batch returned a list, expected a pyarrow RecordBatch or Table"),
        (pa.table({"k": ["a"]}), "on_batch returned the columns k; expected k, n"),
        (pa.table({"k": ["a"], "n": [1], "z": [2]}), "on_batch returned the columns k, n, z; expected k, n"),
        (pa.table({"k": ["a"], "n": [1 << 40]}), "the column 'n' as int64, expected int32"),
        (pa.table({"k": ["a"], "n": ["x"]}), "the column 'n' as string, expected int32"),
        (pa.table({"k": ["a"], "n": [1.5]}), "the column 'n' as double, expected int32"),
        (pa.table({"k": ["a"], "n": [True]}), "the column 'n' as bool, expected int32"),
        (pa.table({"k": [5], "n": [1]}), "the column 'k' as int64, expected string"),
        (pa.table({"k": ["a"], "n": pa.array([1], pa.uint8())}), "the column 'n' as uint8, expected int32"),
    ],
)
def test_arrow_results_that_do_not_fit(build: OutputBuilder, given: Any, said: str) -> None:
    with pytest.raises(OutputError) as caught:
        build.from_arrow(given)
    assert caught.value.message.startswith("operator 'detect': ")
    assert said in caught.value.message
