"""Types and schemas as programs give them: as DDL, or as Spark's own objects, for which no Spark is needed here."""

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
    """A type, a column or a schema of Spark's: StructType, StructField, LongType() and so on."""

    def jsonValue(self) -> Any:  # noqa: N802
        """Return it as Spark writes it in JSON."""
        ...


def type_text(given: str | SparkType, what: str) -> str:
    """Return the DDL of a type; it may be a column of a schema. Errors begin with `what`."""
    if isinstance(given, str) and given.strip():
        return given
    json = _json(given, what, "a Spark DDL type", "write it like 'bigint' or 'struct<ts: timestamp, v: int>'")
    if isinstance(json, dict) and "name" in json:
        json = json["type"]
    return _ddl(json)


def type_given(given: str | SparkType, what: str) -> DataType:
    """Return a type; raise ConfigurationError, which begins with `what`, for what is none."""
    try:
        return parse_type(type_text(given, what))
    except ConfigurationError as error:
        raise _naming(what, error) from None


def schema_given(given: str | SparkType, what: str) -> StructType:
    """Return the columns of rows; raise ConfigurationError, which begins with `what`, for what are none."""
    try:
        if isinstance(given, str):
            found = parse_schema(given)
            check_names(found.names, what)
            return found
        json = _json(given, what, "a schema in Spark DDL, or a StructType", "write it like 'id bigint, name string'")
        if isinstance(json, dict) and "name" in json:
            return StructType((Field(json["name"], parse_type(_ddl(json["type"]))),))
        kind = parse_type(_ddl(json))
        check_names(kind.names if isinstance(kind, StructType) else (), what)
    except ConfigurationError as error:
        raise _naming(what, error) from None
    if not isinstance(kind, StructType):
        raise ConfigurationError(
            f"{what} is the type {kind.ddl}, expected columns with their names", hint=f"write 'name {kind.ddl}'"
        )
    return kind


def check_names(names: Iterable[str], what: str) -> None:
    """Refuse columns with names of ours: what they hold would be taken for times, flags and origins."""
    taken = [name for name in names if name.lower().startswith(_RESERVED)]
    if taken:
        raise ConfigurationError(
            f"{what}: the column '{taken[0]}' has a name that Strandline keeps for columns of its own",
            hint=f"give it another one, which does not begin with {_RESERVED}",
        )


def _json(given: Any, what: str, expected: str, hint: str) -> Any:
    """Return what an object of Spark's says of itself."""
    if isinstance(given, type):
        if hasattr(given, "jsonValue"):
            hint = f"write {given.__name__}()"
        elif given.__name__ in _WORDS:
            hint = f"types are Spark's: '{_WORDS[given.__name__]}' is one whose values are {given.__name__} in Python"
    elif hasattr(given, "jsonValue"):
        return given.jsonValue()
    raise ConfigurationError(f"{what} is {given!r:.200}, expected {expected}", hint=hint)


def _ddl(json: Any) -> str:
    """Return the DDL of what Spark writes as JSON; of what only Spark knows, a text that is refused."""
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


def _naming(what: str, error: ConfigurationError) -> ConfigurationError:
    message = error.message if error.message.startswith(what) else f"{what}: {error.message}"
    return ConfigurationError(message, hint=error.hint, **error.fields)
