"""The shape of a table sink: the table, its columns and its key, and the changes that a transaction's rows make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import ConfigurationError, SinkError
from strandline.ends.arguments import NULL_KEYS
from strandline.ends.target import Target


@dataclass(frozen=True)
class Changes:
    """The changes of a transaction to a table: deletes by key, then inserts and updates."""

    deletes: pa.Table
    """Keys."""
    upserts: pa.Table
    """One row for each key, in the order of the keys: transactions that lock in the same order do not deadlock."""


@dataclass(frozen=True)
class Shape:
    """The table, the key by which rows replace each other, and the boolean column that marks deletes."""

    table: str
    key: tuple[str, ...] = ()
    delete: str | None = None
    nullable: tuple[str, ...] = ()
    """The columns of the key that may be null, where null is equal to null, as in GROUP BY."""

    def check(self, columns: pa.Schema) -> None:
        """Raise ConfigurationError if the columns of the key or of `delete` are missing or have an unsuitable type."""
        for name in dict.fromkeys([*self.key, *([self.delete] if self.delete else [])]):
            if name not in columns.names:
                raise ConfigurationError(
                    f"the sink of table {self.table}: its {'key' if name in self.key else 'delete'} names the column "
                    f"'{name}', which the rows do not have; they have {', '.join(columns.names)}",
                    hint="name columns of the rows; rows that an older program has staged need its columns",
                )
        if self.delete and not pa.types.is_boolean(columns.field(self.delete).type):
            raise ConfigurationError(
                f"the sink of table {self.table}: delete='{self.delete}' is {columns.field(self.delete).type}, "
                "expected a boolean"
            )
        for name in self.key:
            if pa.types.is_nested(columns.field(name).type):
                raise ConfigurationError(
                    f"the sink of table {self.table}: the key's column '{name}' is {columns.field(name).type}",
                    hint="a key is made of columns with one value each",
                )

    def written(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns that are written to the table: all except `delete`."""
        return pa.schema([field for field in columns if field.name != self.delete])

    def check_keys(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Raise SinkError if a row has no key."""
        for name in self.never_null:
            missing = sum(batch[name].null_count for batch in batches)
            if missing:
                raise SinkError(
                    f"table {self.table}: {missing} rows have no {name}, which is part of the key",
                    hint="leave out rows without a key, in a step before the sink",
                )

    @property
    def never_null(self) -> list[str]:
        """The columns of the key that may not be null."""
        return [name for name in self.key if name not in self.nullable]

    def refusal(self, name: str, hint: str) -> ConfigurationError:
        """Return the error of a table that has no null in a column of the key."""
        return ConfigurationError(
            f"table {self.table}: '{name}' is part of the key and may be null, and the table cannot have such a row",
            hint=f"{hint}; or {NULL_KEYS.format(name)}; or set on_error='skip' or 'dead-letter'",
        )

    def fold(self, batches: Sequence[pa.RecordBatch]) -> Changes:
        """Return the changes that rows, in order, make to a table with a key. The last row of a key counts.

        Requires that keys which differ in Arrow also differ in the table.
        """
        self.check_keys(batches)
        table = pa.Table.from_batches(batches).combine_chunks()
        keys = table.select(self.key)
        numbered = keys.append_column("row#", pa.array(np.arange(len(table))))
        aggregates = [("row#", "max")]
        if self.delete:
            numbered = numbered.append_column("delete#", pc.fill_null(table[self.delete], False).cast(pa.int8()))
            aggregates.append(("delete#", "max"))
        grouped = numbered.group_by(list(self.key)).aggregate(aggregates)
        grouped = grouped.sort_by([(name, "ascending") for name in self.key])
        last = table.take(grouped["row#_max"])
        if not self.delete:
            return Changes(keys.slice(0, 0), last)
        deletes = grouped.filter(pc.equal(grouped["delete#_max"], 1)).select(self.key)
        upserts = last.filter(pc.invert(pc.fill_null(last[self.delete], False)))
        return Changes(deletes, upserts.drop_columns([self.delete]))


class DatabaseTarget(Target):
    """A table of a database."""

    shape: Shape
    refuses_nulls = True
    """Whether a row that the table cannot have ends the job: then a null in the key is refused before it starts."""
    # Targets raise SinkError for errors that a row causes, and other errors for the table and the database.
    refusing = (SinkError,)


def quoted(name: str) -> str:
    """Return a name as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'
