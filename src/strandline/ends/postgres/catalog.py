"""Tables in PostgreSQL's catalog, and the check that a sink's rows fit into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from strandline.core.errors import AccessError, ConfigurationError
from strandline.ends.postgres.shape import Shape, quoted
from strandline.types.columns import from_arrow_type

# The rows of a partitioned table are in its partitions.
_TABLE = """
with recursive part (oid) as (select %s::oid union all select h.inhrelid from pg_inherits h join part on h.inhparent =
  part.oid join pg_class on pg_class.oid = h.inhrelid where relispartition)
select n.nspname, c.relname, c.relkind::text,
  exists (select from part join pg_class l using (oid) where l.relpersistence = 'u'),
  exists (select from part join pg_class l using (oid) where l.relkind = 'f'), row_security_active(c.oid),
  has_table_privilege(c.oid, 'insert'), has_table_privilege(c.oid, 'update'), has_table_privilege(c.oid, 'delete'),
  has_table_privilege(c.oid, 'select'), has_database_privilege(current_database(), 'temporary'), current_user::text,
  array(select rulename::text from pg_rewrite where ev_class = c.oid and ev_type in ('2', '3') order by 1)
from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = %s
"""
# A domain counts as its base type; a domain over a domain stays a domain, and parses its values from text.
_COLUMNS = """
select a.attname, coalesce(b.typname, t.typname), format_type(a.atttypid, a.atttypmod),
  coalesce(b.typcategory, t.typcategory)::text,
  case when b.oid is null then a.atttypmod else t.typtypmod end, a.attnotnull or t.typnotnull,
  a.atthasdef or a.attidentity <> '' or t.typdefault is not null,
  a.attidentity::text, a.attgenerated::text, coalesce(c.collisdeterministic, true)
from pg_attribute a join pg_type t on t.oid = a.atttypid
left join pg_type b on t.typtype = 'd' and b.oid = t.typbasetype
left join pg_collation c on c.oid = a.attcollation
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
# Servers before version 15 have no column indnullsnotdistinct.
_UNIQUE = """
select array(select a.attname::text from pg_attribute a
  where a.attrelid = i.indrelid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]) order by 1),
  coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)
from pg_index i where i.indrelid = %s and i.indisunique and i.indisvalid and i.indimmediate
  and i.indpred is null and i.indexprs is null
"""


@dataclass(frozen=True)
class Column:
    """A column of the table."""

    name: str
    kind: str
    """The name of its type in the catalog, or of its domain's base type: int8, numeric, _text."""
    type: str
    """The type as SQL writes it: bigint, numeric(10,2), text[]."""
    category: str
    modifier: int
    is_required: bool
    has_default: bool
    identity: str
    generated: str
    is_exact: bool
    """Whether only identical values are equal: a nondeterministic collation may treat others as equal."""


@dataclass(frozen=True)
class CatalogTable:
    """A table, as the catalog had it when it was read."""

    schema: str
    name: str
    kind: str
    is_unlogged: bool
    """Whether a crash of the server empties the table or a partition."""
    is_foreign: bool
    """Whether the table or a partition is a foreign table."""
    hides_rows: bool
    """Whether row-level security applies to the user."""
    privileges: dict[str, bool]
    user: str
    rules: list[str]
    """Its rules for updates and inserts."""
    columns: dict[str, Column]
    unique: list[list[str]]
    null_safe: list[list[str]]
    """Those of the unique indexes in which null is equal to null."""

    @property
    def quoted(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"


def read_table(db: Any, table: str) -> CatalogTable | None:
    """Return a table from the catalog; None if there is none of that name."""
    (oid,) = db.execute("select to_regclass(%s)::oid", [table]).fetchone()
    if oid is None:
        return None
    schema, name, kind, is_unlogged, is_foreign, hides_rows, *allowed, user, rules = db.execute(
        _TABLE, [oid, oid]
    ).fetchone()
    columns = {row[0]: Column(*row) for row in db.execute(_COLUMNS, [oid])}
    indexes = db.execute(_UNIQUE, [oid]).fetchall()
    unique, null_safe = [names for names, _ in indexes], [names for names, is_null_safe in indexes if is_null_safe]
    privileges = dict(zip(("insert", "update", "delete", "select", "temporary"), allowed, strict=True))
    return CatalogTable(
        schema, name, kind, is_unlogged, is_foreign, hides_rows, privileges, user, rules, columns, unique,
        null_safe,
    )  # fmt: skip


def identifier(db: Any, name: str) -> str:
    """Return a name such as `bank."Accounts"` with all parts quoted, so that it is only a name in a statement."""
    (parts,) = db.execute("select parse_ident(%s)", [name]).fetchone()
    return ".".join(map(quoted, parts))


def check_table(table: CatalogTable | None, shape: Shape, rows: pa.Schema, *, parallel: bool = False) -> None:
    """Raise ConfigurationError, with a statement that helps, unless rows of these columns can be written.

    `parallel` tells whether several connections write.
    """
    what, columns = f"table {shape.table}", shape.written(rows)
    if table is None:
        raise ConfigurationError(
            f"{what} does not exist",
            hint=f"create it, or let the sink do it with create=True:\n    {create_sql(shape.table, shape, columns)}",
        )
    if table.kind not in "rp" or table.is_foreign:
        kinds = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index",
                 "p": "a table with foreign partitions"}  # fmt: skip
        raise ConfigurationError(f"{what} is {kinds.get(table.kind, 'no table')}, and rows go into tables only")
    if table.is_unlogged:
        part = " has unlogged partitions" if table.kind == "p" else " is unlogged"
        raise ConfigurationError(
            f"{what}{part}: a crash of the server empties it, and its rows would not come again",
            hint=f"alter table {shape.table if table.kind == 'r' else '…'} set logged",
        )
    if table.hides_rows and (shape.delete or not shape.key):
        raise ConfigurationError(
            f"{what} has row-level security that holds for user {table.user}: rows that it hides would not be deleted, "
            "and none can be copied into it",
            hint=f"alter role {quoted(table.user)} bypassrls; or have the table's owner write",
        )
    if table.rules and shape.key:
        raise ConfigurationError(
            f"{what} has the rule {table.rules[0]}: PostgreSQL replaces no rows by key in a table with rules",
            hint=f"drop rule {quoted(table.rules[0])} on {shape.table}, or write a trigger instead",
        )
    _check_privileges(table, shape)
    for field in columns:
        column = table.columns.get(field.name)
        if column is None:
            near = [name for name in table.columns if name.lower() == field.name.lower()]
            raise ConfigurationError(
                f"{what} has no column {field.name}" + (f"; it has {near[0]}, and case matters" if near else ""),
                hint=f"alter table {shape.table} add column {quoted(field.name)} {type_for(field.type)}; or leave "
                "it out of the rows, with .select(…)",
            )
        if reason := _misfit(field.type, column):
            raise ConfigurationError(
                f"{what}: column {field.name} is {column.type}, and the rows have {_spark_name(field.type)}: {reason}"
            )
    for column in table.columns.values():
        if column.is_required and not column.has_default and column.name not in columns.names:
            raise ConfigurationError(
                f"{what}: column {column.name} is not null and has no default, and the rows do not have it",
                hint=f"give the rows such a column, or: alter table {shape.table} alter {quoted(column.name)} "
                "drop not null",
            )
    if shape.key and sorted(shape.key) not in table.unique:
        has = "; it has " + ", ".join(f"({', '.join(names)})" for names in table.unique) if table.unique else ""
        key = ", ".join(map(quoted, shape.key))
        raise ConfigurationError(
            f"{what} has no unique constraint on ({', '.join(shape.key)}), which is the sink's key{has}",
            hint=f"alter table {shape.table} add unique ({key}); it may not be deferrable or partial",
        )
    if parallel:
        _check_spread(table, shape, columns)


def check_nulls(table: CatalogTable, shape: Shape) -> None:
    """Raise ConfigurationError if the table cannot have nulls that the rows may have in their key."""
    for name in () if takes_nulls(table, shape) else shape.nullable:
        key = ", ".join(map(quoted, shape.key))
        raise shape.refusal(
            name,
            f"from version 15 on, PostgreSQL can: drop the constraint on the key, alter table {shape.table} alter "
            f"{quoted(name)} drop not null, add unique nulls not distinct ({key})",
        )


def takes_nulls(table: CatalogTable, shape: Shape) -> bool:
    """Whether the table can have nulls in the columns of the key that may be null."""
    return sorted(shape.key) in table.null_safe and not any(table.columns[name].is_required for name in shape.nullable)


def _check_privileges(table: CatalogTable, shape: Shape) -> None:
    needed = ["insert"]
    if shape.key:
        needed += ["update", "select", "temporary"] + (["delete"] if shape.delete else [])
    missing = [name for name in needed if not table.privileges[name]]
    if "temporary" in missing:
        raise AccessError(
            f"user {table.user} may not create temporary tables, which a sink with a key needs",
            hint=f"grant temporary on database … to {quoted(table.user)}",
        )
    if missing:
        raise AccessError(
            f"user {table.user} may not {' and '.join(missing)} in table {shape.table}",
            hint=f"grant {', '.join(missing)} on {table.quoted} to {quoted(table.user)}",
        )


def is_exact(table: CatalogTable, shape: Shape, rows: pa.Schema) -> bool:
    """Whether keys that differ in Arrow also differ in the table: the server may round values, or compare otherwise."""
    return all(_is_exact(table.columns[name], rows.field(name).type) for name in shape.key)


def _is_exact(column: Column, kind: pa.DataType) -> bool:
    plain = ("int2", "int4", "int8", "bool", "date", "text", "bytea", "timestamp", "timestamptz", "numeric")
    if column.modifier != -1 and column.kind != "numeric":
        # varchar(n) drops spaces after its n-th character, times are rounded. Numbers that numeric(p, s) would round do
        # not fit.
        return pa.types.is_timestamp(kind) and column.modifier == 6
    # An enum, of category E, has each of its texts once.
    return (column.kind in (*plain, "varchar") or column.category == "E") and column.is_exact


def _check_spread(table: CatalogTable, shape: Shape, rows: pa.Schema) -> None:
    """Raise ConfigurationError if keys that are equal in the table may be spread over several connections."""
    for name in shape.key:
        column = table.columns[name]
        # The spread ignores case, hyphens, braces and spaces at the end.
        is_folded = column.is_exact and column.kind in ("uuid", "varchar", "bpchar")
        if not is_folded and not _is_exact(column, rows.field(name).type):
            raise ConfigurationError(
                f"table {shape.table}: column {name} of the key is {column.type}, for which different values of the "
                "rows can be equal: with several writers, an older row could replace a newer one",
                hint="leave writers out: one connection writes all rows in order",
            )


def create_sql(table: str, shape: Shape, columns: pa.Schema) -> str:
    """Return the statement that creates a table for rows of these columns."""
    parts = [
        f"{quoted(field.name)} {type_for(field.type)}" + (" not null" if field.name in shape.never_null else "")
        for field in columns
    ]
    if shape.key:
        how = "unique nulls not distinct" if shape.nullable else "primary key"
        parts.append(f"{how} ({', '.join(map(quoted, shape.key))})")
    return f"create table if not exists {table} ({', '.join(parts)})"


def type_for(kind: pa.DataType) -> str:
    """Return the PostgreSQL type for an Arrow type."""
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    if pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type):
        return f"{type_for(kind.value_type)}[]"
    if pa.types.is_nested(kind):
        return "jsonb"
    name = next((name for is_kind, name, _ in _KINDS if is_kind(kind)), None)
    if name is None:
        raise ConfigurationError(
            f"PostgreSQL has no type for {_spark_name(kind)}", hint="cast it to another, as string"
        )
    return name


_KINDS: Sequence[tuple[Any, str, tuple[str, ...]]] = (
    (pa.types.is_boolean, "boolean", ("bool",)),
    (pa.types.is_int8, "smallint", ("int2", "int4", "int8", "numeric", "float4", "float8")),
    (pa.types.is_int16, "smallint", ("int2", "int4", "int8", "numeric", "float4", "float8")),
    (pa.types.is_int32, "integer", ("int4", "int8", "numeric", "float8")),
    (pa.types.is_int64, "bigint", ("int8", "numeric")),
    (pa.types.is_float32, "real", ("float4", "float8")),
    (pa.types.is_float64, "double precision", ("float8",)),
    (pa.types.is_date, "date", ("date",)),
    (pa.types.is_binary, "bytea", ("bytea",)),
    (pa.types.is_large_binary, "bytea", ("bytea",)),
    (pa.types.is_string, "text", ("text", "varchar", "bpchar")),
    (pa.types.is_large_string, "text", ("text", "varchar", "bpchar")),
    (pa.types.is_duration, "interval", ("interval",)),
)
"""Arrow's types, the column type that the sink creates for each, and the types that hold all of its values."""
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


def _misfit(kind: pa.DataType, column: Column) -> str | None:
    """Return why a column cannot hold values of a type, and what to do."""
    if column.generated:
        return "the table computes it: leave it out of the rows"
    if column.identity == "a":
        return "the table numbers its rows itself (generated always): leave it out of the rows"
    if column.kind in ("json", "jsonb") and (pa.types.is_nested(kind) or pa.types.is_string(kind)):
        return None
    if pa.types.is_list(kind) and column.category == "A":
        if pa.types.is_nested(kind.value_type):
            return "lists in lists go into a column of jsonb"
        element = Column(
            column.name, column.kind.removeprefix("_"), column.type, "", column.modifier, False, False, "", "", True
        )
        return _misfit(kind.value_type, element)
    return next(_misfits(kind, column), None)


def _misfits(kind: pa.DataType, column: Column) -> Iterator[str]:
    wanted = type_for(kind)
    if pa.types.is_decimal(kind) or (column.kind == "numeric" and kind in _DIGITS):
        precision, scale = (kind.precision, kind.scale) if pa.types.is_decimal(kind) else (_DIGITS[kind], 0)
        if column.kind != "numeric":
            yield f"make the column {wanted}, or cast the rows'"
        elif column.modifier >= 0:
            has_precision, has_scale = (column.modifier - 4) >> 16 & 0xFFFF, (column.modifier - 4) & 0x7FF
            if has_scale < scale or has_precision - has_scale < precision - scale:
                yield f"the column is too narrow: make it {wanted}, or cast the rows'"
        return
    if pa.types.is_timestamp(kind):
        if column.kind in ("timestamp", "timestamptz") and column.kind != wanted:
            yield "which moment a time without a zone stands for would depend on the session: cast one to the other"
        elif column.kind != wanted:
            yield f"make the column {wanted}, or cast the rows'"
        return
    takes = next((kinds for is_kind, _, kinds in _KINDS if is_kind(kind)), ())
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    # Special types parse their values from text: uuid, enums, inet, ranges.
    # PostgreSQL's own types cut texts without an error ("char", of category Z, and name).
    if column.kind in takes or (is_text and column.category not in "NBDTSVAZ"):
        return
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if number and column.kind in ("int2", "int4", "float4"):
        yield f"the column is too narrow: make it {wanted}, or cast the rows'"
    else:
        yield f"make the column {wanted}, or cast the rows'"


def _spark_name(kind: pa.DataType) -> str:
    """Return Spark's name of a type."""
    try:
        return from_arrow_type(kind).ddl
    except ConfigurationError:
        return str(kind)
