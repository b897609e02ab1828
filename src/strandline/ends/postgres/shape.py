"""What a sink writes into a table: which columns, by which key, and what is left of a transaction's rows of one key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import ConfigurationError, SinkError
from strandline.ends.target import Target


@dataclass(frozen=True)
class Changes:
    """What a transaction does to a table: rows go, by their keys, then rows come or take others' places."""

    gone: pa.Table
    """Keys."""
    rows: pa.Table
    """One for each key, in the order of the keys: who locks them in one order does not lock each other out."""


@dataclass(frozen=True)
class Shape:
    """The table, the key that rows replace each other by, and the column that says of a row that it deletes."""

    table: str
    key: tuple[str, ...] = ()
    delete: str | None = None

    def check(self, columns: pa.Schema) -> None:
        """Raise ConfigurationError if rows of these columns have no such key, or none by which rows can be found."""
        for name in dict.fromkeys([*self.key, *([self.delete] if self.delete else [])]):
            if name not in columns.names:
                raise ConfigurationError(
                    f"the sink of table {self.table}: its {'key' if name in self.key else 'delete'} names the column "
                    f"'{name}', which the rows do not have; they have {', '.join(columns.names)}",
                    hint="name columns of the rows; rows that an older program has staged want what it named",
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
        """Return the columns that the table gets: all but that of `delete`."""
        return pa.schema([field for field in columns if field.name != self.delete])

    def check_keys(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Raise SinkError if a row has no key."""
        for name in self.key:
            missing = sum(batch[name].null_count for batch in batches)
            if missing:
                raise SinkError(
                    f"table {self.table}: {missing} rows have no {name}, which is part of the key",
                    hint="leave out rows without a key, in a step before the sink",
                )

    def fold(self, batches: Sequence[pa.RecordBatch]) -> Changes:
        """Return what rows, in their order, do to a table whose rows have a key: of each key, the last one counts.

        Only where keys that differ here differ there, too.
        """
        self.check_keys(batches)
        table = pa.Table.from_batches(batches).combine_chunks()
        keys = table.select(self.key)
        numbered = keys.append_column("row#", pa.array(np.arange(len(table))))
        asked = [("row#", "max")]
        if self.delete:
            numbered = numbered.append_column("gone#", pc.fill_null(table[self.delete], False).cast(pa.int8()))
            asked.append(("gone#", "max"))
        grouped = numbered.group_by(list(self.key)).aggregate(asked)
        grouped = grouped.sort_by([(name, "ascending") for name in self.key])
        last = table.take(grouped["row#_max"])
        if not self.delete:
            return Changes(keys.slice(0, 0), last)
        gone = grouped.filter(pc.equal(grouped["gone#_max"], 1)).select(self.key)
        left = last.filter(pc.invert(pc.fill_null(last[self.delete], False)))
        return Changes(gone, left.drop_columns([self.delete]))


class DatabaseTarget(Target):
    """A table of a database."""

    shape: Shape
    # What a row is to blame for is said in words; what the table is, or the database, is raised as it comes.
    refusing = (SinkError,)


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'
