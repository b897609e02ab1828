"""The key of an operator: one column, a struct if nulls may be in it or it has several values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.core.errors import ConfigurationError
from strandline.spark.views.catalyst import Catalyst, Expression, id_of, kind_of
from strandline.types.datatypes import ArrayType, DataType, Field, MapType, StructType, parse_type

KEY = "__strandline_key"
_SIDE = "side"
_COMPUTED = "_groupingexpression"
"""Spark's name of a column by which rows are grouped, if it is computed."""
_NORMALIZED = ("KnownFloatingPointNormalized", "NormalizeNaNAndZero")


def join_key_of(
    catalyst: Catalyst, keys: Sequence[Expression], side: int | None = None, *, has_nulls: bool = True
) -> Expression:
    """Return the key of a side of a join, whose values have other names on the other side; `side` is as in key_of()."""
    unnamed = [_unnamed(catalyst, key) for key in keys]
    # A column as it is costs less than a struct on each way.
    return _comparable(catalyst, *unnamed) if len(keys) == 1 and not has_nulls else key_of(catalyst, unnamed, side)


def key_of(catalyst: Catalyst, keys: Sequence[Expression], side: int | None = None) -> Expression:
    """Return the key of rows by expressions, any of which may be null.

    `side`: a number that a key with a null has in place of 0, so that it is equal to none of another number.
    """
    fields = [(f"k{at}", _comparable(catalyst, key)) for at, key in enumerate(keys)]
    if side is not None or not keys:
        condition, number = None, catalyst.sql("0")
        for key in keys if side else ():
            condition = catalyst.either(condition, catalyst.is_null(key))
        if condition is not None:
            number = catalyst.if_(condition, catalyst.sql(str(side)), number)
        fields.append((_SIDE, number))
    return catalyst.struct(fields)


def names_in(catalyst: Catalyst, key: Expression, meanings: Mapping[int, str]) -> list[str] | None:
    """Return what the query calls the values of a key; None for the key of another operator, as it is.

    `meanings` has those of columns by their ids.
    """
    if kind_of(key) == "AttributeReference" and key.name() == KEY:
        return None
    if kind_of(key) != "CreateNamedStruct":
        return [_name_of(catalyst, key, meanings)]
    parts = catalyst.items(key.children())
    fields = zip(parts[::2], parts[1::2], strict=True)
    return [_name_of(catalyst, value, meanings) for name, value in fields if str(name.value().toString()) != _SIDE]


def _name_of(catalyst: Catalyst, value: Expression, meanings: Mapping[int, str]) -> str:
    """Return the column that a value of a key is made of, or the expression if it is computed."""
    kind = kind_of(value)
    if kind == "AttributeReference":
        name = str(value.name())
        return meanings.get(id_of(value), name) if name.startswith(_COMPUTED) else name
    if kind in _NORMALIZED:
        return _name_of(catalyst, value.child(), meanings)
    if kind == "Concat":
        parts = catalyst.items(value.children())
        if len(parts) == 3 and kind_of(parts[1]) == "Literal" and str(parts[1].value()) == "\n":
            # As `_comparable` makes it: the last part is the value as text.
            return _name_of(catalyst, parts[2].child(), meanings)
    return str(value.sql())


def check_type(column: Expression) -> None:
    """Refuse a column that no state can have."""
    ddl = column.dataType().sql()
    try:
        parse_type(ddl)
    except ConfigurationError:
        hint = "cast it: CAST(NULL AS STRING)" if ddl == "VOID" else "cast it to a type that it has: CAST(… AS STRING)"
        raise ConfigurationError(
            f"the query must keep {column.sql()}, which is {ddl}: no state has this type", hint=hint
        ) from None


def is_key(expression: Expression) -> bool:
    """Whether an operator's key has a value as it is."""
    try:
        return _is_key_type(parse_type(expression.dataType().sql()))
    except ConfigurationError:
        return False


def _is_key_type(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(_is_key_type(field.type) for field in kind.fields)
    return not isinstance(kind, ArrayType | MapType)


def _unnamed(catalyst: Catalyst, key: Expression) -> Expression:
    """Return a value whose structs, if it has some, have fields that are named by their places."""
    try:
        kind = parse_type(key.dataType().sql())
    except ConfigurationError:
        return key
    unnamed = _without_names(kind)
    return key if unnamed == kind else catalyst.cast(key, unnamed.ddl)


def _without_names(kind: DataType) -> DataType:
    match kind:
        case StructType():
            return StructType(tuple(Field(f"f{at}", _without_names(each.type)) for at, each in enumerate(kind.fields)))
        case ArrayType():
            return ArrayType(_without_names(kind.element))
    return kind


def _comparable(catalyst: Catalyst, key: Expression) -> Expression:
    """Return a value as keys have it: one of another type as text, in which each value is another text."""
    key = catalyst.normalized(key)
    if is_key(key):
        return key
    if "collate" in key.dataType().sql():
        check_type(key)
    # JSON tells texts apart, and the other one times and numbers.
    json = catalyst.call("to_json", catalyst.struct([("v", key)]))
    text = catalyst.cast(key, "string")
    return catalyst.call("concat", json, catalyst.sql("'\\n'"), text)
