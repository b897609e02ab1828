"""The columns of a step's rows: the user's, and hidden ones that Strandline adds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from strandline.core.errors import ConfigurationError
from strandline.runtime.rowlayout import FIRED, HIDDEN, ORIGIN, TIME
from strandline.types.datatypes import DataType, StructType, parse_schema, parse_type

HIDDEN_TYPES = {TIME: "bigint", FIRED: "boolean", ORIGIN: "string"}


@dataclass(frozen=True)
class Columns:
    """Names and types. Types are text: a column that no operator reads may have a type that only Spark knows."""

    types: tuple[tuple[str, str], ...]
    """The user's columns. Spark allows several with one name."""
    hidden: tuple[str, ...] = ()
    """Hidden columns, in the order that keepers expect."""

    @classmethod
    def of(cls, ddl: str, hidden: Iterable[str] = ()) -> Columns:
        """Return the columns of a schema.

        >>> Columns.of("id bigint, `some text` string").names
        ['id', 'some text']
        """
        return cls(tuple((f.name, f.type.ddl) for f in parse_schema(ddl).fields), sort_hidden(hidden))

    @property
    def names(self) -> list[str]:
        """Names of the user's columns."""
        return [name for name, _ in self.types]

    @property
    def is_timed(self) -> bool:
        """Whether rows have their times."""
        return TIME in self.hidden

    @property
    def ddl(self) -> str:
        """DDL of all columns, the hidden ones last."""
        hidden = [(name, HIDDEN_TYPES[name]) for name in self.hidden]
        return ", ".join(f"{quoted(name)} {ddl}" for name, ddl in [*self.types, *hidden])

    @property
    def struct(self) -> str:
        """DDL of a struct of the user's columns."""
        return f"struct<{', '.join(f'{quoted(name)}: {ddl}' for name, ddl in self.types)}>"

    def without(self, names: Sequence[str]) -> Columns:
        """Return the columns but some."""
        return replace(self, types=tuple(each for each in self.types if each[0] not in names))

    def ddl_of(self, name: str) -> str:
        """Return the DDL of a column's type; refuse a name that several columns have."""
        same = [(known, ddl) for known, ddl in self.types if known.lower() == name.lower()]
        check_unlike([known for known, _ in same], "")
        return dict(same)[name]

    def type_of(self, name: str) -> DataType:
        """Return a column's type."""
        return parse_type(self.ddl_of(name))

    def schema(self, where: str) -> StructType:
        """Return the user's columns with their types; refuse types that only Spark knows. Errors begin with `where`."""
        check_unlike(self.names, f"{where}: ")
        try:
            return parse_schema(", ".join(f"{quoted(name)} {ddl}" for name, ddl in self.types))
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{where}: a column's type is not supported: {error.message}", hint="cast it, or select other columns"
            ) from None

    def with_hidden(self, *hidden: str) -> Columns:
        """Return these columns with other hidden ones."""
        return replace(self, hidden=sort_hidden(hidden))


def check_unlike(names: Sequence[str], where: str) -> None:
    """Refuse columns with equal names; errors begin with `where`."""
    counted = Counter(name.lower() for name in names)
    twice = [name for name in names if counted[name.lower()] > 1]
    if twice:
        raise ConfigurationError(
            f"{where}the column {', '.join(dict.fromkeys(twice))} is there more than once",
            hint="rename one: Spark does not tell upper from lower case",
        )


def sort_hidden(hidden: Iterable[str]) -> tuple[str, ...]:
    """Return hidden columns in the order that keepers expect."""
    names = set(hidden)
    return tuple(name for name in HIDDEN if name in names)


def quoted(name: str) -> str:
    """Return a name in quotes for SQL expressions: `null` and `current_date` may be columns."""
    return "`" + name.replace("`", "``") + "`"
