"""Spans are made once of everything that has ended, whenever it is looked at."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from strandline.checkpoint.history import PartitionStats, SinkStats
from strandline.control.recent import EpochStats, Interruption, OperatorTime, Recent
from strandline.core.ids import CheckpointId, Partition
from strandline.telemetry.spans import SETTLING_MS, Span, SpanMaker
from tests.telemetry.asking import LAST

NOW_MS = 100_000
EPOCH = EpochStats(7, 50_000, 100, 400.0, 80.0, 2.5, 3, [OperatorTime("detect", 1, 210.0, 30.0, 150.0)])
FAILURE = Interruption("failure", 60_000, 2_500, "a keeper died", 3, 250)
RESCALE = Interruption("rescale", 70_000, 1_000, "a rescale to 4", 4, 0)


def names(spans: list[Span]) -> list[str]:
    return [span.name for span in spans]


def test_an_epoch_has_its_plan_and_its_work_and_where_its_operators_time_went() -> None:
    (span,) = SpanMaker().take(Recent([], [EPOCH], []), NOW_MS)
    assert (span.name, span.start_ms, span.end_ms, span.error) == ("epoch", 49_600, 50_000, "")
    assert span.attributes == {
        "strandline.epoch": 7, "strandline.rows": 100, "strandline.pause": 0.0025, "strandline.checkpoint": 3,
    }  # fmt: skip
    plan, process = span.children
    assert [(each.name, each.start_ms, each.end_ms) for each in (plan, process)] == [
        ("plan", 49_600, 49_680), ("process", 49_680, 50_000),
    ]  # fmt: skip
    (moment,) = process.moments
    assert moment.attributes == {
        "strandline.operator": "detect", "strandline.partition": 1, "strandline.busy": 0.21, "strandline.wait": 0.03,
        "strandline.mean_busy": 0.15,
    }  # fmt: skip


def test_a_checkpoint_has_its_phases_one_after_the_other_and_its_sinks() -> None:
    parts = tuple(PartitionStats("detect", Partition(n), 1.0, float(n), 5) for n in range(50))
    stats = replace(LAST, partitions=parts, sinks=(SinkStats("out", 4.0, 1850.0), SinkStats("pg", 130.0, 1977.0)))
    (span,) = SpanMaker().take(Recent([stats], [], []), NOW_MS)
    assert (span.name, span.start_ms, span.end_ms) == ("checkpoint", 1_000, 3_000)
    assert span.attributes["strandline.status"] == "completed"
    assert span.attributes["strandline.waits"] == 1.25
    assert names([*span.children]) == ["finish epoch", "make durable", "publish", "show rows", "show rows"]
    assert span.children[0].start_ms == span.start_ms
    for before, after in pairwise(span.children):
        assert before.end_ms == after.start_ms
    assert span.children[-1].attributes == {"strandline.sink": "pg", "strandline.row_age": 1.977}
    # Of many partitions, those that took longest.
    assert [moment.attributes["strandline.partition"] for moment in span.moments] == list(range(49, 29, -1))


def test_a_checkpoint_that_failed_is_an_error_and_one_in_progress_is_no_span_yet() -> None:
    failed = replace(LAST, status="failed", phases=None, sinks=(), failure="no space")
    running = replace(LAST, status="in_progress", completed_ms=None, phases=None)
    (span,) = SpanMaker().take(Recent([failed, running], [], []), NOW_MS)
    assert (span.error, span.children) == ("no space", ())


def test_a_restart_and_a_rescale_are_told_apart() -> None:
    restart, rescale = SpanMaker().take(Recent([], [], [FAILURE, RESCALE]), NOW_MS)
    assert (restart.name, restart.start_ms, restart.end_ms, restart.error) == (
        "restart", 60_000, 62_500, "a keeper died",
    )  # fmt: skip
    assert restart.attributes == {"strandline.repeated_rows": 250, "strandline.checkpoint": 3}
    assert (rescale.name, rescale.error, rescale.attributes["strandline.cause"]) == ("rescale", "", "a rescale to 4")


def test_each_comes_once_also_those_of_an_attempt_that_has_ended_between_two_looks() -> None:
    maker = SpanMaker()
    second = replace(EPOCH, epoch=8, ended_ms=51_000)
    assert len(maker.take(Recent([LAST], [EPOCH], []), NOW_MS)) == 2
    assert maker.take(Recent([LAST], [EPOCH], []), NOW_MS) == []
    # The attempt failed after epoch 8, and the next one has done epoch 8 again.
    again, later = replace(second, ended_ms=65_000), replace(LAST, checkpoint=CheckpointId(8), completed_ms=64_000)
    spans = maker.take(Recent([later], [again], [FAILURE], [LAST], [EPOCH, second]), NOW_MS)
    assert names(spans) == ["epoch", "epoch", "checkpoint", "restart"]
    assert maker.take(Recent([later], [again], [FAILURE], [LAST], [EPOCH, second]), NOW_MS) == []


def test_a_clock_that_is_set_back_hides_nothing() -> None:
    maker = SpanMaker(since_ms=40_000)
    assert len(maker.take(Recent([LAST], [EPOCH], [FAILURE]), NOW_MS)) == 2
    epoch, failure = replace(EPOCH, epoch=8, ended_ms=20_000), replace(FAILURE, at_ms=21_000)
    checkpoint = replace(LAST, checkpoint=CheckpointId(8), completed_ms=20_000)
    recent = Recent([LAST, checkpoint], [EPOCH, epoch], [FAILURE, failure])
    assert names(maker.take(recent, 26_000)) == ["epoch", "checkpoint", "restart"]
    assert maker.take(recent, 26_500) == []


def test_a_checkpoint_waits_until_its_sinks_have_shown_its_rows() -> None:
    maker = SpanMaker()
    just = replace(LAST, completed_ms=NOW_MS - SETTLING_MS + 1)
    assert maker.take(Recent([just], [], []), NOW_MS) == []
    assert names(maker.take(Recent([just], [], []), NOW_MS, is_last=True)) == ["checkpoint"]


def test_what_was_before_is_not_made_up_again_by_an_exporter_that_starts() -> None:
    assert SpanMaker(since_ms=90_000).take(Recent([LAST], [EPOCH], [FAILURE]), NOW_MS) == []
