"""The rows of a key that a row was made of, as far as that is known; without Spark."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.api.windows import WINDOW_END, WINDOW_START
from strandline.core.ids import Epoch
from strandline.format.epochs import EpochRecord
from strandline.plan.parallelism import Parallelism
from strandline.plan.pipeline import Operator, Pipeline
from strandline.replay.engine import EpochOutput
from strandline.replay.history import event_node
from strandline.replay.keys import keys_in
from strandline.replay.why import Cause, _is_exact, _Memory
from strandline.runtime.rowlayout import FIRED, SIDE, TIME
from strandline.testing import events
from tests.replay.test_why import Silent

S = 1_000_000
TIMED = events("card string, amount bigint, at timestamp").watermark("at").key_by("card")
AMOUNT = {"amount": sl.agg.sum("amount")}


def operator_of(stream: Any) -> Operator:
    return Pipeline([stream._node]).settle(Parallelism(default=1))[0]


def result(end_s: int, *, fired: bool, **more: Any) -> pa.RecordBatch:
    """Return the result of a window that begins at 0."""
    times = pa.timestamp("us", "UTC")
    columns = {WINDOW_START: pa.array([0], times), WINDOW_END: pa.array([end_s * S], times), FIRED: pa.array([fired])}
    return pa.RecordBatch.from_pydict({**columns, **more})


def count(operator: Operator, row: pa.RecordBatch, *epochs: tuple[EpochRecord, list[tuple[int, bool]]]) -> int:
    """Return how many of some rows a row of the last epoch was made of; they have times and flags of timers."""
    node = event_node(operator)
    assert node is not None
    memory = _Memory(operator, Cause("operator", operator.uid, epochs[-1][0].epoch, key="a"), row)
    for record, rows in epochs:
        columns = {
            "card": ["a" for _ in rows],
            TIME: pa.array([second * S for second, _ in rows], pa.int64()),
            FIRED: pa.array([fired for _, fired in rows], pa.bool_()),
        }
        memory.take(record, EpochOutput(record, {}, {}, {node: pa.RecordBatch.from_pydict(columns)}), {})
    return memory.count


def epoch(number: int, fired_s: int, watermark_s: int) -> EpochRecord:
    return EpochRecord(epoch=Epoch(number), fired_us=fired_s * S, watermark_us=watermark_s * S)


def test_a_window_has_rows_of_timers_that_fire_in_its_last_epoch() -> None:
    tens = operator_of(TIMED.window(sl.Tumbling("10s")).agg(**AMOUNT, uid="tens"))
    before = epoch(2, 0, 5), [(3, False), (12, False), (4, True)]
    assert count(tens, result(10, fired=True), before, (epoch(3, 5, 10), [(9, True), (9, False), (12, True)])) == 3


def test_a_result_that_comes_again_has_late_rows_and_the_one_before_has_not() -> None:
    tens = operator_of(TIMED.window(sl.Tumbling("10s"), lateness="5s").agg(**AMOUNT, uid="tens"))
    epochs = (epoch(2, 0, 5), [(3, False)]), (epoch(3, 5, 10), [(9, False)])
    assert [count(tens, result(10, fired=fired), *epochs) for fired in (True, False)] == [1, 2]
    assert count(tens, result(10, fired=False), *epochs, (epoch(4, 10, 15), [(9, False)])) == 2


def test_a_session_ends_after_its_window() -> None:
    sessions = operator_of(TIMED.window(sl.Session("5s")).agg(**AMOUNT, uid="sessions"))
    epochs = (epoch(2, 0, 10), [(5, False)]), (epoch(3, 10, 11), [(5, False)])
    assert count(sessions, result(10, fired=True), *epochs) == 1


@pytest.mark.parametrize(
    ("options", "is_exact"),
    [
        ({}, True),
        ({"early": "1s"}, True),
        ({"early": sl.Early(events=2)}, False),
        ({"early": sl.Early(events=2), "accumulate": False}, False),
        ({"early": "1s", "time": "processing"}, False),
    ],
)
def test_results_of_some_rows_of_a_window(options: Any, is_exact: bool) -> None:
    operator = operator_of(TIMED.window(sl.Tumbling("10s"), **options).agg(**AMOUNT, uid="tens"))
    assert _is_exact(operator.node, result(10, fired=True)) is is_exact
    # A row of a side output has no window.
    assert not _is_exact(operator.node, result(10, fired=True, **{SIDE: pa.array([1])}))


def test_rows_of_which_the_key_says_nothing() -> None:
    assert _is_exact(operator_of(TIMED.agg(**AMOUNT, uid="all")).node, result(10, fired=False))
    process = TIMED.process(
        Silent(), "card string, amount bigint", uid="silent", sides={"large": "card string, sum bigint"}
    )
    assert not _is_exact(operator_of(process).node, result(10, fired=False))


def test_keys_are_those_that_functions_get() -> None:
    operator = operator_of(events("zero double").key_by("zero").agg(n=sl.agg.count(), uid="n"))
    rows = pa.RecordBatch.from_pydict({"zero": pa.array([-0.0, 0.0, math.nan, None, 1.5])})
    assert [*map(repr, keys_in(operator.node, rows))] == ["0.0", "0.0", "nan", "None", "1.5"]
