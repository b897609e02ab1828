"""Sinks and steps that do not read all that an operator gives: its state has every event all the same, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import strandline as sl
from tests.spark import small
from tests.spark.harness import Case, settle

pytestmark = pytest.mark.spark

ROWS = 400
OUTPUT = "user string, n bigint, mark string, pad string"


class Wide(sl.KeyedProcess):
    """Count, and give each key a mark; and far more, in pieces, than fits between a keeper and Spark."""

    seen = sl.Value("bigint", default=0)
    mark = sl.Value("string")

    def __init__(self, width: int) -> None:
        self.width = width

    def on_event(self, event: Any, ctx: sl.Context) -> Any:
        self.seen.value += 1
        self.mark.value = self.mark.value or uuid4().hex
        yield (ctx.key, self.seen.value, self.mark.value, "x" * self.width)


class Reading(sl.sinks.Sink):
    """Gives its rows to a function, which reads of them what it likes."""

    def __init__(self, read: Callable[[Any], list[Any]], name: str) -> None:
        super().__init__(visibility="checkpoint", name=name)
        self._read = read
        self.staged: dict[int, list[Any]] = {}

    def write(self, df: Any, epoch: int) -> str | None:
        self.staged[epoch] = self._read(df.select("user", "n", "mark"))
        return str(epoch)

    def commit(self, pending: Any) -> None:
        pass


def first_batch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield next(batches)


def read_all(df: Any) -> list[Any]:
    return df.collect()


def read_some(df: Any) -> list[Any]:
    return df.head(3)


def read_none(df: Any) -> list[Any]:
    return []


def read_after_a_look(df: Any) -> list[Any]:
    return [] if df.isEmpty() else df.collect()


def same(stream: sl.Stream) -> sl.Stream:
    return stream


@pytest.mark.long
def test_operators_get_all_their_events_whatever_is_read_of_what_they_give(
    spark: Any, tmp_path: Path, local_dir: Path
) -> None:
    """An operator for each way of reading."""
    ways: dict[str, tuple[Callable[[sl.Stream], sl.Stream], Callable[[Any], list[Any]], int | None]] = {
        "step": (lambda out: out.transform(lambda df: df.mapInArrow(first_batch, OUTPUT)), read_all, None),
        "some": (same, read_some, 3),
        "none": (same, read_none, 0),
        "look": (same, read_after_a_look, ROWS),
        "chain": (lambda out: out.key_by("user").process(Wide(10_000), OUTPUT, uid="behind"), read_some, 3),
    }
    keyed = sl.stream(small.source(spark, tmp_path / "in")).key_by("user")
    sinks = {way: Reading(read, way) for way, (_, read, _) in ways.items()}
    job = sl.Job(
        "unread",
        sinks=[
            step(keyed.process(Wide(50_000 if way == "some" else 10_000), output=OUTPUT, uid=way, keeps_key=True)).to(
                sinks[way]
            )
            for way, (step, _, _) in ways.items()
        ],
        checkpoints=sl.Checkpoints(tmp_path / "ck"),
        restart=sl.Restart.never(),
        settings=sl.Settings(parallelism=2, local_dir=local_dir, state_memory="128MB", max_row="1MB"),
    )
    with job.start(spark) as run:
        for number in range(2):
            small.write_rows(tmp_path / "in", number, [(f"u{i % 4}", "a", i) for i in range(ROWS)])
        small.write_rows(tmp_path / "in", 2, [(f"u{i}", "a", 0) for i in range(4)])
        run.process_all_available(120)
        uids = [*ways, "behind"]
        rows_in = {way: sum(keeper.all_rows_in for keeper in run.glance().keepers if keeper.uid == way) for way in uids}
        assert rows_in == dict.fromkeys(uids, 2 * ROWS + 4)
        run.checkpoint(60)
    for way, (_, _, shown) in ways.items():
        rows = sinks[way].staged
        if shown is not None:
            assert [len(rows[epoch]) for epoch in (1, 2)] == [shown, shown], way
        # Each counted every event, and those that were shown are of the attempt that counts.
        for epoch in (1, 2):
            per_user = {user: [r.n for r in rows[epoch] if r.user == user] for user in ("u0", "u1", "u2", "u3")}
            for counts in per_user.values():
                first = (epoch - 1) * ROWS // 4 + 1
                assert counts == list(range(first, first + len(counts))), way
        if way != "none":
            assert {r.n for r in rows[3]} == {ROWS // 2 + 1}, way
            marks = [{(row.user, row.mark) for row in rows[epoch]} for epoch in (1, 2, 3)]
            users = [{user for user, _ in each} for each in marks]
            assert users[0] & users[2], way
            assert len(set.union(*marks)) == len(set.union(*users)), f"{way}: what is shown is not what was applied"


def test_a_function_that_gives_another_number_each_time_gives_all_readers_the_same(spark: Any, case: Case) -> None:
    small.write_rows(case.root / "in", 0, [(f"u{n}", "a", n) for n in range(20)])
    source = sl.stream(small.source(spark, case.root / "in"))
    numbered = source.map(lambda row: (row.user, uuid4().hex), "user string, id string")
    counted = numbered.key_by("id").agg(count=sl.agg.count(), uid="ids")
    one, other, ids = sl.sinks.memory(), sl.sinks.memory(), sl.sinks.memory()
    outputs = numbered.to(one), numbered.where("user is not null").to(other), counted.to(ids)
    with case.job_of("numbered", *outputs).start(spark) as run:
        settle(run)
    assert len(one.rows) == 20
    assert small.rows_of(one) == small.rows_of(other)
    assert {row.id for row in one.rows} == {row.id for row in ids.rows}
