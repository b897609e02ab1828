"""The benchmarks' own arithmetic: a wrong digest or throughput would make every figure worthless."""

import json

import numpy as np
import pytest

from benchmarks._counting import KEYS, MULTIPLIER, check_state, expected_digest, state_digest
from benchmarks._harness import EpochCost, emit, run_epochs, scratch, spark_epochs, steady_rows_per_second


@pytest.mark.parametrize("rows", [1, 999_999, 1_000_000, 1_000_001, 2_345_678])
def test_expected_digest_is_that_of_counting_row_by_row(rows):
    values = np.arange(rows, dtype=np.int64)
    row_keys = values * MULTIPLIER % KEYS
    counts = np.bincount(row_keys, minlength=KEYS)
    sums = np.zeros(KEYS, dtype=np.int64)
    np.add.at(sums, row_keys, values)
    there = np.flatnonzero(counts)
    assert state_digest(there, counts[there], sums[there]) == expected_digest(rows)


def test_digest_ignores_order_and_sees_every_column():
    keys, counts, sums = np.array([1, 2, 3]), np.array([4, 5, 6]), np.array([7, 8, 9])
    digest = state_digest(keys, counts, sums)
    assert state_digest(keys[::-1], counts[::-1], sums[::-1]) == digest
    changed = [
        state_digest(keys + 1, counts, sums),
        state_digest(keys, counts[::-1], sums),
        state_digest(keys, counts, sums[::-1]),
        state_digest(keys[:2], counts[:2], sums[:2]),
    ]
    assert len({digest, *changed}) == 5


def test_a_wrong_state_fails_the_benchmark():
    check_state("mine", expected_digest(10), 10)
    with pytest.raises(SystemExit, match="mine: wrong final state after 11 rows"):
        check_state("mine", expected_digest(10), 11)


def test_throughput_leaves_the_warm_up_out():
    epochs = [EpochCost(10, 9_000), EpochCost(1_000, 400), EpochCost(1_000, 600)]
    assert steady_rows_per_second(epochs, 1) == 2_000
    with pytest.raises(ValueError, match="nothing is left"):
        steady_rows_per_second(epochs, 3)


class Query:
    """What the harness uses of a streaming query; a failed one is not active."""

    def __init__(self, rows, active=True):
        self.recentProgress = [{"numInputRows": n, "durationMs": {"triggerExecution": 5}} for n in rows]
        self.isActive = active

    def exception(self):
        return ValueError("the cause")


def test_epochs_without_rows_do_not_count():
    assert spark_epochs(Query([3, 0, 4])) == [EpochCost(3, 5), EpochCost(4, 5)]
    assert run_epochs(Query([3, 0, 4, 5]), 2) == [EpochCost(3, 5), EpochCost(4, 5)]


def test_a_query_that_ends_early_fails_with_its_cause():
    with pytest.raises(RuntimeError, match="after 1 of 2 epochs") as caught:
        run_epochs(Query([3], active=False), 2)
    assert str(caught.value.__cause__) == "the cause"


def test_emit_prints_one_json_object_a_line(capsys):
    emit("b", "s", "m", 1.5, peer="p", unit="x")
    emit("b", "s", "m", 2)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"benchmark": "b", "subject": "s", "peer": "p", "metric": "m", "value": 1.5, "unit": "x"}
    assert second == {"benchmark": "b", "subject": "s", "metric": "m", "value": 2}


def test_scratch_is_gone_even_after_a_failure():
    seen = []

    def work():
        with scratch("t") as directory:
            seen.append(directory)
            (directory / "file").write_text("x")
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert not seen[0].exists()
