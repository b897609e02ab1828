"""What rows become in a table of PostgreSQL: values of every type, rows of one key in their order, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import sys
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.core.errors import AccessError, ConfigurationError, SinkError
from strandline.ends.postgres.catalog import identifier
from strandline.storage.place import Place
from tests.postgres import PASSWORD, Server
from tests.soak import examples

US, UTC = pa.timestamp("us"), pa.timestamp("us", "Europe/Berlin")
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
DAYS = st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))
TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
LONGS = st.integers(-(2**63), 2**63 - 1)

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "smallint": (pa.int8(), st.integers(-128, 127)),
    "integer": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "bigint": (pa.int64(), LONGS),
    "real": (pa.float32(), st.floats(width=32)),
    "double precision": (pa.float64(), st.floats()),
    "numeric(20,5)": (pa.decimal128(20, 5), st.decimals(-(10**14), 10**14, places=5)),
    "text": (pa.string(), TEXTS),
    "bytea": (pa.binary(), st.binary(max_size=8)),
    "date": (pa.date32(), DAYS),
    "timestamptz": (UTC, TIMES.map(lambda at: at.replace(tzinfo=dt.UTC))),
    "timestamp": (US, TIMES),
    "bigint[]": (pa.list_(pa.int64()), st.lists(st.none() | LONGS, max_size=4)),
    "text[]": (pa.list_(pa.string()), st.lists(st.none() | TEXTS, max_size=4)),
    "date[]": (pa.list_(pa.date32()), st.lists(st.none() | DAYS, max_size=3)),
    "bytea[]": (pa.list_(pa.binary()), st.lists(st.none() | st.binary(max_size=4), max_size=3)),
    "numeric(9,2)[]": (pa.list_(pa.decimal128(9, 2)), st.lists(st.decimals(-999, 999, places=2), max_size=3)),
    "jsonb": (
        pa.struct({"a": pa.int64(), "b": pa.list_(pa.map_(pa.string(), pa.bool_()))}),
        st.fixed_dictionaries({
            "a": st.none() | LONGS,
            "b": st.lists(st.dictionaries(TEXTS, st.booleans(), max_size=2).map(lambda d: list(d.items())), max_size=2),
        }),
    ),
}  # fmt: skip
"""Of each type that a table can be made with: what Spark gives, and values of it."""


def batch_of(columns: dict[str, tuple[pa.DataType, Sequence[Any]]]) -> pa.RecordBatch:
    arrays = [pa.array(values, kind) for kind, values in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def target_of(dsn: str, columns: pa.Schema, table: str = "results", **given: Any) -> Any:
    target = sl.sinks.postgres(dsn, table, create=True, **given).target
    target.try_out(columns)
    target.claim(writer())
    return target


def writer(generation: int = 1) -> sl.sinks.Writer:
    return sl.sinks.Writer("0123abcd", generation, "out", "job", Place(url="file:/nowhere"))


def write(target: Any, *batches: pa.RecordBatch) -> None:
    with closing(target.connect(writer(), 0)) as lane:
        since = lane.reached()
        lane.write(batches, since, f"{int(since or 0) + 1:09}")


@pytest.fixture(scope="module")
def dsn(postgresql: Server) -> str:
    return postgresql.schema()


@pytest.fixture(scope="module")
def every(postgresql: Server, dsn: str) -> Any:
    """A target whose table was made for all types."""
    columns = pa.schema({f"c{at}": kind for at, (kind, _) in enumerate(VALUES.values())})
    return target_of(dsn, columns, "every")


def plain(value: Any) -> Any:
    """Return a value as one that equals itself, and maps as JSON has them."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, dict) and "b" in value:
        return {**value, "b": [dict(each) for each in value["b"]]}
    return value


ROWS = st.lists(st.tuples(*(st.none() | values for _, values in VALUES.values())), min_size=1, max_size=4)


@examples(40)
@given(rows=ROWS)
def test_values_of_every_type_are_read_as_they_were(postgresql: Server, dsn: str, every: Any, rows: Any) -> None:
    kinds = [kind for kind, _ in VALUES.values()]
    batch = batch_of({f"c{at}": (kind, [row[at] for row in rows]) for at, kind in enumerate(kinds)})
    with postgresql.connect(dsn) as db:
        db.execute("truncate every")
        write(every, batch)
        db.execute("set timezone = 'UTC'")
        # As text, a real comes back as the shortest double that rounds to it.
        found = db.cursor(binary=True).execute("select * from every").fetchall()
    wanted = [tuple(map(plain, row)) for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
    assert [tuple(map(plain, row)) for row in found] == wanted


def test_a_table_is_made_for_the_columns(postgresql: Server, dsn: str, every: Any) -> None:
    with postgresql.connect(dsn) as db:
        found = db.execute(
            "select format_type(atttypid, atttypmod) from pg_attribute where attrelid = 'every'::regclass and attnum > 0"
        ).fetchall()
    said = {"timestamptz": "timestamp with time zone", "timestamp": "timestamp without time zone"}
    assert [name for (name,) in found] == [said.get(name, name) for name in VALUES]


def test_one_column_of_nothing_and_of_empty_text(postgresql: Server, dsn: str) -> None:
    """The smallest rows that CSV has."""
    target = target_of(dsn, pa.schema({"a": pa.string()}), "least")
    write(target, batch_of({"a": (pa.string(), [None, "", "\\.", "\n", '"', "NULL", ","])}))
    with postgresql.connect(dsn) as db:
        found = [a for (a,) in db.execute("select a from least")]
    assert found == [None, "", "\\.", "\n", '"', "NULL", ","]


def test_arrays_have_nulls_whatever_the_server_is_set_to(postgresql: Server, dsn: str) -> None:
    lists = {"n": (pa.list_(pa.int64()), [[1, None]]), "t": (pa.list_(pa.string()), [["a", None, "NULL", ""]])}
    target = target_of(dsn, batch_of(lists).schema, "lists")
    with postgresql.connect(dsn) as db:
        try:
            db.execute(f"alter database {db.info.dbname} set array_nulls = off")
            write(target, batch_of(lists))
        finally:
            db.execute(f"alter database {db.info.dbname} reset array_nulls")
        assert db.execute("select * from lists").fetchall() == [([1, None], ["a", None, "NULL", ""])]


def test_a_column_of_another_type_reads_texts(postgresql: Server, dsn: str) -> None:
    with postgresql.connect(dsn) as db:
        db.execute("create type mood as enum ('good', 'bad')")
        db.execute("create domain short as varchar(3) check (value <> 'no')")
        db.execute("create table read (u uuid, m mood, i inet, j jsonb, s short, n numeric, d double precision)")
    values = {
        "u": (pa.string(), ["c0ffee00-0000-4000-8000-000000000001"]), "m": (pa.string(), ["bad"]),
        "i": (pa.string(), ["10.0.0.1"]), "j": (pa.string(), ['{"a": [1]}']), "s": (pa.string(), ["yes"]),
        "n": (pa.int64(), [2**62]), "d": (pa.int32(), [7]),
    }  # fmt: skip
    target = target_of(dsn, batch_of(values).schema, "read")
    write(target, batch_of(values))
    with postgresql.connect(dsn) as db:
        assert db.execute("select u::text, m::text, host(i), j, s, n, d from read").fetchall() == [
            ("c0ffee00-0000-4000-8000-000000000001", "bad", "10.0.0.1", {"a": [1]}, "yes", 2**62, 7.0)
        ]
    for column, value, words in [
        ("u", "none", r"refuses rows: invalid input syntax for type uuid: \"none\"; COPY read, line 1, column u"),
        ("m", "ugly", "invalid input value for enum mood"),
        ("s", "no", "violates check constraint"),
        ("s", "long", r"value too long for type character varying\(3\)"),
    ]:
        with pytest.raises(SinkError, match=words) as caught:
            write(target, batch_of({**values, column: (pa.string(), [value])}))
        assert value not in caught.value.discreet


# -- by key

CHANGES = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99), st.booleans() | st.none()), max_size=8), max_size=6
)


@examples(40)
@given(transactions=CHANGES)
def test_the_last_row_of_a_key_counts(postgresql: Server, dsn: str, keyed: Any, transactions: Any) -> None:
    """Whatever comes within a transaction and in those before; a row that is deleted and comes again is a new one."""
    wanted: dict[int, tuple[int, str]] = {}
    with postgresql.connect(dsn) as db:
        db.execute("truncate keyed")
        for rows in transactions:
            batches = [
                batch_of({"k": (pa.int64(), [k]), "gone": (pa.bool_(), [gone]), "v": (pa.int32(), [v])})
                for k, v, gone in rows
            ]
            write(keyed, *batches)
            for k, v, gone in rows:
                if gone:
                    wanted.pop(k, None)
                else:
                    wanted[k] = (v, wanted[k][1] if k in wanted else "made")
            db.execute("update keyed set other = 'changed'")
            wanted = {k: (v, "changed") for k, (v, _) in wanted.items()}
        found = {k: (v, other) for k, v, other in db.execute("select k, v, other from keyed")}
    assert found == wanted


@pytest.fixture(scope="module")
def keyed(postgresql: Server, dsn: str) -> Any:
    with postgresql.connect(dsn) as db:
        db.execute("create table keyed (k bigint primary key, v int, other text default 'made')")
    return target_of(
        dsn, pa.schema({"k": pa.int64(), "gone": pa.bool_(), "v": pa.int32()}), "keyed", key="k", delete="gone"
    )


def test_a_row_that_is_deleted_and_comes_again_in_one_transaction_is_new(
    postgresql: Server, dsn: str, keyed: Any
) -> None:
    with postgresql.connect(dsn) as db:
        db.execute("truncate keyed; insert into keyed values (1, 1, 'old'), (2, 2, 'old')")
        write(keyed, batch_of({
            "k": (pa.int64(), [1, 2, 1]), "gone": (pa.bool_(), [True, False, False]), "v": (pa.int32(), [5, 6, 7])
        }))  # fmt: skip
        assert db.execute("select * from keyed order by k").fetchall() == [(1, 7, "made"), (2, 6, "old")]


def test_keys_that_only_the_server_knows_to_be_equal(postgresql: Server, dsn: str) -> None:
    with postgresql.connect(dsn) as db:
        db.execute("create table folds (k text, at timestamp(0), v int, primary key (k, at))")
    second = dt.datetime(2026, 1, 1)
    columns = {"k": (pa.string(), ["a", "a", "b"]), "at": (US, [second, second.replace(microsecond=1), second]),
               "v": (pa.int32(), [1, 2, 3])}  # fmt: skip
    target = target_of(dsn, batch_of(columns).schema, "folds", key=["k", "at"])
    write(target, batch_of(columns))
    with postgresql.connect(dsn) as db:
        assert db.execute("select k, v from folds order by 1").fetchall() == [("a", 2), ("b", 3)]


def test_keys_whose_spaces_the_server_drops(postgresql: Server, dsn: str) -> None:
    with postgresql.connect(dsn) as db:
        db.execute("create table cut_off (k varchar(2) primary key, v int)")
    columns = {"k": (pa.string(), ["ab", "ab ", "a"]), "v": (pa.int32(), [1, 2, 3])}
    write(target_of(dsn, batch_of(columns).schema, "cut_off", key="k"), batch_of(columns))
    with postgresql.connect(dsn) as db:
        assert db.execute("select * from cut_off order by 1").fetchall() == [("a", 3), ("ab", 2)]


@pytest.mark.parametrize(
    "kind",
    [
        "timestamptz(0)", "double precision", "inet",
        "varchar(2)", "uuid", "char(2)", "grade", "numeric(20)", "timestamptz(6)", "timestamptz", "text",
    ],
)  # fmt: skip
def test_several_writers_of_keys_that_only_the_server_knows_to_be_equal(
    postgresql: Server, dsn: str, kind: str
) -> None:
    """Texts are spread by what uuid and char(n) keep of them; other keys could be in two lanes."""
    table = f"spread_{re.sub('[^a-z0-9]', '', kind)}"
    with postgresql.connect(dsn) as db:
        if kind == "grade":
            db.execute("create type grade as enum ('good', 'bad')")
        db.execute(f"create table {table} (k {kind} primary key)")  # type: ignore[arg-type]
    types = {"double": pa.float64(), "numeric": pa.int64(), "timestamptz": UTC}
    columns = pa.schema({"k": types.get(re.split("[ (]", kind)[0], pa.string())})
    target_of(dsn, columns, table, key="k", writers=1)
    if kind in ("timestamptz(0)", "double precision", "inet"):
        with pytest.raises(ConfigurationError, match="an older row could replace a newer one"):
            target_of(dsn, columns, table, key="k", writers=2)
    else:
        target_of(dsn, columns, table, key="k", writers=2)


def test_a_record_with_any_name(postgresql: Server, dsn: str) -> None:
    batch = batch_of({"n": (pa.int32(), [1])})
    target = target_of(dsn, batch.schema, "marked", record='"100 %s {}"')
    write(target, batch)
    write(target, batch)
    with postgresql.connect(dsn) as db:
        assert db.execute("select count(*) from marked").fetchone() == (2,)
        assert db.execute('select max(mark) from "100 %s {}" where lane = 0').fetchone() == ("000000002",)


def test_a_deletion_by_a_key_that_only_the_server_knows_to_be_equal(postgresql: Server, dsn: str) -> None:
    one, two, three = (f"c0ffee00-0000-4000-8000-00000000000{n}" for n in "123")
    with postgresql.connect(dsn) as db:
        db.execute("create table ids (k uuid primary key, v int, other text default 'made')")
        db.execute("insert into ids values (%s, 1, 'old'), (%s, 2, 'old')", [two, three])
    columns = {
        "k": (pa.string(), [one, one.upper(), two, two.upper(), three, three.upper()]), "v": (pa.int32(), [1, 2, 3, 4, 5, 6]),
        "gone": (pa.bool_(), [False, True, True, False, False, None]),
    }  # fmt: skip
    target = target_of(dsn, batch_of(columns).schema, "ids", key="k", delete="gone")
    write(target, batch_of(columns))
    with postgresql.connect(dsn) as db:
        assert db.execute("select v, other from ids order by k").fetchall() == [(4, "made"), (6, "old")]
    with pytest.raises(SinkError, match="1 rows have no k"):
        write(target, batch_of({**columns, "k": (pa.string(), [None, *columns["k"][1][1:]])}))


def test_a_row_without_a_key(keyed: Any) -> None:
    with pytest.raises(SinkError, match="table keyed: 1 rows have no k, which is part of the key"):
        write(keyed, batch_of({"k": (pa.int64(), [None]), "gone": (pa.bool_(), [False]), "v": (pa.int32(), [1])}))


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (pa.string(), "a\0b", r"column a: a text has the character U\+0000"),
        (pa.list_(pa.string()), ["\0"], r"column a: a text has the character U\+0000"),
        (pa.date32(), -800_000, "column a: a time lies before the year 1 or after 9999"),
        (US, 2**62, "column a: a time lies before the year 1 or after 9999"),
        (UTC, -(2**62), "column a: a time lies before the year 1 or after 9999"),
    ],
)
def test_values_that_cannot_be_written(dsn: str, kind: pa.DataType, value: Any, words: str) -> None:
    number = value if isinstance(value, int) else None
    array = pa.array([number], pa.int32() if kind == pa.date32() else pa.int64()).view(kind) if number else None
    batch = pa.RecordBatch.from_arrays([pa.array([value], kind) if array is None else array], ["a"])
    target = target_of(dsn, batch.schema, f"no_{abs(hash(words + str(kind)))}")
    with pytest.raises(SinkError, match=words):
        write(target, batch)


def test_texts_that_are_no_utf8_are_refused(dsn: str) -> None:
    text = pa.array([b"\xff"], pa.binary()).view(pa.string())
    columns = {
        "text": (text, "invalid byte sequence"), "list": (pa.ListArray.from_arrays([0, 1], text), "is no UTF-8"),
        "document": (pa.StructArray.from_arrays([text], ["a"]), "is no UTF-8"),
    }  # fmt: skip
    for name, (column, words) in columns.items():
        batch = pa.RecordBatch.from_arrays([column], [name])
        with pytest.raises(SinkError, match=words):
            write(target_of(dsn, batch.schema, f"no_{name}"), batch)


def test_a_row_that_is_too_large_for_an_index_does_not_wait_for_ever(postgresql: Server, dsn: str) -> None:
    row = batch_of({"k": (pa.string(), ["".join(map(chr, range(0x4E00, 0x6E00)))])})
    target = target_of(dsn, row.schema, "indexed", key="k")
    with pytest.raises(SinkError, match="refuses rows: index row") as caught:
        write(target, row)
    assert not target.may_pass(caught.value)


def test_appended_rows_that_are_there_already(postgresql: Server, dsn: str) -> None:
    with postgresql.connect(dsn) as db:
        db.execute("create table once (k int primary key, v int not null)")
    columns = {"k": (pa.int32(), [1]), "v": (pa.int32(), [4711])}
    target = target_of(dsn, batch_of(columns).schema, "once")
    write(target, batch_of(columns))
    with pytest.raises(SinkError, match="duplicate key value violates unique constraint") as caught:
        write(target, batch_of(columns))
    assert "key=[…]" in caught.value.hint
    assert caught.value.discreet.endswith("UniqueViolation (once_pkey)")
    with pytest.raises(SinkError, match='null value in column "v" of relation "once" violates not-null') as caught:
        write(target, batch_of({"k": (pa.int32(), [2]), "v": (pa.int32(), [None])}))


# -- what is refused before anything begins

ROW = pa.schema({"k": pa.int64(), "v": pa.string(), "n": pa.decimal128(10, 2), "gone": pa.bool_()})
REFUSED = [
    ("", {}, "table t does not exist", 'create table if not exists t ("k" bigint, "v" text, "n" numeric(10,2), "gone" boolean)'),
    ("create view t as select 1::bigint k", {}, "table t is a view, and rows go into tables only", ""),
    ("create unlogged table t (k bigint)", {}, "table t is unlogged", "alter table t set logged"),
    ("create table t (k bigint, v text, n numeric, gone boolean) partition by hash (k); create table u partition of t for values "
     "with (modulus 1, remainder 0) partition by hash (k); create unlogged table w partition of u for values with (modulus 1, remainder 0)",
     {}, "table t has unlogged partitions", "set logged"),
    ("create table t (k bigint, v text, n numeric, gone boolean) partition by hash (k); create foreign data wrapper w; create server "
     "w foreign data wrapper w; create foreign table u partition of t for values with (modulus 1, remainder 0) server w",
     {}, "table t is a table with foreign partitions", ""),
    ("create table t (k bigint, v text, n numeric); create unlogged table u () inherits (t); alter table t add gone boolean", {}, None, ""),
    ("create table t (k bigint unique, v text, n numeric); alter table t enable row level security; grant all on t to clerk",
     {"user": "clerk", "key": "k", "delete": "gone"}, "rows that it hides would not be deleted", "bypassrls"),
    ("create table t (k bigint, v text, n numeric)", {}, "table t has no column gone",
     'alter table t add column "gone" boolean'),
    ("create table t (k bigint, v text, n numeric, GONE boolean)", {"rename": "Gone"}, "has no column Gone; it has gone, and case matters", ""),
    ("create table t (k int, v text, n numeric, gone boolean)", {},
     "column k is integer, and the rows have bigint: the column is too narrow: make it bigint", ""),
    ("create table t (k bigint, v int, n numeric, gone boolean)", {}, "column v is integer, and the rows have string", ""),
    ("create table t (k bigint, v text, n numeric(10,1), gone boolean)", {},
     r"column n is numeric(10,1), and the rows have decimal(10,2): the column is too narrow: make it numeric(10,2)", ""),
    ("create table t (k bigint, v text, n numeric(9,2), gone boolean)", {}, "the column is too narrow", ""),
    ("create table t (k bigint, v text, n float8, gone boolean)", {}, "make the column numeric(10,2)", ""),
    ("create table t (k bigint, v text, n numeric, gone boolean, more int not null)", {},
     "column more is not null and has no default, and the rows do not have it", "drop not null"),
    ("create table t (k bigint, v text, n numeric, gone boolean, more int not null default 1)", {}, None, ""),
    ("create domain moment as timestamptz not null default now(); create table t (k bigint, v text, n numeric, gone boolean, more moment not null)",
     {}, None, ""),
    ("create domain counter as int not null; create table t (k bigint, v text, n numeric, gone boolean, more counter)", {},
     "column more is not null and has no default, and the rows do not have it", "drop not null"),
    ("create table t (k bigint, v name, n numeric, gone boolean)", {}, "column v is name, and the rows have string: make the column text", ""),
    ('create table t (k bigint, v "char", n numeric, gone boolean)', {}, "make the column text", ""),
    ("create table t (k bigint generated always as identity, v text, n numeric, gone boolean)", {}, "leave it out of the rows", ""),
    ("create table t (k bigint, v text generated always as ('x') stored, n numeric, gone boolean)", {}, "the table computes it", ""),
    ("create table t (k bigint unique, v text, n numeric, gone boolean)", {"key": ["k", "v"]},
     "table t has no unique constraint on (k, v), which is the sink's key; it has (k)", 'add unique ("k", "v")'),
    ("create table t (k bigint, v text, n numeric); create unique index on t (k) where v is null", {"key": "k", "delete": "gone"},
     "no unique constraint on (k)", "may not be deferrable or partial"),
    ("create table t (k bigint, v text, n numeric, unique (v, k))", {"key": ["k", "v"], "delete": "gone"}, None, ""),
    ("create table t (k bigint, v text, n numeric, gone boolean)", {"key": "x"}, "its key names the column 'x'", ""),
    ("create table t (k bigint, v text, n numeric, gone boolean)", {"key": "k", "delete": "v"}, "delete='v' is string, expected a boolean", ""),
    ("create table t (k bigint unique, v text, n numeric); create rule told as on insert to t do also notify told",
     {"key": "k", "delete": "gone"}, "table t has the rule told", 'drop rule "told" on t'),
    ("create table t (k bigint, v text, n numeric, gone boolean); create rule told as on insert to t do also notify told",
     {}, None, ""),
    ("create table t (k bigint, v text, n numeric, gone boolean); revoke all on t from clerk; grant select on t to clerk",
     {"user": "clerk"}, "user clerk may not insert in table t", 'grant insert on '),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "options", "words", "hint"), REFUSED, ids=[str(at) for at in range(len(REFUSED))])
def test_tables_that_rows_do_not_fit(
    postgresql: Server, dsn: str, sql: str, options: Any, words: Any, hint: str
) -> None:
    options = dict(options)
    schema = dsn.rpartition("%3D")[2]
    renamed, user = options.pop("rename", "gone"), options.pop("user", None)
    columns = pa.schema([field.with_name(renamed) if field.name == "gone" else field for field in ROW])
    with postgresql.connect(dsn) as db:
        db.execute(
            "drop table if exists t cascade; drop view if exists t"
            if not sql.startswith("create view")
            else "drop table if exists t"
        )
        if user:
            db.execute(
                f"drop role if exists {user}; create role {user} login password 'x'; grant usage, create on schema {schema} to {user}"
            )
        for each in filter(None, [sql]):
            db.execute(each)
    try:
        at = dsn.replace(f"tests:{PASSWORD}", f"{user}:x") if user else dsn
        target = sl.sinks.postgres(at, "t", **options).target
        if words is None:
            target.try_out(columns)
            return
        with pytest.raises(ConfigurationError) as caught:
            target.try_out(columns)
        assert words in caught.value.message
        assert hint in caught.value.hint
    finally:
        with postgresql.connect(dsn) as db:
            kind = "view" if sql.startswith("create view") else "table"
            db.execute(f"drop {kind} if exists t cascade; drop foreign data wrapper if exists w cascade")
            if user:
                db.execute(f"drop owned by {user}; drop role {user}")


def test_rows_that_a_policy_excludes_are_refused_like_others(postgresql: Server, dsn: str) -> None:
    """PostgreSQL reports them like a missing privilege, which ends the job."""
    schema = dsn.rpartition("%3D")[2]
    with postgresql.connect(dsn) as db:
        db.execute(f"create role reader login password 'x'; grant usage, create on schema {schema} to reader")
        db.execute("create table guarded (k bigint primary key, v text); grant all on guarded to reader")
        db.execute("alter table guarded enable row level security")
        db.execute("create policy p on guarded using (v <> 'hidden') with check (v <> 'bad')")
        db.execute("insert into guarded values (1, 'hidden')")
    columns = pa.schema({"k": pa.int64(), "v": pa.string()})
    try:
        target = target_of(
            dsn.replace(f"tests:{PASSWORD}", "reader:x"), columns, "guarded", key="k", record="guarded_record"
        )
        for row in ((1, "a"), (2, "bad")):
            with pytest.raises(SinkError, match="table guarded refuses rows: new row violates row-level security"):
                write(target, batch_of({"k": (pa.int64(), [row[0]]), "v": (pa.string(), [row[1]])}))
        write(target, batch_of({"k": (pa.int64(), [3]), "v": (pa.string(), ["b"])}))
        with postgresql.connect(dsn) as db:
            assert db.execute("select k, v from guarded order by k").fetchall() == [(1, "hidden"), (3, "b")]
            db.execute("revoke update on guarded from reader")
        with pytest.raises(AccessError, match="user reader may not update"):
            write(target, batch_of({"k": (pa.int64(), [4]), "v": (pa.string(), ["b"])}))
    finally:
        with postgresql.connect(dsn) as db:
            db.execute("drop owned by reader; drop role reader")


def test_trying_out_leaves_nothing_behind(postgresql: Server) -> None:
    dsn = postgresql.schema()
    sl.sinks.postgres(dsn, "new", create=True).target.try_out(ROW)
    with postgresql.connect(dsn) as db:
        assert db.execute(
            "select count(*) from pg_class where relnamespace = current_schema()::regnamespace"
        ).fetchone() == (0,)


def test_servers_that_cannot_be_reached(postgresql: Server, dsn: str) -> None:
    def refused(at: str, **given: Any) -> ConfigurationError:
        with pytest.raises(ConfigurationError) as caught:
            sl.sinks.postgres(at, "every", **given).target.try_out(ROW)
        assert PASSWORD not in str(caught.value)
        assert "not-the-password" not in str(caught.value)
        return caught.value

    said = refused(postgresql.dsn(password="not-the-password"))
    assert "password authentication failed" in said.message
    assert "check the user and the password" in said.hint
    assert "does not exist" in refused(postgresql.dsn("nowhere")).message
    nobody = refused(postgresql.dsn(port=1))
    assert "PostgreSQL at 127.0.0.1:1, database postgres cannot be reached" in nobody.message
    assert "whether the server runs" in nobody.hint
    assert "the dsn cannot be read" in refused(f"postgresql://tests:{PASSWORD}@[127").message
    assert "the dsn cannot be read" in refused(f"password {PASSWORD}").message
    assert "is read-only: it may be a replica" in refused(f"{dsn}%20-cdefault_transaction_read_only%3Don").message


@pytest.mark.parametrize("option", ["table", "record"])
def test_a_name_is_no_more_than_a_name(postgresql: Server, dsn: str, option: str) -> None:
    """Newer servers take what is no name for that of a table that is not there; older ones refuse it."""
    worse = "a (n int); drop table precious; --"
    names = {"table": "named", "record": "named_record"}
    with pytest.raises(ConfigurationError):
        sl.sinks.postgres(dsn, create=True, **{**names, option: worse}).target.try_out(ROW)
    sl.sinks.postgres(dsn, create=True, **{**names, option: 'pg_temp."A; b"'}).target.try_out(ROW)
    with postgresql.connect(dsn) as db:
        assert identifier(db, 'Bank."A; ""b"') == '"bank"."A; ""b"'
        with pytest.raises(Exception, match="not a valid identifier"):
            identifier(db, worse)


def test_secrets_are_not_told(dsn: str) -> None:
    sink = sl.sinks.postgres(dsn, "every")
    assert PASSWORD not in repr(sink) + repr(sink.target) + str(sink.target)
    # A function that gives it is asked again and again.
    asked: list[int] = []
    late = sl.sinks.postgres(lambda: (asked.append(1), dsn)[1], "every")
    with closing(late.target.open("strandline/try")) as db:
        assert db.execute("select 1").fetchone() == (1,)
    assert asked


def test_json_has_no_nan(postgresql: Server, dsn: str) -> None:
    kind = pa.struct({"x": pa.float64(), "at": UTC, "d": pa.decimal128(5, 2), "b": pa.binary()})
    target = target_of(dsn, pa.schema({"doc": kind}), "docs")
    at = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    write(target, batch_of({"doc": (kind, [{"x": math.nan, "at": at, "d": Decimal("1.50"), "b": b"\xff"}])}))
    with postgresql.connect(dsn) as db:
        (found,) = db.execute("select doc::text from docs").fetchone()
    doc = json.loads(found)
    assert (doc["x"], doc["d"], doc["b"]) == (None, 1.5, "/w==")
    assert dt.datetime.fromisoformat(doc["at"]) == at


def test_without_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match="needs psycopg, which is not installed") as caught:
        sl.sinks.postgres("host=localhost", "t")
    assert "pip install 'strandline[postgres]'" in caught.value.hint
