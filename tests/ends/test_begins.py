"""A checkpoint directory that was set back or copied: sinks that take rows back tell the job's branches apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.core.errors import CorruptionError, FencedError
from strandline.core.kafkaclient import Cluster
from strandline.ends.begins import MOST_BEGINS, Begin, check_branch, decode_begins, encode_begins, with_begin
from strandline.ends.kafka.target import KafkaTarget
from strandline.ends.target import Target, Writer
from strandline.storage.place import Place as Storage
from tests.ends.filesinks import records, rows, staged, started, visible
from tests.ends.tableplaces import Place, stage
from tests.kafkaserver import Kafka
from tests.postgres import Server


@given(st.lists(st.integers(0, 9), max_size=MOST_BEGINS), st.integers(0, 20), st.integers(0, 9))
def test_a_snapshot_of_another_branch_is_refused(epochs: list[int], made_by: int, epoch: int) -> None:
    """It is one if a run after it went back to before its epoch."""
    every = list(enumerate(epochs, 1))
    begins: list[Begin] = []
    for begin in every:
        begins = with_begin(begins, *begin)
    is_left = made_by and any(generation > made_by and at < epoch for generation, at in every)
    try:
        check_branch(begins, made_by, epoch, "sink")
    except CorruptionError:
        assert is_left
    else:
        assert not is_left


@given(st.lists(st.integers(1, 50), min_size=MOST_BEGINS, max_size=3 * MOST_BEGINS), st.data())
def test_of_too_many_begins_those_with_the_fewest_epochs_are_left_out(epochs: list[int], data: st.DataObject) -> None:
    begins: list[Begin] = []
    longest = data.draw(st.integers(0, len(epochs) - 2))
    epochs[longest + 1] = 51
    every = list(enumerate(accumulate(epochs), 1))
    for generation, epoch in every:
        begins = with_begin(begins, generation, epoch)
    assert len(begins) == min(MOST_BEGINS, len(every))
    assert begins[-1] == every[-1]
    assert set(begins) <= set(every)
    assert every[longest] in begins


def test_a_rollback_is_known_after_many_restarts() -> None:
    turns: list[Begin] = [(2, 60)]
    begins = with_begin([(1, 0)], 2, 60, turns=turns)
    for generation in range(3, 300):
        begins = with_begin(begins, generation, 60 + generation, turns=turns)
    assert len(begins) == MOST_BEGINS
    with pytest.raises(CorruptionError, match="went back to epoch 60"):
        check_branch(begins, 1, 61, "sink")


Marks = dict[int, list[str]]


def table_of_two_branches(place: Place, **options: Any) -> Marks:
    """Run epochs 1 to 4, go back to 2 and run shorter ones up to 6; return the checkpoints of the first run."""
    sink, marks = place.start(**options), {}
    for epoch in range(1, 5):
        pending = stage(sink, epoch, [(3 * epoch + row, "first") for row in range(3)])
        sink.commit(pending)
        marks[epoch] = [*pending, sink.reached()]
    sink = place.start(marks[2], 2, restored_by=1, **options)
    for epoch in range(3, 7):
        sink.commit(stage(sink, epoch, [(6 + epoch, "second")]))
    return marks


def test_a_table_has_rows_of_another_branch(place: Place) -> None:
    marks = table_of_two_branches(place)
    before = place.pairs()
    for _ in range(2):
        with pytest.raises(
            CorruptionError, match="continues after epoch 4, and a later run of it went back to epoch 2"
        ):
            place.start(marks[4], 4, restored_by=1)
    assert place.pairs() == before
    sink = place.start(marks[2], 2, restored_by=1)
    sink.commit(stage(sink, 3, [(9, "third")]))
    assert place.pairs() == [*((row, "first") for row in range(3, 9)), (9, "third")]


def test_a_table_that_was_put_back_together_with_its_job(place: Place) -> None:
    """It has the rows of the snapshot, whatever a later run has written meanwhile."""
    sink, marks = place.start(), {}
    for epoch in (1, 2, 3):
        marks[epoch] = stage(sink, epoch, [(epoch, "first")])
        sink.commit(marks[epoch])
    rows, put_back = place.marked("its own command")
    marks[3].append(sink.reached())
    sink = place.start([*marks[1], sink.reached()], 1, restored_by=1)
    sink.commit(stage(sink, 2, [(7, "second")]))
    put_back()
    sink = place.start(marks[3], 3, restored_by=1)
    assert place.pairs() == rows
    sink.commit(stage(sink, 4, [(4, "third")]))
    assert place.pairs() == [*rows, (4, "third")]
    place.start(marks[3], 3, restored_by=1)
    assert place.pairs() == rows


def test_a_table_whose_job_was_copied(place: Place) -> None:
    """The original has published a checkpoint with rows that wait, and the copy begins before it."""
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    waiting = [*stage(sink, 2, [(2, "a")]), sink.reached()]
    copy = place.start([sink.reached()], 1, restored_by=1)
    copy.commit(stage(copy, 2, [(7, "copy")]))
    with pytest.raises(CorruptionError, match="went back to epoch 1"):
        place.start(waiting, 2, restored_by=1)


def test_a_table_behind_a_job_that_was_set_back(place: Place) -> None:
    """Without another branch, later rows are taken back."""
    sink, marks = place.start(), {}
    for epoch in range(1, 4):
        made_by = place.generation
        marks[epoch] = [*stage(sink, epoch, [(epoch, "a")]), sink.reached()]
        # A run restores it, fails, and another one does.
        for _ in range(2):
            sink = place.start(marks[epoch], epoch, restored_by=made_by)
    sink.commit(stage(sink, 4, [(4, "b")]))
    sink = place.start(marks[1], 1, restored_by=1)
    assert place.pairs() == [(1, "a")]
    sink.commit(stage(sink, 2, [(2, "c")]))
    assert place.pairs() == [(1, "a"), (2, "c")]


def test_a_delta_table_forgets_begins_that_a_run_went_back_behind(delta: Place) -> None:
    sink, marks = delta.start(), {}
    for epoch in range(1, MOST_BEGINS + 4):
        pending = stage(sink, epoch, [(epoch, "a")])
        sink.commit(pending)
        marks[epoch] = [*pending, sink.reached()]
        sink = delta.start(marks[epoch], epoch, restored_by=epoch)
    begins = sink.begins(delta.table())
    assert begins == [(number + 1, number) for number in range(4, MOST_BEGINS + 4)]
    sink = delta.start(marks[8], 8, restored_by=8)
    assert sink.begins(delta.table()) == [*begins[:4], (delta.generation, 8)]


def databases(postgresql: Server, path: Path) -> Iterator[Target]:
    """Targets with tables of their own."""
    columns = pa.schema({"n": pa.int64()})
    for sink in (sl.sinks.postgres(postgresql.schema(), "t", create=True), sl.sinks.sqlite(path, "t", create=True)):
        sink.target.try_out(columns)
        yield sink.target


def refuses_another_branch(target: Target) -> None:
    """A run claims it after epoch 0, one goes back to 2, and the checkpoint directory is set back to epoch 4."""
    target.claim(writer(1, 0))
    target.claim(writer(2, 2, 1))
    for generation in (3, 4):
        with pytest.raises(
            CorruptionError, match="continues after epoch 4, and a later run of it went back to epoch 2"
        ):
            target.claim(writer(generation, 4, 1))
    target.claim(writer(5, 2, 1))
    target.claim(writer(5, 2, 1))
    target.claim(writer(6, 7, 5))
    target.claim(writer(7, 4, 5))
    with pytest.raises(FencedError):
        target.claim(writer(6, 9, 5))
    # A run went back to 3 while the target was down.
    target.claim(writer(9, 6, 8, turns=[(8, 3)]))
    with pytest.raises(CorruptionError, match="continues after epoch 4, and a later run of it went back to epoch 3"):
        target.claim(writer(10, 4, 7))
    target.claim(writer(10, 6, 8, turns=[(8, 3)]))


def writer(generation: int, epoch: int, restored_by: int = 0, turns: Sequence[Begin] = ()) -> Writer:
    place = Storage(url="memory:")
    begins = {"has_claimed": restored_by > 0, "begin": epoch, "restored_by": restored_by}
    return Writer("s1", generation, "out", "j", place, "life", turns=turns, **begins)


def test_begins_that_another_program_has_changed() -> None:
    assert decode_begins(None, "here") == []
    assert decode_begins(encode_begins([(1, 2)]), "here") == [(1, 2)]
    for text in ("{", '["a"]', "[[1]]"):
        with pytest.raises(CorruptionError, match="here has a record of runs that the sink has not written"):
            decode_begins(text, "here")


def test_databases_refuse_a_snapshot_of_another_branch(postgresql: Server, tmp_path: Path) -> None:
    for target in databases(postgresql, tmp_path / "t.db"):
        refuses_another_branch(target)


def test_kafka_refuses_a_snapshot_of_another_branch(kafka: Kafka) -> None:
    refuses_another_branch(KafkaTarget(Cluster(kafka.servers), kafka.create("branches"), "branches"))


def test_a_directory_has_files_of_another_branch(tmp_path: Path) -> None:
    sink, pending = started(tmp_path, 1), {}
    for epoch in range(1, 5):
        pending[epoch] = staged(sink, epoch)
        sink.commit(pending[epoch])
    sink = started(tmp_path, 2, pending[2], 2, restored_by=1)
    sink.commit(staged(sink, 3))
    kept = visible(tmp_path)
    for generation in (3, 4):
        with pytest.raises(
            CorruptionError, match="continues after epoch 4, and a later run of it went back to epoch 2"
        ):
            started(tmp_path, generation, pending[4], 4, restored_by=1)
    assert visible(tmp_path) == kept
    sink = started(tmp_path, 5, pending[2], 2, restored_by=1)
    assert visible(tmp_path) == rows(1, 2)
    assert len(records(tmp_path)) == 1


def test_a_directory_behind_a_job_that_was_set_back(tmp_path: Path) -> None:
    sink = started(tmp_path, 1)
    first = staged(sink, 1)
    sink.commit(first)
    second = staged(sink, 2)
    for generation in (2, 3):
        sink = started(tmp_path, generation, second, 2, restored_by=1)
    sink.commit(staged(sink, 3))
    started(tmp_path, 4, first, 1, restored_by=1)
    assert visible(tmp_path) == rows(1)
