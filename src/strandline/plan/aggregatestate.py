"""From the aggregates that a snapshot has state of to those of a program: what each goes on from, and what cannot.

An aggregate is found by the name of its result. Several that need the same columns share them, so that names of columns
may change when aggregates do: they are those of one of their results.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any

from strandline.format.manifest import AggregateInfo, StateInfo
from strandline.plan.changes import Action, Change
from strandline.runtime.builtin import Aggregated
from strandline.types.datatypes import ArrayType, DataType, StructType, parse_type, quoted
from strandline.types.hints import Hints

BEGINS_EMPTY = "begins empty in what is stored"
_OF_VALUES = "_valid"
_OWN_WORDS = ("uid", "name", "parallelism", "max_parallelism", "on_error")
"""What agg() itself is told by these keywords: results of such names are given in a dict."""


@dataclass
class AggregateChanges:
    """What becomes of the aggregates of one operator."""

    changes: list[Change] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """As sentences that do not name the operator."""
    to_add: list[str] = field(default_factory=list)
    """How to write those that are new and not said to be."""
    to_drop: list[str] = field(default_factory=list)
    """Those that `drop` must name, beside what it does."""
    renamed: dict[str, str] = field(default_factory=dict)
    """By column of the accumulator: its name in the snapshot, where the same name does not say that."""
    fill: dict[str, Any] = field(default_factory=dict)
    """By column that is new: what it is of no rows, where that is not null."""

    @property
    def summary(self) -> tuple[str, ...]:
        """Return what changes, in a few words."""
        counted = Counter(change.action for change in self.changes)
        words: list[tuple[Action, str]] = [("new", "added"), ("renamed", "renamed"), ("dropped", "dropped")]
        some = [(counted[action], word) for action, word in words if counted[action]]
        found = [f"{count} aggregate{'s' if count > 1 else ''} {word}" for count, word in some]
        return tuple(found) or ("columns of aggregates in another order",)

    def hints(self, value_type: str) -> Hints:
        """Return what a state of this type, which holds the accumulators, must know to go on from what is stored."""
        kind = parse_type(value_type)
        prefix, struct = ("[].", kind.element) if isinstance(kind, ArrayType) else ("", kind)
        assert isinstance(struct, StructType)
        return Hints(
            {f"{prefix}{quoted(name)}": was for name, was in self.renamed.items() if name in struct.names},
            {f"{prefix}{quoted(name)}": value for name, value in self.fill.items() if name in struct.names},
            # Totals without windows do not have it.
            refused={"events": "how many events each key has had is not stored, and windows by count go by it"},
            always_rename=True,
        )


def plan_aggregates(
    uids: tuple[str, str], before: StateInfo, now: StateInfo, of: Aggregated, drop: Collection[str]
) -> AggregateChanges:
    """Return what becomes of the aggregates of the state `before` in `now`, the first states of their operators.

    `uids` are the operator's in the program and in the snapshot; `drop` names results to do without.
    """
    return _Planner(uids, before, now, of, drop).plan()


class _Planner:
    def __init__(
        self, uids: tuple[str, str], before: StateInfo, now: StateInfo, of: Aggregated, drop: Collection[str]
    ) -> None:
        self._uid, self._stored_uid = uids
        self._stored = dict(before.aggregates or {})
        self._of = of
        self._drop = drop
        self._types_before, self._types = _columns_of(before), _columns_of(now)
        self._sources: dict[str, str] = {}
        """By column: which one it was."""
        self._owners: dict[str, str] = {}
        """By column that has a source: an aggregate that it is of."""
        self._found = AggregateChanges()

    def plan(self) -> AggregateChanges:
        new = []
        left = dict(self._stored)
        for name, info in self._of.infos.items():
            was = name if name in self._stored else self._of.was.get(name, "")
            before = left.pop(was, None)
            if before is None:
                new.append(name)
            else:
                self._goes_on(name, info, was, before)
        for name in new:
            self._begins(name, self._of.infos[name])
        for name in left:
            self._gone(name)
        found = self._found
        columns = [column for info in self._of.infos.values() for column in info.columns]
        heirs = Counter(self._sources.values())
        found.renamed = {c: was for c, was in self._sources.items() if c != was or heirs[was] > 1}
        found.fill = {c: self._of.empty[c] for c in columns if c not in self._sources and c in self._of.empty}
        return found

    def _goes_on(self, name: str, info: AggregateInfo, was: str, before: AggregateInfo) -> None:
        """Note an aggregate that has state, and take over its columns."""
        renamed = "" if was == name else was
        why = f"drop names '{self._stored_uid}.{was}', and the program has it" if was in self._drop else ""
        why = why or self._difference(info, before) or self._claim(name, info.columns, before.columns)
        if why:
            self._refuse(name, f"the aggregate '{name}': {why}", renamed)
        else:
            self._note(name, "renamed" if renamed else "kept", renamed)

    def _difference(self, info: AggregateInfo, before: AggregateInfo) -> str:
        """Return what of an aggregate may never be another."""
        if info.function != before.function:
            return f"it is {_named(info.function)}, was {_named(before.function)}: give it another name"
        of_now, of_before = _result_type(info), _result_type(before)
        now, then = ([types[column].ddl for column in columns] for types, columns in (
            (self._types, info.columns), (self._types_before, before.columns),
        ))  # fmt: skip
        if of_now != of_before:
            return f"its type is {of_now.ddl}, was {of_before.ddl}: give it another name"
        if now != then:
            return f"it is computed of {', '.join(now)}, was of {', '.join(then)}: give it another name"
        return ""

    def _claim(self, name: str, columns: Sequence[str], before: Sequence[str]) -> str:
        """Have columns go on from others; return what stands against it."""
        for column, was in zip(columns, before, strict=True):
            owner = self._owners.setdefault(column, name)
            if self._sources.setdefault(column, was) != was:
                return f"it would have one state with '{owner}' now, and each had its own: leave one of them out"
        return ""

    def _begins(self, name: str, info: AggregateInfo) -> None:
        """Note an aggregate that is new."""
        shared = {self._owners[column] for column in info.columns if column in self._owners}
        if shared:
            self._note(name, "new", "", f"it shares the state of '{min(shared)}': nothing is missing")
        elif name in self._of.added:
            self._note(name, "new", "", BEGINS_EMPTY)
        else:
            is_word = name.isidentifier() and not iskeyword(name) and name not in _OWN_WORDS
            as_given = f"{name}=" if is_word else f"{json.dumps(name, ensure_ascii=False)}: "
            self._found.to_add.append(f"{as_given}sl.agg.{info.function.removesuffix(_OF_VALUES)}(…).added()")
            why = "is new: of windows and keys in the snapshot it would have only what comes from now on"
            self._refuse(name, f"the aggregate '{name}' {why}")

    def _gone(self, name: str) -> None:
        """Note an aggregate that the program does not have."""
        if name in self._drop:
            self._note(name, "dropped")
        else:
            self._found.to_drop.append(name)
            self._refuse(name, f"the aggregate '{name}' is not declared any more")

    def _note(self, name: str, action: Action, was: str = "", *details: str) -> None:
        self._found.changes.append(Change(self._uid, "", action, was, details, name))

    def _refuse(self, name: str, why: str, was: str = "") -> None:
        self._found.refusals.append(why)
        self._note(name, "refused", was, why)


def _columns_of(state: StateInfo) -> Mapping[str, DataType]:
    kind = parse_type(state.value_type)
    assert isinstance(kind, StructType)
    return {f.name: f.type for f in kind.fields}


def _result_type(info: AggregateInfo) -> DataType:
    """Return the type of a result; of percentiles, of one of them: which they are is no matter of state."""
    kind = parse_type(info.type)
    return kind.element if info.function == "approx_percentile" and isinstance(kind, ArrayType) else kind


def _named(function: str) -> str:
    return f"{function.removesuffix(_OF_VALUES)} of values only" if function.endswith(_OF_VALUES) else function
