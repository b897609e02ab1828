"""From a snapshot's states to those of a program: what is kept, what changes, what is lost, and what cannot be."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import UNSET, UnsetType, structs

from strandline.api.states import State
from strandline.core.errors import ConfigurationError
from strandline.format.manifest import FixedWindows, OperatorInfo, SessionWindows, StateInfo, Windows
from strandline.format.names import Named, everything_in, find_named, name_in
from strandline.format.schemas import Schemas
from strandline.plan.aggregatestate import AggregateChanges, plan_aggregates
from strandline.plan.changes import Action, Change
from strandline.runtime.builtin import Aggregated
from strandline.runtime.program import EVENT_TIMERS
from strandline.types.datatypes import parse_type, quoted
from strandline.types.evolution import DroppedField, Refusal, evolve, fields_of, validate_hints
from strandline.types.hints import Hints


class Upgradable(Protocol):
    """What is asked of an operator of the program."""

    @property
    def uid(self) -> str: ...
    @property
    def was(self) -> str: ...
    @property
    def key_schema(self) -> str: ...
    @property
    def parallelism(self) -> int: ...
    @property
    def states(self) -> Sequence[StateInfo]: ...
    @property
    def declared(self) -> Mapping[str, State]: ...
    @property
    def aggregated(self) -> Aggregated | None: ...


@dataclass(frozen=True)
class Migration:
    """What the keepers of an operator must know to go on from what is stored."""

    stored: OperatorInfo | None = None
    """The operator in the snapshot; None for a new one."""
    schemas: Mapping[str, Schemas] = field(default_factory=dict)
    """By state of the program: what its values are, or may be, stored with. Left out where that is the first schema."""
    was: Mapping[str, str] = field(default_factory=dict)
    """By state of the program: what it is called in the snapshot, where that is something else."""
    dropped: Sequence[str] = ()
    """States of the snapshot that are to be forgotten."""

    def infos(self, declared: Sequence[StateInfo]) -> list[StateInfo]:
        """Return what manifests say of declared states: also how their values are, or may be, stored."""
        found = []
        for info in declared:
            known = self.schemas.get(info.name)
            if known is not None:
                info = structs.replace(info, schema_id=known.schema_id, older=known.older or UNSET)
            found.append(info)
        return found


@dataclass(frozen=True)
class Upgrade:
    """What becomes of a snapshot's operators and states in a program."""

    changes: tuple[Change, ...]
    """Operators as the program has them, each with its states and aggregates, then those of the snapshot alone."""
    refusals: tuple[str, ...]
    """Everything that stands against it, as sentences; empty if the program can go on."""
    drop: tuple[str, ...]
    """What `drop` must name, beside what it does, for the program to go on without it."""
    unused: tuple[str, ...]
    """What `drop` names and the snapshot does not have."""
    migrations: Mapping[str, Migration]
    """By uid of the program."""
    to_add: Mapping[str, tuple[str, ...]]
    """By uid: how to write aggregates that are new, for them to begin empty."""
    to_rename: tuple[str, ...] = ()
    """How to write that a field that is new is one that is gone, wherever a field may be."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.changes)) or "nothing is stored, and the program keeps nothing"

    @property
    def hint(self) -> str:
        """What to write in the program for what is new in it, if anything; empty, or the beginning of a sentence."""
        said = [f"{', '.join(written)} in agg() of '{uid}'" for uid, written in self.to_add.items()]
        hints = [f"to have what is new begin empty, write {', and '.join(said)}"] if said else []
        if self.to_rename:
            hints.append(
                f"if a field has another name now, write {', and '.join(self.to_rename)} in the state's declaration "
                "(for a window or join: keep the name before it, and rename the column behind it)"
            )
        return "; ".join(hints)

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the changes as rows of a table, or as JSON.

        They have `operator`, `state`, `aggregate` (one of both is empty), `action`, `was` and `details`.
        """
        return [
            {
                "operator": c.uid, "state": c.state, "aggregate": c.aggregate, "action": c.action, "was": c.was,
                "details": list(c.details),
            }
            for c in self.changes
        ]  # fmt: skip


def plan_upgrade(
    stored: Sequence[OperatorInfo], operators: Sequence[Upgradable], drop: Collection[str] = ()
) -> Upgrade:
    """Return what becomes of each stored operator and state; nothing is raised for what is refused.

    An operator is found by its uid, or by what it was; so are a state and an aggregate by its name. `drop` names what
    may be lost: an operator as "uid", a state as "uid.state", a field of its type as "uid.state.field", an aggregate as
    "uid.result", all as the snapshot has them. It never takes away what the program has.
    """
    planner = _Planner({info.uid: info for info in stored}, operators, frozenset(drop))
    return planner.plan()


class _Planner:
    def __init__(
        self, stored: Mapping[str, OperatorInfo], operators: Sequence[Upgradable], drop: frozenset[str]
    ) -> None:
        self._stored = stored
        self._operators = operators
        aggregates = [
            Named(uid, name) for uid, info in stored.items() for state in info.states for name in state.aggregates or ()
        ]
        fields = [
            Named(uid, state.name, path)
            for uid, info in stored.items() for state in info.states if state.value_type and not state.merge
            for path in fields_of(parse_type(state.value_type))
        ]  # fmt: skip
        self._there = list(dict.fromkeys([*everything_in(stored.values()), *aggregates, *fields]))
        self._drop: set[Named] = set()
        self._unused: list[str] = []
        self._changes: list[Change] = []
        self._refusals: list[str] = []
        self._missing: list[str] = []
        self._migrations: dict[str, Migration] = {}
        self._to_add: dict[str, tuple[str, ...]] = {}
        self._to_rename: list[str] = []
        for name in sorted(drop):
            self._find_dropped(name)

    def _find_dropped(self, name: str) -> None:
        try:
            found = find_named("drop", name, self._there)
        except ConfigurationError as error:
            self._refusals.append(f"{error.message}: {error.hint}")
            return
        if found is None:
            self._unused.append(name)
        else:
            self._drop.add(found)

    def plan(self) -> Upgrade:
        for operator in self._operators:
            info = self._stored.get(operator.uid) or self._stored.get(operator.was)
            self._operator(operator, info)
        found = {migration.stored.uid for migration in self._migrations.values() if migration.stored}
        for uid, info in self._stored.items():
            if uid not in found:
                self._gone(info)
        return Upgrade(
            changes=tuple(self._changes),
            refusals=tuple(self._refusals),
            drop=tuple(self._missing),
            unused=tuple(self._unused),
            migrations=self._migrations,
            to_add=self._to_add,
            to_rename=tuple(self._to_rename),
        )

    def _operator(self, operator: Upgradable, info: OperatorInfo | None) -> None:
        uid = operator.uid
        if info is None:
            self._changes.append(Change(uid, "", "new"))
            self._changes += [Change(uid, state.name, "new") for state in operator.states]
            self._migrations[uid] = Migration()
            return
        is_other = operator.parallelism != info.parallelism
        details = (f"parallelism {operator.parallelism}, was {info.parallelism}",) if is_other else ()
        if info.uid == uid:
            self._changes.append(Change(uid, "", "kept", "", details))
        else:
            self._changes.append(Change(uid, "", "renamed", info.uid, details))
        if Named(info.uid) in self._drop:
            self._refuse(uid, "", f"drop names '{info.uid}', and the program has it")
        if operator.key_schema != info.key_schema:
            self._refuse(uid, "", f"its key is {operator.key_schema}, was {info.key_schema}")
        stored = {state.name: state for state in info.states}
        schemas: dict[str, Schemas] = {}
        was: dict[str, str] = {}
        aggregates = self._aggregates(operator, info)
        merges = any(state.merge for state in (*info.states, *operator.states))
        for state in operator.states:
            declared = operator.declared.get(state.name)
            before = stored.pop(state.name, None)
            if before is None and declared is not None:
                before = stored.pop(declared.was, None)
            if before is None:
                self._changes.append(Change(uid, state.name, "new"))
                continue
            if before.name != state.name:
                was[state.name] = before.name
            named = Named(info.uid, before.name)
            if named in self._drop and before.name not in (before.aggregates or ()):
                self._refuse(uid, state.name, f"drop names '{name_in(self._there, named)}', and the program has it")
                continue
            hints = None if merges or declared is None else declared.hints
            found = self._state((uid, info.uid), before, state, hints, aggregates)
            if found != Schemas():
                schemas[state.name] = found
        dropped = [state.name for state in stored.values() if self._left(uid, info.uid, state)]
        self._migrations[uid] = Migration(info, schemas, was, dropped)
        if aggregates is not None:
            self._changes += aggregates.changes

    def _aggregates(self, operator: Upgradable, info: OperatorInfo) -> AggregateChanges | None:
        """Look at the aggregates of an operator that is to go on with state of such."""
        of = operator.aggregated
        if of is None:
            return None
        now = operator.states[0]
        before = next((state for state in info.states if state.aggregates and state.name == now.name), None)
        if before is None or before.kind != now.kind:
            return None
        dropped = {named.state for named in self._drop if named.uid == info.uid and named.state and not named.field}
        found = plan_aggregates((operator.uid, info.uid), before, now, of, dropped)
        self._refusals += [f"operator '{operator.uid}': {why}" for why in found.refusals]
        self._missing += [name_in(self._there, Named(info.uid, name)) for name in found.to_drop]
        if found.to_add:
            self._to_add[operator.uid] = tuple(found.to_add)
        return found

    def _state(
        self,
        uids: tuple[str, str],
        before: StateInfo,
        now: StateInfo,
        hints: Hints | None,
        aggregates: AggregateChanges | None,
    ) -> Schemas:
        """Note what becomes of a stored state; return its schemas. Without hints, its type stays what it is.

        `uids` are the operator's in the program and in the snapshot.
        """
        uid, stored_uid = uids
        schemas, details, reasons = Schemas.of(before), tuple[str, ...](), _differences(before, now)
        gone: Sequence[DroppedField] = ()
        if before.value_type != now.value_type:
            said = _said("type", now.name, now.value_type, before.value_type)
            try:
                if reasons:
                    # Columns of accumulators are ours: what else differs says it all.
                    reasons += [] if before.merge or now.merge else [said]
                elif aggregates is not None:
                    if aggregates.refusals:
                        self._changes.append(Change(uid, now.name, "refused", "", ("its aggregates are",)))
                        return Schemas()
                    schemas, _, _ = _changed(schemas, before, now, aggregates.hints(now.value_type))
                    details = aggregates.summary
                elif hints is None:
                    is_now, was_then = ("of agg()" if of.merge else "of a function" for of in (now, before))
                    reasons.append(
                        f"state '{now.name}' is {is_now}, was {was_then}: only agg() goes on with state of agg()"
                    )
                else:
                    schemas, details, gone = _changed(schemas, before, now, hints)
                    reasons += [f"{said}: {why}" for why in self._fields_gone(Named(stored_uid, before.name), gone)]
            except ConfigurationError as error:
                reasons.append(f"{said}: {error.message}")
        reasons += self._fields_kept(Named(stored_uid, before.name), gone)
        was = "" if before.name == now.name else before.name
        if reasons:
            self._refusals += [f"operator '{uid}': {reason}" for reason in reasons]
            self._changes.append(Change(uid, now.name, "refused", was, tuple(reasons)))
            return Schemas()
        action: Action = "migrated" if details else "renamed" if was else "kept"
        self._changes.append(Change(uid, now.name, action, was, details))
        return schemas

    def _fields_gone(self, state: Named, gone: Sequence[DroppedField]) -> list[str]:
        """Return what stands against leaving out fields: whether one is lost, or has another name, must be said."""
        found = []
        for lost in gone:
            named = state._replace(field=lost.path)
            if named in self._drop:
                continue
            self._missing.append(name_in(self._there, named))
            renames = [json.dumps({path: lost.name}, ensure_ascii=False) for path, _ in lost.added]
            self._to_rename += [f"renamed={rename}" for rename in renames]
            new = ", ".join(quoted(name) for _, name in lost.added)
            why, verb = f"the field {lost.path} is gone", "are" if len(lost.added) > 1 else "is"
            found.append(f"{why}, and {new} {verb} new: is it renamed, or dropped?" if new else why)
        return found

    def _fields_kept(self, state: Named, gone: Sequence[DroppedField]) -> list[str]:
        """Return what stands against dropping fields that the program has."""
        return [
            f"drop names '{name_in(self._there, named)}', and the program has it"
            for named in sorted(self._drop)
            if named.field and named._replace(field="") == state
            and not any(_is_within(named.field, one.path) for one in gone)
        ]  # fmt: skip

    def _left(self, uid: str, stored_uid: str, state: StateInfo) -> bool:
        """Note a stored state that the program does not have; return whether it is to be forgotten."""
        named = Named(stored_uid, state.name)
        if named in self._drop:
            self._changes.append(Change(uid, state.name, "dropped"))
            return True
        # When no state has a TTL any more, what the cleaning would have done next is carried along unused.
        if state.kind != "ttl":
            self._missing.append(name_in(self._there, named))
            gone = f"the state '{state.name}' is not declared any more"
            if state.kind == "timers":
                which = "event" if state.name == EVENT_TIMERS else "processing"
                gone = f"it has no on_timer any more, and timers of {which} time may be set ('{state.name}')"
            self._refuse(uid, state.name, self._of_other_windows(uid, state) or gone)
        return False

    def _of_other_windows(self, uid: str, state: StateInfo) -> str:
        """Say of a state of agg() that results are to come at other moments now, for which it is of no use."""
        now = next((each for each in self._operators if each.uid == uid), None)
        if now is not None and state.name == "windows" and now.aggregated is not None:
            return "its windows looked at each event, as with early=Early(events=…) or accumulate=False, and do not now"
        if now is not None and state.aggregates and "windows" in now.declared:
            return "its windows look at each event now, as with early=Early(events=…) or accumulate=False, and did not"
        return ""

    def _gone(self, info: OperatorInfo) -> None:
        if Named(info.uid) in self._drop or not info.states:
            self._changes.append(Change(info.uid, "", "dropped"))
            return
        self._missing.append(name_in(self._there, Named(info.uid)))
        uids = ", ".join(sorted(operator.uid for operator in self._operators)) or "none"
        said = f"the program has no operator with uid '{info.uid}', which has state; it has {uids}"
        self._refusals.append(said)
        self._changes.append(Change(info.uid, "", "refused", "", (said,)))

    def _refuse(self, uid: str, state: str, why: str) -> None:
        self._refusals.append(f"operator '{uid}': {why}")
        self._changes.append(Change(uid, state, "refused", "", (why,)))


def _differences(before: StateInfo, now: StateInfo) -> list[str]:
    """Return what of a state may never be another; of its type, each case is looked at."""
    found = [
        _said(what, now.name, is_now, was)
        for what, was, is_now in (("kind", before.kind, now.kind), ("key type", before.key_type, now.key_type))
        if was != is_now
    ]
    if before.windows and _cut(before) != _cut(now):
        cut = now.windows or "of another kind"
        found.append(f"the windows of state '{now.name}' are {cut}, were {before.windows}")
    elif (kept_ms := _lateness_ms(now)) > (was_ms := _lateness_ms(before)):
        found.append(
            f"the lateness of the windows of state '{now.name}' is {kept_ms} ms, was {was_ms} ms: windows that were "
            "complete are gone, and would come again with late events alone; a shorter one is possible"
        )
    return found


def _cut(state: StateInfo) -> Windows | UnsetType:
    """Return how a state's windows are cut, whatever their lateness is."""
    windows = state.windows
    return structs.replace(windows, lateness_ms=0) if isinstance(windows, FixedWindows | SessionWindows) else windows


def _lateness_ms(state: StateInfo) -> int:
    windows = state.windows
    return windows.lateness_ms if isinstance(windows, FixedWindows | SessionWindows) else 0


def _is_within(path: str, other: str) -> bool:
    """Return whether a path is another one, or of a part of it."""
    return path == other or path.startswith(tuple(other + mark for mark in ".[{"))


def _said(what: str, state: str, now: str, was: str) -> str:
    return f"the {what} of state '{state}' is {now}, was {was}"


def _changed(
    schemas: Schemas, before: StateInfo, now: StateInfo, hints: Hints
) -> tuple[Schemas, tuple[str, ...], tuple[DroppedField, ...]]:
    """Return a state's schemas with a new type after those that it had, what changes, and which fields are gone."""
    old, new = parse_type(before.value_type), parse_type(now.value_type)
    hints = validate_hints(hints, new)
    found = evolve(old, new, hints)
    if isinstance(found, Refusal):
        raise ConfigurationError("; ".join(found.reasons))
    gone = tuple(lost for lost in found.dropped if lost.path not in hints.droppable)
    return schemas.followed_by(old, new, hints), found.changes, gone
