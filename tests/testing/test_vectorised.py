"""The harness with vectorised functions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from strandline import KeyedBatchProcess, Value
from strandline.core.errors import OutputError, UserCodeError
from strandline.testing import Harness
from tests.runtime.bench import KINDS
from tests.testing.times import at


class Sum(KeyedBatchProcess):
    total = Value("bigint", default=0)

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.Table:
        keys, row_of = ctx.keys.unique()
        sums = self.total.get_many(keys).to_pylist()
        for row, n in zip(row_of, batch.column("n").to_pylist(), strict=True):
            sums[row] += n
        self.total.put_many(keys, pa.array(sums, pa.int64()))
        return pa.table({"k": keys.columns[0], "rows": [batch.num_rows] * len(keys), "total": sums})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("event_time", [None, "ts"])
def test_a_vectorised_function_gets_one_batch_a_push(kind: Any, event_time: Any) -> None:
    schema, output = "k string, n bigint, ts timestamp", "k string, rows int, total bigint"
    with Harness(Sum(), schema=schema, key="k", output=output, backend=kind, event_time=event_time) as h:
        assert h.push(("a", 1, at(0)), ("b", 2, at(1)), ("a", 3, at(2))) == [("a", 3, 4), ("b", 3, 2)]
        h.snapshot()
        assert h.push({"k": "a", "n": 5}) == [("a", 1, 9)]
        h.crash()
        assert (h.state("a"), h.state("b"), h.state("c")) == ({"total": 4}, {"total": 2}, {"total": 0})


class Sorter(KeyedBatchProcess):
    """Sends odd and even numbers to different outputs; 13 as a text."""

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        numbers = batch.column("n").to_pylist()
        ctx.emit("odd", batch.filter(pa.array([n % 2 == 1 for n in numbers])).select(["n", "k"]))
        ctx.emit("even", pa.table({"n": [n for n in numbers if n % 2 == 0]}))
        if 13 in numbers:
            ctx.emit("even", pa.table({"n": ["13"]}))
        if 15 in numbers:
            ctx.emit("even", [15])
        if 14 in numbers:
            ctx.emit("all", batch)


@pytest.mark.parametrize("event_time", [None, "ts"])
def test_a_vectorised_function_has_side_outputs(event_time: Any) -> None:
    given: Any = {"schema": "k string, n int, ts timestamp", "key": "k", "output": "k string", "event_time": event_time}
    with Harness(Sorter(), **given, sides={"odd": "k string, n int", "even": "n bigint"}, parallelism=2) as h:
        assert h.push(("a", 1, at(0)), ("b", 2, at(1)), ("c", 3, at(1))) == []
        assert sorted(h.side("odd")) == [("a", 1), ("c", 3)]
        for n, said in (
            (13, "the column 'n' as string, expected int64"),
            (15, r"emit\('even', …\) was given a list"),
            (14, "has no side output 'all'"),
        ):
            with pytest.raises(OutputError, match=said):
                h.push(("a", 4, at(2)), ("a", n, at(2)))
        h.push(("a", 6, at(2)))
        assert h.side("even") == [(2,), (6,)]
    with Harness(Sorter(), **given) as h, pytest.raises(UserCodeError, match="operator 'operator' has no side output"):
        h.push(("a", 1, at(0)))
