"""Upgrade of a snapshot's states to those of a program: what it keeps, changes, drops and refuses."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from msgspec import UNSET, UnsetType, structs

from strandline.api.states import State
from strandline.core.errors import ConfigurationError
from strandline.format.manifest import FixedWindows, OperatorInfo, SessionWindows, StateInfo, Windows
from strandline.format.names import StatePath, everything_in, find_named, name_in
from strandline.format.schemas import Schemas
from strandline.plan.aggregatestate import AggregateChanges, plan_aggregates
from strandline.plan.changes import Action, Change
from strandline.plan.matching import Matchable, match_operators
from strandline.runtime.program import EVENT_TIMERS
from strandline.types.datatypes import parse_type, quoted
from strandline.types.evolution import DroppedField, TypeMismatch, evolve, fields_of, validate_hints
from strandline.types.hints import Hints


class Upgradable(Matchable, Protocol):
    """An operator of the program, as an upgrade needs it."""

    @property
    def key_schema(self) -> str: ...
    @property
    def parallelism(self) -> int: ...
    @property
    def changed_by(self) -> Collection[str]: ...
    @property
    def computed_of(self) -> Collection[str]: ...
    @property
    def states(self) -> Sequence[StateInfo]: ...
    @property
    def declared(self) -> Mapping[str, State]: ...


@dataclass(frozen=True)
class Migration:
    """Instructions by which the keepers of an operator continue from its stored state."""

    stored: OperatorInfo | None = None
    """The operator in the snapshot; None for a new one."""
    schemas: Mapping[str, Schemas] = field(default_factory=dict)
    """By state of the program: all schemas that its stored values may have, unless that is the first one alone."""
    was: Mapping[str, str] = field(default_factory=dict)
    """By state of the program: its name in the snapshot, if that differs."""
    dropped: Sequence[str] = ()
    """States of the snapshot that are discarded."""
    replays: bool = False
    """Whether the operator gives all that it holds in its first epoch."""

    def infos(self, declared: Sequence[StateInfo]) -> list[StateInfo]:
        """Return declared states for a manifest, with all schemas that their stored values may have."""
        infos = []
        for info in declared:
            known = self.schemas.get(info.name)
            if known is not None:
                info = structs.replace(info, schema_id=known.schema_id, older=known.older or UNSET)
            infos.append(info)
        return infos


@dataclass(frozen=True)
class Upgrade:
    """The changes by which a program continues from a snapshot's operators and states."""

    changes: tuple[Change, ...]
    """Operators of the program, each with its states and aggregates, then those of the snapshot alone."""
    refusals: tuple[str, ...]
    """All reasons against the upgrade, as sentences; empty if the program can continue."""
    drop: tuple[str, ...]
    """Names that `drop` lacks, for the program to continue without them."""
    unused: tuple[str, ...]
    """Names in `drop` that the snapshot does not have."""
    migrations: Mapping[str, Migration]
    """By uid of the program."""
    to_add: Mapping[str, tuple[str, ...]]
    """By uid: code for new aggregates that lets them begin empty."""
    to_rename: tuple[str, ...] = ()
    """Code that declares a new field as a former one with another name."""
    from_now: tuple[str, ...] = ()
    """Uids of aggregations of views that `from_now` lacks, for their new aggregates to begin empty."""
    to_begin: tuple[str, ...] = ()
    """Uids of new operators that would have to read what kept ones have given."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.changes)) or "nothing is stored, and the program keeps nothing"

    @property
    def hint(self) -> str:
        """Advice on the program's code, as the beginning of a sentence; empty if there is none."""
        additions = [f"{', '.join(written)} in agg() of '{uid}'" for uid, written in self.to_add.items()]
        hints = [f"to have what is new begin empty, write {', and '.join(additions)}"] if additions else []
        if self.from_now:
            hints.append(
                f"to have what is new in a view count from now on, write from_now={json.dumps(self.from_now)}; to have "
                "it right, compute the view anew, from the beginning of its sources or from history"
            )
        if self.to_begin:
            hints.append("have a view that is new in a job of its own, which reads its sources from their beginning")
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
    stored: Sequence[OperatorInfo],
    operators: Sequence[Upgradable],
    drop: Collection[str] = (),
    from_now: Collection[str] = (),
) -> Upgrade:
    """Return how each stored operator and state changes. Refusals are part of the result and raise nothing.

    Operators match by uid, or by former uid; states and aggregates by name, or by former name. `drop` names what may be
    lost: an operator as "uid", a state as "uid.state", a field of its type as "uid.state.field", an aggregate as
    "uid.result", all as in the snapshot. It cannot name anything that the program has. `from_now` has the uids of
    aggregations of views whose new aggregates begin empty in the groups that are stored.
    """
    planner = _Planner({info.uid: info for info in stored}, operators, frozenset(drop), frozenset(from_now))
    return planner.plan()


class _Planner:
    def __init__(
        self,
        stored: Mapping[str, OperatorInfo],
        operators: Sequence[Upgradable],
        drop: frozenset[str],
        from_now: frozenset[str],
    ) -> None:
        self._stored = stored
        self._from_now = from_now
        self._operators = operators
        aggregates = [
            StatePath(uid, name)
            for uid, info in stored.items()
            for state in info.states
            for name in state.aggregates or ()
        ]
        fields = [
            StatePath(uid, state.name, path)
            for uid, info in stored.items() for state in info.states if state.value_type and not state.merge
            for path in fields_of(parse_type(state.value_type))
        ]  # fmt: skip
        self._names = list(dict.fromkeys([*everything_in(stored.values()), *aggregates, *fields]))
        self._drop: set[StatePath] = set()
        self._unused: list[str] = []
        self._changes: list[Change] = []
        self._refusals: list[str] = []
        self._missing: list[str] = []
        self._migrations: dict[str, Migration] = {}
        self._to_add: dict[str, tuple[str, ...]] = {}
        self._to_rename: list[str] = []
        self._needs_from_now: list[str] = []
        self._to_begin: list[str] = []
        for name in sorted(drop):
            self._add_dropped(name)

    def _add_dropped(self, name: str) -> None:
        try:
            match = find_named("drop", name, self._names)
        except ConfigurationError as error:
            self._refusals.append(f"{error.message}: {error.hint}")
            return
        if match is None:
            self._unused.append(name)
        else:
            self._drop.add(match)

    def plan(self) -> Upgrade:
        without = {named.uid for named in self._drop if not named.state}
        matches = self._matches = match_operators(self._operators, [*self._stored.values()], without)
        for operator in self._operators:
            self._plan_operator(operator, matches.get(operator.uid))
        continued = {migration.stored.uid for migration in self._migrations.values() if migration.stored}
        for uid, info in self._stored.items():
            if uid not in continued:
                self._plan_missing_operator(info)
        for uid in {uid for each in self._operators if self._is_computed(each) for uid in each.computed_of}:
            self._migrations[uid] = replace(self._migrations[uid], replays=True)
        return Upgrade(
            changes=tuple(self._changes),
            refusals=tuple(self._refusals),
            drop=tuple(self._missing),
            unused=tuple(self._unused),
            migrations=self._migrations,
            to_add=self._to_add,
            to_rename=tuple(self._to_rename),
            from_now=tuple(self._needs_from_now),
            to_begin=tuple(self._to_begin),
        )

    def _plan_operator(self, operator: Upgradable, info: OperatorInfo | None) -> None:
        uid = operator.uid
        if info is None:
            is_computed = self._is_computed(operator)
            details = ("it is computed of rows that are kept",) if is_computed else ()
            self._changes.append(Change(uid, "", "new", "", details))
            self._changes += [Change(uid, state.name, "new") for state in operator.states]
            self._migrations[uid] = Migration()
            if kept := sorted(each for each in operator.changed_by if each in self._matches):
                self._refuse(
                    uid, "", f"it is new, and rows that '{kept[0]}' gave before may be taken back: it has not read them"
                )
                self._to_begin.append(uid)
            return
        is_other = operator.parallelism != info.parallelism
        details = (f"parallelism {operator.parallelism}, was {info.parallelism}",) if is_other else ()
        if info.uid == uid:
            self._changes.append(Change(uid, "", "kept", "", details))
        else:
            is_renamed = info.uid == operator.was or not uid.startswith(operator.group)
            self._changes.append(Change(uid, "", "renamed" if is_renamed else "extended", info.uid, details))
        if StatePath(info.uid) in self._drop:
            self._refuse(uid, "", f"drop names '{info.uid}', and the program has it")
        if operator.key_schema != info.key_schema:
            # Users do not know the column of a view's key.
            keys = [each.removeprefix("`__strandline_key` ") for each in (operator.key_schema, info.key_schema)]
            self._refuse(uid, "", f"its key is {keys[0]}, was {keys[1]}")
        stored = {state.name: state for state in info.states}
        schemas: dict[str, Schemas] = {}
        was: dict[str, str] = {}
        aggregates = self._plan_aggregates(operator, info)
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
            named = StatePath(info.uid, before.name)
            if named in self._drop and before.name not in (before.aggregates or ()):
                self._refuse(uid, state.name, f"drop names '{name_in(self._names, named)}', and the program has it")
                continue
            hints = None if merges or declared is None else declared.hints
            if hints is not None and operator.group:
                # A view would take back the rows with the column, and has those without.
                columns = fields_of(parse_type(state.value_type))
                hints = replace(hints, refused=dict.fromkeys(columns, "the rows that a view holds lack a column"))
            state_schemas = self._plan_state((uid, info.uid), before, state, hints, aggregates)
            if state_schemas != Schemas():
                schemas[state.name] = state_schemas
        dropped = [state.name for state in stored.values() if self._plan_undeclared_state(uid, info.uid, state)]
        self._migrations[uid] = Migration(info, schemas, was, dropped)
        if aggregates is not None:
            self._changes += aggregates.changes

    def _is_computed(self, operator: Upgradable) -> bool:
        """Whether an operator is new, and its results can be computed of rows that are kept."""
        rows = operator.computed_of
        return bool(rows) and operator.uid not in self._matches and all(uid in self._matches for uid in rows)

    def _plan_aggregates(self, operator: Upgradable, info: OperatorInfo) -> AggregateChanges | None:
        """Return the changes of the aggregates of an operator that has stored ones, or None."""
        of = operator.aggregated
        if of is None:
            return None
        now = operator.states[0]
        before = next((state for state in info.states if state.aggregates and state.name == now.name), None)
        if before is None or before.kind != now.kind:
            return None
        dropped = {named.state for named in self._drop if named.uid == info.uid and named.state and not named.field}
        begins = operator.uid in self._from_now
        changes = plan_aggregates((operator.uid, info.uid), before, now, of, dropped, from_now=begins)
        self._refusals += [f"operator '{operator.uid}': {why}" for why in changes.refusals]
        self._missing += [name_in(self._names, StatePath(info.uid, name)) for name in changes.to_drop]
        if changes.to_add:
            self._to_add[operator.uid] = tuple(changes.to_add)
        if changes.needs_from_now:
            self._needs_from_now.append(operator.uid)
        return changes

    def _plan_state(
        self,
        uids: tuple[str, str],
        before: StateInfo,
        now: StateInfo,
        hints: Hints | None,
        aggregates: AggregateChanges | None,
    ) -> Schemas:
        """Record the change of a stored state; return its schemas. Without hints, its type cannot change.

        `uids` are the operator's in the program and in the snapshot.
        """
        uid, stored_uid = uids
        schemas, details, reasons = Schemas.of(before), tuple[str, ...](), _differences(before, now)
        gone: Sequence[DroppedField] = ()
        if before.value_type != now.value_type:
            change = _describe_difference("type", now.name, now.value_type, before.value_type)
            try:
                if reasons:
                    # Users do not know the columns of accumulators: the other reasons are enough.
                    reasons += [] if before.merge or now.merge else [change]
                elif aggregates is not None:
                    if aggregates.refusals:
                        self._changes.append(Change(uid, now.name, "refused", "", ("its aggregates are",)))
                        return Schemas()
                    schemas, _, _ = _evolve_state(schemas, before, now, aggregates.hints(now.value_type))
                    details = aggregates.summary
                elif hints is None:
                    is_now, was_then = ("of agg()" if of.merge else "of a function" for of in (now, before))
                    reasons.append(
                        f"state '{now.name}' is {is_now}, was {was_then}: only agg() goes on with state of agg()"
                    )
                else:
                    schemas, details, gone = _evolve_state(schemas, before, now, hints)
                    reasons += [
                        f"{change}: {why}" for why in self._fields_gone(StatePath(stored_uid, before.name), gone)
                    ]
            except ConfigurationError as error:
                reasons.append(f"{change}: {error.message}")
        reasons += self._fields_kept(StatePath(stored_uid, before.name), gone)
        was = "" if before.name == now.name else before.name
        if reasons:
            self._refusals += [f"operator '{uid}': {reason}" for reason in reasons]
            self._changes.append(Change(uid, now.name, "refused", was, tuple(reasons)))
            return Schemas()
        action: Action = "migrated" if details else "renamed" if was else "kept"
        self._changes.append(Change(uid, now.name, action, was, details))
        return schemas

    def _fields_gone(self, state: StatePath, gone: Sequence[DroppedField]) -> list[str]:
        """Return reasons against leaving out fields: the user must say of each whether it is dropped or renamed."""
        reasons = []
        for lost in gone:
            named = state._replace(field=lost.path)
            if named in self._drop:
                continue
            self._missing.append(name_in(self._names, named))
            renames = [json.dumps({path: lost.name}, ensure_ascii=False) for path, _ in lost.added]
            self._to_rename += [f"renamed={rename}" for rename in renames]
            new = ", ".join(quoted(name) for _, name in lost.added)
            why, verb = f"the field {lost.path} is gone", "are" if len(lost.added) > 1 else "is"
            reasons.append(f"{why}, and {new} {verb} new: is it renamed, or dropped?" if new else why)
        return reasons

    def _fields_kept(self, state: StatePath, gone: Sequence[DroppedField]) -> list[str]:
        """Return reasons against dropping fields that the program has."""
        return [
            f"drop names '{name_in(self._names, named)}', and the program has it"
            for named in sorted(self._drop)
            if named.field and named._replace(field="") == state
            and not any(_is_within(named.field, one.path) for one in gone)
        ]  # fmt: skip

    def _plan_undeclared_state(self, uid: str, stored_uid: str, state: StateInfo) -> bool:
        """Record a stored state that the program does not have; return whether to discard it."""
        named = StatePath(stored_uid, state.name)
        if named in self._drop:
            self._changes.append(Change(uid, state.name, "dropped"))
            return True
        # The position of TTL cleaning stays, unused, after the last state with a TTL is gone.
        if state.kind != "ttl":
            self._missing.append(name_in(self._names, named))
            gone = f"the state '{state.name}' is not declared any more"
            if state.kind == "timers":
                which = "event" if state.name == EVENT_TIMERS else "processing"
                gone = f"it has no on_timer any more, and timers of {which} time may be set ('{state.name}')"
            self._refuse(uid, state.name, self._of_other_windows(uid, state) or gone)
        return False

    def _of_other_windows(self, uid: str, state: StateInfo) -> str:
        """Return a reason if agg() now fires at other moments, for which the stored state is of no use."""
        now = next((each for each in self._operators if each.uid == uid), None)
        if now is not None and state.name == "windows" and now.aggregated is not None:
            return "its windows looked at each event, as with early=Early(events=…) or accumulate=False, and do not now"
        if now is not None and state.aggregates and "windows" in now.declared:
            return "its windows look at each event now, as with early=Early(events=…) or accumulate=False, and did not"
        return ""

    def _plan_missing_operator(self, info: OperatorInfo) -> None:
        if StatePath(info.uid) in self._drop or not info.states:
            self._changes.append(Change(info.uid, "", "dropped"))
            return
        for each in self._operators:
            if self._is_computed(each) and info.uid.startswith(each.group.rpartition("-")[0] + "-"):
                self._changes.append(Change(info.uid, "", "dropped", "", (f"'{each.uid}' computes results anew",)))
                return
        self._missing.append(name_in(self._names, StatePath(info.uid)))
        uids = ", ".join(sorted(operator.uid for operator in self._operators)) or "none"
        reason = f"the program has no operator with uid '{info.uid}', which has state; it has {uids}"
        self._refusals.append(reason)
        self._changes.append(Change(info.uid, "", "refused", "", (reason,)))

    def _refuse(self, uid: str, state: str, why: str) -> None:
        self._refusals.append(f"operator '{uid}': {why}")
        self._changes.append(Change(uid, state, "refused", "", (why,)))


def _differences(before: StateInfo, now: StateInfo) -> list[str]:
    """Return differences that no state can continue with, other than of its value type."""
    differences = [
        _describe_difference(what, now.name, is_now, was)
        for what, was, is_now in (("kind", before.kind, now.kind), ("key type", before.key_type, now.key_type))
        if was != is_now
    ]
    if before.windows and _without_lateness(before) != _without_lateness(now):
        cut = now.windows or "of another kind"
        differences.append(f"the windows of state '{now.name}' are {cut}, were {before.windows}")
    elif (kept_ms := _lateness_ms(now)) > (was_ms := _lateness_ms(before)):
        differences.append(
            f"the lateness of the windows of state '{now.name}' is {kept_ms} ms, was {was_ms} ms: windows that were "
            "complete are gone, and would come again with late events alone; a shorter one is possible"
        )
    return differences


def _without_lateness(state: StateInfo) -> Windows | UnsetType:
    """Return a state's windows without their lateness."""
    windows = state.windows
    return structs.replace(windows, lateness_ms=0) if isinstance(windows, FixedWindows | SessionWindows) else windows


def _lateness_ms(state: StateInfo) -> int:
    windows = state.windows
    return windows.lateness_ms if isinstance(windows, FixedWindows | SessionWindows) else 0


def _is_within(path: str, other: str) -> bool:
    """Whether a path equals another one, or is inside it."""
    return path == other or path.startswith(tuple(other + mark for mark in ".[{"))


def _describe_difference(what: str, state: str, now: str, was: str) -> str:
    return f"the {what} of state '{state}' is {now}, was {was}"


def _evolve_state(
    schemas: Schemas, before: StateInfo, now: StateInfo, hints: Hints
) -> tuple[Schemas, tuple[str, ...], tuple[DroppedField, ...]]:
    """Return a state's schemas followed by its new type, the changes, and the fields that are gone."""
    old, new = parse_type(before.value_type), parse_type(now.value_type)
    hints = validate_hints(hints, new)
    evolution = evolve(old, new, hints)
    if isinstance(evolution, TypeMismatch):
        raise ConfigurationError("; ".join(evolution.reasons))
    gone = tuple(lost for lost in evolution.dropped if lost.path not in hints.droppable)
    return schemas.followed_by(old, new, hints), evolution.changes, gone
