"""The bottleneck of a job, and its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from strandline.control.bottleneck import find_bottleneck, time_shares
from strandline.control.recent import EpochStats, OperatorTime
from strandline.control.status import SinkStatus
from tests.control.fake import FakeRun

STATUS = FakeRun().status()


def epochs(
    count: int = 10, *, took_ms: float = 1000.0, plan_ms: float = 50.0, gap_ms: float = 0.0, rows: int = 100,
    operators: Sequence[OperatorTime] = (),
) -> list[EpochStats]:  # fmt: skip
    return [
        EpochStats(n, int(n * (took_ms + gap_ms)), rows, took_ms, plan_ms, 0.0, None, list(operators))
        for n in range(1, count + 1)
    ]


EVEN = OperatorTime("detect", 1, 800.0, 10.0, 780.0)
SKEWED = OperatorTime("detect", 1, 800.0, 10.0, 200.0)
HOT = OperatorTime("detect", 0, 800.0, 10.0, 200.0)
SMALL = OperatorTime("top", 0, 20.0, 10.0, 20.0)


@pytest.mark.parametrize(
    ("recent", "node", "said"),
    [
        (epochs(operators=[EVEN, SMALL]), "operator:detect", "works 80% of each epoch: all of its partitions"),
        (epochs(operators=[SMALL, SKEWED]), "operator:detect", "its partition 1 works 4.0 times as long as the mean"),
        (epochs(operators=[SMALL, HOT]), "operator:detect", "wait for it; one key has about 72 % of the operator's rows"),
        (epochs(plan_ms=700.0, operators=[SMALL]), "", "70% of each epoch passes before its rows are read"),
        (epochs(operators=[SMALL]), "", "Spark: 93% of each epoch passes in reading"),
        (epochs(gap_ms=4000.0, operators=[EVEN]), "", "none: 80% of the time, the job waits for rows"),
        (epochs(2, operators=[EVEN]), "", "not known yet"),
        (epochs(rows=0, operators=[EVEN]), "", "not known yet"),
        (epochs(), "", "Spark: 95%"),
    ],
)  # fmt: skip
def test_the_bottleneck_has_a_reason(recent: list[EpochStats], node: str, said: str) -> None:
    bottleneck = find_bottleneck(STATUS, recent)
    assert bottleneck.node == node
    assert said in bottleneck.text
    assert "ann" not in bottleneck.text


def test_a_sink_that_takes_no_rows_comes_first() -> None:
    status = replace(STATUS, sinks=[SinkStatus("pg", waiting_rows=7, failure="refused\nmore")])
    bottleneck = find_bottleneck(status, epochs(operators=[EVEN]))
    assert (bottleneck.node, bottleneck.text) == ("sink:pg", "sink 'pg' does not take rows: refused")
    assert find_bottleneck(replace(status, state="restarting"), []).text == "the job is restarting"


def test_where_the_time_goes() -> None:
    shares = time_shares(epochs(gap_ms=1000.0, operators=[EVEN, SMALL]))
    assert (shares.uid, round(shares.idle, 2), round(shares.plan, 2), round(shares.busiest, 2), round(shares.spark, 2)) == (
        "detect", 0.5, 0.05, 0.8, 0.15,
    )  # fmt: skip
    # Operators of several tasks at once may work longer than the epoch takes.
    crowded = time_shares(epochs(operators=[OperatorTime("detect", 0, 1200.0, 0.0, 900.0)]))
    assert crowded.spark == 0
    assert time_shares(epochs(2)) is None
