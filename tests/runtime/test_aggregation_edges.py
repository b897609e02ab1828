"""Edges of built-in aggregation: panes and their layers, keys and values of every kind, sums too large, chains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from strandline.api.process import KeyedProcess
from strandline.api.windows import Sliding, Tumbling
from strandline.core.errors import ConfigurationError, CorruptionError, StateLimitError, StateTypeError
from strandline.core.times import END_US
from strandline.runtime.operators.aggregates import grouping
from strandline.runtime.operators.aggregates.accumulators import Accumulators, FieldSpec, ResultSpec
from strandline.runtime.operators.aggregates.grouping import Groups, group_by
from strandline.runtime.rowlayout import FIRED, TIME
from strandline.runtime.state.panebytes import MARK_END, key_of, pack_mark
from strandline.runtime.state.panes import PaneTable
from tests.backends.conftest import open_backend
from tests.runtime.aggregating import COUNTS, SECOND, Aggregating, plain, rows_of, to_rows
from tests.runtime.bench import Bench
from tests.soak import BACKENDS


def table_of(bench: Aggregating) -> PaneTable:
    table = bench.task.store._tables[0]
    assert isinstance(table, PaneTable)
    return table


def stored(bench: Aggregating) -> int:
    return sum(1 for _ in bench.backend.scan("panes"))


def counts(kind: str, root: Path, window: Any = None, lateness: int = 0, **given: Any) -> Aggregating:
    return Aggregating(kind, root, window or Tumbling("10s"), lateness, COUNTS, **given)


@pytest.fixture(params=BACKENDS)
def late_and_now(request: Any, tmp_path: Path) -> Iterator[tuple[Aggregating, Aggregating]]:
    """A program with a lateness, and the one that has taken it away."""
    for name in ("late", "now"):
        (tmp_path / name).mkdir()
    late, now = counts(request.param, tmp_path / "late", lateness=60), counts(request.param, tmp_path / "now")
    yield late, now
    late.close()
    now.close()


def test_no_mark_of_a_lateness_that_is_gone_outlives_the_end_of_time(
    late_and_now: tuple[Aggregating, Aggregating],
) -> None:
    """A job may go on after it, with events of long ago: their windows were never given."""
    late, bench = late_and_now
    late.epoch_of([("a", 1000, 1), ("a", 1020, 1)])
    late.epoch_of(watermark=1020)
    bench.restore(late.snapshot(), late.epoch)
    bench.epoch_of([("a", 1045, 2)], watermark=1020)
    assert sum(batch.num_rows for batch in bench.apply([], END_US)) == 2
    bench.restore(bench.snapshot(), bench.epoch)
    bench.watermark = None
    assert bench.epoch_of([("a", 100, 5), ("a", 200, 6)]) == []
    assert bench.epoch_of(watermark=200) == [("a", 100, 110, 1, 5)]


def test_what_a_lateness_that_is_gone_has_kept_is_not_given_again(
    late_and_now: tuple[Aggregating, Aggregating],
) -> None:
    """Not either where the watermark has not moved between a start without it and the next one."""
    late, bench = late_and_now
    late.epoch_of([("a", 1000, 1), ("a", 1020, 1)])
    assert late.epoch_of(watermark=1020) == [("a", 1000, 1010, 1, 1)]
    files, epoch = late.snapshot(), late.epoch
    for _ in range(2):
        bench.restore(files, epoch)
        assert bench.apply([], 1_020_000_000, fired_us=1_020_000_000) == []
        files, epoch = bench.snapshot(), bench.epoch
    bench.restore(files, epoch)
    assert bench.epoch_of(watermark=1030) == [("a", 1020, 1030, 1, 1)]


def test_what_was_given_as_a_lateness_wants_is_not_given_again_when_that_is_gone(
    late_and_now: tuple[Aggregating, Aggregating],
) -> None:
    """Also if the start that takes it away ends before time has moved on."""
    late, bench = late_and_now
    late.epoch_of([("a", 1000, 1)])
    assert late.epoch_of(watermark=1020) == [("a", 1000, 1010, 1, 1)]
    bench.restore(late.snapshot(), late.epoch)

    def given(*rows: Any, watermark: int) -> list[Any]:
        found = bench.apply([bench.rows_of(rows)], watermark * SECOND, fired_us=1020 * SECOND)
        return [plain(row) for batch in found for row in to_rows(batch)]

    assert given(("a", 1045, 2), watermark=1020) == []
    bench.restore(bench.snapshot(), bench.epoch)
    assert given(watermark=1030) == []
    bench.restore(bench.snapshot(), bench.epoch)
    assert given(("a", 1000, 1), watermark=1030) == []
    assert given(watermark=1050) == [("a", 1040, 1050, 1, 2)]


def test_a_window_that_is_done_before_a_snapshot_is_never_written(tmp_path: Path) -> None:
    bench = counts("rocksdb", tmp_path)
    bench.epoch_of([("a", 1, 5), ("b", 2, 6)], watermark=0)
    assert bench.epoch_of([("a", 11, 1)], watermark=10) == [("a", 0, 10, 1, 5), ("b", 0, 10, 1, 6)]
    changes = {name: list(entries) for name, entries in bench.freeze().changes().items()}
    assert len(changes["panes"]) == 1
    bench.close()


def test_a_window_that_was_written_is_deleted_when_it_is_done(tmp_path: Path) -> None:
    bench = counts("rocksdb", tmp_path)
    for i in range(3):
        bench.epoch_of([("a", 1, i), (f"k{i}", 2, 6)], watermark=0)
        bench.write(bench.freeze())
    assert stored(bench) >= 4
    assert len(bench.epoch_of(watermark=10)) == 4
    bench.write(bench.freeze())
    assert stored(bench) == 0
    assert bench.task.next_timers_us == (None, None)
    bench.close()


def test_a_restored_window_is_deleted_when_it_is_done(tmp_path: Path) -> None:
    bench = counts("rocksdb", tmp_path)
    bench.epoch_of([("a", 1, 1), ("b", 1, 2)], watermark=0)
    bench.restore(bench.snapshot(), 1)
    assert bench.task.next_timers_us == (9_999_999, None)
    bench.epoch_of([("a", 2, 3)])
    assert sorted(bench.epoch_of(watermark=10)) == [("a", 0, 10, 2, 4), ("b", 0, 10, 1, 2)]
    bench.write(bench.freeze())
    assert stored(bench) == 0
    bench.close()


def test_a_window_is_read_while_its_changes_are_on_their_way(tmp_path: Path) -> None:
    """Evicted, with frozen changes that the backend has none, some or all of: nothing is lost, nothing counts twice."""
    bench = counts("rocksdb", tmp_path, lateness=100)
    table_of(bench)._cache_bytes = 0
    keys = [f"k{i}" for i in range(20)]
    bench.epoch_of([(k, 1, 1) for k in keys], watermark=0)
    bench.write(bench.freeze())
    bench.epoch_of([(k, 1, 10) for k in keys])
    frozen = bench.freeze()
    bench.epoch_of([(k, 1, 100) for k in keys])
    assert not table_of(bench).panes[10_000_000].whole
    wanted = sorted((k, 0, 10, 3, 111) for k in keys)
    assert sorted(bench.epoch_of(watermark=10, abort=True)) == wanted
    bench.watermark = 0
    entries = {name: list(encoded) for name, encoded in frozen.changes().items()}
    bench.backend.write({"panes": entries["panes"][::2]})
    assert sorted(bench.epoch_of(watermark=10, abort=True)) == wanted
    bench.backend.write(entries)
    assert sorted(bench.epoch_of(watermark=10, abort=True)) == wanted
    frozen.release()
    assert sorted(bench.epoch_of(watermark=10)) == wanted
    bench.close()


def test_keys_that_change_again_and_again_do_not_fill_the_disk(tmp_path: Path) -> None:
    bench = counts("rocksdb", tmp_path)
    for _ in range(40):
        bench.epoch_of([("a", 1, 1), ("b", 1, 1)], watermark=0)
        bench.write(bench.freeze())
    assert stored(bench) <= 10
    bench.restore(bench.snapshot(), 40)
    assert sorted(bench.epoch_of(watermark=10)) == [("a", 0, 10, 40, 40), ("b", 0, 10, 40, 40)]
    bench.close()


@pytest.mark.parametrize("kind", BACKENDS)
def test_what_was_given_before_a_restore_is_not_given_again(tmp_path: Path, kind: str) -> None:
    bench = counts(kind, tmp_path, Sliding("20s", every="10s"))
    bench.epoch_of([("a", 1, 5)], watermark=0)
    assert bench.epoch_of(watermark=10) == [("a", -10, 10, 1, 5)]
    files = bench.snapshot()
    bench.restore(files, bench.epoch)
    assert bench.epoch_of(watermark=12) == []
    assert bench.epoch_of(watermark=20) == [("a", 0, 20, 1, 5)]
    bench.close()


def test_gaps_between_windows(tmp_path: Path) -> None:
    bench = counts("memory", tmp_path, Sliding("1s", every="3s"))
    assert bench.epoch_of([("a", 1, 5), ("a", 2, 5), ("a", 3, 7)], watermark=0) == []
    assert bench.epoch_of([("a", 2, 1)], watermark=9) == [("a", 3, 4, 1, 7)]
    assert bench.task.late_rows == 0
    bench.close()


def test_many_panes_in_one_batch(tmp_path: Path) -> None:
    bench = counts("memory", tmp_path, Tumbling("1s"))
    bench.epoch_of([("a", t, t) for t in reversed(range(50))], watermark=0)
    assert bench.epoch_of(watermark=60) == [("a", t, t + 1, 1, t) for t in range(50)]
    bench.close()


def test_the_memory_backend_has_a_limit(tmp_path: Path) -> None:
    bench = counts("memory", tmp_path, limit_bytes=20_000)
    with pytest.raises(StateLimitError, match="operator 'op', partition 0"):
        bench.epoch_of([(f"k{i}", 1, i) for i in range(3000)], watermark=0)
    bench.task.abort()
    bench.epoch_of([("a", 1, 1)])
    assert bench.epoch_of(watermark=10) == [("a", 0, 10, 1, 1)]
    bench.close()


def test_damaged_entries_are_said_to_be_so(tmp_path: Path) -> None:
    bench = counts("rocksdb", tmp_path)
    bench.epoch_of([("a", 1, 1)], watermark=0)
    bench.restore(bench.snapshot(), 1)
    ((key, value),) = bench.backend.scan("panes")
    for damaged, said in ((b"\1\0" + value[2:], "begins with 0100"), (value[:2] + b"\0" * 9, "cannot be read")):
        bench.backend.write({"panes": [(key, damaged)]})
        with pytest.raises(CorruptionError, match=said):
            bench.epoch_of(watermark=10)
        bench.task.abort()
    bench.close()


def test_entries_are_as_the_format_says(tmp_path: Path) -> None:
    bench = counts("rocksdb", tmp_path, Sliding("20s", every="10s"))
    bench.epoch_of([("a", 1, 5), ("a", 2, 6)], watermark=0)
    bench.epoch_of(watermark=3)
    bench.write(bench.freeze())
    marks = 128
    entries = list(bench.backend.scan("panes"))
    assert len(entries) == marks + 1
    assert {value for key, value in entries if key[2:10] == bytes(8)} == {b"\0\0" + (3_000_000).to_bytes(8, "big")}
    ((key, value),) = [(key, value) for key, value in entries if key[2:10] != bytes(8)]
    assert key[2:] == ((1 << 63) + 10_000_000).to_bytes(8, "big") + (2).to_bytes(8, "big")
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("total", pa.int64())])
    assert value[:2] == b"\0\0"
    assert pa.ipc.read_record_batch(pa.py_buffer(value[2:]), schema).to_pylist() == [{"k": "a", "n": 2, "total": 11}]
    bench.close()


def test_a_sum_too_large_names_the_operator(tmp_path: Path) -> None:
    bench = Aggregating("memory", tmp_path, accumulators=COUNTS)
    bench.epoch_of([("a", 0, 1 << 62)])
    with pytest.raises(StateTypeError, match="operator 'op': a sum does not fit into bigint"):
        bench.epoch_of([("a", 0, 1 << 62)])
    bench.task.abort()
    assert bench.epoch_of([("a", 0, 1)]) == [("a", 2, (1 << 62) + 1)]
    bench.close()


LONGEST = (1 << 63) - 1


@pytest.mark.parametrize(
    ("values", "of_row", "sums"),
    [
        ([LONGEST, 1], [0, 1], [LONGEST, 1]),
        ([LONGEST, 1, -1], [0, 0, 0], [LONGEST]),
        ([-LONGEST - 1, 1, None], [0, 1, 1], [-LONGEST - 1, 1]),
        ([LONGEST, 1], [0, 0], None),
        ([-LONGEST, -2], [0, 0], None),
        # Each is too small to change a double of the sum.
        ([LONGEST - 1024, *[400] * 20], [0] * 21, None),
    ],
)
def test_sums_of_bigints_are_exact_or_refused(values: list[Any], of_row: list[int], sums: list[int] | None) -> None:
    column, groups = pa.array(values, pa.int64()), Groups(np.array(of_row), max(of_row) + 1)
    if sums is None:
        with pytest.raises(StateTypeError, match="a sum does not fit into bigint"):
            grouping.summed(column, groups)
    else:
        assert grouping.summed(column, groups).to_pylist() == sums


@pytest.mark.parametrize(("precision", "digits", "count"), [(38, 37, 2), (38, 37, 4), (35, 34, 3500), (20, 19, 4)])
def test_sums_of_decimals_too_large_are_refused(precision: int, digits: int, count: int) -> None:
    kind = pa.decimal128(precision, 2)
    large, small, less = Decimal(f"9e{digits - 2}"), Decimal("0.01"), Decimal(f"{9 * 10**digits - 1}e-2")
    groups = Groups(np.array([*[0] * count, 1]), 2)
    with pytest.raises(StateTypeError, match=f"a sum does not fit into decimal\\({precision},2\\)"):
        grouping.summed(pa.array([*[large] * count, small], kind), groups)
    fits = pa.array([large, *[None] * (count - 2), -small, small], kind)
    assert grouping.summed(fits, groups).to_pylist() == [less, small]
    assert grouping.summed(fits, groups).type == kind


def test_a_mean_too_large_is_refused() -> None:
    fields = [FieldSpec("total", "decimal(38,10)", "sum"), FieldSpec("n", "bigint", "sum")]
    mean = Accumulators(fields, [ResultSpec("mean", "decimal(38,14)", "avg", ("total", "n"))])
    total = pa.array([Decimal(10**25)], pa.decimal128(38, 10))
    assert mean.compute_results([total, pa.array([100])])[0].to_pylist() == [Decimal(10**23)]
    with pytest.raises(StateTypeError, match="a mean does not fit into decimal\\(38,14\\)"):
        mean.compute_results([total, pa.array([1])])


class Pass(KeyedProcess):
    def on_event(self, event: Any, ctx: Any) -> Any:
        yield (event.k,)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        return None


def test_what_comes_of_fired_rows_is_fired_too(tmp_path: Path) -> None:
    """Else the operator after the next would see it only after its watermark has moved on: too late."""
    bench = Bench(
        "memory", tmp_path, Pass(), input_schema="k string", output_schema="k string", timed=True, phased=True
    )  # fmt: skip
    columns = [pa.array([1, 1], pa.int32()), pa.array([5, 6]), pa.array([True, False]), pa.array(["fired", "not"])]
    batch = pa.RecordBatch.from_arrays(columns, names=["key_group", TIME, FIRED, "k"])
    found = bench.apply([batch], 0)
    assert [tuple(row.values()) for b in found for row in b.to_pylist()] == [("fired", 5, True), ("not", 6, False)]
    bench.close()


def test_windows_take_in_fired_rows_before_the_watermark_moves_on(tmp_path: Path) -> None:
    bench = counts("memory", tmp_path, phased=True)

    def epoch(watermark: int, rows: list[tuple[str, int, int, bool]]) -> list[tuple[Any, ...]]:
        plain = rows_of([row[:3] for row in rows], COUNTS, bench.process)
        batch = plain.add_column(2, FIRED, pa.array([row[3] for row in rows]))
        found = bench.apply([batch], watermark * 1_000_000)
        return [(row["k"], row["count"], row["sum"], row[FIRED]) for b in found for row in b.to_pylist()]

    assert epoch(0, [("a", 1, 1, False), ("a", 2, 2, True)]) == []
    # One more in time, though the watermark of this epoch is the window's end, and one too late.
    assert epoch(10, [("a", 9, 100, False), ("a", 9, 4, True)]) == [("a", 3, 7, True)]
    assert bench.task.late_rows == 1
    bench.close()


def test_running_aggregates_of_fired_rows_are_fired(tmp_path: Path) -> None:
    bench = Aggregating("memory", tmp_path, accumulators=COUNTS, timed=True, phased=True)
    columns = list(rows_of([("a", 0, 1), ("a", 0, 2), ("a", 0, 4)], COUNTS).columns)
    columns[1:1] = [pa.array([5, 8, 7]), pa.array([True, False, False])]
    names = ["key_group", TIME, FIRED, "k", "rows", "n", "total"]
    found = bench.apply([pa.RecordBatch.from_arrays(columns, names=names)], 0)
    given = [tuple(row.values()) for b in found for row in b.to_pylist()]
    assert given == [("a", 1, 1, 5, True), ("a", 3, 7, 8, False)]
    bench.close()


# -- grouping


def test_equal_is_what_spark_groups_together() -> None:
    assert group_by([pa.array([0.0, -0.0, math.nan, -math.nan, 1.0])]).of_row.tolist() == [0, 0, 1, 1, 2]
    pairs = group_by([pa.array(["a", "b", "a", "a"]), pa.array([1, 1, 2, 1])])
    assert pairs.of_row.tolist() == [0, 1, 2, 0]
    structs = pa.array([{"x": 1, "y": None}, {"x": 1, "y": "z"}, {"x": 1, "y": None}])
    assert group_by([structs]).of_row.tolist() == [0, 1, 0]
    assert group_by([pa.array([Decimal("1.10"), Decimal("1.1")], pa.decimal128(5, 2))]).count == 1


def test_values_are_kept_once_however_their_zeros_and_nans_are_written() -> None:
    zeros = [0.0, -0.0, math.nan, -math.nan, 1.0]
    structs = [{"x": x, "y": "z"} for x in zeros]
    lists = [[x, None] for x in zeros]
    for values in (zeros, structs, lists, [{"z": [s, None]} for s in structs]):
        column = pa.array([values[:1], values[1:], []])
        (found,) = grouping.united(column, Groups(np.zeros(3, np.int64), 1)).to_pylist()
        assert len(found) == len(values) - 2
        assert "-0.0" not in repr(found)


@pytest.mark.parametrize(
    ("values", "least", "greatest"),
    [
        (pa.array([1.0, math.nan, -2.0, None]), -2.0, math.nan),
        (pa.array([None, None], pa.float64()), None, None),
        (pa.array(["b", "ä", "", None]), "", "ä"),
        (pa.array([True, False]), False, True),
        (pa.array([b"\xff", b"\x00"]), b"\x00", b"\xff"),
        (pa.array([Decimal("2.50"), Decimal("-1.00")], pa.decimal128(10, 2)), Decimal("-1.00"), Decimal("2.50")),
        (pa.array([3, 1, None], pa.int16()), 1, 3),
    ],
)  # fmt: skip
def test_extremes_are_in_the_order_of_spark(values: pa.Array, least: Any, greatest: Any) -> None:
    groups = Groups(np.zeros(len(values), np.int64), 1)
    for which, wanted in (("min", least), ("max", greatest)):
        found = grouping.extreme(values, groups, which)
        assert found.type == values.type
        (value,) = found.to_pylist()
        assert value == wanted or (wanted != wanted and value != value)


def test_a_group_without_rows_has_no_value() -> None:
    groups = Groups(np.array([2, 0, 2]), 3)
    assert grouping.summed(pa.array([1, 2, 3]), groups).to_pylist() == [2, None, 4]
    assert grouping.edge(pa.array([1, 2, 3]), groups, "last", ignore_nulls=False).to_pylist() == [2, None, 3]
    assert grouping.joined(pa.array([[1], [2, 3], []]), groups).to_pylist() == [[2, 3], [], [1]]
    nested = pa.array([[[1]], [], [[1], [2]]])
    assert grouping.united(nested, groups).to_pylist() == [[], [], [[1], [2]]]


def test_moments_are_exact_far_from_zero() -> None:
    values = 1e9 + np.arange(1000.0)
    ones, zeros = pa.array(np.ones(1000, np.int64)), pa.array(np.zeros(1000))
    n, _, m2 = grouping.moments(ones, pa.array(values), zeros, Groups(np.zeros(1000, np.int64), 1))
    assert n.to_pylist() == [1000]
    assert m2[0].as_py() / 1000 == pytest.approx(np.var(np.arange(1000.0)), rel=1e-9)


def test_aggregates_say_what_they_expect() -> None:
    import strandline as sl

    with pytest.raises(ConfigurationError, match="sum\\(\\) was given 3, expected a column's name"):
        sl.agg.sum(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", BACKENDS)
def test_of_marks_that_differ_the_least_counts(tmp_path: Path, kind: str) -> None:
    """As where key groups come of several snapshots: what one of them has not given is given."""
    marks = ((0, 30), (1, 10), (2, 20))
    entries: list[Any] = [(key_of(group, MARK_END, 0), pack_mark(at)) for group, at in marks]
    backend = open_backend(kind, tmp_path / "state", ("panes",))
    backend.write({"panes": entries})
    nothing: Any = SimpleNamespace(schema=pa.schema([]))
    table = PaneTable("panes", backend, range(3), nothing, nothing, 1 << 20)
    if backend.keeps_all:
        table.adopt(entries)
    assert table.mark_us == 10
    backend.close()
