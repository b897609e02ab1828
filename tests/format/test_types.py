from __future__ import annotations

import pytest
from hypothesis import given

from strandline.core.errors import ConfigurationError
from strandline.types.datatypes import (
    ArrayType,
    DecimalType,
    Field,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    parse_schema,
    parse_type,
)
from tests.format.strategies import structs, types


@pytest.mark.parametrize(
    ("text", "ddl"),
    [
        ("BYTE", "tinyint"), ("tinyint", "tinyint"), ("short", "smallint"), ("integer", "int"), ("LONG", "bigint"),
        ("real", "float"), ("double", "double"), ("decimal", "decimal(10,0)"), ("dec(5)", "decimal(5,0)"),
        ("numeric( 12 , 3 )", "decimal(12,3)"), ("varchar(10)", "string"), ("char(3)", "string"), ("binary", "binary"),
        ("boolean", "boolean"), ("date", "date"), ("timestamp_ltz", "timestamp"), ("timestamp_ntz", "timestamp_ntz"),
        ("Array<Array<INT>>", "array<array<int>>"), ("map<string,map<float,int>>", "map<string,map<float,int>>"),
        ("struct<a int, b: string NOT NULL COMMENT 'it\\'s b'>", "struct<a:int,b:string>"),
        ('struct<`weird name`: string COMMENT "x">', "struct<`weird name`:string>"),
        ("struct<`a``b`:int>", "struct<`a``b`:int>"), ("struct<struct:int,array:date>", "struct<struct:int,array:date>"),
        ("struct<a:int,A:int>", "struct<a:int,A:int>"), ("\n bigint\t", "bigint"),
    ],
)  # fmt: skip
def test_reads_ddl(text: str, ddl: str) -> None:
    assert parse_type(text).ddl == ddl
    assert parse_type(ddl) == parse_type(text)


@given(types())
def test_ddl_reads_back(kind: object) -> None:
    assert parse_type(kind.ddl) == kind
    assert hash(parse_type(kind.ddl)) == hash(kind)


@given(structs(types()))
def test_schema_reads_back(schema: StructType) -> None:
    assert parse_schema(schema.ddl) == schema
    assert parse_schema(schema.ddl.removeprefix("struct<").removesuffix(">")) == schema


def test_reads_schemas() -> None:
    schema = parse_schema("id bigint, tags: array<string>, `two words` decimal(5,2)")
    assert schema == StructType(
        (Field("id", LongType()), Field("tags", ArrayType(StringType())), Field("two words", DecimalType(5, 2)))
    )
    assert schema.names == ("id", "tags", "two words")
    assert parse_schema("struct int").names == ("struct",)
    assert parse_schema("struct: struct<a:int>").ddl == "struct<struct:struct<a:int>>"


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("", 0, "expected a type"),
        ("array<flot>", 6, "'flot' is no type"),
        ("array<int", 9, "expected '>'"),
        ("array int", 6, "expected '<'"),
        ("int int", 4, "expected nothing more"),
        ("map<map<int,int>,int>", 4, "may not hold a map"),
        ("map<array<struct<x:map<int,int>>>,int>", 4, "may not hold a map"),
        ("decimal(39,0)", 0, "is no decimal type"),
        ("decimal(3,4)", 0, "is no decimal type"),
        ("decimal(a)", 8, "expected a number"),
        ("decimal(1,2,3)", 11, "expected ')'"),
        ("varchar", 7, "expected '('"),
        ("struct<>", 7, "expected a name"),
        ("struct<a int, a int>", 14, "another field"),
        ("struct<a int NOT>", 16, "expected NULL"),
        ("struct<a int COMMENT x>", 21, "expected the comment"),
        ("interval", 0, "is no type"),
        ("int; drop", 3, "unexpected character"),
        ("struct<`a:int>", 7, "unexpected character"),
    ],
)
def test_errors_show_the_place(text: str, at: int, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_type(text)
    first, shown, caret, *_ = str(caught.value).split("\n")
    assert why in first
    assert f"position {at + 1}" in first
    assert shown == "  " + text
    assert caret == "  " + " " * at + "^"
    assert caught.value.position == at


def test_errors_of_schemas_and_of_other_things() -> None:
    with pytest.raises(ConfigurationError, match="cannot read the schema: expected a name"):
        parse_schema("")
    with pytest.raises(ConfigurationError, match="expected text in Spark DDL"):
        parse_type(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="may not hold a map"):
        MapType(ArrayType(MapType(IntegerType(), IntegerType())), IntegerType())
    with pytest.raises(ConfigurationError, match="more than one field named 'a'"):
        StructType((Field("a", IntegerType()), Field("a", LongType())))
