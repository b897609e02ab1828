"""States of every kind with entries as a keeper would have written them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from strandline.format.keys import KeyCodec
from strandline.format.manifest import OperatorInfo, StateInfo, TTLInfo
from strandline.format.schemas import Schemas
from strandline.format.values import ExpiringCodec, ValueCodec
from strandline.runtime.state.panebytes import MARK_END, PaneCodec, key_of, pack_mark
from strandline.types.columns import build
from strandline.types.datatypes import ArrayType, BooleanType, DataType, Field, LongType, StructType
from tests.format.strategies import key_types, structs, types, values

MAX_PARALLELISM = 128
TIMES = st.integers(-(1 << 63), (1 << 63) - 1)
GROUPS = st.integers(0, MAX_PARALLELISM - 1)
Entries = list[tuple[bytes, bytes]]
TTLS = st.builds(
    TTLInfo,
    duration_ms=st.integers(1, 10**12),
    refresh=st.sampled_from(["write", "read"]),
    time=st.sampled_from(["event", "processing"]),
)


@dataclass
class Stored:
    """A state, and what is stored of it in the order of keys."""

    operator: OperatorInfo
    state: StateInfo
    entries: Entries


def operator_of(keys: StructType, *states: StateInfo) -> OperatorInfo:
    ddl = ", ".join(field.ddl.replace(":", " ", 1) if ":" in field.ddl else field.ddl for field in keys.fields)
    return OperatorInfo(
        uid="op",
        backend="rocksdb",
        parallelism=1,
        max_parallelism=MAX_PARALLELISM,
        key_schema=ddl,
        states=list(states),
        partitions=[],
    )


def key_schemas() -> st.SearchStrategy[Any]:
    return structs(key_types(), max_size=3)


def keys_of(types: list[DataType]) -> st.SearchStrategy[Any]:
    return values(types[0]) if len(types) == 1 else st.tuples(*map(values, types))


@st.composite
def encoded_keys(draw: Any, kinds: list[DataType]) -> list[bytes]:
    """Different keys of these types, in the order of their bytes."""
    codec = KeyCodec(kinds)
    some = draw(st.lists(st.tuples(GROUPS, keys_of(kinds)), max_size=6))
    return sorted({codec.encode(group, key) for group, key in some})


@st.composite
def value_states(draw: Any) -> Stored:
    keys, kind, schema_id = draw(key_schemas()), draw(types()), draw(st.sampled_from([0, 0, 3, 200]))
    how = draw(st.sampled_from(["value", "reducing", "aggregating", "map", "broadcast"]))
    ttl = draw(st.one_of(st.none(), TTLS)) if how != "broadcast" else None
    sub = draw(key_types()) if how in ("map", "broadcast") else None
    parts = ([] if how == "broadcast" else [field.type for field in keys.fields]) + ([sub] if sub else [])
    encoded = draw(encoded_keys(parts))
    if how == "broadcast":
        encoded = sorted({b"\xff\xff" + key[2:] for key in encoded})
    pairs = [(draw(st.one_of(st.none(), TIMES)) if ttl else None, draw(values(kind))) for _ in encoded]
    stored = ExpiringCodec(ValueCodec(kind, schema_id)).encode_many(pairs)
    fields = {"ttl": ttl} if ttl else {}
    state = StateInfo(
        name="s", kind=how, value_type=kind.ddl, key_type=sub.ddl if sub else "", schema_id=schema_id, **fields
    )
    return Stored(operator_of(keys, state), state, list(zip(encoded, stored, strict=True)))


@st.composite
def timer_states(draw: Any) -> Stored:
    keys = draw(key_schemas())
    encoded = draw(encoded_keys([field.type for field in keys.fields]))
    entries = {
        (key[:2] + struct.pack(">Q", at + (1 << 63)) + key[2:], b"\0\0")
        for key in encoded
        for at in draw(st.lists(TIMES, max_size=3))
    }
    state = StateInfo(name="timers.event", kind="timers", value_type="")
    return Stored(operator_of(keys, state), state, sorted(entries))


@st.composite
def list_states(draw: Any) -> tuple[Stored, Entries]:
    """Lists in chunks of several epochs, and the same ones in one chunk each."""
    keys, kind = draw(key_schemas()), draw(types())
    ttl = draw(st.one_of(st.none(), TTLS))
    number, codec = KeyCodec([LongType()]), ExpiringCodec(ValueCodec(ArrayType(kind)))
    entries, joined = [], []
    for key in draw(encoded_keys([field.type for field in keys.fields])):
        chunks = draw(st.lists(st.lists(values(kind), min_size=1, max_size=3), min_size=1, max_size=4))
        epochs = sorted(draw(st.sets(st.integers(1, 10**6), min_size=len(chunks), max_size=len(chunks))))
        expires = draw(st.one_of(st.none(), TIMES)) if ttl else None
        head = [(key + number.encode_sub(-1), codec.encode((expires, [])))] if expires is not None else []
        parts = zip(epochs, chunks, strict=True)
        entries += head + [(key + number.encode_sub(epoch), codec.encode((None, chunk))) for epoch, chunk in parts]
        whole = [element for chunk in chunks for element in chunk]
        joined += [*head, (key + number.encode_sub(0), codec.encode((None, whole)))]
    fields = {"ttl": ttl} if ttl else {}
    state = StateInfo(name="s", kind="list", value_type=kind.ddl, **fields)
    return Stored(operator_of(keys, state), state, entries), joined


@st.composite
def pane_states(draw: Any) -> tuple[Stored, dict[tuple[bytes, int], tuple[int, Any]]]:
    """Panes in entries of several epochs, and by key and end what their sum and their last value must be."""
    keys, kind = draw(key_schemas()), draw(types())
    kinds = [field.type for field in keys.fields]
    accumulator = Field("pane n", LongType()), Field("pane last", kind), Field("pane there", BooleanType())
    codec, stored = KeyCodec(kinds), StructType((*keys.fields, *accumulator))
    panes = PaneCodec("panes", stored, Schemas())
    keyed = draw(st.lists(st.tuples(GROUPS, keys_of(kinds)), max_size=5))
    wanted: dict[tuple[bytes, int], tuple[int, Any]] = {}
    entries: Entries = []
    for group in sorted({group for group, _ in keyed}):
        if draw(st.booleans()):
            entries.append((key_of(group, MARK_END, 0), pack_mark(draw(TIMES))))
        for end in sorted(draw(st.sets(TIMES.filter(lambda us: us > MARK_END), max_size=2))):
            for epoch in sorted(draw(st.sets(st.integers(0, 1 << 40), max_size=3))):
                of_keys = {codec.encode(group, key): key for g, key in keyed if g == group and draw(st.booleans())}
                rows = []
                for encoded, key in of_keys.items():
                    n, last = draw(st.integers(-9, 9)), draw(values(kind))
                    wanted[encoded, end] = (wanted.get((encoded, end), (0, None))[0] + n, last)
                    rows.append((*(key if len(kinds) > 1 else [key]), n, last, True))
                columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in stored.fields]
                arrays = [build(column, field.type) for column, field in zip(columns, stored.fields, strict=True)]
                batch = pa.RecordBatch.from_arrays(arrays, schema=panes.schema)
                entries.append((key_of(group, end, epoch), panes.pack(batch)))
    merge = {"pane n": "sum", "pane last": "last", "pane there": "last"}
    state = StateInfo(name="panes", kind="panes", value_type=stored.ddl, merge=merge)
    return Stored(operator_of(keys, state), state, entries), wanted


def fields_of(*pairs: tuple[str, DataType]) -> StructType:
    return StructType(tuple(Field(name, kind) for name, kind in pairs))
