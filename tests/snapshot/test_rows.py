"""Entries of states, their rows, and entries again: any types, any order, cut anywhere; and what is refused."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import ConfigurationError, CorruptionError, StateTypeError
from strandline.format.keys import KeyCodec
from strandline.format.manifest import StateInfo, TTLInfo
from strandline.format.schemas import Schemas
from strandline.format.values import ExpiringCodec, ValueCodec
from strandline.runtime.state.panebytes import MARK_END, PaneCodec, key_of, pack_mark
from strandline.snapshot.rows import codec as rowcodec
from strandline.snapshot.rows.codecs import has_rows, rows_of
from strandline.types.columns import to_python
from strandline.types.datatypes import parse_schema, parse_type
from strandline.types.murmur import key_group
from tests.format.strategies import same
from tests.snapshot.strategies import (
    Entries,
    Stored,
    list_states,
    operator_of,
    pane_states,
    timer_states,
    value_states,
)
from tests.soak import examples

KEYS = parse_schema("card string, day date")
HOUR = TTLInfo(duration_ms=3_600_000, refresh="write", time="event")


def codec_of(kind: str, value_type: str, *, keys: str = "id bigint", **given: Any) -> Any:
    state = StateInfo(name="s", kind=kind, value_type=value_type, **given)
    return rows_of(operator_of(parse_schema(keys), state), state)


def rows_like(codec: Any, *rows: tuple[Any, ...]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, codec.schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=codec.schema)


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Iterator[None]:
    """Cut streams of entries everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rowcodec, "_PART_ENTRIES", 2)
        patch.setattr(rowcodec, "_READ_ENTRIES", 1)
        yield


def check_round_trip(stored: Stored, wanted: Entries, draw: st.DataObject) -> pa.RecordBatch:
    """Check that entries give rows that give the wanted entries: at once, in any order, and cut anywhere."""
    codec = rows_of(stored.operator, stored.state)
    rows = codec.decode(stored.entries)
    rows.validate(full=True)
    assert rows.schema == codec.schema
    wanted = readable(stored, wanted)
    assert readable(stored, codec.encode(rows)) == wanted
    order = draw.draw(st.permutations(range(rows.num_rows)))
    assert readable(stored, codec.encode(rows.take(pa.array(order, pa.int64())))) == wanted
    parts = list(codec.decode_groups(iter(stored.entries)))
    assert readable(stored, [entry for part in codec.encode_groups(parts) for entry in part]) == wanted
    seen: set[int | None] = set()
    for part in parts:
        groups = set(part.column(0).to_pylist())
        # Whole key groups, or a part of one.
        assert len(groups) == 1 or not groups & seen
        seen |= groups
    cuts = sorted(draw.draw(st.lists(st.integers(0, rows.num_rows), max_size=3)))
    pieces = [rows.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, rows.num_rows], strict=True)]
    assert readable(stored, [entry for some in codec.encode_groups(pieces) for entry in some]) == wanted
    return rows


def readable(stored: Stored, entries: Entries) -> list[Any]:
    """Return entries such that equal ones are equal: Arrow's bytes also say how batches were cut."""
    if stored.state.kind != "panes":
        return list(entries)
    panes = PaneCodec("s", parse_type(stored.state.value_type), Schemas())  # type: ignore[arg-type]
    is_mark = [key[2:10] == b"\0" * 8 for key, _ in entries]
    return [
        (key, value if mark else repr(panes.read(value).to_pylist()))
        for (key, value), mark in zip(entries, is_mark, strict=True)
    ]


@given(value_states(), st.data())
def test_values_maps_and_broadcast_state(stored: Stored, draw: st.DataObject) -> None:
    rows = check_round_trip(stored, stored.entries, draw)
    assert rows.num_rows == len(stored.entries)


@given(timer_states(), st.data())
def test_timers(stored: Stored, draw: st.DataObject) -> None:
    rows = check_round_trip(stored, stored.entries, draw)
    assert rows.num_rows == len(stored.entries)


@given(list_states(), st.data())
def test_lists(lists: tuple[Stored, Entries], draw: st.DataObject) -> None:
    stored, joined = lists
    check_round_trip(stored, joined, draw)


def test_rows_of_a_list_are_its_elements_whatever_its_chunks() -> None:
    codec = codec_of("list", "string", ttl=HOUR)
    keys, number, values = (
        KeyCodec([parse_type("bigint")]),
        KeyCodec([parse_type("bigint")]),
        ValueCodec(parse_type("array<string>")),
    )
    one, other = keys.encode(5, 1), keys.encode(5, 2)
    head = ExpiringCodec(values).encode((3_600_000_001, []))
    entries = [
        (one + number.encode_sub(-1), head),
        (one + number.encode_sub(17), values.encode(["a", "b"])),
        (one + number.encode_sub(30), values.encode(["c"])),
        (other + number.encode_sub(2), values.encode(["d"])),
    ]
    at = dt.datetime(1970, 1, 1, 1, 0, 0, 1, dt.UTC)
    found = [tuple(row.values()) for row in codec.decode(entries).to_pylist()]
    assert found == [(5, 1, 0, "a", at), (5, 1, 1, "b", at), (5, 1, 2, "c", at), (5, 2, 0, "d", None)]
    again = codec.encode(codec.decode(entries))
    assert [key for key, _ in again] == [
        one + number.encode_sub(-1),
        one + number.encode_sub(0),
        other + number.encode_sub(0),
    ]
    # A sixteenth of the hour is the step of the cleaning.
    step = 225_000_000
    due = (-(-3_600_000_001 // step) * step + (1 << 63)).to_bytes(8, "big")
    assert codec.cleaning == "ttl.event"
    assert codec.cleaning_of(again) == [(one[:2] + due + b"s\0" + one[2:], b"\0\0")]


@pytest.mark.parametrize(("kind", "chunks"), [("list", 2), ("value", 1)])
def test_a_batch_holds_whole_key_groups_or_a_part_of_one(
    kind: str, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rowcodec, "_READ_ENTRIES", 5)
    keys, is_list = KeyCodec([parse_type("bigint")]), kind == "list"
    value = (
        ValueCodec(parse_type("array<bigint>")).encode([1]) if is_list else ValueCodec(parse_type("bigint")).encode(1)
    )
    entries, groups = [], []
    for group, count in enumerate((7, 1, 1, 2)):
        for key, number in itertools.product(range(count), range(chunks)):
            entries.append((keys.encode(group, key) + (keys.encode_sub(number) if is_list else b""), value))
            groups.append(group)
    parts = [part.column(0).to_pylist() for part in codec_of(kind, "bigint").decode_groups(entries)]
    assert list(itertools.chain(*parts)) == groups
    for one, other in itertools.permutations(parts, 2):
        assert len(set(one)) == 1 or not {*one} & {*other}, parts


def test_rows_of_panes_are_merged_and_in_the_order_of_keys() -> None:
    merge = {"n": "sum", "last": "last_valid"}
    codec = codec_of("panes", "struct<id:bigint,n:bigint,last:string>", merge=merge)
    panes = PaneCodec("panes", parse_schema("id bigint, n bigint, last string"), Schemas())

    def pane(*rows: tuple[Any, ...]) -> bytes:
        columns = [pa.array(list(c)) for c in zip(*rows, strict=True)]
        return panes.pack(pa.RecordBatch.from_arrays(columns, schema=panes.schema))

    entries = [
        (key_of(3, MARK_END, 0), pack_mark(9)),
        (key_of(3, 10, 4), pane((2, 1, "x"), (-1, 1, "y"))),
        (key_of(3, 10, 7), pane((2, 4, "z"))),
        (key_of(3, 20, 7), pane((-1, 8, None))),
        (key_of(4, MARK_END, 0), pack_mark(9)),
    ]
    rows = codec.decode(entries)
    found = [(r["key_group"], r["id"], r["window_end"].microsecond, r["value"]) for r in rows.to_pylist()]
    assert found == [
        (3, None, 9, None),
        (3, -1, 10, {"n": 1, "last": "y"}),
        (3, -1, 20, {"n": 8, "last": None}),
        (3, 2, 10, {"n": 5, "last": "z"}),
        (4, None, 9, None),
    ]
    again = codec.encode(rows)
    assert [key for key, _ in again] == [entries[0][0], key_of(3, 10, 0), key_of(3, 20, 0), entries[4][0]]
    assert codec.decode(again).equals(rows)
    assert codec.encode(rows.take(pa.array([4, 3, 2, 1, 0]))) == again
    assert [e for some in codec.encode_groups([rows.slice(0, 2), rows.slice(2)]) for e in some] == again
    assert pa.concat_batches(list(codec.decode_groups(entries))).equals(rows)


@given(pane_states(), st.data())
@examples(40)
def test_panes(panes: tuple[Stored, dict[tuple[bytes, int], tuple[int, Any]]], draw: st.DataObject) -> None:
    stored, wanted = panes
    codec = rows_of(stored.operator, stored.state)
    rows = codec.decode(stored.entries)
    rows.validate(full=True)
    marked = rows.column("value").is_null()
    there = rows.filter(pc.invert(marked))
    keys = KeyCodec(codec._key_types).encode_arrow(there.column(0), there.columns[1:-2])
    ends = there.column("window_end").view(pa.int64()).to_pylist()
    at = list(zip(keys, ends, strict=True))
    assert at == sorted(wanted)
    numbers, lasts, _ = there.column("value").flatten()
    assert numbers.to_pylist() == [wanted[one][0] for one in at]
    kind = parse_type(stored.state.value_type).fields[-2].type  # type: ignore[attr-defined]
    assert same(to_python(lasts, kind), [wanted[one][1] for one in at])
    encoded = codec.encode(rows)
    check_round_trip(Stored(stored.operator, stored.state, encoded), encoded, draw)
    marks = [entry for entry in stored.entries if entry[0][2:10] == b"\0" * 8]
    assert [entry for entry in encoded if entry[0][2:10] == b"\0" * 8] == marks
    parts = list(codec.decode_groups(stored.entries))
    assert [entry for part in codec.encode_groups(parts) for entry in readable(stored, part)] == readable(
        stored, encoded
    )


@pytest.mark.parametrize("store_schema", [True, False])
@given(st.one_of(value_states(), timer_states(), list_states().map(itemgetter(0))))
@examples(60)
def test_rows_come_back_from_parquet(store_schema: bool, stored: Stored) -> None:
    codec = rows_of(stored.operator, stored.state)
    rows = codec.decode(stored.entries)
    sink = pa.BufferOutputStream()
    # Without the schema it is as other writers have it.
    pq.write_table(pa.Table.from_batches([rows]), sink, store_schema=store_schema)
    found = pq.read_table(pa.BufferReader(sink.getvalue())).combine_chunks().to_batches()
    assert [entry for batch in found for entry in codec.encode(batch)] == codec.encode(rows)


def test_what_has_expired_can_be_left_out() -> None:
    for time, by in (("event", "watermark_us"), ("processing", "now_us")):
        ttl = TTLInfo(duration_ms=1, refresh="read", time=time)
        state = StateInfo(name="s", kind="value", value_type="bigint", ttl=ttl)
        operator = operator_of(parse_schema("id bigint"), state)
        keys = KeyCodec([parse_type("bigint")]).encode_many([1, 1, 1], [1, 2, 3])
        values = ExpiringCodec(ValueCodec(parse_type("bigint"))).encode_many([(5, 10), (6, 20), (None, 30)])
        entries = list(zip(keys, values, strict=True))
        for until, wanted in ((4, [10, 20, 30]), (5, [20, 30]), (6, [30])):
            assert rows_of(operator, state, **{by: until}).decode(entries).column("value").to_pylist() == wanted
        other = {"watermark_us", "now_us"}.difference([by]).pop()
        assert rows_of(operator, state, **{other: 9}).decode(entries).num_rows == 3


def test_key_columns_that_are_named_like_ours() -> None:
    codec = codec_of("map", "string", key_type="string", keys="Value bigint, position string, id bigint")
    assert codec.schema.names == ["key_group", "key_Value", "key_position", "id", "map_key", "value"]


def test_the_cleanings_own_states_are_no_tables() -> None:
    state = StateInfo(name="ttl.event", kind="ttl", value_type="")
    assert not has_rows(state)
    with pytest.raises(ConfigurationError, match=r"operator 'op', state 'ttl\.event': there is no table"):
        rows_of(operator_of(KEYS, state), state)


AT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
REFUSED: list[tuple[Any, list[tuple[Any, ...]], str, str, int]] = [
    (codec_of("value", "bigint"), [(1, 1, 5), (1, 2, None)], "value", "it is null", 1),
    (codec_of("value", "bigint"), [(1, 1, 5), (1, None, 5)], "id", "it is null", 1),
    (codec_of("value", "bigint"), [(1, 1, 5), (None, 2, 5)], "key_group", "it is null", 1),
    (codec_of("value", "bigint"), [(1, 1, 5), (128, 2, 5)], "key_group", "it is 128, expected 0 to 127", 1),
    (codec_of("value", "bigint"), [(1, 1, 5), (2, 2, 5), (1, 1, 6)], "id", "row 0 has the same key", 2),
    (codec_of("value", "double", keys="x double"), [(1, 0.0, 5), (1, -0.0, 6)], "x", "row 0 has the same key", 1),
    (codec_of("map", "bigint", key_type="string"), [(1, 1, "a", 5), (1, 2, None, 5)], "map_key", "it is null", 1),
    (codec_of("broadcast", "bigint", key_type="string"), [(None, "a", 5), (1, "b", 5)], "key_group", "no key group", 1),
    (codec_of("list", "bigint"), [(1, 1, 0, 5), (1, 1, 1, None)], "value", "it is null", 1),
    (codec_of("list", "bigint"), [(1, 1, 0, 5), (1, 1, 0, 6)], "id", "row 0 has the same key", 1),
    (codec_of("timers", ""), [(1, 1, AT), (1, 1, None)], "time", "it is null", 1),
    (codec_of("panes", "struct<id:bigint,n:bigint>"), [(1, 1, AT, {"n": 1}), (1, None, AT, {"n": 1})], "id", "a mark", 1),
    (codec_of("panes", "struct<id:bigint,n:bigint>"), [(1, 1, AT, {"n": 1}), (1, 1, AT, None)], "value", "a mark", 1),
    (codec_of("value", "map<string,bigint>"), [(1, 1, []), (1, 2, [("a", 1), ("a", 2)])], "value", "more than once", 1),
    (codec_of("list", "map<string,bigint>"), [(1, 1, 0, []), (1, 1, 1, [("a", 1), ("a", 2)])], "value", "more than once", 1),
]  # fmt: skip


def test_elements_of_a_list_may_expire_one_by_one() -> None:
    """A chunk for those that do together; a list of which all do has a head; what has expired is no row."""
    codec = codec_of("list", "bigint", ttl=HOUR)
    late, later = AT + dt.timedelta(hours=1), AT + dt.timedelta(hours=2)
    times = {1: [AT, AT, None, late, AT], 2: [late, late], 3: [None], 4: [later, None]}
    rows = [(1, key, place, 10 * key + place, at) for key, some in times.items() for place, at in enumerate(some)]
    entries = codec.encode(rows_like(codec, *rows))
    assert codec.decode(entries).to_pylist() == rows_like(codec, *rows).to_pylist()
    numbers = [int.from_bytes(key[-8:], "big") - (1 << 63) for key, _ in entries]
    assert numbers == [0, 1, 2, 3, -1, 0, 0, 0, 1]
    assert len(codec.cleaning_of(entries)) == 5
    state = StateInfo(name="s", kind="list", value_type="bigint", ttl=HOUR)
    after = rows_of(
        operator_of(parse_schema("id bigint"), state), state, now_us=0, watermark_us=int(late.timestamp() * 1e6)
    )
    left = [tuple(row.values()) for row in after.decode(entries).to_pylist()]
    assert left == [(1, 1, 0, 12, None), (1, 3, 0, 30, None), (1, 4, 0, 40, later), (1, 4, 1, 41, None)]


@pytest.mark.parametrize("at", range(len(REFUSED)))
def test_rows_that_do_not_fit(at: int) -> None:
    codec, rows, column, why, row = REFUSED[at]
    with pytest.raises(
        StateTypeError, match=rf"operator 'op', state 's': row {row}, column '{column}'.*{why}"
    ) as caught:
        codec.encode(rows_like(codec, *rows))
    assert (caught.value.fields["column"], caught.value.fields["row"]) == (column, row)


def test_columns_that_do_not_fit() -> None:
    codec = codec_of("value", "int")
    groups, ids = pa.array([1, 1], pa.int32()), pa.array([1, 2])
    ok = pa.RecordBatch.from_arrays(
        [pa.array([7, 8]), ids, groups.cast(pa.int64())], names=["value", "id", "key_group"]
    )
    assert codec.decode(codec.encode(ok)).column("value").to_pylist() == [7, 8]
    wide = pa.RecordBatch.from_arrays([groups, ids, pa.array([7, 1 << 40])], names=["key_group", "id", "value"])
    with pytest.raises(StateTypeError, match=r"row 1, column 'value' does not fit: .*1099511627776"):
        codec.encode(wide)
    with pytest.raises(StateTypeError, match="row 0, column 'value' does not fit: expected an Arrow column of int"):
        codec.encode(wide.set_column(2, "value", pa.array(["a", "b"])))
    with pytest.raises(StateTypeError, match="has the columns key_group, id, value; the rows have key_group, id"):
        codec.encode(wide.drop_columns(["value"]))
    moments = codec_of("value", "struct<at:timestamp>")
    rows = pa.RecordBatch.from_arrays(
        [
            groups,
            ids,
            pa.array([{"at": 0}, {"at": 1 << 62}], pa.struct([pa.field("at", pa.int64())])).cast(
                moments.schema[2].type
            ),
        ],
        schema=moments.schema,
    )
    with pytest.raises(StateTypeError, match=r"row 1, column 'value' does not fit: .* outside the years 1 to 9999"):
        moments.encode(rows)


def test_key_groups_follow_from_keys() -> None:
    codec = codec_of("value", "bigint", keys="card string, n int")
    keys = [("a", 1), ("b", 2), ("", -1)]
    rows = rows_like(codec, *((int(key_group(k, codec._key_types, 128)), *k, 5) for k in keys))
    wanted = codec.encode(codec.check(rows))
    assert codec.encode(rows.drop_columns(["key_group"])) == wanted
    wrong = rows.set_column(0, "key_group", pa.array([rows[0][0].as_py(), 1, 2], pa.int32()))
    assert len(codec.encode(wrong)) == 3
    with pytest.raises(
        StateTypeError, match=r"row 1, column 'key_group' does not fit: it is 1, and the key's is \d+ of 128"
    ):
        codec.check(wrong)
    panes = codec_of("panes", "struct<id:bigint,n:bigint>")
    mark = rows_like(panes, (7, None, AT, None))
    assert len(panes.encode(panes.check(mark))) == 1
    rules = codec_of("broadcast", "bigint", key_type="string")
    assert rules.encode(rows_like(rules, (None, "a", 1)).drop_columns(["key_group"]))[0][0].startswith(b"\xff\xff")


def test_rows_out_of_order_are_refused_across_batches() -> None:
    codec = codec_of("list", "bigint")
    rows = rows_like(codec, (1, 1, 0, 5), (2, 1, 0, 5), (1, 1, 1, 6))
    with pytest.raises(StateTypeError, match="rows are not in order"):
        list(codec.encode_groups([rows.slice(0, 2), rows.slice(2)]))


def test_lists_are_encoded_a_key_at_a_time_however_large_their_key_group_is() -> None:
    codec = codec_of("list", "string", keys="id bigint")
    lists = [rows_like(codec, *((5, n, at, f"{n}.{at}") for at in range(3))) for n in range(4)]
    rows = pa.concat_batches(lists)
    wanted, given = codec.encode(rows), 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal given
        for at in range(rows.num_rows):
            given += 1
            yield rows.slice(at, 1)

    found, ends = [], []
    for some in codec.encode_groups(batches()):
        found += some
        ends.append(given)
    assert found == wanted
    assert ends == [4, 7, 10, 12], "no more than a list waits for its end"


def test_damaged_entries_are_no_rows() -> None:
    codec = codec_of("value", "string")
    key, value = KeyCodec([parse_type("bigint")]).encode(1, 1), ValueCodec(parse_type("string")).encode("a")
    for entry in (
        (key[:-1], value),
        (key + b"\0", value),
        (key, value[:1]),
        (key, b""),
        (key, b"\0\1" + value[2:]),
        (key, b"\4" + value[1:]),
    ):
        with pytest.raises(CorruptionError):
            codec.decode([(key[:-1] + b"\0", value), entry])
    panes = codec_of("panes", "struct<id:bigint,n:bigint>")
    with pytest.raises(CorruptionError):
        panes.decode([(key_of(1, 5, 0), b"\0\0not arrow")])


def test_other_readers_read_the_rows(tmp_path: Path) -> None:
    codec = codec_of(
        "map", "struct<n:bigint,s:string,x:double>", keys="card string, day date", key_type="timestamp", ttl=HOUR
    )
    rows = rows_like(
        codec,
        (1, "a\0b", dt.date(2024, 2, 29), AT, {"n": 1, "s": "é", "x": math.inf}, AT),
        (1, "b", dt.date(1, 1, 1), AT, {"n": None, "s": None, "x": None}, None),
    )
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_batches([codec.decode(codec.encode(rows))]), path)
    found = (
        pytest.importorskip("duckdb")
        .sql(f"SELECT card, value.n, value.s, expires_at IS NULL FROM '{path}' ORDER BY card")
        .fetchall()
    )
    assert found == [("a\0b", 1, "é", False), ("b", None, None, True)]
    frame = pd.read_parquet(path)
    assert list(frame.columns) == ["key_group", "card", "day", "map_key", "value", "expires_at"]
    assert frame["value"][0] == {"n": 1, "s": "é", "x": math.inf}
    assert frame["map_key"][0] == pd.Timestamp(AT)
