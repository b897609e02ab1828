"""Builder of canonical savepoints from rows, for a job that has not run yet, or from another system.

    with SavepointBuilder(place, "alerts", operators) as builder:
        builder.write("detect", "seen", batches)
        builder.finish()

Its files equal those of a savepoint of a job with this state. The folder is no savepoint before `finish`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import pyarrow as pa

from strandline.checkpoint.folder import Folder, folder_at
from strandline.checkpoint.publish import OutcomeUnknownError
from strandline.core.clock import Clock, SystemClock
from strandline.core.errors import ConfigurationError, StateTypeError
from strandline.core.failpoints import hit
from strandline.core.ids import CheckpointId, Epoch, Generation, unique_name
from strandline.core.keygroups import BROADCAST_GROUPS
from strandline.core.scratch import Scratch, refuse_full_disk
from strandline.core.version import VERSION
from strandline.format.manifest import Manifest, OperatorInfo, StateInfo, TableFile, size_of
from strandline.format.names import StatePath, find_named, name_in
from strandline.snapshot.rows.codec import RowCodec
from strandline.snapshot.rows.codecs import has_rows, rows_of
from strandline.snapshot.savepoints.savepoint import begin, discard, join_pieces, publish, uploading
from strandline.snapshot.savepoints.sorter import RowSorter
from strandline.snapshot.savepoints.tablewriter import TableWriter
from strandline.storage.place import Place


def groups_of(operator: OperatorInfo, state: StateInfo) -> range:
    """Return the key groups of a state's rows."""
    return BROADCAST_GROUPS if state.kind == "broadcast" else range(operator.max_parallelism)


def find_state(operators: Sequence[OperatorInfo], name: str) -> tuple[OperatorInfo, StateInfo]:
    """Return the state that `uid.state` names. Raises ConfigurationError, which lists the states."""
    tables = {StatePath(op.uid, info.name): (op, info) for op in operators for info in op.states if has_rows(info)}
    names = list(tables)
    match = find_named("what is given", name, names)
    if match is None:
        known = ", ".join(sorted(name_in(names, one) for one in names))
        raise ConfigurationError(
            f"there is no state '{name}'; there are: {known or 'none'}",
            hint='name a state as "uid.state": the uid of its operator, and what it is declared as',
        )
    return tables[match]


def write_rows(
    codec: RowCodec,
    batches: Iterable[pa.RecordBatch],
    groups: range,
    max_parallelism: int,
    folder: Folder,
    scratch: Path,
) -> tuple[list[TableFile], list[TableFile]]:
    """Write rows of a state, of a range of key groups and in any order, into files and pieces in a savepoint's folder.

    Raises StateTypeError for rows that do not fit, and for a second row of a key, and StateLimitError for a key group
    whose rows are too large to sort. The caller deletes files in `scratch`. See `RowSorter` for the use of memory.
    """
    sorter = RowSorter(groups, scratch)
    for batch in batches:
        sorter.add(check_rows(codec, batch))
    with uploading(folder) as uploads:
        writer = TableWriter(codec.file_schema, groups, max_parallelism, scratch, on_file=uploads.put)
        for batch in sorter.in_order():
            writer.write(codec.sort(batch))
        files, pieces = writer.finish()
    return [one.table for one in files], [one.table for one in pieces]


def check_rows(codec: RowCodec, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows as `RowCodec.check` does; errors name the key of a row that does not fit."""
    try:
        return codec.check(batch)
    except StateTypeError as error:
        if "row" not in error.fields:
            raise
        # Add the key, since the row number counts within a batch that the user does not see.
        of = codec.name_key(batch, error.fields["row"])
        raise StateTypeError(f"{error.message}; it is of {of}", hint=error.hint, **error.fields) from None


class SavepointBuilder:
    """Writes a savepoint into an empty folder. Without `finish`, it removes everything at the end.

    Raises ConflictError if the folder is not empty.
    """

    def __init__(
        self,
        target: Place,
        job: str,
        operators: Sequence[OperatorInfo],
        *,
        watermarks: Mapping[str, int] | None = None,
        scratch: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`operators` declare the states. A job that restores the savepoint reads its sources from their beginning."""
        now_ms = (clock or SystemClock()).now_ms()
        self.manifest = Manifest(
            job=job, generation=Generation(0), checkpoint=CheckpointId(1), epoch=Epoch(0), mode="full",
            created_ms=now_ms, triggered_ms=now_ms, engine_version=VERSION, life=unique_name(),
            operators=list(operators), source=None, watermarks=dict(watermarks or {}), savepoint="canonical",
        )  # fmt: skip
        """The manifest that `finish` publishes, without tables. Callers may replace it before."""
        self.folder = folder_at(target)
        self._tables: dict[tuple[str, str], tuple[list[TableFile], list[TableFile]]] = {}
        self._finished = False
        begin(self.folder)
        try:
            self._scratch = Scratch("savepoint", scratch)
        except BaseException:
            discard(self.folder)
            raise
        self.scratch = self._scratch.path

    def write(self, uid: str, state: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Write all rows of a state, in any order; they may lack `key_group`.

        Raises StateTypeError for rows that do not fit, naming the first, and ConfigurationError for a state that
        does not exist or has rows already.
        """
        operator, info = self._empty(uid, state)
        codec = rows_of(operator, info)
        with tempfile.TemporaryDirectory(dir=self.scratch) as directory:
            groups, most = groups_of(operator, info), operator.max_parallelism
            self._tables[uid, state] = write_rows(codec, batches, groups, most, self.folder, Path(directory))
        hit("savepoint.built.state")

    def add(self, uid: str, state: str, files: Sequence[TableFile], pieces: Sequence[TableFile] = ()) -> None:
        """Add files and pieces, which are in the folder, with the rows of a state. Raises as `write` does."""
        self._empty(uid, state)
        self._tables[uid, state] = list(files), list(pieces)

    def _empty(self, uid: str, state: str) -> tuple[OperatorInfo, StateInfo]:
        tables = {(op.uid, info.name): (op, info) for op in self.manifest.operators for info in op.states}
        match = tables.get((uid, state)) or find_state(self.manifest.operators, f"{uid}.{state}")
        if (uid, state) in self._tables:
            raise ConfigurationError(
                f"operator '{uid}', state '{state}': its rows were given before", hint="give all of a state at once"
            )
        return match

    def finish(self) -> Manifest:
        """Publish the savepoint, and return its manifest. Raises as `publish` does."""
        operators = [
            msgspec.structs.replace(operator, partitions=[], tables=self._tables_of(operator))
            for operator in self.manifest.operators
        ]
        manifest = msgspec.structs.replace(self.manifest, operators=operators)
        size_bytes = size_of(manifest.files())
        manifest = msgspec.structs.replace(manifest, uploaded_bytes=size_bytes, total_bytes=size_bytes)
        hit("savepoint.written")
        try:
            publish(self.folder, manifest)
        except OutcomeUnknownError:
            self._finished = True
            raise
        self._finished = True
        return manifest

    def _tables_of(self, operator: OperatorInfo) -> dict[str, list[TableFile]]:
        tables = {}
        for info in operator.states:
            files, pieces = self._tables.get((operator.uid, info.name), ([], []))
            joined = join_pieces(self.folder, files, pieces, operator.max_parallelism, self.scratch)
            if joined:
                tables[info.name] = joined
        return tables

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._finished:
            discard(self.folder)
        self._scratch.close()
        refuse_full_disk(error, self.scratch)
