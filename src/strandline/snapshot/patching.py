"""A savepoint made of another snapshot: some rows changed, some states and operators gone or called something else.

What is not changed is taken over as it is: tables of a canonical savepoint are the same files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from msgspec import structs

from strandline.checkpoint.folder import folder_at
from strandline.core.clock import Clock, SystemClock
from strandline.core.errors import ConfigurationError, StrandlineError, UserCodeError
from strandline.core.version import VERSION
from strandline.format.manifest import FileRef, Manifest, OperatorInfo, StateInfo, TableFile
from strandline.snapshot.building import SavepointBuilder, find_state, groups_of
from strandline.snapshot.parquet import read_tables
from strandline.snapshot.rows import has_rows
from strandline.snapshot.savepoint import fetching
from strandline.snapshot.taking import bring_tables
from strandline.storage.place import Place

Edit = Callable[[pa.RecordBatch], "pa.RecordBatch | pa.Table | None"]
"""Is given rows of a state, one part after the other, and returns what is there instead; None: nothing."""

Write = Callable[[SavepointBuilder, OperatorInfo, StateInfo], None]
"""Gives a builder all rows that a state is to have."""


@dataclass(frozen=True)
class Patch:
    """What of a snapshot is to be otherwise. Operators are named by "uid" and states by "uid.state", as they were."""

    edits: Mapping[str, Edit] = field(default_factory=dict)
    writes: Mapping[str, Write] = field(default_factory=dict)
    drop: Collection[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    """What an operator or a state is called now: of a state, its name alone."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "drop", frozenset(self.drop))

    def check(self, operators: Sequence[OperatorInfo]) -> None:
        """Raise ConfigurationError for what is not there, is named twice, or leaves two of one name."""
        changed = [*self.edits, *self.writes]
        for name in changed:
            find_state(operators, name)
        states = {f"{op.uid}.{info.name}" for op in operators for info in op.states if has_rows(info)}
        known = states | {operator.uid for operator in operators}
        for what, names in (("drop", self.drop), ("rename", self.rename)):
            if unknown := sorted(set(names) - known):
                raise ConfigurationError(
                    f"{what} names '{unknown[0]}', and there is no such operator or state; there are: "
                    f"{', '.join(sorted(known))}"
                )
        for name in changed:
            if name in self.drop or name.rpartition(".")[0] in self.drop:
                raise ConfigurationError(f"'{name}' is to be changed, and drop names it, too", hint="leave one out")
        if twice := sorted(set(self.edits) & set(self.writes)):
            raise ConfigurationError(f"'{twice[0]}' is to be changed in two ways", hint="leave one out")
        self._check_names([op.uid for op in self.operators(operators)], "operators")
        for operator in self.operators(operators):
            self._check_names([info.name for info in operator.states], f"states of operator '{operator.uid}'")

    def operators(self, operators: Sequence[OperatorInfo]) -> list[OperatorInfo]:
        """Return the operators that are left, under their new names."""
        return [
            structs.replace(op, uid=self.uid(op), partitions=[], states=[
                structs.replace(info, name=self.state(op, info)) for info in op.states
                if f"{op.uid}.{info.name}" not in self.drop
            ])
            for op in operators if op.uid not in self.drop
        ]  # fmt: skip

    def uid(self, operator: OperatorInfo) -> str:
        """Return what an operator is called now."""
        return self.rename.get(operator.uid, operator.uid)

    def state(self, operator: OperatorInfo, state: StateInfo) -> str:
        """Return what a state is called now."""
        return self.rename.get(f"{operator.uid}.{state.name}", state.name)

    def states(self, operators: Sequence[OperatorInfo]) -> Iterator[tuple[str, OperatorInfo, StateInfo]]:
        """Give each state that is left and has a table, with the name that it was known by."""
        for operator in operators:
            for info in operator.states:
                name = f"{operator.uid}.{info.name}"
                if has_rows(info) and operator.uid not in self.drop and name not in self.drop:
                    yield name, operator, info

    def _check_names(self, names: list[str], what: str) -> None:
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
    scratch: Path | None = None,
    clock: Clock | None = None,
) -> Manifest:
    """Write a canonical savepoint of a snapshot, whose files are relative to `source`, with what a patch says.

    It stands for the same point in the job's history: sources, watermarks, sinks and timers go on from there. Raises
    ConfigurationError for names that are not there, StateTypeError for rows that do not fit, UserCodeError with what an
    edit raises, ConflictError if there is anything in the folder, and CorruptionError if the snapshot is damaged.
    Nothing is left there then.
    """
    patch.check(manifest.operators)
    left = patch.operators(manifest.operators)
    with SavepointBuilder(target, manifest.job, left, scratch=scratch, clock=clock) as builder:
        builder.manifest = structs.replace(
            manifest, operators=left, savepoint="canonical", engine_version=VERSION,
            created_ms=(clock or SystemClock()).now_ms(),
        )  # fmt: skip
        is_canonical = manifest.savepoint == "canonical"
        brought = bring_tables(manifest, source, target, builder.scratch, leave=_left(manifest, patch))
        builder.manifest = structs.replace(builder.manifest, source=brought.source)
        opening = fetching(folder_at(source) if is_canonical else builder.folder, builder.scratch)
        for name, operator, info in patch.states(brought.operators):
            files = (operator.tables or {}).get(info.name, [])
            uid, state = patch.uid(operator), patch.state(operator, info)
            if name in patch.writes:
                patch.writes[name](builder, *find_state(left, f"{uid}.{state}"))
            elif name in patch.edits:
                rows = read_tables(files, groups_of(operator, info), opening)
                builder.write(uid, state, _edited(name, patch.edits[name], rows))
            else:
                builder.add(uid, state, files)
        return builder.finish()


def _left(manifest: Manifest, patch: Patch) -> list[FileRef]:
    """Return the files that are not needed as they are."""
    kept = {name for name, _, _ in patch.states(manifest.operators)} - {*patch.edits, *patch.writes}
    tables: list[tuple[str, list[TableFile]]] = [
        (f"{operator.uid}.{state}", files)
        for operator in manifest.operators
        for state, files in (operator.tables or {}).items()
    ]
    needed = {file.file.path for name, files in tables if name in kept for file in files}
    return [file.file for _, files in tables for file in files if file.file.path not in needed]


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
