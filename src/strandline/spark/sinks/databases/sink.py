"""The sink of a table: a `Transactional` whose rows of one key always come in one lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from pyspark.sql import DataFrame

from strandline.core.errors import ConfigurationError, SinkError
from strandline.core.ids import Epoch
from strandline.spark.sinks.databases.shape import Shape
from strandline.spark.sinks.given import check_column, columns_of
from strandline.spark.sinks.target import Target
from strandline.spark.sinks.transactional import Transactional, TransactionalOptions


class TableTarget(Target):
    """A table of a database."""

    shape: Shape
    # What a row is to blame for is said in words; what the table is, or the database, is raised as it comes.
    refusing = (SinkError,)


class TableSink(Transactional):
    """Write rows into a table exactly once; made by `sinks.postgres` and `sinks.sqlite`."""

    def __init__(
        self, target: TableTarget, *, writers: int | None = None, **options: Unpack[TransactionalOptions]
    ) -> None:
        super().__init__(target, **options)
        self._shape = target.shape
        self._writers = writers

    def write(self, df: DataFrame, epoch: Epoch) -> list[str]:
        if self._writers is not None and self._writers > 1:
            key = self._shape.key
            df = df.repartition(self._writers, *(df[f"`{name.replace('`', '``')}`"] for name in key))
        return super().write(df, epoch)


def shape_of(what: str, table: str, key: str | Sequence[str] | None, delete: str | None) -> Shape:
    """Return what a program has given, checked."""
    check_name(what, "table", table)
    names = columns_of(what, "key", key)
    check_column(what, "delete", delete)
    if delete is not None and not names:
        raise ConfigurationError(
            f"{what}: delete='{delete}' needs key=[…]",
            hint="rows are deleted by their keys: say which columns those are",
        )
    if delete in names:
        raise ConfigurationError(
            f"{what}: the column '{delete}' is in key=, and is that of delete=",
            hint="rows are found by their key, and a boolean besides says which of them go",
        )
    return Shape(table, names, delete)


def check_name(what: str, option: str, name: Any) -> None:
    """Raise ConfigurationError unless this can be a table's name."""
    if not isinstance(name, str) or not name.strip():
        raise ConfigurationError(
            f"{what}: {option} is {name!r:.200}, expected its name", hint=f"write it like {option}='bank.{option}'"
        )


def check_flag(what: str, option: str, given: Any) -> None:
    """Raise ConfigurationError unless this is yes or no."""
    if not isinstance(given, bool):
        raise ConfigurationError(f"{what}: {option} is {given!r:.200}, expected True or False")


def checked_options(what: str, options: TransactionalOptions) -> TransactionalOptions:
    """Return these, if there are such options."""
    known = TransactionalOptions.__annotations__
    for name in options:
        if name not in known:
            raise TypeError(
                f"{what} got an unexpected keyword argument '{name}'; besides its own there are {', '.join(known)}"
            )
    return options


def writers_of(what: str, writers: int | None, shape: Shape) -> int | None:
    """Return how many lanes there are: one where rows replace each other unless told, else one for each partition."""
    if writers is not None and (not isinstance(writers, int) or isinstance(writers, bool) or writers < 1):
        raise ConfigurationError(
            f"{what}: writers is {writers!r:.200}, expected a number from 1",
            hint="leave it out, or say how many connections write",
        )
    if shape.key:
        return writers or 1
    if writers is not None and writers > 1:
        raise ConfigurationError(
            f"{what}: writers={writers} needs key=[…]",
            hint="without a key, each partition writes at the same time; writers=1 has one write all of them",
        )
    return writers


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'
