"""Exactly-once sinks into tables, with a record of the progress in the table's transactions.

Tasks write data files that are not part of the table yet. Once the checkpoint that lists them is published, one
transaction of the table adds them and updates the record. A restart reads the record, and adds the rest.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from strandline.checkpoint.folder import folder_at
from strandline.control.announcements import tell_always
from strandline.control.status import SinkStatus
from strandline.core import failpoints
from strandline.core.errors import (
    BEGIN_ANEW,
    ConfigurationError,
    ConflictError,
    CorruptionError,
    FencedError,
    NotFoundError,
    SinkError,
    StrandlineError,
    UnavailableError,
)
from strandline.core.ids import Epoch, Generation, unique_name
from strandline.ends.arguments import check_columns, check_delete, check_options
from strandline.ends.begins import check_branch
from strandline.ends.committables import TaskAttempt, decode_committables
from strandline.ends.tables.columns import check_key, check_marker, check_names, check_nullable, without
from strandline.ends.tables.datafiles import (
    COMMITTABLES,
    DataFile,
    FileLayout,
    StagedFiles,
    TableMark,
    WriteDataFiles,
    cast_table,
)
from strandline.spark.base.ddl import arrow_schema
from strandline.spark.base.filesystem import LocalFiles, ObjectFiles
from strandline.spark.sinks.base import KeyedSink, SinkContext
from strandline.spark.sinks.tables.format import CommitRecord, ExistingRows, NewColumns, TableFormat
from strandline.spark.sinks.tables.undo import GONE, NotUndoableError, former_rows, last_rows
from strandline.spark.sinks.tasks import write_tasks
from strandline.storage.place import Place

log = logging.getLogger(__name__)

_MERGE_BYTES = 256 << 20
"""The limit of a merge's staged rows, as Parquet: they are in the driver's memory."""
_LATE_FILES = 250
"""The approximate limit of a transaction's files if rows are late: Iceberg reads each file, and while it does, another
writer's commit makes the whole transaction begin anew."""
_RELOAD_S = 300.0
"""Time after which the sink reloads the layout and place of the table: credentials may expire after an hour."""
_THREADS = 16
_MOVED = "if the sink had another table at the last start, name that one, or give the sink another name to begin here"
_RUNS = 100
"""The cleanup covers up to this number of runs that ended before they claimed the table."""


class TableSink(TableFormat, KeyedSink):
    """The base of sinks into table formats."""

    expiry = ""
    """A further reason, for messages, why a table may have no record."""

    def __init__(
        self,
        where: str,
        *,
        key: str | Sequence[str] | None,
        delete: str | None,
        partition_by: str | Sequence[str],
        new_columns: NewColumns,
        existing: ExistingRows,
        storage_options: Mapping[str, str] | None,
        target_bytes: int,
        name: str | None,
    ) -> None:
        super().__init__(name=name, visibility="checkpoint")
        if existing not in ("refuse", "keep"):
            raise ConfigurationError(f"{where}: existing is {existing!r:.200}, expected 'refuse' or 'keep'")
        if new_columns not in ("refuse", "add"):
            raise ConfigurationError(f"{where}: new_columns is {new_columns!r:.200}, expected 'refuse' or 'add'")
        if not isinstance(target_bytes, int) or target_bytes < 1 << 10:
            raise ConfigurationError(
                f"{where}: target_bytes is {target_bytes!r:.200}, expected a number of bytes, at least 1024",
                hint="write it like target_bytes=64 << 20, which are 64 MB",
            )
        self._key = check_columns(where, "key", key)
        check_delete(where, self._key, delete)
        self._delete = delete
        self._nullable: tuple[str, ...] = ()
        """The columns of the key that may be null."""
        self.partition_by = check_columns(where, "partition_by", partition_by)
        self._options = check_options(where, "storage_options", storage_options)
        self.new_columns = new_columns
        self.existing = existing
        self.target_bytes = target_bytes
        self._where = where
        self._claim_at: Epoch | None = None
        self._begins: tuple[list[StagedFiles], Epoch, bool] | None = None
        """The arguments of `recover`, until the run has claimed the table."""
        self._before: list[CommitRecord | None] = []
        """The table's record before the run's claim; empty before the first attempt."""
        self._has_recovered = False
        """Whether the table has answered since the program started the job."""
        self._may_show = Epoch(0)
        """The last epoch of which runs of this process may have added rows."""
        self._prepared: tuple[str, float, FileLayout, Place] | None = None
        self._reached: CommitRecord | None = None
        self._gone: dict[str, str] = {}
        """The names of removed sinks whose rows of later epochs are taken back as well, by identity."""
        self._status: SinkStatus | None = None
        self._rows = 0
        self._late_since = 0.0

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which rows are replaced; () if they are appended."""
        return self._key

    def deleting(self, column: str, nullable: Sequence[str] = ()) -> tuple[Self, str]:
        """Return a sink that also deletes rows, and its boolean column of those; `column`, if it has none."""
        sink = copy(self)
        sink._delete, sink._nullable = self._delete or column, tuple(nullable)
        return sink, sink._delete

    # -- the engine's calls

    def try_out(self, empty: DataFrame) -> None:
        columns = arrow_schema(empty.schema)
        check_key(self._where, self.key, columns)
        if self._delete is not None:
            check_marker(self._where, self._delete, columns)
            columns = without(columns, self._delete)
        check_names(self._where, "partition_by", self.partition_by, columns)
        try:
            table = self._attempt(lambda table: table, self.patience_s)
        except (UnavailableError, SinkError) as error:
            raise ConfigurationError(error.message, hint="start its server, or correct its address") from None
        if table is None:
            self.check_creatable(columns)
        else:
            layout, _ = self.layout(table, columns, self.key)
            check_nullable(self._where, self._nullable, layout.schema)
        if (place := self.place_of(table)) is not None:
            is_local = place.url.startswith("file:") or "://" not in place.url
            files = (
                LocalFiles(Path(unquote(urlsplit(place.url).path)))
                if is_local
                else ObjectFiles(place.url, place.options)
            )
            files.check_writable()

    def _begin_anew(self) -> None:
        # Another driver may have run the job in between.
        self._has_recovered = False

    def check(self, context: SinkContext) -> None:
        if self._has_recovered and context.identity == self._opened.identity:
            # A run of this process has begun in the table, which may be unavailable now.
            return
        table = None if self.key or self.existing == "keep" else self._attempt(lambda table: table, self.patience_s)
        if table is None or not self.knows(table, context):
            return
        if context.life and self.record(table, context.identity) is not None:
            return
        before = self.record(table, replace(context, life=context.from_life).identity) if context.from_life else None
        if before is None or before.epoch > context.from_epoch:
            raise ConfigurationError(
                f"sink '{context.sink}': {self._where} holds rows of an earlier life of job '{context.job}', which "
                f"{context.begins or 'begins there'}: rows of the same events would be there twice",
                hint="write to another table, delete the rows, or set existing='keep' to have both; or, to continue "
                "the former job, use its name and checkpoint directory",
            )

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._claim_at, self._begins, self._before = None, None, []
        if self._prepared is not None:
            # Reload the layout at the next write.
            self._prepared = self._prepared[0], -_RELOAD_S, *self._prepared[2:]
        self._rows, self._late_since, self._status = 0, 0.0, SinkStatus(context.sink)
        # The folders of files that the table will list, and of files to merge, which its vacuum ignores.
        self._folder, self._merging = f"strandline-{context.identity}", f"_strandline/{context.identity}"
        self._gone = {context.identity_of(name): name for name in sorted(context.gone)}

    def write(self, df: DataFrame, epoch: Epoch) -> list[str]:
        layout, place = self._prepare(df)
        folder, generation = self._merging if self.key else self._folder, self._opened.generation
        if self._delete is not None:
            layout = FileLayout(layout.schema.append(pa.field(self._delete, pa.bool_())))
        task = WriteDataFiles(
            place, folder, generation, epoch, layout, self.target_bytes, self.key, self._delete or ""
        )  # fmt: skip
        return write_tasks(df, task)

    def commit(self, pending: Sequence[str]) -> Sequence[str]:
        staged, _ = self._decode(pending)
        return self._deliver(staged, self.patience_s)[0]

    def recover(self, pending: Sequence[str], epoch: Epoch, *, fresh: bool) -> Sequence[str]:
        """Claim the table, and add the files that the checkpoint lists.

        A start of the program needs the table for that, and so does a run that goes back: the claim removes later
        files, and no later run could do that. Other runs do not, such as one after a failure: while the table is
        unavailable, files wait, and the sink claims the table before it adds the first of them.
        """
        self._has_recovered = self._has_recovered and epoch >= self._may_show
        staged, self._reached = self._decode(pending)
        self._begins = staged, epoch, fresh
        left, reason = self._deliver(staged, self.patience_s if self._has_recovered else self.start_patience_s)
        if reason and not self._has_recovered:
            raise UnavailableError(reason)
        self._has_recovered = True
        return left

    def _deliver(self, staged: Sequence[StagedFiles], patience_s: float) -> tuple[list[str], str]:
        """Add staged files to the table; return those that have to wait, and why."""
        left, reason = staged, ""
        try:
            self._claim(patience_s)
            self._show(staged, patience_s)
            left = []
        except UnavailableError as error:
            reason = error.message
            left = [each for each in staged if self._reached is None or not self._reached.covers(each)]
        self._report(left, reason)
        return [each.text for each in left], reason

    def _claim(self, patience_s: float) -> None:
        """Claim the table for this run, once."""
        if self._begins is None:
            return
        staged, epoch, fresh = self._begins

        def claim(table: Any) -> bool:
            if table is None:
                return False
            record = self.record(table)
            if record is not None and record.generation == self._opened.generation and self._before:
                # The answer to an earlier attempt was lost.
                self._reached = record
                return True
            self._check_claim(record, epoch if fresh else None)
            effective = self._check_record(self.in_effect(table))
            # A table that was put back has no rows of later runs, though it has the record of their begins.
            if not fresh and effective is not None and effective.generation > self._opened.restored_by:
                check_branch(self.begins(table), self._opened.restored_by, epoch, self._where)
            self._before = [record]
            due = [each.epoch for each in staged if effective is None or not effective.covers(each)]
            claimed = CommitRecord(self._opened.generation, min(due) - 1 if due else epoch, epoch)
            former = self._former_rows(table, epoch)
            if former is None:
                self.commit_files(table, claimed, [], epoch)
            else:
                layout = former.schema.remove(former.schema.get_field_index(GONE))
                rows, gone = (cast_table(former.filter(pc.equal(former[GONE], each)), layout) for each in (False, True))
                self.commit_rows(table, claimed, rows, gone, self.key, goes_back=True)
                self._check_written(claimed)
            self._reached = claimed
            failpoints.hit("sink.table_claimed")
            return True

        # 1. Claim the table: from here on, transactions of older generations fail.
        exists = self._attempt(claim, patience_s)
        self._may_show = epoch
        if not exists:
            # Unless the first rows have created the table meanwhile.
            if self._begins is not None:
                self._begin_without_table()
            return
        # 2. Delete later files of older runs: no checkpoint lists them, and the table never had them.
        place = self._attempt(self.place, patience_s)
        self._delete_staged(place, self._before[0], {file.path for each in staged for file in each.files})
        self._begins = None

    def _begin_without_table(self) -> None:
        """Let the first write create and claim the table, if there was none."""
        if self._begins is None:
            if self._claim_at is None:
                raise self._lost(None)
            return
        staged, epoch, _ = self._begins
        if staged or (self._reached and self._reached.epoch):
            what = "and rows of the last checkpoint wait for it" if staged else "with rows that would not come again"
            raise CorruptionError(
                f"{self._where}: the table is gone, {what}",
                hint=f"{_MOVED}; else bring the table back; or {BEGIN_ANEW}",
            )
        # In this order: another thread stages rows meanwhile.
        self._claim_at = epoch
        self._begins = None

    def reached(self) -> str | None:
        record = self._reached
        if record is None:
            return None
        return TableMark(self._opened.identity, Generation(record.generation), Epoch(record.epoch)).text

    def status(self) -> SinkStatus | None:
        return self._status

    # -- steps

    def _never_null(self, key: Sequence[str]) -> list[str]:
        """Return the columns of a key that may not be null."""
        return [name for name in key if name not in self._nullable]

    def _later_record(self, table: Any, epoch: Epoch) -> CommitRecord | None:
        """Return the record of later epochs, of this sink or of a removed one."""
        records = (self.record(table, identity) for identity in ("", *self._gone))
        return max((each for each in records if each and each.epoch > epoch), default=None, key=lambda each: each.epoch)

    @property
    def _later_paths(self) -> str:
        """The pattern of the paths of such files, with generation and epoch as groups."""
        return rf"strandline-(?:{'|'.join((self._opened.identity, *self._gone))})/g(\d+)/(\d+)-"

    def place(self, table: Any) -> Place:
        """Return the place of an existing table's files."""
        place = self.place_of(table)
        if place is None:
            raise self._lost(None)
        return place

    def _prepare(self, df: DataFrame) -> tuple[FileLayout, Place]:
        """Return the table's layout and place; create and claim the table first if there was none."""
        text = repr(df.schema)
        if (prepared := self._prepared) is not None:
            known, since, layout, place = prepared
            if known == text and time.monotonic() < since + _RELOAD_S:
                return layout, place
        columns = without(arrow_schema(df.schema), self._delete)

        def prepare(table: Any) -> tuple[FileLayout, Place]:
            if table is None:
                self._begin_without_table()
                self.create(columns)
                table = self.load()
            if self._claim_at is not None:
                claimed = CommitRecord(self._opened.generation, self._claim_at, self._claim_at)
                record = self.record(table)
                if record is None or record.generation < self._opened.generation:
                    self.commit_files(table, claimed, [])
                    table = self.load()
                elif record.generation > self._opened.generation:
                    raise self._fenced(record)
                self._reached = claimed
            layout, new = self.layout(table, columns, self.key)
            if new:
                self.add_columns(table, new)
                log.info("%s: columns added to %s: %s", self._label, self._where, ", ".join(c.name for c in new))
                table = self.load()
                layout, _ = self.layout(table, columns, self.key)
            return layout, self.place(table)

        is_known = prepared is not None and prepared[0] == text
        try:
            layout, place = self._attempt(prepare, self.patience_s if is_known else self.start_patience_s)
            self._claim_at = None
        except UnavailableError as error:
            if prepared is None or not is_known:
                raise
            # Data files do not need the catalog: the commit writes them again if the layout has changed.
            _, _, layout, place = prepared
            log.warning("%s: rows are staged in the last layout of %s: %s", self._label, self._where, error.message)
        self._prepared = text, time.monotonic(), layout, place
        return layout, place

    def _show(self, staged: Sequence[StagedFiles], patience_s: float) -> None:
        for group in self._groups(staged):
            self._may_show = max(self._may_show, *(each.epoch for each in group))
            self._rows += self._attempt(lambda table, group=group: self._commit(table, group), patience_s)  # type: ignore[misc]
            merged = [file.path for each in group if each.key for file in each.files]
            if merged:
                # The merge has written their rows to other files.
                with suppress(StrandlineError):
                    folder_at(self._attempt(self.place, 0.0)).delete(merged)

    def _groups(self, staged: Sequence[StagedFiles]) -> Iterator[list[StagedFiles]]:
        """Divide staged files into transactions of whole epochs: one, unless rows are late, or too large to merge."""
        is_late = bool(self._late_since) or not self._has_recovered
        epochs: dict[int, list[StagedFiles]] = {}
        for each in sorted(staged, key=lambda each: (each.epoch, each.task)):
            epochs.setdefault(each.epoch, []).append(each)
        group: list[StagedFiles] = []
        size = count = 0
        for several in epochs.values():
            files, key = [file for each in several for file in each.files], several[0].key
            size, count = size + sum(file.bytes for file in files), count + len(files)
            # An older program may have staged files for another key, or with other columns.
            is_other = group and group[0].form != several[0].form
            is_large = size > _MERGE_BYTES if key else is_late and count > _LATE_FILES
            if group and (is_other or is_large):
                yield group
                group, size, count = [], sum(file.bytes for file in files), len(files)
            group += several
        if group:
            yield group

    def _commit(self, table: Any, group: Sequence[StagedFiles]) -> int:
        """Add these files to the table, unless it has them; return the number of rows."""
        # 1. Read the record. The transaction below replaces it, and conflicts with other changes of it.
        record = None if table is None else self.record(table)
        if record is not None and record.generation > self._opened.generation:
            raise self._fenced(record)
        if record is None or self._check_record(self.in_effect(table)) is None:
            raise self._lost(None)
        due = [each for each in group if not record.covers(each)]
        if not due:
            return 0
        # 2. Check that all files exist: a table with a missing file is unreadable.
        files, place, key = [file for each in due for file in each.files], self.place(table), due[0].key
        try:
            self._check_files(place, files)
        except CorruptionError:
            # Another driver may have merged and deleted them.
            if self.record(self.load()) == record:
                raise
            raise ConflictError(f"{self._where}: another driver has written its record") from None
        # 3. Check the layout, which may have changed since the write. Later changes cause a conflict.
        layout = self._present_layout(table, due[0])
        again = [] if key else [each for each in due if not each.has_layout(layout)]
        replaced = {file.path for each in again for file in each.files}
        epochs = [each.epoch for each in due]
        reached = CommitRecord(self._opened.generation, max(epochs), first=min(epochs))
        failpoints.hit("sink.table_before")
        # 4. Commit the rows and the record.
        if key:
            rows, gone = self._last_rows(place, due, key)
            self.commit_rows(table, reached, cast_table(rows, layout.schema), cast_table(gone, layout.schema), key)
            self._check_written(reached)
        else:
            written = [file for each in again for file in self._write_again(place, each, layout)]
            self.commit_files(table, reached, [*[file for file in files if file.path not in replaced], *written])
        self._reached = reached
        failpoints.hit("sink.table_committed")
        try:
            self.committed(table)
        except Exception as error:
            if not (self.is_conflict(error) or self.may_pass(error)):
                raise
            log.info("%s: after the commit: %s", self._label, self.words(error))
        with suppress(StrandlineError):
            folder_at(place).delete(list(replaced))
        return sum(file.rows for file in files)

    def _check_written(self, record: CommitRecord) -> None:
        """Raise ConflictError unless a merge has written this record."""
        if self.record(self.load()) != record:
            raise ConflictError(f"{self._where}: the record is not the one that the transaction has written")

    def _former_rows(self, table: Any, epoch: Epoch) -> pa.Table | None:
        """Return the rows by key that later epochs have replaced, deleted or inserted; None if there are none."""
        later = self._later_record(table, epoch) if self.key else None
        if later is None:
            return None
        try:
            former = former_rows(self.changes_after(table, epoch), self.key)
            if former is None:
                return None
            schema = former.schema.remove(former.schema.get_field_index(GONE))
            layout, _ = self.layout(table, schema, self.key)
            marker = pa.field(GONE, pa.bool_())
            former = cast_table(former, layout.schema.append(marker))
        except (NotUndoableError, ConfigurationError, pa.ArrowException) as error:
            log.warning(
                "%s: the job goes back to epoch %d; rows of later epochs, up to %d, stay in %s until the same keys "
                "come again: %s", self._label, epoch, later.epoch, self._where, error,
            )  # fmt: skip
            return None
        log.warning(
            "%s: the job goes back to epoch %d; in %s, %d rows are again as before later epochs, up to %d",
            self._label, epoch, self._where, len(former), later.epoch,
        )  # fmt: skip
        return former

    def _present_layout(self, table: Any, staged: StagedFiles) -> FileLayout:
        """Return the table's present layout for staged files."""
        try:
            layout, new = self.layout(table, without(staged.schema, staged.delete), staged.key)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error.message}; the table was changed after rows of the last checkpoint were staged for it",
                hint=f"{error.hint}; staged rows need the former table, until they are in it; or give the sink another "
                f"name and start the job with drop=['{self._opened.sink}'], which discards them",
            ) from None
        if new:
            self.add_columns(table, new)
            raise ConflictError(f"{self._where}: the columns {', '.join(c.name for c in new)} were added")
        return layout

    def _write_again(self, place: Place, staged: StagedFiles, layout: FileLayout) -> list[DataFile]:
        """Write staged rows again in the table's present layout."""
        log.warning("%s: %s was changed: rows of epoch %d are written again", self._label, self._where, staged.epoch)
        self._prepared = None
        folder, run = folder_at(place), self._opened.generation
        task = WriteDataFiles(place, self._folder, run, staged.epoch, layout, self.target_bytes)
        rows = (batch for file in staged.files for batch in staged.read(folder, file).to_batches())
        return task.write(rows, TaskAttempt(staged.task, unique_name()))

    def _check_files(self, place: Place, files: Sequence[DataFile]) -> None:
        folder = folder_at(place)

        def check(file: DataFile) -> None:
            try:
                size = folder.head(file.path).size_bytes
            except NotFoundError:
                size = -1
            if size != file.bytes:
                fault = "is gone" if size < 0 else f"has {size} bytes, expected {file.bytes}"
                raise CorruptionError(
                    f"{self._where}: the data file {folder.url}/{file.path} {fault}: its rows, of the last checkpoint, "
                    "are not in the table yet",
                    hint="another program deleted it, such as a vacuum, which deletes files that a table does not list "
                    "after its retention, or the table's location was changed: restore the file or the location, or "
                    "the job from an older savepoint",
                )

        if len(files) == 1:
            check(files[0])
            return
        with ThreadPoolExecutor(min(_THREADS, len(files)), "strandline-table") as pool:
            list(pool.map(check, files))

    def _last_rows(self, place: Place, staged: Sequence[StagedFiles], key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
        """Return the last row of each key: those that stay, and those that delete."""
        folder = folder_at(place)
        try:
            tables = [each.read(folder, file) for each in staged for file in each.files]
        except NotFoundError as error:
            raise ConflictError(f"{self._where}: {error.message}, and existed before") from None
        rows = last_rows(pa.concat_tables(tables, promote_options="permissive"), key)
        if not staged[0].delete:
            return rows, rows.slice(0, 0)
        is_gone = pc.fill_null(rows[staged[0].delete], False)
        return rows.filter(pc.invert(is_gone)), rows.filter(is_gone)

    def _delete_staged(self, place: Place, before: CommitRecord | None, pending: set[str]) -> None:
        """Delete the files that runs since the last claim have staged, and that no checkpoint lists.

        Failed attempts of tasks may have left files of older epochs: the table's vacuum deletes these. They cannot be
        distinguished from files of older versions of the table, which may still be read.
        """
        folder, run = folder_at(place), self._opened.generation
        first, reached = (before.generation, before.epoch) if before else (1, 0)
        # Do not list the table's files of older runs, which may be many.
        roots = [
            self._merging,
            *(f"{self._folder}/g{generation}" for generation in range(max(first, run - _RUNS), run)),
        ]
        with suppress(UnavailableError):
            for root in roots:
                pattern = re.compile(rf"(?:{self._merging}|{self._folder})/g(\d+)/(\d+)-")
                matches = [(info.path, pattern.match(info.path)) for info in folder.list(root)]
                folder.delete([
                    path for path, match in matches
                    if match and path not in pending and int(match[1]) < run
                    and (root == self._merging or (int(match[1]), int(match[2])) > (first, reached))
                ])  # fmt: skip

    def _check_claim(self, record: CommitRecord | None, begin: Epoch | None) -> None:
        """Refuse a table that a newer driver has claimed, or that has rows after `begin` if this life begins there."""
        if record is None:
            return
        if record.generation > self._opened.generation:
            raise self._fenced(record)
        if record.generation == self._opened.generation:
            raise UnavailableError(
                f"{self._label}: generation {record.generation} of the job has claimed {self._where}, and the same "
                "generation begins: another driver has replaced it, or the checkpoint directory was set back",
                hint="run one driver only; after setting the directory back, start again until the generation is newer",
            )
        if begin is not None and record.epoch > begin:
            raise CorruptionError(
                f"{self._where}: the job's rows up to epoch {record.epoch} are on record as written, and the job "
                "begins without any checkpoint: they would come again",
                hint=f"bring the checkpoints back, or {BEGIN_ANEW}",
            )

    def _decode(self, pending: Sequence[str]) -> tuple[list[StagedFiles], CommitRecord | None]:
        """Return the staged files, and the table's record at the checkpoint."""
        committables = decode_committables(pending, COMMITTABLES, self._label)
        records = [
            CommitRecord(each.generation, each.epoch)
            for each in committables
            if isinstance(each, TableMark) and each.sink == self._opened.identity
        ]
        return [each for each in committables if isinstance(each, StagedFiles)], max(records, default=None)

    def _check_record(self, record: CommitRecord | None) -> CommitRecord | None:
        """Raise CorruptionError if the table has lost rows that were on record: no run would add them again."""
        if self._reached is not None and (record is None or record < self._reached):
            raise self._lost(record)
        return record

    def _report(self, waiting: Sequence[StagedFiles], reason: str) -> None:
        now = time.monotonic()
        files = [file for each in waiting for file in each.files]
        rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
        if waiting and not self._late_since:
            self._late_since = now
            log.warning("%s: %s rows wait for the table, and the job goes on: %s", self._label, f"{rows:,}", reason)
        elif self._late_since and not waiting:
            self._late_since = 0.0
            # They are in the table, or a rollback has given them up.
            tell_always(f"{self._label}: no rows wait any more")
        waiting_ms = round((now - self._late_since) * 1000) if waiting else 0
        self._status = SinkStatus(
            self._opened.sink,
            rows=self._rows,
            waiting_rows=rows,
            waiting_bytes=size,
            waiting_ms=waiting_ms,
            failure=reason,
        )

    def _fenced(self, record: CommitRecord) -> FencedError:
        return FencedError(f"{self._label}: generation {record.generation} of the job writes to {self._where} now")

    def _lost(self, record: CommitRecord | None) -> CorruptionError:
        had = f", and had epoch {self._reached.epoch}" if self._reached else ""
        return CorruptionError(
            f"{self._where}: the table has less of the job's rows than it had: it was put back to an older state, "
            f"deleted, or created again{'' if record else self.expiry} "
            f"(it has {f'epoch {record.epoch}' if record else 'none'} on record{had})",
            hint=f"{_MOVED}; else bring its newest state back, or restore the job from a checkpoint or savepoint of "
            f"the older one; or {BEGIN_ANEW}",
        )
