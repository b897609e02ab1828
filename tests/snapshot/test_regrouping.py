"""Another max_parallelism: the same files that a job has saved which had it from its first event on, of every state."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from strandline.api.states import TTL
from strandline.api.windows import Session, Sliding, Tumbling
from strandline.checkpoint.folder import folder_at
from strandline.core.errors import ConfigurationError, StateTypeError
from strandline.core.ids import Partition
from strandline.core.keygroups import BROADCAST_GROUPS, range_of
from strandline.format.manifest import Manifest, TableFile
from strandline.snapshot.opening.snapshot import open_snapshot
from strandline.snapshot.rows.codecs import has_rows, rows_of
from strandline.snapshot.rows.parquet import read_tables
from strandline.snapshot.savepoints.builder import SavepointBuilder
from strandline.snapshot.savepoints.savepoint import fetching
from strandline.snapshot.savepoints.tablewriter import TableWriter
from strandline.snapshot.tools.patch import Patch, make_patched
from strandline.snapshot.tools.regroup import regroup_marks
from strandline.snapshot.tools.transform import transform
from strandline.types.datatypes import parse_type
from strandline.types.murmur import key_group
from tests.checkpoint.helpers import manifest
from tests.runtime import test_broadcast as broadcast
from tests.runtime import test_joins as joins
from tests.runtime import test_times as times
from tests.runtime import windowed
from tests.runtime.aggregating import Aggregating
from tests.runtime.bench import Bench
from tests.runtime.living import Living, epoch, stored
from tests.snapshot.exporting import exported_here
from tests.snapshot.partitions import operator_info
from tests.snapshot.stateful import partition_of_entries
from tests.snapshot.test_building import OPERATOR, SEEN, place, seen
from tests.snapshot.test_patching import tables
from tests.snapshot.test_runtime_rows import ACCUMULATORS, ARRIVALS, EVENTS, ROWS, SET, SOME
from tests.soak import examples

__all__ = ["exported_here"]
MOST = [1, 2, 96, 128, 200, 512]
MODULES = ("tests.runtime.bench", "tests.runtime.aggregating", "tests.snapshot.strategies")


@contextmanager
def max_parallelism_of(most: int) -> Iterator[None]:
    """Have the tests' partitions and events be of this max_parallelism."""
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(f"{module}.MAX_PARALLELISM", most)
        yield


def functions(ttl: TTL | None, root: Path, epochs: Sequence[Any]) -> Bench:
    bench = Bench("memory", root, Living(ttl))
    for number, events in enumerate(epochs):
        epoch(bench, events, now_s=100 + 4 * number)
    return bench


def timers(_: None, root: Path, epochs: Sequence[Any]) -> Bench:
    bench = Bench("memory", root, times.Teller(), input_schema=times.EVENTS, output_schema=times.SAID, timed=True)
    for events in epochs:
        times.Stage(bench).epoch(times.timed(*((*event, 1) for event in events)))
    return bench


def aggregates(window: Any, root: Path, epochs: Sequence[Any]) -> Bench:
    bench = Aggregating("memory", root, window, 5, ACCUMULATORS)
    for rows, watermark in epochs:
        bench.epoch_of(rows, watermark=watermark)
    return bench


def buffers(how: Any, root: Path, epochs: Sequence[Any]) -> Bench:
    layout = joins.JoinColumns(joins.LEFTS, joins.RIGHTS, ("k",))
    bench, reached = joins.bench_of("memory", root, joins.IntervalJoin(layout, -3, 4, how), layout), 0
    for rows, watermark in epochs:
        reached = max(reached, watermark)
        joins.run(bench, rows, reached)
    return bench


def contents(window: Any, root: Path, epochs: Sequence[Any]) -> Bench:
    bench, reached = windowed.WindowBench("memory", root, window, windowed.joined(), lateness=5), 0
    for rows, watermark in epochs:
        reached = max(reached, watermark)
        bench.step(rows, reached)
    return bench


REACHED = st.none() | st.integers(0, 40)
AT = st.integers(0, 20)
JOBS: list[Any] = [
    (functions, None, EVENTS),
    (functions, TTL("20s"), EVENTS),
    (timers, None, st.lists(SET, max_size=5)),
    (aggregates, Tumbling("10s"), st.tuples(ROWS, REACHED)),
    (aggregates, Sliding("20s", every="5s"), st.tuples(ROWS, REACHED)),
    (aggregates, Session("5s"), st.tuples(ROWS, REACHED)),
    (buffers, "full", st.tuples(ARRIVALS, AT)),
    (contents, Sliding("20s", every="5s"), st.tuples(SOME, AT)),
    (contents, Session("5s"), st.tuples(SOME, AT)),
]


def checkpoint_of(bench: Bench) -> Manifest:
    """What a job of two partitions, or of one, would have published of this one's state."""
    operator, entries = operator_info(bench), stored(bench)
    parallelism = min(2, operator.max_parallelism)
    parts = [
        partition_of_entries(index, range_of(Partition(index), operator.max_parallelism, parallelism), entries)
        for index in range(parallelism)
    ]
    operator = structs.replace(operator, backend="memory", parallelism=parallelism, partitions=parts)
    return structs.replace(manifest(3), operators=[operator])


def saved(bench: Bench, root: Path) -> dict[str, list[TableFile]]:
    """The files that a savepoint of this partition has, by state."""
    operator, entries = operator_info(bench), stored(bench)
    found = {}
    for state in filter(has_rows, operator.states):
        codec = rows_of(operator, state)
        groups = BROADCAST_GROUPS if state.kind == "broadcast" else range(operator.max_parallelism)
        writer = TableWriter(codec.file_schema, groups, operator.max_parallelism, root)
        for batch in codec.decode_groups(iter(entries.get(state.name, []))):
            writer.write(batch)
        if files := writer.finish()[0]:
            found[f"{operator.uid}.{state.name}"] = [file.table for file in files]
    return found


def check(job: Callable[..., Bench], kind: Any, epochs: Sequence[Any], before: int, after: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        found = []
        for most in (before, after):
            (root / str(len(found))).mkdir()
            with max_parallelism_of(most):
                bench = job(kind, root / str(len(found)), epochs)
                try:
                    found.append((checkpoint_of(bench), saved(bench, root)))
                finally:
                    bench.close()
        made = make_patched(
            found[0][0], place(root, "job"), place(root, "after"), Patch(max_parallelism=after), scratch=root
        )
        assert tables(made) == found[1][1]
        assert [operator.max_parallelism for operator in made.operators] == [after]
        # The other way round, from the savepoint: what was there is there again.
        back = make_patched(
            made, place(root, "after"), place(root, "back"), Patch(max_parallelism=before), scratch=root
        )
        assert tables(back) == found[0][1]


@pytest.mark.parametrize(("job", "kind", "events"), JOBS, ids=lambda one: getattr(one, "__name__", None))
@given(data=st.data())
@examples(6)
def test_it_is_as_if_it_had_always_been_so(job: Any, kind: Any, events: Any, data: st.DataObject) -> None:
    epochs = data.draw(st.lists(events, max_size=4))
    check(job, kind, epochs, data.draw(st.sampled_from(MOST)), data.draw(st.sampled_from(MOST)))


def test_what_all_partitions_have_stays_as_it_is(tmp_path: Path) -> None:
    bench = broadcast.make("memory", tmp_path)
    bench.run(broadcast.batch([("a", 1), ("b", 2)], [("r", 1, 1), ("s", 2, 1)]))
    found, wanted = checkpoint_of(bench), saved(bench, tmp_path)
    bench.close()
    made = make_patched(
        found, place(tmp_path, "job"), place(tmp_path, "to"), Patch(max_parallelism=7), scratch=tmp_path
    )
    assert tables(made)["op.rules"] == wanted["op.rules"]
    assert tables(made).keys() == wanted.keys()


# -- marks: what a key group promises of its keys

SAID = st.dictionaries(st.integers(0, 11), st.integers(-3, 3))


@given(SAID, st.sets(st.integers(0, 11)), st.integers(1, 12), st.integers(1, 12))
@examples(200)
def test_no_key_is_promised_more_than_before(marks: dict[int, int], filled: set[int], before: int, after: int) -> None:
    marks = {group: mark for group, mark in marks.items() if group < before}
    filled = {group for group in filled if group < before}
    found = regroup_marks(marks, filled, before, after)
    for a_hash in range(before * after):
        mark = found.get(a_hash % after)
        if mark is not None and a_hash % before in {*marks, *filled}:
            assert mark <= marks[a_hash % before]
    if len(set(marks.values())) == 1 and len(marks) == before:
        assert found == dict.fromkeys(range(after), marks[0]), "what all promised, all promise"


@pytest.mark.parametrize("how", ["function", "function without key groups", "query"])
@pytest.mark.parametrize("after", [None, 512])
def test_who_leaves_out_rows_of_keys_does_not_leave_out_marks(tmp_path: Path, how: str, after: int | None) -> None:
    bench = aggregates(Sliding("20s", every="5s"), tmp_path, [([("a", 1, 1), ("b", 3, 1)], 2), ([("a", 30, 2)], 25)])
    found = checkpoint_of(bench)
    bench.close()
    before = make_patched(
        found, place(tmp_path, "job"), place(tmp_path, "before"), Patch(rename={"op.panes": "panes"}), scratch=tmp_path
    )
    wanted = make_patched(
        before, place(tmp_path, "before"), place(tmp_path, "wanted"), Patch(max_parallelism=after), scratch=tmp_path
    )

    def edit(rows: pa.RecordBatch) -> pa.RecordBatch:
        rows = rows.filter(pc.field("k") != "none of these")
        return rows if how == "function" else rows.drop_columns(["key_group"])

    query = transform(open_snapshot(str(tmp_path / "before")), "op.panes", "FROM rows WHERE k <> 'none of these'")
    change = {"sources": {"op.panes": query}} if how == "query" else {"edits": {"op.panes": edit}}
    made = make_patched(
        before, place(tmp_path, "before"), place(tmp_path, "after"), Patch(max_parallelism=after, **change),
        scratch=tmp_path,
    )  # fmt: skip
    assert sum(file.rows for file in tables(made)["op.panes"]) > (after or 128)
    assert tables(made) == tables(wanted)


# -- with other changes, and what is refused


@pytest.fixture
def before(tmp_path: Path) -> Manifest:
    other = structs.replace(OPERATOR, uid="other", parallelism=4, states=[SEEN])
    with SavepointBuilder(place(tmp_path, "before"), "job", [OPERATOR, other]) as builder:
        for uid in ("op", "other"):
            builder.write(uid, "seen", [seen(*((f"c{n}", n, n) for n in range(50)))])
        return builder.finish()


def patched(root: Path, manifest: Manifest, **given: Any) -> Manifest:
    return make_patched(manifest, place(root, "before"), place(root, "after"), Patch(**given), scratch=root)


def test_one_operator_and_rows_and_names_at_once(tmp_path: Path, before: Manifest) -> None:
    made = patched(
        tmp_path, before, max_parallelism={"op": 2}, rename={"op.seen": "count"},
        edits={"op.seen": lambda rows: rows.filter(pc.field("value") < 40)},
    )  # fmt: skip
    assert [(op.uid, op.max_parallelism, op.parallelism) for op in made.operators] == [("op", 2, 1), ("other", 128, 4)]
    assert tables(made)["other.seen"] == tables(before)["other.seen"]
    opening = fetching(folder_at(place(tmp_path, "after")), tmp_path)
    rows = pa.Table.from_batches(list(read_tables(tables(made)["op.count"], range(2), opening))).to_pydict()
    assert sorted(rows["value"]) == list(range(40))
    types = [parse_type("string"), parse_type("int")]
    keys = zip(rows["card"], rows["shop"], strict=True)
    assert rows["key_group"] == [key_group(key, types, 2) for key in keys]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"max_parallelism": 0}, "operator 'op': max_parallelism is 0, expected 1 to 32768"),
        ({"max_parallelism": 40_000}, "max_parallelism is 40000"),
        ({"max_parallelism": {"gone": 4}}, "max_parallelism names 'gone', .* there are: op, other"),
        (
            {"max_parallelism": 4, "edits": {"op.seen": lambda rows: rows.set_column(0, "key_group", pa.nulls(50, "i4"))}},
            "column 'key_group' .*it is null",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_leaves_nothing(
    tmp_path: Path, before: Manifest, given: dict[str, Any], why: str
) -> None:
    with pytest.raises((ConfigurationError, StateTypeError), match=why):
        patched(tmp_path, before, **given)
    assert not [path for path in (tmp_path / "after").rglob("*") if path.is_file()]
