"""Types and schemas that users pass, as DDL or as Spark's objects. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from strandline.core.errors import ConfigurationError
from strandline.types.datatypes import DataType, Field, StructType, parse_schema, parse_type, quoted

_RESERVED = "__strandline"
_WORDS = {
    "int": "bigint", "float": "double", "str": "string", "bool": "boolean", "bytes": "binary", "datetime": "timestamp",
    "date": "date", "Decimal": "decimal(38,18)", "list": "array<…>", "dict": "map<…, …>", "tuple": "struct<…>",
}  # fmt: skip


class SparkType(Protocol):
    """A type, column or schema of Spark: StructType, StructField, LongType() and so on."""

    def jsonValue(self) -> Any:  # noqa: N802
        """Return Spark's JSON form."""
        ...


def type_text(spec: str | SparkType, label: str) -> str:
    """Return the DDL of a type, or of the type of a column. Errors begin with `label`."""
    if isinstance(spec, str) and spec.strip():
        return spec
    json = _json(spec, label, "a Spark DDL type", "write it like 'bigint' or 'struct<ts: timestamp, v: int>'")
    if isinstance(json, dict) and "name" in json:
        json = json["type"]
    return _ddl(json)


def resolve_type(spec: str | SparkType, label: str) -> DataType:
    """Return a type, or raise a ConfigurationError that begins with `label`."""
    try:
        return parse_type(type_text(spec, label))
    except ConfigurationError as error:
        raise _prefix(label, error) from None


def resolve_schema(spec: str | SparkType, label: str) -> StructType:
    """Return a schema, or raise a ConfigurationError that begins with `label`."""
    try:
        if isinstance(spec, str):
            schema = parse_schema(spec)
            check_names(schema.names, label)
            return schema
        json = _json(spec, label, "a schema in Spark DDL, or a StructType", "write it like 'id bigint, name string'")
        if isinstance(json, dict) and "name" in json:
            return StructType((Field(json["name"], parse_type(_ddl(json["type"]))),))
        kind = parse_type(_ddl(json))
        check_names(kind.names if isinstance(kind, StructType) else (), label)
    except ConfigurationError as error:
        raise _prefix(label, error) from None
    if not isinstance(kind, StructType):
        raise ConfigurationError(
            f"{label} is the type {kind.ddl}, expected columns with their names", hint=f"write 'name {kind.ddl}'"
        )
    return kind


def check_names(names: Iterable[str], label: str) -> None:
    """Refuse columns with names that Strandline reserves for its times, flags and origins."""
    reserved = [name for name in names if name.lower().startswith(_RESERVED)]
    if reserved:
        raise ConfigurationError(
            f"{label}: the column '{reserved[0]}' has a name that Strandline keeps for columns of its own",
            hint=f"choose another name, which does not begin with {_RESERVED}",
        )


def _json(spec: Any, label: str, expected: str, hint: str) -> Any:
    """Return the JSON form of an object of Spark."""
    if isinstance(spec, type):
        if hasattr(spec, "jsonValue"):
            hint = f"write {spec.__name__}()"
        elif spec.__name__ in _WORDS:
            hint = f"types are Spark's: '{_WORDS[spec.__name__]}' is one whose values are {spec.__name__} in Python"
    elif hasattr(spec, "jsonValue"):
        return spec.jsonValue()
    raise ConfigurationError(f"{label} is {spec!r:.200}, expected {expected}", hint=hint)


def _ddl(json: Any) -> str:
    """Return the DDL of Spark's JSON; for a type that only Spark has, a text that the parser refuses."""
    if not isinstance(json, dict):
        return str(json)
    kind = json.get("type")
    if kind == "struct":
        fields = (f"{quoted(field['name'])}: {_ddl(field['type'])}" for field in json["fields"])
        return f"struct<{', '.join(fields)}>"
    if kind == "array":
        return f"array<{_ddl(json['elementType'])}>"
    if kind == "map":
        return f"map<{_ddl(json['keyType'])}, {_ddl(json['valueType'])}>"
    return str(kind)


def _prefix(label: str, error: ConfigurationError) -> ConfigurationError:
    message = error.message if error.message.startswith(label) else f"{label}: {error.message}"
    return ConfigurationError(message, hint=error.hint, **error.fields)
