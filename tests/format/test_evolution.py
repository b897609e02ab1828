"""Types that change: what is read through an old one, and each change that is refused, with its reason."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import ConfigurationError, CorruptionError
from strandline.format.columnmapping import ColumnCodec
from strandline.format.manifest import OlderSchema, StateInfo
from strandline.format.schemas import Schemas, codec_of
from strandline.format.values import MAX_SCHEMA_ID, ExpiringCodec, ValueCodec
from strandline.types.columns import to_python
from strandline.types.datatypes import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    Field,
    FloatType,
    IntegralType,
    LongType,
    MapType,
    StructType,
    TimestampNTZType,
    parse_type,
    quoted,
)
from strandline.types.evolution import Converter, TypeMismatch, evolve, validate_hints
from strandline.types.hints import Hints
from strandline.types.records import record_type
from tests.format.strategies import NAMES, same, scalars, types, values


@dataclass
class Change:
    """A new type, what it has to say of the old one, and, written another way, what becomes of values."""

    new: DataType
    model: Callable[[Any], Any]
    renamed: dict[str, str] = field(default_factory=dict)
    fill: dict[str, Any] = field(default_factory=dict)

    def absorb(self, other: Change) -> None:
        self.renamed |= other.renamed
        self.fill |= other.fill


def nullable(model: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else model(value)


@st.composite
def changes(draw: Any, old: DataType, path: str = "") -> Change:
    """Draw a change of a type that is allowed."""
    if isinstance(old, ArrayType):
        inner = draw(changes(old.element, path + "[]"))
        each = nullable(inner.model)
        return Change(ArrayType(inner.new), lambda v: [each(e) for e in v], inner.renamed, inner.fill)
    if isinstance(old, MapType):
        inner = draw(changes(old.value, path + "{}"))
        one = nullable(inner.model)
        made = MapType(old.key, inner.new)
        return Change(made, lambda v: {k: one(e) for k, e in v.items()}, inner.renamed, inner.fill)
    if isinstance(old, StructType):
        return draw(struct_changes(old, path))
    return draw(st.sampled_from([Change(old, lambda v: v), *widenings(old)]))


def widenings(old: DataType) -> list[Change]:
    found: list[Change] = []
    if isinstance(old, IntegralType):
        digits = len(str(1 << (8 * old.width - 1)))
        found += [Change(kind(), int) for kind in IntegralType.__subclasses__() if kind.width > old.width]
        found += [Change(DecimalType(digits + s, s), lambda v, s=s: decimal_of(v, s)) for s in (0, 3, 38 - digits)]
        found += [Change(DoubleType(), float)] if old.width <= 4 else []
        found += [Change(FloatType(), float)] if old.width <= 2 else []
    if isinstance(old, FloatType):
        found.append(Change(DoubleType(), float))
    if isinstance(old, DecimalType):
        for more in range(39 - old.precision):
            scale = old.scale + more // 2
            found.append(Change(DecimalType(old.precision + more, scale), lambda v, s=scale: decimal_of(v, s)))
    if isinstance(old, DateType):
        found.append(Change(TimestampNTZType(), lambda v: dt.datetime.combine(v, dt.time())))
    return found


def decimal_of(value: Any, scale: int) -> Decimal:
    sign, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    more = "0" * (scale + exponent)
    text = "".join(map(str, digits)) + more
    return Decimal((sign, tuple(map(int, text.lstrip("0") or "0")), -scale))


@st.composite
def struct_changes(draw: Any, old: StructType, path: str) -> Change:
    def at(name: str) -> str:
        return f"{path}.{quoted(name)}" if path else quoted(name)

    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    kept = draw(st.lists(st.sampled_from(old.names), unique=True))
    fresh = [name for name in names if name not in old.names]
    found = Change(old, lambda v: v)
    parts: list[tuple[Field, Callable[[Any], Any]]] = []
    for name in kept:
        now = fresh.pop() if fresh and draw(st.booleans()) else name
        if now != name:
            found.renamed[at(now)] = name
        (kind,) = old.types_of([name])
        inner = draw(changes(kind, at(now)))
        found.absorb(inner)
        position, model = old.names.index(name), nullable(inner.model)
        parts.append((Field(now, inner.new), lambda v, p=position, m=model: m(v[p])))
    for name in fresh if parts else names:
        if not parts or name not in old.names:
            kind = draw(scalars())
            while name in old.names:
                name += "_"
            value = draw(st.one_of(st.none(), values(kind)))
            if value is not None:
                found.fill[at(name)] = value
            parts.append((Field(name, kind), lambda v, value=value: value))
    parts = draw(st.permutations(parts))
    found.new = StructType(tuple(f for f, _ in parts))
    make = record_type(found.new.names)._make
    found.model = lambda v: make([get(v) for _, get in parts])
    return found


def hinted(change: Change) -> Hints:
    return validate_hints(Hints(change.renamed, change.fill), change.new)


def converted(old: DataType, change: Change) -> Converter:
    found = evolve(old, change.new, hinted(change))
    assert isinstance(found, Converter), found
    return found


CHANGED = types().flatmap(
    lambda old: st.tuples(st.just(old), changes(old), st.lists(values(old), max_size=4), st.integers(0, MAX_SCHEMA_ID))
)


@given(CHANGED)
def test_what_was_written_before_is_read_as_what_it_becomes(drawn: Any) -> None:
    old, change, some, _ = drawn
    convert = converted(old, change).convert
    expected = [change.model(value) for value in some]
    assert same(some if convert is None else list(map(convert, some)), expected)
    assert (old == change.new) <= (convert is None)
    then = Schemas(schema_id=3).followed_by(old, change.new, hinted(change))
    codec, before = then.codec(change.new), ValueCodec(old, 3)
    stored = before.encode_many(some)
    assert same(list(map(codec.decode, stored)), expected)
    # Old and new ones mixed, with gaps, with expiry, and as Arrow columns.
    mixed = [data for pair in zip(stored, codec.encode_many(expected), strict=True) for data in (*pair, None)]
    wanted = [value for each in expected for value in (each, each, None)]
    assert same(codec.decode_many(mixed), wanted)
    assert codec.encode_many(expected) == [
        bytes((0, 4)) + data[2:] for data in ValueCodec(change.new).encode_many(expected)
    ]
    assert same(codec.decode_many(stored), expected)
    expiring = ExpiringCodec(codec)
    pairs = [(7, value) for value in some]
    assert same(expiring.decode_many(ExpiringCodec(before).encode_many(pairs)), [(7, value) for value in expected])
    assert same(to_python(codec.decode_arrow(mixed), change.new), wanted)


@given(st.data())
def test_every_step_on_the_way_counts(data: st.DataObject) -> None:
    first = data.draw(types())
    some = data.draw(st.lists(values(first), max_size=3))
    kind, schemas, stored, expected = first, Schemas(), ValueCodec(first).encode_many(some), some
    everything, wanted = list(stored), list(expected)
    for _ in range(3):
        change = data.draw(changes(kind))
        schemas = schemas.followed_by(kind, change.new, hinted(change))
        kind, wanted = change.new, [change.model(value) for value in wanted]
        fresh = data.draw(st.lists(values(kind), max_size=2))
        everything += schemas.codec(kind).encode_many(fresh)
        wanted += fresh
    info = StateInfo(name="s", kind="value", value_type=kind.ddl, schema_id=schemas.schema_id, older=schemas.older)
    # From what a manifest holds alone, the whole way through JSON.
    info = msgspec.json.decode(msgspec.json.encode(info), type=StateInfo)
    codec = codec_of(info)
    assert codec.type == kind
    assert same(codec.decode_many(everything), wanted)
    assert same([codec.decode(item) for item in everything], wanted)
    assert same(to_python(codec.decode_arrow(everything), kind), wanted)


@pytest.mark.parametrize("last", ["s: string", "s: double"])
def test_columns_that_stay_what_they_are_are_taken_over(last: str) -> None:
    """Of a fixed and of a packed layout; one field becomes two, and one has the name of another that is gone."""
    kinds = [
        parse_type(f"struct<{ddl}>") for ddl in (f"a: int, b: int, {last}", f"x: int, a: int, y: int, {last}, n: int")
    ]
    hints = Hints({"x": "a", "y": "a", "a": "b"}, {"n": 7}, always_rename=True)
    schemas = Schemas().followed_by(kinds[0], kinds[1], hints)
    kinds.append(parse_type(f"struct<n: int, new: array<int>, {last}, x: int>"))
    schemas = schemas.followed_by(kinds[1], kinds[2], Hints(fill={"new": [1]}))
    third = "s" if last == "s: string" else 0.5
    stored: list[bytes | None] = [
        ValueCodec(kinds[0]).encode((1, 2, third)),
        ValueCodec(kinds[1], 1).encode((3, 4, 5, None, None)),
        None,
        schemas.codec(kinds[2]).encode((6, None, third, 7)),
        ValueCodec(kinds[0]).encode((8, None, None)),
    ]
    wanted = [(7, [1], third, 1), (None, [1], None, 3), None, (6, None, third, 7), (7, [1], None, 8)]
    codec = schemas.codec(kinds[2])
    assert isinstance(codec, ColumnCodec)
    assert to_python(codec.decode_arrow(stored), kinds[2]) == codec.decode_many(stored) == wanted
    middle = Schemas(schema_id=1, older={0: schemas.older[0]}).codec(kinds[1])
    assert to_python(middle.decode_arrow(stored[:1]), kinds[1]) == [(1, 2, 1, third, 7)]
    for damaged in (b"\0\3" + bytes(20), b"\0", b""):
        with pytest.raises(CorruptionError):
            codec.decode_arrow([*stored, damaged])
    retyped = schemas.followed_by(kinds[2], parse_type(f"struct<{last}, x: bigint>"), Hints())
    assert not isinstance(retyped.codec(parse_type(f"struct<{last}, x: bigint>")), ColumnCodec)
    with pytest.raises(CorruptionError, match="some are of another type"):
        retyped.mappings(parse_type(f"struct<{last}, x: bigint>"))  # type: ignore[arg-type]


def test_what_was_dropped_does_not_come_back() -> None:
    both, one = parse_type("struct<a: int, b: int>"), parse_type("struct<a: int>")
    schemas = Schemas().followed_by(both, one, Hints()).followed_by(one, both, Hints())
    assert schemas.codec(both).decode(ValueCodec(both).encode((1, 2))) == (1, None)
    # And a fill counts for the step that it was given with.
    filled = Schemas().followed_by(one, both, Hints(fill={"b": 5})).followed_by(both, one, Hints())
    assert filled.followed_by(one, both, Hints(fill={"b": 6})).codec(both).decode(ValueCodec(one).encode((1,))) == (
        1,
        6,
    )


def test_chunks_of_lists_are_read_through_their_elements() -> None:
    was, now = parse_type("struct<v: int>"), parse_type("struct<n: double, v: bigint>")
    schemas = Schemas().followed_by(was, now, Hints(fill={"n": 0.5}))
    chunk = ValueCodec(ArrayType(was)).encode([(1,), None, (2,)])
    assert schemas.codec_of_chunks(now).decode(chunk) == [(0.5, 1), None, (0.5, 2)]


def test_what_is_filled_in_is_shared_by_no_two_values() -> None:
    found = evolve(parse_type("struct<a: int>"), parse_type("struct<a: int, b: array<int>>"), Hints(fill={"b": [1]}))
    assert isinstance(found, Converter)
    assert found.convert is not None
    one, other = found.convert((1,)), found.convert((2,))
    one[1].append(2)
    assert other[1] == [1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bigint", "bigint"),
        ("int", "bigint"),
        ("float", "double"),
        ("struct<a: int, b: array<struct<c: float>>>", "struct<a: bigint, b: array<struct<c: double>>>"),
        ("map<string, tinyint>", "map<string, int>"),
        ("decimal(5,2)", "decimal(9,2)"),
    ],
)
def test_what_stays_costs_nothing(old: str, new: str) -> None:
    found = evolve(parse_type(old), parse_type(new))
    assert isinstance(found, Converter)
    assert found.convert is None


def test_changes_are_told() -> None:
    old = parse_type("struct<id: int, name: string, at: struct<x: int>, tags: array<date>>")
    new = parse_type("struct<label: string, id: bigint, at: struct<y: double, x: int>, n: int, tags: array<date>>")
    found = evolve(old, new, Hints({"label": "name"}, {"n": 1}))
    assert isinstance(found, Converter)
    assert list(found.changes) == [
        "value.label: renamed, was name",
        "value.id: int -> bigint",
        "value.at.y: added, double, null",
        "value.n: added, int, filled with 1",
        "value: fields in another order",
    ]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("bigint", "int", "value: bigint -> int would lose numbers"),
        (
            "struct<items: array<struct<price: bigint>>>",
            "struct<items: array<struct<price: int>>>",
            "value.items[].price: bigint -> int would lose numbers",
        ),
        ("bigint", "double", "value: bigint -> double would round numbers above 2^53"),
        ("int", "float", "value: int -> float would round numbers above 2^24"),
        ("int", "decimal(10,1)", "value: int -> decimal(10,1) would lose numbers: it needs 10 digits before the point"),
        ("double", "float", "value: double -> float would lose digits"),
        ("double", "bigint", "value: double -> bigint would lose digits"),
        ("decimal(10,2)", "decimal(12,1)", "value: decimal(10,2) -> decimal(12,1) would lose digits after the point"),
        ("decimal(10,2)", "decimal(10,3)", "value: decimal(10,2) -> decimal(10,3) would lose digits before the point"),
        ("decimal(10,2)", "double", "value: decimal(10,2) -> double would lose digits"),
        ("string", "int", "value: string -> int is another kind of value"),
        ("int", "string", "value: int -> string is another kind of value"),
        ("date", "timestamp", "value: date -> timestamp is another kind of value"),
        ("timestamp", "timestamp_ntz", "value: timestamp -> timestamp_ntz is another kind of value"),
        ("array<int>", "int", "value: array<int> -> int is another kind of value"),
        ("int", "struct<a: int>", "value: int -> struct<a:int> is another kind of value"),
        (
            "array<map<string, int>>",
            "array<map<string, boolean>>",
            "value[]{}: int -> boolean is another kind of value",
        ),
        (
            "struct<m: map<int, string>>",
            "struct<m: map<bigint, string>>",
            "value.m{key}: int -> bigint: the keys of a map keep their type",
        ),
        ("struct<`a b`: int>", "struct<`a b`: date>", "value.`a b`: int -> date is another kind of value"),
    ],
)
def test_what_is_refused(old: str, new: str, reason: str) -> None:
    assert evolve(parse_type(old), parse_type(new)) == TypeMismatch((reason,))


def test_everything_that_is_refused_is_said_at_once() -> None:
    found = evolve(parse_type("struct<a: bigint, b: map<int, string>>"), parse_type("struct<a: int, b: map<int, int>>"))
    assert found == TypeMismatch(
        ("value.a: bigint -> int would lose numbers", "value.b{}: string -> int is another kind of value")
    )


def test_a_hint_that_says_two_things_is_refused() -> None:
    old = parse_type("struct<a: int, b: int>")
    assert evolve(old, parse_type("struct<b: int>"), Hints({"b": "a"})) == TypeMismatch(
        ("value.b: renamed says that it was a, and the stored type has both: leave that out",)
    )
    two = evolve(parse_type("struct<a: int>"), parse_type("struct<x: int, y: int>"), Hints({"x": "a", "y": "a"}))
    assert two == TypeMismatch(("value.y: renamed says that it was a, as it does of another field",))
    # Once everything is stored under the new name, the hint means nothing, and may stay.
    done = evolve(parse_type("struct<b: int>"), parse_type("struct<b: bigint>"), Hints({"b": "a"}))
    assert isinstance(done, Converter)
    # A name may be used again: what is stored under it is the other field's.
    again = evolve(parse_type("struct<a: int>"), parse_type("struct<a: int, b: int>"), Hints({"b": "a"}))
    assert isinstance(again, Converter)
    assert again.convert is not None
    assert again.convert((1,)) == (None, 1)


@pytest.mark.parametrize(
    ("hints", "said"),
    [
        (Hints({"x": "a"}), "renamed names 'x', and struct<a:int,b:array<struct<c:int>>> has no such field"),
        (Hints({"b.c": "a"}), "renamed names 'b.c'"),
        (Hints(fill={"d": 1}), "fill names 'd'"),
        (Hints(fill={"a": "text"}), "fill does not fit struct<.*: expected int, got 'text'"),
    ],
)
def test_hints_that_fit_no_type(hints: Hints, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        validate_hints(hints, parse_type("struct<a: int, b: array<struct<c: int>>>"))


def test_schema_ids_end() -> None:
    schemas, kind = Schemas(schema_id=MAX_SCHEMA_ID - 1), parse_type("struct<a: int>")
    last = schemas.followed_by(LongType(), kind, Hints())
    assert last.schema_id == MAX_SCHEMA_ID
    with pytest.raises(ConfigurationError, match="its type was changed 254 times"):
        last.followed_by(kind, LongType(), Hints())


def test_an_id_that_nobody_knows_is_damage() -> None:
    codec = Schemas(schema_id=1, older={0: OlderSchema(value_type="int")}).codec(LongType())
    with pytest.raises(CorruptionError, match="has the schema id 2, expected 1 or 0"):
        codec.decode(b"\0\2" + bytes(8))
    with pytest.raises(CorruptionError, match="has the schema id 2"):
        codec.decode_many([b"\0\2" + bytes(8), b"\0\0" + bytes(4)])
    with pytest.raises(CorruptionError, match="the stored bytes 00 are no bigint"):
        codec.decode_many([b"\0"])


@pytest.mark.parametrize(
    "older", [{0: OlderSchema(value_type="string")}, {0: OlderSchema(value_type="int", fill={"a": b"\0\0"})}]
)
def test_older_schemas_that_lead_nowhere_are_damage(older: dict[int, OlderSchema]) -> None:
    with pytest.raises(CorruptionError, match="cannot become bigint"):
        Schemas(schema_id=1, older=older).codec(LongType())
