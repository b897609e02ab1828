"""What differs between two snapshots, against what plain dicts say."""

from __future__ import annotations

import hashlib
import io
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from strandline.backends.heap import HEAP_FILE
from strandline.checkpoint.folder import folder_at
from strandline.core.keygroups import group_of, range_of
from strandline.format.heapfile import write_heap
from strandline.format.manifest import FileRef, Manifest, OlderSchema, OperatorInfo, PartitionInfo, StateInfo, TTLInfo
from strandline.snapshot.opening.snapshot import Snapshot
from strandline.snapshot.rows.codecs import rows_of
from strandline.snapshot.rows.parquet import table_of
from strandline.snapshot.tools.comparison import StateComparison
from strandline.snapshot.tools.diff import SnapshotDiff, StateDiff, by_group, diff_snapshots, unequal_groups
from strandline.storage.place import Place
from tests.checkpoint.helpers import manifest as manifest_of
from tests.runtime.bench import OPS, Model
from tests.runtime.rescaling import KEYS, Job
from tests.snapshot.strategies import Stored, list_states, pane_states, timer_states, value_states
from tests.soak import examples

HOUR = TTLInfo(duration_ms=3_600_000, refresh="write", time="processing")


def snapshot_of(manifest: Manifest, root: Path, path: str = "") -> Snapshot:
    place = Place(url=root.as_uri(), path=path)
    return Snapshot(manifest, folder_at(place), f"{root.as_uri()}/{path}", "", "checkpoint", "")


def made(root: Path, *states: tuple[StateInfo, Sequence[dict[str, Any]]], uid: str = "op", **given: Any) -> Snapshot:
    """Return a snapshot of one operator and one partition, whose states have these rows."""
    given = {"parallelism": 1, "max_parallelism": 128, "key_schema": "k string", **given}
    operator = OperatorInfo(uid=uid, backend="memory", states=[info for info, _ in states], partitions=[], **given)
    parts = []
    for index in range(operator.parallelism):
        groups, entries = range_of(index, operator.max_parallelism, operator.parallelism), []  # type: ignore[arg-type]
        for info, rows in states:
            codec = rows_of(operator, info)
            names = [name for name in codec.schema.names if name != "key_group" or info.kind == "broadcast"]
            table = pa.RecordBatch.from_pylist(list(rows), pa.schema([codec.schema.field(name) for name in names]))
            is_ours = info.kind == "broadcast" or operator.parallelism == 1
            found = [e for e in codec.encode(table) if is_ours or group_of(e[0]) in groups]
            entries.append((info.name, found))
        file = io.BytesIO()
        write_heap(file, sorted(entries))
        data = file.getvalue()
        ref = FileRef(name=HEAP_FILE, size=len(data), sha256=hashlib.sha256(data).hexdigest(), inline=data)
        parts.append(PartitionInfo(index=index, first_key_group=groups[0], last_key_group=groups[-1], files=[ref]))  # type: ignore[arg-type]
    manifest = structs.replace(manifest_of(1), operators=[structs.replace(operator, partitions=parts)])
    return snapshot_of(structs.replace(manifest, triggered_ms=1), root)


def value(name: str = "x", kind: str = "bigint", **given: Any) -> StateInfo:
    return StateInfo(name=name, kind="value", value_type=kind, **given)


def rows(**values: Any) -> list[dict[str, Any]]:
    return [{"k": key, "value": item} for key, item in values.items()]


def numbers(state: StateDiff) -> tuple[int, int, int]:
    return state.added, state.changed, state.removed


def only(found: SnapshotDiff) -> StateDiff:
    (state,) = found.states
    return state


# -- against a model


def test_two_lives_differ_as_their_models_do(tmp_path: Path) -> None:
    """At another parallelism, on another backend, with other chunks of lists."""
    lives, models = [], []
    for number, (parallelism, backend) in enumerate([(2, "rocksdb"), (3, "memory")]):
        (tmp_path / str(number)).mkdir()
        job, model, rng = Job(tmp_path / str(number)), Model(), random.Random(1)
        job.start(parallelism, backend)
        for epoch in range(6):
            events = [(key, rng.choice(OPS), rng.randrange(5), rng.randrange(5)) for key in KEYS[: 40 + 4 * epoch]]
            # What one of them does later makes the difference.
            events = [event for event in events if epoch < 4 or number == 0 or rng.random() < 0.8]
            job.run(events)
            for event in events:
                model.answer(*event)
        job.checkpoint()
        job.stop()
        lives.append(snapshot_of(job.manifest(), job.root / "storage", "job"))
        models.append(model)
    heard: list[tuple[int, int]] = []
    found = diff_snapshots(*lives, progress=lambda done, total: heard.append((done, total)))
    assert heard[-1] == (128, 128)
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    by_state = {state.state: numbers(state) for state in found.states}
    for state, ours in (("value", "value"), ("pair", "pair"), ("history", "list"), ("by_kind", "map"), ("top", "top")):
        before, after = ({k: s[ours] for k, s in m.keys.items() if s.get(ours) not in (None, [], {})} for m in models)
        changed = sum(before[key] != after[key] for key in before.keys() & after.keys())
        assert by_state[state] == (len(after.keys() - before.keys()), changed, len(before.keys() - after.keys()))
        assert sum(by_state[state]), "the test compares something"


_STATES = st.one_of(
    value_states(), timer_states(), list_states().map(lambda made: made[0]), pane_states().map(lambda made: made[0])
)


@examples(100)
@given(_STATES, st.randoms(use_true_random=False))
def test_keys_of_every_kind_and_type(one: Stored, rng: random.Random) -> None:
    codec = rows_of(one.operator, one.state)
    batches = list(codec.decode_groups(one.entries))
    comparison = StateComparison(one.operator, one.state, one.state, 3)
    for _, group in by_group(batches, lambda rows: None):
        assert comparison.compare(group, pa.concat_batches([group.slice(0, 1), group.slice(1)])) == (0, 0, 0)
        keys = [tuple(map(str, row)) for row in zip(*(group.column(n) for n in comparison._keys), strict=True)]
        taken = {key for key in set(keys) if rng.random() < 0.5 and key[0] != "None"}
        rest = group.filter(pa.array([key not in taken for key in keys]))
        assert comparison.compare(group, rest) == (0, 0, len(taken))
        assert comparison.compare(rest if rest.num_rows else None, group) == (len(taken), 0, 0)


# -- what is found


def test_keys_and_what_they_have(tmp_path: Path) -> None:
    before = made(tmp_path, (value(), rows(a=1, b=2, c=3)))
    after = made(tmp_path, (value(), rows(b=5, c=3, d=4)), parallelism=3)
    found = only(diff_snapshots(before, after, most_keys=9))
    assert numbers(found) == (1, 1, 1)
    shown = {key.key["k"]: (key.change, key.before, key.after) for key in found.keys}
    assert shown == {
        "a": ("removed", [{"value": 1}], []),
        "b": ("changed", [{"value": 2}], [{"value": 5}]),
        "d": ("added", [], [{"value": 4}]),
    }
    assert len(only(diff_snapshots(before, after, most_keys=2)).keys) == 2
    assert diff_snapshots(before, before).is_equal


def test_many_rows_of_a_key_are_shown_in_part(tmp_path: Path) -> None:
    info = StateInfo(name="x", kind="list", value_type="bigint")
    before = made(tmp_path, (info, [{"k": "a", "position": n, "value": n} for n in range(100)]))
    after = made(tmp_path, (info, [{"k": "a", "position": n, "value": n} for n in range(3)]))
    (key,) = only(diff_snapshots(before, after, most_keys=1)).keys
    assert (len(key.before), key.rows_before, key.rows_after) == (20, 97, 0)
    assert key.before[0] == {"position": 3, "value": 3}


def test_broadcast_state_is_one_map(tmp_path: Path) -> None:
    info = StateInfo(name="rules", kind="broadcast", value_type="double", key_type="string")
    before = made(tmp_path, (info, [{"map_key": "a", "value": 1.0}, {"map_key": "b", "value": 0.0}]), parallelism=2)
    after = made(tmp_path, (info, [{"map_key": "b", "value": -0.0}, {"map_key": "c", "value": math.nan}]))
    found = only(diff_snapshots(before, after, most_keys=9, sample=0.1))
    assert numbers(found) == (1, 1, 1), "of a sample, too, all of it is read; -0.0 is another value"
    assert [key.after for key in found.keys if key.change == "added"] == [[{"value": "nan"}]]
    assert diff_snapshots(after, after).is_equal


def test_what_only_one_has_is_named(tmp_path: Path) -> None:
    before = made(tmp_path, (value("x"), []), (value("old"), []))
    after = made(tmp_path, (value("x"), []), (value("new"), []))
    found = diff_snapshots(before, after)
    assert {(one.state, one.only) for one in found.states} == {("x", ""), ("old", "before"), ("new", "after")}
    assert not found.is_equal
    other = diff_snapshots(before, made(tmp_path, (value("x"), []), uid="other"))
    assert [(one.operator, one.state, one.only) for one in other.states] == [
        ("op", "", "before"),
        ("other", "", "after"),
    ]


@pytest.mark.parametrize(
    ("info", "given", "why"),
    [
        (StateInfo(name="x", kind="list", value_type="bigint"), {}, "its kind is list, was value"),
        (value(), {"max_parallelism": 256}, "its max_parallelism is 256, was 128"),
        (value(), {"key_schema": "k bigint"}, "its key is k bigint, was k string"),
    ],
)
def test_what_cannot_be_compared(tmp_path: Path, info: StateInfo, given: dict[str, Any], why: str) -> None:
    found = diff_snapshots(made(tmp_path, (value(), rows(a=1))), made(tmp_path, (info, []), **given))
    assert only(found).why_not == why
    assert not found.is_equal


def test_values_of_an_older_type_are_compared_as_the_newer_one(tmp_path: Path) -> None:
    before = made(tmp_path, (value(), rows(a=1, b=2)))
    newer = value(kind="struct<n: bigint>", schema_id=1, older={0: OlderSchema(value_type="bigint")})
    wider = value(kind="decimal(20,0)", schema_id=1, older={0: OlderSchema(value_type="bigint")})
    after = made(tmp_path, (wider, rows(a=1, b=3)))
    found = only(diff_snapshots(before, after, most_keys=1))
    assert numbers(found) == (0, 1, 0)
    assert found.notes == (
        "its type is decimal(20,0), was bigint: values were compared as those of the newer type",
    )  # fmt: skip
    assert (found.keys[0].before, found.keys[0].after) == ([{"value": "2"}], [{"value": "3"}])
    assert numbers(only(diff_snapshots(after, before))) == (0, 1, 0)
    unknown = structs.replace(newer, older={})
    found = only(diff_snapshots(before, made(tmp_path, (unknown, rows(a={"n": 1}, c={"n": 2})))))
    assert numbers(found) == (1, 0, 1), "keys are compared, values are not"
    assert "were not compared" in found.notes[0]


def test_a_ttl_that_came_is_told_and_times_are_compared_where_both_have_one(tmp_path: Path) -> None:
    one, other = ([{"k": "a", "value": 1, "expires_at": at}] for at in (2_000, 3_000))
    before, after = (made(tmp_path, (value(ttl=HOUR), found)) for found in (one, other))
    assert numbers(only(diff_snapshots(before, after))) == (0, 1, 0)
    plain = only(diff_snapshots(made(tmp_path, (value(), rows(a=1))), after))
    assert (numbers(plain), plain.notes) == ((0, 0, 0), ("it has a TTL",))
    late = structs.replace(after.manifest, triggered_ms=3)
    expired = only(diff_snapshots(before, snapshot_of(late, tmp_path)))
    assert numbers(expired) == (0, 0, 1), "what had expired is no row"


# -- samples, and files of equal names


def test_a_sample_is_the_same_each_time(tmp_path: Path) -> None:
    before = made(tmp_path, (value(), [{"k": f"k{n}", "value": n} for n in range(2000)]))
    after = made(tmp_path, (value(), [{"k": f"k{n}", "value": n if n % 4 else -1} for n in range(1900)]))
    found = diff_snapshots(before, after, sample=0.2)
    assert (found.groups_read, found.groups) == (26, 128)
    assert found == diff_snapshots(before, after, sample=0.2)
    state = only(found)
    assert 300 < state.rows_before < 500, "a fifth of the rows"
    assert 0 < state.changed < 475
    assert 0 < state.removed < 100
    assert diff_snapshots(before, after, sample=0.001).groups_read == 1


def test_where_tables_may_differ() -> None:
    def table(name: str, first: int, last: int) -> Any:
        return table_of(first, last, 1, FileRef(name=name, size=1, sha256=name, path=name))

    same, shared = table("same", 0, 3), table("split-1", 9, 9)
    one = [same, table("a", 4, 5), shared, table("split-2", 9, 9)]
    other = [same, table("b", 5, 7), shared, table("split-3", 9, 9)]
    assert unequal_groups(one, other) == {4, 5, 6, 7, 9}
    assert unequal_groups(one, one) == set()
    assert unequal_groups(one, []) == {0, 1, 2, 3, 4, 5, 9}
