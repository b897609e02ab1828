"""A savepoint made of another snapshot: rows changed, states and operators gone or renamed, another max_parallelism.

What is not changed is taken over as it is: tables of a canonical savepoint are the same files.
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
from strandline.format.names import Named, everything_in, find_named, name_in
from strandline.snapshot.opening.snapshot import METADATA
from strandline.snapshot.rows.codecs import has_rows, rows_of
from strandline.snapshot.rows.panemarks import Marks
from strandline.snapshot.savepoints.builder import SavepointBuilder, checked, find_state
from strandline.snapshot.savepoints.progress import PatchProgress, SavepointProgress
from strandline.snapshot.savepoints.take import bring_tables
from strandline.snapshot.tables.reader import StateReader
from strandline.snapshot.tables.table import Table
from strandline.snapshot.tools.regroup import regrouped
from strandline.storage.place import Place

Edit = Callable[[pa.RecordBatch], "pa.RecordBatch | pa.Table | None"]
"""Is given rows of a state, one part after the other, and returns what is there instead; None: nothing."""

Write = Callable[[SavepointBuilder, OperatorInfo, StateInfo], None]
"""Gives a builder all rows that a state is to have."""

Source = Callable[[Path], Iterator[pa.RecordBatch]]
"""Gives all rows that a state is to have, in any order, as its table has them; is given a local directory."""

Report = Callable[[PatchProgress], None]


@dataclass(frozen=True)
class Patch:
    """What of a snapshot is to be otherwise. Operators are named by "uid" and states by "uid.state", as they were."""

    edits: Mapping[str, Edit] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)
    writes: Mapping[str, Write] = field(default_factory=dict)
    drop: Collection[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    """What an operator or a state is called now: of a state, its name alone."""
    max_parallelism: int | Mapping[str, int] | None = None
    """Of all operators, or by uid of some."""

    def planned(self, operators: Sequence[OperatorInfo]) -> Plan:
        """Return what it means for these operators.

        Raises ConfigurationError for what is not there, is named twice, may be two things, or leaves two of one name.
        """
        return Plan(self, operators)


class Plan:
    """A patch, and the operators that it is for: what becomes of each state."""

    def __init__(self, patch: Patch, operators: Sequence[OperatorInfo]) -> None:
        self._there = everything_in(operators)
        self._operators = operators
        self.edits = {self._state(name): edit for name, edit in patch.edits.items()}
        self.sources = {self._state(name): source for name, source in patch.sources.items()}
        self.writes = {self._state(name): write for name, write in patch.writes.items()}
        changed = [*self.edits, *self.sources, *self.writes]
        self._dropped = {self._found("drop", name) for name in patch.drop}
        self._renamed = {self._found("rename", name): new for name, new in patch.rename.items()}
        self._most = self._known_most(patch.max_parallelism)
        for named in changed:
            if changed.count(named) > 1:
                raise ConfigurationError(f"'{self.name(named)}' is to be changed in two ways", hint="leave one out")
            if self._is_dropped(named):
                raise ConfigurationError(
                    f"'{self.name(named)}' is to be changed, and drop names it, too", hint="leave one out"
                )
        self.left = self._made()
        """The operators that are left, as they are now."""
        _check_names([op.uid for op in self.left], "operators")
        for operator in self.left:
            _check_names([info.name for info in operator.states], f"states of operator '{operator.uid}'")

    def name(self, named: Named) -> str:
        """Return how something is named."""
        return name_in(self._there, named)

    def tables(self) -> Iterator[tuple[Named, OperatorInfo, StateInfo]]:
        """Give each state that is left and has a table, under the name that it was known by."""
        for operator in self._operators:
            for info in operator.states:
                named = Named(operator.uid, info.name)
                if has_rows(info) and not self._is_dropped(named):
                    yield named, operator, info

    def now(self, named: Named) -> tuple[str, str]:
        """Return the uid and the name that a state has now."""
        return self._renamed.get(Named(named.uid), named.uid), self._renamed.get(named, named.state)

    def most(self, operator: OperatorInfo) -> int:
        """Return an operator's max_parallelism."""
        return self._most.get(operator.uid, operator.max_parallelism)

    def is_kept(self, named: Named, operator: OperatorInfo, state: StateInfo) -> bool:
        """Whether the files of a state are what they would be if they were made anew."""
        # Files have the names of operator and state.
        if self.now(named) != (named.uid, named.state):
            return False
        same_groups = state.kind == "broadcast" or self.most(operator) == operator.max_parallelism
        return same_groups and named not in self.edits and not self.is_given(named)

    def is_given(self, named: Named) -> bool:
        """Whether all rows of a state come from elsewhere."""
        return named in self.sources or named in self.writes

    def brought(self, *, canonical: bool) -> list[OperatorInfo]:
        """Return the operators as they were, each with those of its states alone that are wanted as tables.

        Those whose files are taken over; and unless the snapshot has tables already, those of which others are made.
        """
        found = []
        for operator in self._operators:
            states = [
                info for named, op, info in self.tables()
                if op is operator and not self.is_given(named) and (not canonical or self.is_kept(named, op, info))
            ]  # fmt: skip
            names = {info.name for info in states}
            tables = {name: files for name, files in (operator.tables or {}).items() if name in names}
            if states:
                found.append(structs.replace(operator, states=states, tables=tables))
        return found

    def _state(self, name: str) -> Named:
        operator, info = find_state(self._operators, name)
        return Named(operator.uid, info.name)

    def _found(self, what: str, name: str) -> Named:
        found = find_named(what, name, self._there)
        if found is None:
            known = sorted(self.name(one) for one in self._there if self._has_rows(one))
            raise ConfigurationError(
                f"{what} names '{name}', and there is no such operator or state; there are: {', '.join(known)}"
            )
        return found

    def _has_rows(self, named: Named) -> bool:
        infos = {Named(op.uid, info.name): info for op in self._operators for info in op.states}
        return named not in infos or has_rows(infos[named])

    def _is_dropped(self, named: Named) -> bool:
        return named in self._dropped or Named(named.uid) in self._dropped

    def _known_most(self, given: int | Mapping[str, int] | None) -> dict[str, int]:
        uids = [operator.uid for operator in self._operators]
        if given is None:
            return {}
        of_all = dict.fromkeys(uids, given) if isinstance(given, int) else dict(given)
        for uid, most in of_all.items():
            if uid not in uids:
                raise ConfigurationError(
                    f"max_parallelism names '{uid}', and there is no such operator; there are: {', '.join(uids)}"
                )
            check_parallelism(uid, 1, most)
        return of_all

    def _made(self) -> list[OperatorInfo]:
        left = [operator for operator in self._operators if Named(operator.uid) not in self._dropped]
        return [
            structs.replace(
                op, uid=self.now(Named(op.uid))[0], partitions=[], max_parallelism=self.most(op),
                parallelism=min(op.parallelism, self.most(op)), states=[
                    structs.replace(info, name=self.now(named)[1])
                    for info in op.states if (named := Named(op.uid, info.name)) not in self._dropped
                ],
            )
            for op in left
        ]  # fmt: skip


def _check_names(names: list[str], what: str) -> None:
    for name in names:
        if not name.strip() or names.count(name) > 1:
            found = "without a name" if not name.strip() else f"called '{name}'"
            raise ConfigurationError(f"after rename, there would be several {what} {found}", hint="change rename")


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
    """Write a canonical savepoint of a snapshot, whose files are relative to `source`, with what a patch says.

    It stands for the same point in the job's history: sources, watermarks, sinks and timers go on from there. Raises
    ConfigurationError for names that are not there, StateTypeError for rows that do not fit, UserCodeError with what an
    edit raises, ConflictError if there is anything in the folder, and CorruptionError if the snapshot is damaged.
    Nothing is left there then.
    """
    plan = patch.planned(manifest.operators)
    tables = list(plan.tables())
    is_canonical = manifest.savepoint == "canonical"
    with SavepointBuilder(target, manifest.job, plan.left, scratch=scratch, clock=clock) as builder:
        builder.manifest = structs.replace(
            manifest, operators=plan.left, savepoint="canonical", engine_version=VERSION,
            created_ms=(clock or SystemClock()).now_ms(),
        )  # fmt: skip
        make = _Making(plan, builder, report, len(tables))
        # 1. Rows that come from elsewhere: they may not fit, and are looked at before all the rest is copied.
        for named, operator, info in tables:
            if plan.is_given(named):
                make.given(named, operator, info)
        # 2. What the snapshot has, as tables: those that stay, and those of which others are made.
        wanted = structs.replace(manifest, operators=plan.brought(canonical=is_canonical))
        brought = bring_tables(wanted, source, target, builder.scratch, make.tell_brought)
        builder.manifest = structs.replace(builder.manifest, source=brought.source)
        there = {operator.uid: operator for operator in (manifest if is_canonical else brought).operators}
        folder = folder_at(source) if is_canonical else builder.folder
        with StateReader(builder.scratch) as reader:
            for named, operator, info in tables:
                if plan.is_given(named):
                    continue
                table = Table(folder, METADATA, there[operator.uid], info, str(named), None, None)
                if plan.is_kept(named, operator, info):
                    builder.add(*plan.now(named), table.files or [])
                else:
                    make.edited(named, operator, info, reader.rows(table))
        return builder.finish()


class _Making:
    """Gives a builder the rows of states that are made anew."""

    def __init__(self, plan: Plan, builder: SavepointBuilder, report: Report, states: int) -> None:
        self._plan = plan
        self._builder = builder
        self._report = report
        self._states = states
        self._done = 0

    def given(self, named: Named, operator: OperatorInfo, info: StateInfo) -> None:
        """Write rows that come from elsewhere."""
        if named in self._plan.writes:
            self._tell(f"writing {self._plan.name(named)}", 0)
            uid, state = self._plan.now(named)
            self._plan.writes[named](self._builder, *_state_of(self._plan.left, uid, state))
            self._done += 1
        else:
            self._write(named, operator, info, self._plan.sources[named](self._builder.scratch), check=True)

    def edited(self, named: Named, operator: OperatorInfo, info: StateInfo, rows: Iterator[pa.RecordBatch]) -> None:
        """Write what becomes of the rows that the snapshot has."""
        is_edited = named in self._plan.edits
        if is_edited:
            marks = Marks(operator, info)
            rows = marks.kept(_edited(self._plan.name(named), self._plan.edits[named], marks.noted(rows)))
        self._write(named, operator, info, rows, check=is_edited)

    def tell_brought(self, progress: SavepointProgress) -> None:
        """Tell how far it is with tables of what is stored otherwise."""
        self._tell("reading what is there", progress.rows)

    def _write(
        self, named: Named, operator: OperatorInfo, info: StateInfo, rows: Iterator[pa.RecordBatch], *, check: bool
    ) -> None:
        if (most := self._plan.most(operator)) != operator.max_parallelism:
            if check:
                # Before key groups are left out: whatever does not fit is refused as it always is.
                rows = map(partial(checked, rows_of(operator, info)), rows)
            rows = regrouped(operator, info, most, rows)
        self._builder.write(*self._plan.now(named), self._told(f"writing {self._plan.name(named)}", rows))
        self._done += 1

    def _told(self, step: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in batches:
            self._tell(step, rows)
            yield batch
            rows += batch.num_rows

    def _tell(self, step: str, rows: int) -> None:
        self._report(PatchProgress(step, rows, self._done, self._states))


def _state_of(operators: Sequence[OperatorInfo], uid: str, state: str) -> tuple[OperatorInfo, StateInfo]:
    return next((op, info) for op in operators for info in op.states if (op.uid, info.name) == (uid, state))


def _edited(name: str, edit: Edit, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        try:
            found = edit(batch)
        except StrandlineError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"the function that changes '{name}' has raised {type(error).__name__}: {error}",
                hint=f"it is given the columns {', '.join(batch.schema.names)}",
            ) from error
        if isinstance(found, pa.RecordBatch):
            yield found
        elif isinstance(found, pa.Table):
            yield from found.to_batches()
        elif found is not None:
            raise UserCodeError(
                f"the function that changes '{name}' returned a {type(found).__name__}",
                hint="return a RecordBatch, a Table, or None for no rows",
            )
