"""Writes rows into a table of PostgreSQL, within a transaction: with COPY, or with a merge by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from strandline.ends.postgres.catalog import CatalogTable, is_exact
from strandline.ends.postgres.csv import as_csv
from strandline.ends.postgres.shape import Changes, Shape, quoted


@dataclass(frozen=True)
class RowWriter:
    """Writes rows into one table."""

    _db: Any
    _table: CatalogTable
    _shape: Shape
    _columns: pa.Schema

    def put(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Write rows, in order."""
        if not self._shape.key:
            self._copy(self._table.quoted, batches)
        elif is_exact(self._table, self._shape, self._columns):
            self._merge(self._shape.fold(batches))
        else:
            self._merge_on_server(batches)

    def _merge(self, changes: Changes) -> None:
        key, names = self._names(self._shape.key), self._names(self._columns.names)
        if len(changes.deletes):
            self._create_temporary("strandline_gone", key)
            self._copy("strandline_gone", changes.deletes.to_batches())
            for same in self._same:
                self._db.execute(f"delete from {self._table.quoted} t using strandline_gone r where {same}")
        if len(changes.upserts):
            self._create_temporary("strandline_rows", names)
            self._copy("strandline_rows", changes.upserts.to_batches())
            self._db.execute(self._insert(f"select {names} from strandline_rows"))

    def _merge_on_server(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Let the server group rows by key, in the table's types: it may round values, or compare them otherwise."""
        shape = self._shape
        shape.check_keys(batches)
        key, names = self._names(shape.key), self._names(self._columns.names)
        self._create_temporary("strandline_rows", names)
        self._db.execute(
            "alter table strandline_rows add column strandline_row bigserial, add column strandline_gone boolean"
        )
        renamed = ["strandline_gone" if name == shape.delete else name for name in batches[0].schema.names]
        self._copy("strandline_rows", [batch.rename_columns(renamed) for batch in batches])
        if shape.delete:
            for same in self._same:
                self._db.execute(
                    f"delete from {self._table.quoted} t using strandline_rows r where r.strandline_gone and {same}"
                )
        last = f"select distinct on ({key}) * from strandline_rows order by {key}, strandline_row desc"
        select = f"select {names} from ({last}) r where strandline_gone is not true"
        self._db.execute(self._insert(select))

    def _insert(self, select: str) -> str:
        key = self._shape.key
        values = [quoted(name) for name in self._columns.names if name not in key]
        do = "do update set " + ", ".join(f"{name} = excluded.{name}" for name in values) if values else "do nothing"
        names = self._names(self._columns.names)
        return f"insert into {self._table.quoted} ({names}) {select} on conflict ({self._names(key)}) {do}"

    def _create_temporary(self, name: str, columns: str) -> None:
        """Create a table for this transaction, whose columns have the target table's types."""
        select = f"select {columns} from {self._table.quoted}"
        self._db.execute(f"create temporary table {name} on commit drop as {select} with no data")

    @property
    def _same(self) -> Iterator[str]:
        """Yield the conditions for equal keys: of those without nulls, by an index; and of the few others."""
        names, nullable = list(map(quoted, self._shape.key)), self._names(self._shape.nullable, "r.")
        yield " and ".join(f"t.{name} = r.{name}" for name in names)
        if nullable:
            equal = " and ".join(f"t.{name} is not distinct from r.{name}" for name in names)
            yield f"num_nulls({nullable}) > 0 and {equal}"

    @staticmethod
    def _names(names: Sequence[str], of: str = "") -> str:
        return ", ".join(f"{of}{quoted(name)}" for name in names)

    def _copy(self, table: str, batches: Sequence[pa.RecordBatch]) -> None:
        json = frozenset(name for name, column in self._table.columns.items() if column.kind in ("json", "jsonb"))
        names = ", ".join(map(quoted, batches[0].schema.names))
        with self._db.cursor() as cursor, cursor.copy(f"copy {table} ({names}) from stdin (format csv)") as copy:
            for batch in batches:
                copy.write(memoryview(as_csv(batch, json)))
