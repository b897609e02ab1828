"""Values of vectorised functions that expire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from strandline.api.process import KeyedBatchProcess
from strandline.api.states import TTL, Value
from tests.runtime.conftest import Make
from tests.runtime.living import answers, epoch, stored


class Totals(KeyedBatchProcess):
    total = Value("bigint", default=0, ttl=TTL("16s"))
    read = Value("string", ttl=TTL("16s", refresh="read"))

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
        keys, row_of = ctx.keys.unique()
        added = np.zeros(len(keys), dtype=np.int64)
        np.add.at(added, row_of, batch.column("a").to_numpy())
        new = np.array(self.total.get_many(keys)) + added
        self.total.put_many(keys, pa.array(new, mask=new == 0))
        said = batch.column("op").filter(pa.array(np.array(batch.column("op")) != ""))
        if len(said):
            self.read.put_many(ctx.keys, batch.column("op"), last=True)
        texts = self.read.get_many(keys).to_pylist()
        return pa.RecordBatch.from_pydict(
            {"k": keys.columns[0], "answer": [f"{n} {t}" for n, t in zip(new.tolist(), texts, strict=True)]}
        )


class BatchInEventTime(KeyedBatchProcess):
    last = Value("bigint", ttl=TTL("10s", time="event"))

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
        before = self.last.get_many(ctx.keys)
        self.last.put_many(
            ctx.keys, pa.array([a or None for a in batch.column("a").to_pylist()], pa.int64()), last=True
        )
        return pa.RecordBatch.from_pydict({"k": ctx.keys.columns[0], "answer": [repr(v) for v in before.to_pylist()]})


def test_values_of_batches_expire(make: Make) -> None:
    bench = make(Totals())
    assert epoch(bench, [("x", "a", 1, 0), ("y", "b", 2, 0)], now_s=100) == [("x", "1 a"), ("y", "2 b")]
    assert epoch(bench, [("x", "", 1, 0)], now_s=110) == [("x", "2 a")]
    files, number = bench.snapshot(), bench.epoch
    for _ in range(2):
        # y was neither written nor read since; of x the text was read.
        assert epoch(bench, [("y", "", 5, 0)], now_s=116, abort=True) == [("y", "5 None")]
        assert epoch(bench, [("x", "", 5, 0), ("y", "", 5, 0)], now_s=116) == [("x", "7 a"), ("y", "5 None")]
        assert epoch(bench, [("x", "", 5, 0), ("y", "", -5, 0)], now_s=131) == [("x", "12 a"), ("y", "0 None")]
        assert epoch(bench, [("x", "", 5, 0)], now_s=146.9) == [("x", "17 a")]
        assert epoch(bench, [("x", "", 5, 0)], now_s=162.9) == [("x", "5 None")]
        assert list(stored(bench)) == ["total", "ttl.processing"]
        bench.restore(files, number)
    assert epoch(bench, now_s=200) == []
    assert stored(bench) == {}


def test_values_of_batches_expire_by_event_time(make: Make) -> None:
    bench = make(BatchInEventTime(), timed=True)
    assert answers(epoch(bench, [("x", "", 1, 0), ("y", "", 1, 0)], times_s=[100, 90])) == ["None", "None"]
    # Of older events than those before.
    assert answers(epoch(bench, [("x", "", 2, 0)], watermark_s=80, times_s=[85])) == ["1"]
    assert answers(epoch(bench, [("x", "", 2, 0)], watermark_s=109, times_s=[None], abort=True)) == ["2"]
    assert answers(epoch(bench, [("x", "", 0, 0), ("y", "", 0, 0)], watermark_s=110, times_s=[110] * 2)) == ["None"] * 2
    assert stored(bench) == {}
