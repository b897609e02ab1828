"""The tables of a snapshot: one for each state, with a name and a summary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from strandline.checkpoint.folder import Folder
from strandline.checkpoint.pins import is_pin, keep_renewed
from strandline.core.errors import CorruptionError, NotFoundError
from strandline.core.html import Rows
from strandline.core.keygroups import BROADCAST_GROUPS
from strandline.core.texts import size_text
from strandline.format.manifest import OperatorInfo, PartitionInfo, StateInfo, TableFile
from strandline.format.names import StatePath, matching_names, name_in
from strandline.snapshot.opening.snapshot import Snapshot
from strandline.snapshot.rows.codec import RowCodec
from strandline.snapshot.rows.codecs import has_rows, rows_of, times_of
from strandline.types.columns import from_arrow_type


@dataclass(frozen=True, slots=True)
class TableSummary:
    """One line of a list of tables."""

    table: str
    """`uid.state`"""
    operator: str
    state: str
    kind: str
    columns: dict[str, str]
    """Spark's type of each, by name."""
    rows: int | None
    """None if only a full read can tell."""
    bytes: int | None
    """Stored size; None if a file holds several states."""

    def html_cells(self) -> dict[str, object]:
        """Return what a notebook shows of it."""
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        size = "" if self.bytes is None else size_text(self.bytes)
        rows = "" if self.rows is None else f"{self.rows:,}"
        return {"table": self.table, "kind": self.kind, "columns": columns, "rows": rows, "size": size}

    def _repr_html_(self) -> str:
        return Rows([self])._repr_html_()


@dataclass(frozen=True)
class Table:
    """A state of an operator in a snapshot, as a table, with all that a reader needs."""

    folder: Folder
    """The folder to which paths of files are relative."""
    metadata: str
    """The snapshot's manifest in that folder, or its pin: the files may vanish after it."""
    operator: OperatorInfo
    state: StateInfo
    name: str
    """Its name `uid.state`, with quotes where that is ambiguous."""
    now_us: int | None
    watermark_us: int | None
    """The clock and the event time of the snapshot: rows that had expired by then are left out."""

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """Renew a pinned snapshot's pin in the block. Raises NotFoundError if the pin is gone."""
        with keep_renewed(self.folder, self.metadata) if is_pin(self.metadata) else nullcontext():
            yield

    @cached_property
    def codec(self) -> RowCodec:
        """The codec of its rows. Raises ConfigurationError for a kind of state that this release does not know."""
        return rows_of(self.operator, self.state, now_us=self.now_us, watermark_us=self.watermark_us)

    @property
    def schema(self) -> pa.Schema:
        """The columns. See docs/format.md, "State as tables"."""
        return self.codec.schema

    @property
    def is_broadcast(self) -> bool:
        """Whether rows belong to no key group, and every partition has all of them."""
        return self.state.kind == "broadcast"

    @property
    def files(self) -> list[TableFile] | None:
        """The files of this table in a canonical savepoint, in order; None for other snapshots."""
        tables = self.operator.tables
        return None if not isinstance(tables, dict) else tables.get(self.state.name, [])

    @property
    def partitions(self) -> list[PartitionInfo]:
        """The partitions whose files hold its rows, in the order of key groups; none in a canonical savepoint."""
        parts = sorted(self.operator.partitions, key=lambda part: part.first_key_group)
        return parts[:1] if self.is_broadcast else parts

    def part_of(self, group: int) -> PartitionInfo:
        """Return the partition that has a key group. Raises CorruptionError if the manifest has none."""
        for part in self.partitions:
            if part.first_key_group <= group <= part.last_key_group:
                return part
        raise CorruptionError(
            f"{self.folder.url}/{self.metadata}: operator '{self.operator.uid}' lacks key group {group}"
        )

    @property
    def groups(self) -> range:
        """All key groups that its rows may have."""
        return BROADCAST_GROUPS if self.is_broadcast else range(self.operator.max_parallelism)

    def splits(self) -> list[range]:
        """Cut its key groups so that no part or file is needed by two; ranges without files are left out."""
        if self.is_broadcast:
            return [self.groups]
        if self.files is None:
            return [range(part.first_key_group, part.last_key_group + 1) for part in self.partitions]
        ranges: list[range] = []
        for file in self.files:
            first, last = file.first_key_group, file.last_key_group
            if ranges and first < ranges[-1].stop:
                ranges[-1] = range(ranges[-1].start, max(last + 1, ranges[-1].stop))
            else:
                ranges.append(range(first, last + 1))
        return ranges

    def summary(self) -> TableSummary:
        """Return a summary from the manifest alone."""
        known = self.files is not None
        return TableSummary(
            self.name, self.operator.uid, self.state.name, self.state.kind,
            {field.name: from_arrow_type(field.type).ddl for field in self.schema},
            sum(file.rows for file in self.files or ()) if known else None,
            sum(file.file.size for file in self.files or ()) if known else None,
        )  # fmt: skip


def all_tables(snapshot: Snapshot) -> list[Table]:
    """Return the tables of a snapshot, in the order of its manifest."""
    manifest = snapshot.manifest
    states = [(operator, state) for operator in manifest.operators for state in filter(has_rows, operator.states)]
    named = [StatePath(operator.uid, state.name) for operator, state in states]
    return [
        Table(snapshot.folder, snapshot.metadata, operator, state, name_in(named, one), *times_of(manifest))
        for (operator, state), one in zip(states, named, strict=True)
    ]


def tables(snapshot: Snapshot) -> list[TableSummary]:
    """Return summaries of a snapshot's tables, from its manifest alone."""
    return [table.summary() for table in all_tables(snapshot)]


def find_table(snapshot: Snapshot, name: str) -> Table:
    """Return the table of this name: `uid.state`, or `state` if only one operator has it.

    Raises NotFoundError, which lists the tables.
    """
    known = {StatePath(table.operator.uid, table.state.name): table for table in all_tables(snapshot)}
    matches = [known[one] for one in matching_names(name, [*known]) or [one for one in known if one.state == name]]
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(f"'{table.name}'" for table in matches or known.values())
    if matches:
        raise NotFoundError(f"{snapshot.url}: '{name}' may be any of {names}", hint="write one of these")
    raise NotFoundError(
        f"{snapshot.url}: there is no table '{name}'",
        hint=f"its tables are {names}" if names else "it has no keyed operator",
    )
