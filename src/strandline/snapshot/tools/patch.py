"""Patches a snapshot into a savepoint: changes rows, drops or renames states and operators, sets max_parallelism.

Unchanged tables of a canonical savepoint keep their files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
from msgspec import structs

from strandline.checkpoint.folder import folder_at
from strandline.core.clock import Clock, SystemClock
from strandline.core.errors import ConfigurationError, StrandlineError, UserCodeError
from strandline.core.keygroups import check_parallelism
from strandline.core.version import VERSION
from strandline.format.manifest import Manifest, OperatorInfo, StateInfo
from strandline.format.names import StatePath, everything_in, find_named, name_in
from strandline.snapshot.opening.snapshot import METADATA
from strandline.snapshot.rows.codecs import has_rows, rows_of
from strandline.snapshot.rows.panemarks import Marks
from strandline.snapshot.savepoints.builder import SavepointBuilder, check_rows, find_state
from strandline.snapshot.savepoints.progress import PatchProgress, SavepointProgress
from strandline.snapshot.savepoints.take import bring_tables
from strandline.snapshot.tables.reader import StateReader
from strandline.snapshot.tables.table import Table
from strandline.snapshot.tools.regroup import regroup
from strandline.storage.place import Place

Edit = Callable[[pa.RecordBatch], "pa.RecordBatch | pa.Table | None"]
"""Takes rows of a state, a batch at a time, and returns their replacement; None removes them."""

Write = Callable[[SavepointBuilder, OperatorInfo, StateInfo], None]
"""Writes all rows of a state into a builder."""

Source = Callable[[Path], Iterator[pa.RecordBatch]]
"""Takes a local directory and yields all rows of a state, in any order, with the columns of its table."""

Report = Callable[[PatchProgress], None]


@dataclass(frozen=True)
class Patch:
    """Changes of a snapshot. Operators have the names "uid" and states "uid.state", as in the snapshot."""

    edits: Mapping[str, Edit] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)
    writes: Mapping[str, Write] = field(default_factory=dict)
    drop: Collection[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    """By old name: the new uid of an operator, or the new name of a state without the uid."""
    max_parallelism: int | Mapping[str, int] | None = None
    """For all operators, or by uid for some."""

    def plan(self, operators: Sequence[OperatorInfo]) -> AppliedPatch:
        """Return the plan of the patch for these operators.

        Raises ConfigurationError for unknown, repeated and ambiguous names, and for two states of one new name.
        """
        return AppliedPatch(self, operators)


class AppliedPatch:
    """A patch applied to operators: the change of each state."""

    def __init__(self, patch: Patch, operators: Sequence[OperatorInfo]) -> None:
        self._names = everything_in(operators)
        self._operators = operators
        self.edits = {self._state(name): edit for name, edit in patch.edits.items()}
        self.sources = {self._state(name): source for name, source in patch.sources.items()}
        self.writes = {self._state(name): write for name, write in patch.writes.items()}
        changed = [*self.edits, *self.sources, *self.writes]
        self._dropped = {self._find("drop", name) for name in patch.drop}
        self._renamed = {self._find("rename", name): new for name, new in patch.rename.items()}
        self._most = self._max_parallelisms(patch.max_parallelism)
        for named in changed:
            if changed.count(named) > 1:
                raise ConfigurationError(f"'{self.name(named)}' is to be changed in two ways", hint="leave one out")
            if self._is_dropped(named):
                raise ConfigurationError(
                    f"'{self.name(named)}' is to be changed, and drop names it, too", hint="leave one out"
                )
        self.left = self._new_operators()
        """The remaining operators, with the changes."""
        _check_names([op.uid for op in self.left], "operators")
        for operator in self.left:
            _check_names([info.name for info in operator.states], f"states of operator '{operator.uid}'")

    def name(self, named: StatePath) -> str:
        """Return the name of an operator or a state as text."""
        return name_in(self._names, named)

    def tables(self) -> Iterator[tuple[StatePath, OperatorInfo, StateInfo]]:
        """Yield each remaining state with a table, under its old name."""
        for operator in self._operators:
            for info in operator.states:
                named = StatePath(operator.uid, info.name)
                if has_rows(info) and not self._is_dropped(named):
                    yield named, operator, info

    def now(self, named: StatePath) -> tuple[str, str]:
        """Return the new uid and name of a state."""
        return self._renamed.get(StatePath(named.uid), named.uid), self._renamed.get(named, named.state)

    def most(self, operator: OperatorInfo) -> int:
        """Return an operator's new max_parallelism."""
        return self._most.get(operator.uid, operator.max_parallelism)

    def is_kept(self, named: StatePath, operator: OperatorInfo, state: StateInfo) -> bool:
        """Whether the files of a state stay the same."""
        # Files contain the names of operator and state.
        if self.now(named) != (named.uid, named.state):
            return False
        same_groups = state.kind == "broadcast" or self.most(operator) == operator.max_parallelism
        return same_groups and named not in self.edits and not self.is_replaced(named)

    def is_replaced(self, named: StatePath) -> bool:
        """Whether all rows of a state come from outside of the snapshot."""
        return named in self.sources or named in self.writes

    def copied_operators(self, *, canonical: bool) -> list[OperatorInfo]:
        """Return the old operators, each with the states whose tables must be copied to the target.

        These are states with unchanged files and, unless the snapshot has tables already, states to edit.
        """
        operators = []
        for operator in self._operators:
            states = [
                info for named, op, info in self.tables()
                if op is operator and not self.is_replaced(named) and (not canonical or self.is_kept(named, op, info))
            ]  # fmt: skip
            names = {info.name for info in states}
            tables = {name: files for name, files in (operator.tables or {}).items() if name in names}
            if states:
                operators.append(structs.replace(operator, states=states, tables=tables))
        return operators

    def _state(self, name: str) -> StatePath:
        operator, info = find_state(self._operators, name)
        return StatePath(operator.uid, info.name)

    def _find(self, what: str, name: str) -> StatePath:
        match = find_named(what, name, self._names)
        if match is None:
            known = sorted(self.name(one) for one in self._names if self._has_rows(one))
            raise ConfigurationError(
                f"{what} names '{name}', and there is no such operator or state; there are: {', '.join(known)}"
            )
        return match

    def _has_rows(self, named: StatePath) -> bool:
        infos = {StatePath(op.uid, info.name): info for op in self._operators for info in op.states}
        return named not in infos or has_rows(infos[named])

    def _is_dropped(self, named: StatePath) -> bool:
        return named in self._dropped or StatePath(named.uid) in self._dropped

    def _max_parallelisms(self, wanted: int | Mapping[str, int] | None) -> dict[str, int]:
        uids = [operator.uid for operator in self._operators]
        if wanted is None:
            return {}
        of_all = dict.fromkeys(uids, wanted) if isinstance(wanted, int) else dict(wanted)
        for uid, most in of_all.items():
            if uid not in uids:
                raise ConfigurationError(
                    f"max_parallelism names '{uid}', and there is no such operator; there are: {', '.join(uids)}"
                )
            check_parallelism(uid, 1, most)
        return of_all

    def _new_operators(self) -> list[OperatorInfo]:
        left = [operator for operator in self._operators if StatePath(operator.uid) not in self._dropped]
        return [
            structs.replace(
                op, uid=self.now(StatePath(op.uid))[0], partitions=[], max_parallelism=self.most(op),
                parallelism=min(op.parallelism, self.most(op)), states=[
                    structs.replace(info, name=self.now(named)[1])
                    for info in op.states if (named := StatePath(op.uid, info.name)) not in self._dropped
                ],
            )
            for op in left
        ]  # fmt: skip


def _check_names(names: list[str], what: str) -> None:
    for name in names:
        if not name.strip() or names.count(name) > 1:
            problem = "without a name" if not name.strip() else f"called '{name}'"
            raise ConfigurationError(f"after rename, there would be several {what} {problem}", hint="change rename")


def make_patched(
    manifest: Manifest,
    source: Place,
    target: Place,
    patch: Patch,
    *,
    report: Report = lambda progress: None,
    scratch: Path | None = None,
    clock: Clock | None = None,
) -> Manifest:
    """Write a canonical savepoint of a snapshot, whose files are relative to `source`, with a patch.

    It has the same position in the job's history: sources, watermarks, sinks and timers continue from there. Raises
    ConfigurationError for names that are not there, StateTypeError for rows that do not fit, UserCodeError with what an
    edit raises, ConflictError if the folder is not empty, and CorruptionError if the snapshot is damaged. It leaves no
    files after an error.
    """
    plan = patch.plan(manifest.operators)
    tables = list(plan.tables())
    is_canonical = manifest.savepoint == "canonical"
    with SavepointBuilder(target, manifest.job, plan.left, scratch=scratch, clock=clock) as builder:
        builder.manifest = structs.replace(
            manifest, operators=plan.left, savepoint="canonical", engine_version=VERSION,
            created_ms=(clock or SystemClock()).now_ms(),
        )  # fmt: skip
        writer = _StateWriter(plan, builder, report, len(tables))
        # 1. Write rows from outside first, since they may not fit.
        for named, operator, info in tables:
            if plan.is_replaced(named):
                writer.write_replacement(named, operator, info)
        # 2. Copy the snapshot's tables: unchanged ones, and ones to edit.
        wanted = structs.replace(manifest, operators=plan.copied_operators(canonical=is_canonical))
        copied = bring_tables(wanted, source, target, builder.scratch, writer.report_copy)
        builder.manifest = structs.replace(builder.manifest, source=copied.source)
        old_operators = {operator.uid: operator for operator in (manifest if is_canonical else copied).operators}
        folder = folder_at(source) if is_canonical else builder.folder
        with StateReader(builder.scratch) as reader:
            for named, operator, info in tables:
                if plan.is_replaced(named):
                    continue
                table = Table(folder, METADATA, old_operators[operator.uid], info, str(named), None, None)
                if plan.is_kept(named, operator, info):
                    builder.add(*plan.now(named), table.files or [])
                else:
                    writer.write_edit(named, operator, info, reader.rows(table))
        return builder.finish()


class _StateWriter:
    """Writes the rows of changed states into a builder."""

    def __init__(self, plan: AppliedPatch, builder: SavepointBuilder, report: Report, states: int) -> None:
        self._plan = plan
        self._builder = builder
        self._report = report
        self._states = states
        self._done = 0

    def write_replacement(self, named: StatePath, operator: OperatorInfo, info: StateInfo) -> None:
        """Write rows from outside of the snapshot."""
        if named in self._plan.writes:
            self._send_progress(f"writing {self._plan.name(named)}", 0)
            uid, state = self._plan.now(named)
            self._plan.writes[named](self._builder, *_state_of(self._plan.left, uid, state))
            self._done += 1
        else:
            self._write(named, operator, info, self._plan.sources[named](self._builder.scratch), check=True)

    def write_edit(
        self, named: StatePath, operator: OperatorInfo, info: StateInfo, rows: Iterator[pa.RecordBatch]
    ) -> None:
        """Write the snapshot's rows after the edit of a state, if it has one."""
        is_edited = named in self._plan.edits
        if is_edited:
            marks = Marks(operator, info)
            rows = marks.restore(_apply_edit(self._plan.name(named), self._plan.edits[named], marks.record(rows)))
        self._write(named, operator, info, rows, check=is_edited)

    def report_copy(self, progress: SavepointProgress) -> None:
        """Report the progress of copying tables."""
        self._send_progress("reading what is there", progress.rows)

    def _write(
        self, named: StatePath, operator: OperatorInfo, info: StateInfo, rows: Iterator[pa.RecordBatch], *, check: bool
    ) -> None:
        if (most := self._plan.most(operator)) != operator.max_parallelism:
            if check:
                # Check rows while they have key groups, so that errors are the usual ones.
                rows = map(partial(check_rows, rows_of(operator, info)), rows)
            rows = regroup(operator, info, most, rows)
        self._builder.write(*self._plan.now(named), self._with_progress(f"writing {self._plan.name(named)}", rows))
        self._done += 1

    def _with_progress(self, step: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in batches:
            self._send_progress(step, rows)
            yield batch
            rows += batch.num_rows

    def _send_progress(self, step: str, rows: int) -> None:
        self._report(PatchProgress(step, rows, self._done, self._states))


def _state_of(operators: Sequence[OperatorInfo], uid: str, state: str) -> tuple[OperatorInfo, StateInfo]:
    return next((op, info) for op in operators for info in op.states if (op.uid, info.name) == (uid, state))


def _apply_edit(name: str, edit: Edit, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        try:
            replacement = edit(batch)
        except StrandlineError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"the function that changes '{name}' has raised {type(error).__name__}: {error}",
                hint=f"it is given the columns {', '.join(batch.schema.names)}",
            ) from error
        if isinstance(replacement, pa.RecordBatch):
            yield replacement
        elif isinstance(replacement, pa.Table):
            yield from replacement.to_batches()
        elif replacement is not None:
            raise UserCodeError(
                f"the function that changes '{name}' returned a {type(replacement).__name__}",
                hint="return a RecordBatch, a Table, or None for no rows",
            )
