"""Savepoints made of other snapshots: some rows changed, states gone or called something else, and nothing besides."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec import structs

from strandline.checkpoint.folder import folder_at
from strandline.core.errors import ConfigurationError, CorruptionError, StateTypeError, UserCodeError
from strandline.format.manifest import FileRef, Manifest, SinkInfo, SourceInfo, TableFile
from strandline.snapshot.opening.snapshot import open_snapshot
from strandline.snapshot.rows.parquet import read_tables
from strandline.snapshot.savepoints.builder import SavepointBuilder
from strandline.snapshot.savepoints.savepoint import fetching
from strandline.snapshot.savepoints.take import take_savepoint
from strandline.snapshot.tools.patch import Edit, Patch, make_patched
from strandline.snapshot.tools.transform import fitting
from tests.runtime.bench import OPS
from tests.runtime.rescaling import KEYS, Job
from tests.snapshot.exporting import exported_here
from tests.snapshot.helpers import tree
from tests.snapshot.test_building import OPERATOR, SEEN, place, seen

__all__ = ["exported_here"]

SOURCES = FileRef(name="source", size=3, sha256=hashlib.sha256(b"abc").hexdigest(), path="files/abc")


@pytest.fixture
def before(tmp_path: Path) -> Manifest:
    """A savepoint `before` with both states, and what belongs to a job besides."""
    with SavepointBuilder(
        place(tmp_path, "before"),
        "job",
        [OPERATOR],
        watermarks={"watermark": 5},
    ) as builder:
        builder.write("op", "seen", [seen(*((f"c{n}", n, n) for n in range(50)))])
        times = pa.array([1, 1], pa.timestamp("us", "UTC"))
        builder.write(
            "op", "short", [seen(("a", 1, 1), ("a", 1, 2), value=["x", "y"], position=[0, 1], expires_at=times)]
        )
        builder.folder.put(SOURCES.path, b"abc")
        builder.manifest = structs.replace(
            builder.manifest, source=SourceInfo(batch=7, blob=SOURCES), sinks=[SinkInfo(name="out", pending=["one"])]
        )
        return builder.finish()


def patched(root: Path, manifest: Manifest, source: str = "before", **given: Any) -> Manifest:
    return make_patched(manifest, place(root, source), place(root, "after"), Patch(**given), scratch=root)


def tables(manifest: Manifest) -> dict[str, list[TableFile]]:
    return {f"{op.uid}.{name}": files for op in manifest.operators for name, files in (op.tables or {}).items()}


def values(root: Path, manifest: Manifest, name: str) -> dict[str, Any]:
    opening = fetching(folder_at(place(root, "after")), root)
    rows = pa.Table.from_batches(list(read_tables(tables(manifest)[name], range(128), opening)))
    return dict(zip(rows["card"].to_pylist(), rows["value"].to_pylist(), strict=True))


def test_rows_are_changed_and_deleted_and_all_else_stays(tmp_path: Path, before: Manifest) -> None:
    def edit(rows: pa.RecordBatch) -> pa.RecordBatch:
        rows = rows.filter(pc.field("shop") < 40)
        return rows.set_column(rows.schema.get_field_index("value"), "value", pc.add(rows["value"], 1000))

    after = patched(tmp_path, before, edits={"op.seen": edit})
    assert open_snapshot(str(tmp_path / "after")).manifest == after
    assert values(tmp_path, after, "op.seen") == {f"c{n}": n + 1000 for n in range(40)}
    assert tables(after)["op.short"] == tables(before)["op.short"]
    same = ("job", "life", "checkpoint", "epoch", "generation", "source", "sinks", "watermarks")
    assert all(getattr(after, name) == getattr(before, name) for name in same)
    # Of what was replaced, nothing is there; what it was made of is as it was.
    assert tree(tmp_path / "after").keys() == {"_metadata", *(file.path for file in after.files())}
    assert open_snapshot(str(tmp_path / "before")).manifest == before


def test_what_is_not_changed_is_the_same_and_keys_may_change(tmp_path: Path, before: Manifest) -> None:
    def other_keys(rows: pa.RecordBatch) -> pa.Table:
        cards = pc.binary_join_element_wise("new-", rows["card"], "")
        return pa.Table.from_batches([rows.drop_columns(["key_group"]).set_column(0, "card", cards)])

    same = patched(tmp_path, before)
    assert tables(same) == tables(before)
    after = make_patched(before, place(tmp_path, "before"), place(tmp_path, "other"), Patch({"op.seen": other_keys}))
    assert sum(file.rows for file in tables(after)["op.seen"]) == 50


def test_states_and_operators_go_and_are_renamed(tmp_path: Path, before: Manifest) -> None:
    after = patched(tmp_path, before, drop=["op.short"], rename={"op": "detect", "op.seen": "count"})
    (operator,) = after.operators
    assert (operator.uid, [state.name for state in operator.states]) == ("detect", ["count"])
    # Files have the names of operator and state: renamed back, they are what they were.
    (count,) = tables(after)["detect.count"]
    assert count.file.path.startswith("data/detect.count-")
    assert [path.name for path in (tmp_path / "after" / "data").iterdir()] == [count.file.name]
    back = Patch(rename={"detect": "op", "detect.count": "seen"})
    again = make_patched(after, place(tmp_path, "after"), place(tmp_path, "back"), back)
    assert tables(again) == {"op.seen": tables(before)["op.seen"]}
    gone = make_patched(before, place(tmp_path, "before"), place(tmp_path, "gone"), Patch(drop=["op"]))
    assert gone.operators == []
    assert open_snapshot(str(tmp_path / "gone")).manifest.source == before.source


def test_rows_that_are_given_replace_those_that_were_there(tmp_path: Path, before: Manifest) -> None:
    after = patched(
        tmp_path, before, rename={"op.seen": "count"},
        writes={"op.seen": lambda builder, operator, state: builder.write(operator.uid, state.name, [seen(("z", 1, 2))])},
    )  # fmt: skip
    assert values(tmp_path, after, "op.count") == {"z": 2}


def raises(rows: pa.RecordBatch) -> None:
    raise KeyError("value")


@pytest.mark.parametrize(
    ("given", "kind", "why"),
    [
        ({"edits": {"op.gone": raises}}, ConfigurationError, r"no state 'op.gone'; there are: op.seen, op.short"),
        ({"drop": ["op.gone"]}, ConfigurationError, r"drop names 'op.gone', .* there are: op, op.seen, op.short"),
        ({"rename": {"gone": "x"}}, ConfigurationError, "rename names 'gone'"),
        ({"rename": {"op.seen": "short"}}, ConfigurationError, "several states of operator 'op' called 'short'"),
        ({"rename": {"op": " "}}, ConfigurationError, "operators without a name"),
        ({"edits": {"op.seen": raises}, "drop": ["op"]}, ConfigurationError, "is to be changed, and drop names it"),
        ({"edits": {"op.seen": raises}}, UserCodeError, "changes 'op.seen' has raised KeyError: 'value'"),
        ({"edits": {"op.seen": lambda rows: 5}}, UserCodeError, "returned a int"),
        ({"edits": {"op.seen": lambda rows: rows.select(["card"])}}, StateTypeError, "its table has the columns"),
        (
            {"edits": {"op.seen": lambda rows: pa.concat_batches([rows, rows])}},
            StateTypeError, "does not fit: there is more than one row of it",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    tmp_path: Path, before: Manifest, given: dict[str, Any], kind: type[Exception], why: str
) -> None:
    with pytest.raises(kind, match=why):
        patched(tmp_path, before, **given)
    assert not [path for path in (tmp_path / "after").rglob("*") if path.is_file()]


MOMENT = dt.datetime(2024, 1, 1, 5)


@pytest.mark.parametrize(
    ("kind", "given", "wanted"),
    [
        ("decimal(10,2)", [1.15, None, -3.07], [Decimal("1.15"), None, Decimal("-3.07")]),
        ("decimal(10,2)", [1.155], None),
        ("float", [0.5, math.inf], [0.5, math.inf]),
        ("float", [1e300], None),
        ("date", [dt.datetime(2024, 1, 1)], [dt.date(2024, 1, 1)]),
        ("date", [MOMENT], None),
        ("timestamp", [MOMENT], [MOMENT.replace(tzinfo=dt.UTC)]),
        ("boolean", [1, 0], [True, False]),
        ("boolean", [2], None),
        ("double", [Decimal("12345678901234567890.5")], None),
        ("struct<a: int, b: float>", [{"b": 0.5, "a": 1}, None], [{"a": 1, "b": 0.5}, None]),
        ("struct<a: int, b: int>", [{"a": 1}], None),
        ("struct<a: int>", [{"a": 1, "b": 1}], None),
        ("array<struct<a: int, b: int>>", [[{"a": 1, "bb": 2}]], None),
        ("map<int, struct<a: int, b: date>>", [[(1, {"a": 1, "b": MOMENT})]], None),
    ],
)
def test_a_query_s_value_is_refused_that_would_become_another_one(kind: str, given: list[Any], wanted: Any) -> None:
    state = structs.replace(SEEN, value_type=kind)
    pairs = pa.map_(pa.int64(), pa.struct([("a", pa.int64()), ("b", pa.timestamp("us"))]))
    batch = pa.record_batch({"value": pa.array(given, pairs if kind.startswith("map") else None)})
    if wanted is None:
        with pytest.raises(StateTypeError, match=r"the column 'value' is .*, and cannot become .* without a change"):
            list(fitting(OPERATOR, state, [batch]))
    else:
        (found,) = fitting(OPERATOR, state, [batch])
        assert found.column(0).to_pylist() == wanted


def test_a_damaged_savepoint_is_not_taken_over(tmp_path: Path, before: Manifest) -> None:
    path = tmp_path / "before" / tables(before)["op.seen"][0].file.path
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    edit: Edit = lambda rows: rows  # noqa: E731
    with pytest.raises(CorruptionError, match=r"\.parquet"):
        patched(tmp_path, before, edits={"op.seen": edit})
    assert not [found for found in (tmp_path / "after").rglob("*") if found.is_file()]


def test_a_checkpoint_and_a_native_savepoint_are_patched_too(tmp_path: Path) -> None:
    rng, job = random.Random(5), Job(tmp_path)
    job.start(2, "rocksdb")
    job.run([(key, rng.choice(OPS), rng.randrange(5), rng.randrange(5)) for key in KEYS])
    job.checkpoint()
    job.stop()
    source = place(tmp_path / "storage", "job")
    manifest = job.manifest()
    wanted = take_savepoint(manifest, source, place(tmp_path, "taken"))
    native = take_savepoint(manifest, source, place(tmp_path, "native"), "native")
    name = max(tables(wanted), key=lambda name: sum(file.rows for file in tables(wanted)[name]))
    for form, given, at in (("checkpoint", manifest, source), ("native", native, place(tmp_path, "native"))):
        target = place(tmp_path, f"after-{form}")
        after = make_patched(given, at, target, Patch({name: lambda rows: None}), scratch=tmp_path)
        assert after.savepoint == "canonical"
        assert tables(after) == {state: files for state, files in tables(wanted).items() if state != name}, form
    assert SEEN.kind == "value"
