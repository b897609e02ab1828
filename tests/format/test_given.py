"""Types and schemas that programs give: as DDL, or as what says of itself what Spark's types say. Without Spark."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from hypothesis import given
from pyspark.sql import types as spark_types

import strandline as sl
from strandline.core.errors import ConfigurationError
from strandline.testing import Harness, events
from strandline.types.datatypes import parse_type
from strandline.types.spark_schema import resolve_schema, resolve_type, type_text
from tests.format import strategies


def spark_type(ddl: str) -> Any:
    """Return a type as PySpark has it, without its JVM."""
    return {
        "bigint": spark_types.LongType(), "timestamp_ntz": spark_types.TimestampNTZType(),
        "decimal(12,3)": spark_types.DecimalType(12, 3), "string": spark_types.VarcharType(10),
    }[ddl]  # fmt: skip


SCHEMA = (
    spark_types.StructType()
    .add("user", spark_types.StringType())
    .add("some text", spark_types.ArrayType(spark_types.MapType(spark_types.ShortType(), spark_types.DateType())))
    .add("odd`one", spark_types.StructType().add("n", spark_types.DecimalType(10, 2)))
)


@pytest.mark.parametrize("ddl", ["bigint", "timestamp_ntz", "decimal(12,3)", "string"])
def test_types_of_spark(ddl: str) -> None:
    assert resolve_type(spark_type(ddl), "x") == parse_type(ddl)


def test_schemas_of_spark() -> None:
    expected = "struct<user:string,`some text`:array<map<smallint,date>>,`odd``one`:struct<n:decimal(10,2)>>"
    assert resolve_schema(SCHEMA, "x").ddl == resolve_type(SCHEMA, "x").ddl == expected
    assert type_text(SCHEMA["user"], "x") == "string"
    assert resolve_schema(SCHEMA["user"], "x").ddl == "struct<user:string>"
    assert resolve_type(SCHEMA["some text"], "x").ddl == "array<map<smallint,date>>"


@given(strategies.types())
def test_any_type_comes_through_sparks_json(kind: Any) -> None:
    class Told:
        def jsonValue(self) -> Any:
            return spark_types._parse_datatype_json_string(json.dumps(_json(kind.ddl))).jsonValue()

    assert resolve_type(Told(), "x") == kind


def _json(ddl: str) -> Any:
    """Return what Spark writes of a type, made by hand."""
    from strandline.types import datatypes as t

    names = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}

    def of(kind: t.DataType) -> Any:
        if isinstance(kind, t.ArrayType):
            return {"type": "array", "elementType": of(kind.element), "containsNull": True}
        if isinstance(kind, t.MapType):
            return {"type": "map", "keyType": of(kind.key), "valueType": of(kind.value), "valueContainsNull": True}
        if isinstance(kind, t.StructType):
            fields = [{"name": f.name, "type": of(f.type), "nullable": True, "metadata": {}} for f in kind.fields]
            return {"type": "struct", "fields": fields}
        return names.get(kind.ddl, kind.ddl)

    return of(parse_type(ddl))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (spark_types.LongType, "write LongType()"),
        (int, "'bigint' is one whose values are int in Python"),
        (dt.datetime, "'timestamp' is one whose values are datetime"),
        (
            spark_types.LongType(),
            "it is the type bigint, expected columns with their names\n  next step: write 'name bigint'",
        ),
        (spark_types.StructType().add("a", spark_types.VariantType()), "'variant' is no type that Strandline knows"),
        (spark_types.StructType(), "cannot read"),
        (
            "a int, __Strandline_x int",
            "it: the column '__Strandline_x' has a name that Strandline keeps for columns of its own",
        ),
        (spark_types.StructType().add("__strandline_time", spark_types.LongType()), "choose another name"),
        ({"a": "int"}, "it is {'a': 'int'}, expected a schema in Spark DDL, or a StructType"),
        (None, "it is None, expected a schema"),
    ],
)
def test_what_is_no_schema(wrong: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_schema(wrong, "it")
    assert said in str(caught.value)
    assert str(caught.value).startswith("it")


@given(strategies.structs(strategies.types()))
def test_a_schema_is_what_spark_would_say(kind: Any) -> None:
    stream = events(", ".join(field.ddl for field in kind.fields))
    assert resolve_schema(stream.schema, "x") == kind
    assert [resolve_type(field, "x") for field in stream.schema] == [field.type for field in kind.fields]
    assert [parse_type(ddl) for ddl in stream.types.values()] == [field.type for field in kind.fields]


def test_wherever_ddl_is_asked() -> None:
    kind = spark_types.StructType().add("user", spark_types.StringType()).add("n", spark_types.LongType())
    stream = events(kind)

    class Sums(sl.KeyedProcess):
        total = sl.Value(kind["n"], default=0)
        by = sl.Map(spark_types.StringType(), kind["n"])
        last = sl.Value(stream.schema["n"])

        def on_event(self, event: Any, ctx: Any) -> Any:
            self.total.value += event.n
            self.by[event.user] = self.last.value = self.total.value
            ctx.emit("all", event)
            yield ctx.key, self.total.value

    with Harness(Sums(), schema=kind, key="user", output=kind, sides={"all": kind}) as h:
        assert h.push(("ann", 2), ("ann", 3)) == [("ann", 2), ("ann", 5)]
        assert h.side("all") == [("ann", 2), ("ann", 3)]
        assert h.state("ann") == {"total": 5, "by": {"ann": 5}, "last": 5}
    doubled = stream.map(lambda row: (row.user, row.n * 2), kind)
    assert doubled.types == {"user": "string", "n": "bigint"}
    with Harness(doubled.key_by("user").process(Sums(), output=kind, uid="sums", sides={"all": kind})) as h:
        assert h.push(("ann", 2)) == [("ann", 4)]
