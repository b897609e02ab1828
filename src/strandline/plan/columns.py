"""The columns of a step's rows: the user's, and those that rows carry unseen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from strandline.core.errors import ConfigurationError
from strandline.runtime.rowlayout import FIRED, HIDDEN, ORIGIN, TIME
from strandline.types.datatypes import DataType, StructType, parse_schema, parse_type

_HIDDEN_TYPES = {TIME: "bigint", FIRED: "boolean", ORIGIN: "string"}


@dataclass(frozen=True)
class Columns:
    """Names and types. Types are text: a column that no operator reads may be of one that only Spark knows."""

    types: tuple[tuple[str, str], ...]
    """The user's columns, of which Spark allows several with one name."""
    hidden: tuple[str, ...] = ()
    """In the order in which keepers expect them."""

    @classmethod
    def of(cls, ddl: str, hidden: Iterable[str] = ()) -> Columns:
        """Return the columns of a schema.

        >>> Columns.of("id bigint, `some text` string").names
        ['id', 'some text']
        """
        return cls(tuple((f.name, f.type.ddl) for f in parse_schema(ddl).fields), in_order(hidden))

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
        """All of them as Spark reads them, the hidden ones last."""
        hidden = [(name, _HIDDEN_TYPES[name]) for name in self.hidden]
        return ", ".join(f"{quoted(name)} {ddl}" for name, ddl in [*self.types, *hidden])

    @property
    def struct(self) -> str:
        """The type of a struct of the user's columns, as Spark reads it."""
        return f"struct<{', '.join(f'{quoted(name)}: {ddl}' for name, ddl in self.types)}>"

    def ddl_of(self, name: str) -> str:
        """Return a column's type as Spark writes it; refuse a name that is no one column's."""
        same = [(known, ddl) for known, ddl in self.types if known.lower() == name.lower()]
        check_unlike([known for known, _ in same], "")
        return dict(same)[name]

    def type_of(self, name: str) -> DataType:
        """Return a column's type."""
        return parse_type(self.ddl_of(name))

    def schema(self, where: str) -> StructType:
        """Return the user's columns with their types, which have to be known here; errors begin with `where`."""
        check_unlike(self.names, f"{where}: ")
        try:
            return parse_schema(", ".join(f"{quoted(name)} {ddl}" for name, ddl in self.types))
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{where}: a column's type is not supported: {error.message}", hint="cast it, or select other columns"
            ) from None

    def carrying(self, *hidden: str) -> Columns:
        """Return these columns with others that rows carry unseen."""
        return replace(self, hidden=in_order(hidden))


def check_unlike(names: Sequence[str], where: str) -> None:
    """Refuse columns that cannot be told apart by name; errors begin with `where`."""
    counted = Counter(name.lower() for name in names)
    twice = [name for name in names if counted[name.lower()] > 1]
    if twice:
        raise ConfigurationError(
            f"{where}the column {', '.join(dict.fromkeys(twice))} is there more than once",
            hint="rename one: Spark does not tell upper from lower case",
        )


def in_order(hidden: Iterable[str]) -> tuple[str, ...]:
    """Return hidden columns in the order in which keepers expect them."""
    there = set(hidden)
    return tuple(name for name in HIDDEN if name in there)


def quoted(name: str) -> str:
    """Return a name as SQL expressions need it: always in quotes, for `null` and `current_date` may be columns."""
    return "`" + name.replace("`", "``") + "`"
