"""The sink of a table: a `Transactional` whose rows of one key always come in one lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from pyspark.sql import DataFrame

from strandline.core.errors import ConfigurationError, SinkError
from strandline.core.ids import Epoch
from strandline.spark.sinks.databases.shape import Shape
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
    if not isinstance(table, str) or not table.strip():
        raise ConfigurationError(f"{what}: table is {table!r:.200}, expected its name")
    names = (key,) if isinstance(key, str) else tuple(key or ())
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ConfigurationError(f"{what}: key is {key!r:.200}, expected names of columns, each once")
    if delete is not None and not names:
        raise ConfigurationError(
            f"{what}: delete='{delete}' needs key=[…]",
            hint="rows are deleted by their keys: say which columns those are",
        )
    if delete in names:
        raise ConfigurationError(f"{what}: the column '{delete}' is in key=, and is that of delete=")
    return Shape(table, names, delete)


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
        raise ConfigurationError(f"{what}: writers is {writers!r:.200}, expected a number from 1")
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
