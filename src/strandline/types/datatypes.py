"""Spark's types as a tree of Python objects, and the parser of Spark DDL. Needs no JVM."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NoReturn, TypeVar

from strandline.core.errors import ConfigurationError

MAX_DECIMAL_PRECISION = 38
T = TypeVar("T", bound="DataType")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class DataType:
    """Base of all types. Types are values: comparable, hashable and immutable."""

    exact: ClassVar[type[Any] | None] = None
    """The class of Python values that need no coercion if they are in range; None if there is no such class."""

    @property
    def ddl(self) -> str:
        """The type in canonical Spark DDL; `parse_type` and Spark read it back."""
        raise NotImplementedError

    def contains_map(self) -> bool:
        """Whether the type contains a map at any depth."""
        return False

    def __str__(self) -> str:
        return self.ddl


class BooleanType(DataType):
    """True or False."""

    ddl = "boolean"
    exact = bool


class IntegralType(DataType):
    """A signed integer of fixed width; in Python an int."""

    exact = int
    width: ClassVar[int]


class ByteType(IntegralType):
    """8-bit signed integer."""

    ddl = "tinyint"
    width = 1


class ShortType(IntegralType):
    """16-bit signed integer."""

    ddl = "smallint"
    width = 2


class IntegerType(IntegralType):
    """32-bit signed integer."""

    ddl = "int"
    width = 4


class LongType(IntegralType):
    """64-bit signed integer."""

    ddl = "bigint"
    width = 8


class FloatType(DataType):
    """32-bit IEEE number; in Python a float that fits in 32 bits without rounding."""

    ddl = "float"


class DoubleType(DataType):
    """64-bit IEEE number; in Python a float."""

    ddl = "double"
    exact = float


class StringType(DataType):
    """Unicode text."""

    ddl = "string"
    exact = str


class BinaryType(DataType):
    """Bytes."""

    ddl = "binary"
    exact = bytes


class DateType(DataType):
    """A day of the proleptic Gregorian calendar."""

    ddl = "date"
    exact = dt.date


class TimestampType(DataType):
    """A moment, to the microsecond; in Python an aware datetime in UTC."""

    ddl = "timestamp"


class TimestampNTZType(DataType):
    """A date and time without a time zone, to the microsecond; in Python a naive datetime."""

    ddl = "timestamp_ntz"


@dataclass(frozen=True)
class DecimalType(DataType):
    """A decimal number of at most `precision` digits, `scale` of them after the point."""

    precision: int = 10
    scale: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.precision <= MAX_DECIMAL_PRECISION or not 0 <= self.scale <= self.precision:
            raise ConfigurationError(
                f"decimal({self.precision},{self.scale}) is no decimal type: expected a precision of 1 to "
                f"{MAX_DECIMAL_PRECISION} and a scale of 0 to the precision"
            )

    @property
    def ddl(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True)
class ArrayType(DataType):
    """A list of elements of one type, or nulls."""

    element: DataType

    @property
    def ddl(self) -> str:
        return f"array<{self.element.ddl}>"

    def contains_map(self) -> bool:
        return self.element.contains_map()


@dataclass(frozen=True)
class MapType(DataType):
    """A dict; keys are never null and hold no maps."""

    key: DataType
    value: DataType

    def __post_init__(self) -> None:
        if self.key.contains_map():
            raise ConfigurationError(f"the key of a map is {self.key.ddl}: the key of a map may not hold a map")

    @property
    def ddl(self) -> str:
        return f"map<{self.key.ddl},{self.value.ddl}>"

    def contains_map(self) -> bool:
        return True


@dataclass(frozen=True)
class Field:
    """A named part of a struct; it may always be null."""

    name: str
    type: DataType

    @property
    def ddl(self) -> str:
        """The field as DDL inside struct<…>."""
        return f"{quoted(self.name)}:{self.type.ddl}"


@dataclass(frozen=True)
class StructType(DataType):
    """Named fields in order; also the schema of rows."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        if not self.fields:
            raise ConfigurationError("a struct has no fields: expected at least one")
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise ConfigurationError(f"a struct has more than one field named {', '.join(map(repr, twice))}")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The fields' names, in order."""
        return tuple(field.name for field in self.fields)

    def types_of(self, names: Iterable[str]) -> list[DataType]:
        """Return the types of the fields with these names, in their order."""
        return [self.fields[self.names.index(name)].type for name in names]

    @property
    def ddl(self) -> str:
        return f"struct<{','.join(field.ddl for field in self.fields)}>"

    def contains_map(self) -> bool:
        return any(field.type.contains_map() for field in self.fields)


def quoted(name: str) -> str:
    """Return a column or field name as DDL, in backticks if necessary."""
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


@lru_cache(maxsize=1024)
def parse_type(text: str) -> DataType:
    """Read a type from Spark DDL, like 'bigint' or 'struct<ts: timestamp, v: int>'.

    Raises ConfigurationError with the text and the position.
    """
    parser = _Parser(text, "type")
    kind = parser.type()
    parser.end()
    return kind


@lru_cache(maxsize=1024)
def parse_schema(text: str) -> StructType:
    """Read the schema of rows from Spark DDL, like 'id bigint, name string'; 'id: bigint' and struct<…> work too.

    Raises ConfigurationError with the text and the position.
    """
    parser = _Parser(text, "schema")
    schema = parser.schema()
    parser.end()
    return schema


_SCALARS: dict[str, DataType] = {
    "boolean": BooleanType(),
    "tinyint": ByteType(),
    "byte": ByteType(),
    "smallint": ShortType(),
    "short": ShortType(),
    "int": IntegerType(),
    "integer": IntegerType(),
    "bigint": LongType(),
    "long": LongType(),
    "float": FloatType(),
    "real": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ltz": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
}

_TOKEN = re.compile(
    r"""\s*(?: (?P<quoted>`(?:[^`]|``)*`) | (?P<word>\w+) | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<sign>[<>(),:]) | (?P<end>$) )""",
    re.VERBOSE | re.DOTALL,
)


class _Parser:
    """A recursive descent parser with one token of look-ahead."""

    def __init__(self, text: str, what: str) -> None:
        if not isinstance(text, str):
            raise ConfigurationError(
                f"the {what} is {text!r}, a {type(text).__name__}; expected text in Spark DDL",
                hint="write a type like 'bigint', and a schema like 'id bigint, name string'",
            )
        self._text = text
        self._what = what
        self._token = self._kind = ""
        self._at = self._next = 0
        self._advance()

    def schema(self) -> StructType:
        start = self._at
        if re.match(r"struct\s*<", self._text[start:].lower()):
            self._advance()
            return self._struct(start)
        return self._fields(start)

    def type(self) -> DataType:
        start, word = self._at, self._word()
        if self._kind != "word":
            self._fail("expected a type")
        self._advance()
        if word == "array":
            return self._within(lambda: ArrayType(self.type()))
        if word == "map":
            return self._within(self._map)
        if word == "struct":
            return self._struct(start)
        if word in ("decimal", "dec", "numeric"):
            return self._build(start, DecimalType, *self._numbers(0, 2))
        if word in ("varchar", "char"):
            self._numbers(1, 1)
            return _SCALARS["string"]
        if word not in _SCALARS:
            self._fail(f"'{word}' is no type that Strandline knows", start)
        return _SCALARS[word]

    def end(self) -> None:
        if self._kind != "end":
            self._fail("expected nothing more")

    def _struct(self, start: int) -> StructType:
        return self._within(lambda: self._fields(start))

    def _fields(self, start: int) -> StructType:
        fields = [self._field()]
        while self._token == ",":
            self._advance()
            at = self._at
            field = self._field()
            if any(field.name == other.name for other in fields):
                self._fail(f"another field is named {field.name!r}", at)
            fields.append(field)
        return self._build(start, StructType, tuple(fields))

    def _field(self) -> Field:
        if self._kind == "quoted":
            name = self._token[1:-1].replace("``", "`")
        elif self._kind == "word":
            name = self._token
        else:
            self._fail("expected a name")
        self._advance()
        if self._token == ":":
            self._advance()
        kind = self.type()
        if self._word() == "not":
            self._advance()
            if self._word() != "null":
                self._fail("expected NULL")
            self._advance()
        if self._word() == "comment":
            self._advance()
            if self._kind != "text":
                self._fail("expected the comment in quotes")
            self._advance()
        return Field(name, kind)

    def _map(self) -> MapType:
        start = self._at
        key = self.type()
        self._expect(",")
        return self._build(start, MapType, key, self.type())

    def _within(self, parse: Callable[[], T]) -> T:
        self._expect("<")
        result = parse()
        self._expect(">")
        return result

    def _numbers(self, least: int, most: int) -> list[int]:
        numbers: list[int] = []
        if self._token != "(" and not least:
            return numbers
        self._expect("(")
        while True:
            if not (self._kind == "word" and self._token.isdecimal()):
                self._fail("expected a number")
            numbers.append(int(self._token))
            self._advance()
            if self._token != "," or len(numbers) == most:
                break
            self._advance()
        self._expect(")")
        return numbers

    def _build(self, start: int, kind: Callable[..., T], *parts: object) -> T:
        try:
            return kind(*parts)
        except ConfigurationError as error:
            self._fail(error.message, start)

    def _word(self) -> str:
        return self._token.lower() if self._kind == "word" else ""

    def _expect(self, sign: str) -> None:
        if self._token != sign:
            self._fail(f"expected '{sign}'")
        self._advance()

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._next)
        if match is None:
            space = len(self._text) - len(self._text[self._next :].lstrip())
            self._kind = self._token = ""
            self._fail("unexpected character", space)
        self._kind = match.lastgroup or ""
        self._token = match[self._kind]
        self._at = match.start(self._kind)
        self._next = match.end()

    def _fail(self, message: str, at: int | None = None) -> NoReturn:
        at = self._at if at is None else at
        actual = f", found {self._token!r}" if message.startswith("expected") and self._token else ""
        # One line, and one column for each character, so that the caret points to the position.
        line = re.sub(r"[\s\x00-\x1f]", " ", self._text)
        raise ConfigurationError(
            f"cannot read the {self._what}: {message}{actual}, at position {at + 1}:\n  {line}\n  {' ' * at}^",
            hint="types are those of Spark DDL: boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s), "
            "string, binary, date, timestamp, timestamp_ntz, array<…>, map<…,…>, struct<name: type, …>",
            text=self._text,
            position=at,
        )
