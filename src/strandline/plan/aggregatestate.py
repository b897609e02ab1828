"""Upgrade of aggregates: which aggregate of a program continues from which state of a snapshot, and which cannot.

The name of its result identifies an aggregate. Aggregates that need the same columns share them, and a shared column
has the name of one result; so columns may change their names when aggregates change.
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
FROM_NOW = "of groups that are stored, it has the rows from now on alone"
_VALUES_ONLY = "_valid"
_OPTION_NAMES = ("uid", "name", "parallelism", "max_parallelism", "on_error")
"""Keywords that agg() reserves for options: a result with such a name is passed in a dict."""


@dataclass
class AggregateChanges:
    """The changes of one operator's aggregates."""

    changes: list[Change] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """Sentences that do not name the operator."""
    to_add: list[str] = field(default_factory=list)
    """Code for aggregates that are new and not marked with .added()."""
    to_drop: list[str] = field(default_factory=list)
    """Aggregates that `drop` must name, too."""
    needs_from_now: bool = False
    """Whether all that is new could begin empty in the groups of a view, and must be said to."""
    renamed: dict[str, str] = field(default_factory=dict)
    """By column of the accumulator: its name in the snapshot, if that differs or two columns continue from it."""
    fill: dict[str, Any] = field(default_factory=dict)
    """By new column: its value for no rows, if that is not null."""

    @property
    def summary(self) -> tuple[str, ...]:
        """A short description of the changes."""
        counted = Counter(change.action for change in self.changes)
        words: list[tuple[Action, str]] = [("new", "added"), ("renamed", "renamed"), ("dropped", "dropped")]
        some = [(counted[action], word) for action, word in words if counted[action]]
        texts = [f"{count} aggregate{'s' if count > 1 else ''} {word}" for count, word in some]
        return tuple(texts) or ("columns of aggregates in another order",)

    def hints(self, value_type: str) -> Hints:
        """Return how a state of this type, which holds the accumulators, reads the stored values."""
        kind = parse_type(value_type)
        prefix, struct = ("[].", kind.element) if isinstance(kind, ArrayType) else ("", kind)
        assert isinstance(struct, StructType)
        return Hints(
            {f"{prefix}{quoted(name)}": was for name, was in self.renamed.items() if name in struct.names},
            {f"{prefix}{quoted(name)}": value for name, value in self.fill.items() if name in struct.names},
            # Only windows have the field `events`.
            refused={"events": "how many events each key has had is not stored, and windows by count go by it"},
            always_rename=True,
        )


def plan_aggregates(
    uids: tuple[str, str],
    before: StateInfo,
    now: StateInfo,
    of: Aggregated,
    drop: Collection[str],
    *,
    from_now: bool = False,
) -> AggregateChanges:
    """Return how the aggregates of the state `before` change in `now`. Both are the first state of their operator.

    `uids` are the operator's in the program and in the snapshot; `drop` names results whose state is discarded;
    `from_now` says that new ones of a view may begin empty.
    """
    return _Planner(uids, before, now, of, drop, from_now).plan()


class _Planner:
    def __init__(
        self,
        uids: tuple[str, str],
        before: StateInfo,
        now: StateInfo,
        of: Aggregated,
        drop: Collection[str],
        from_now: bool,
    ) -> None:
        self._uid, self._stored_uid = uids
        self._stored = dict(before.aggregates or {})
        self._of = of
        self._drop, self._from_now = drop, from_now
        self._types_before, self._types = _columns_of(before), _columns_of(now)
        self._sources: dict[str, str] = {}
        """By column: the stored column that it continues from."""
        self._owners: dict[str, str] = {}
        """By column that has a source: the first aggregate that uses it."""
        self._result = AggregateChanges()

    def plan(self) -> AggregateChanges:
        new = []
        left = dict(self._stored)
        for name, info in self._of.infos.items():
            was = name if name in self._stored else self._of.was.get(name, "")
            before = left.pop(was, None)
            if before is None:
                new.append(name)
            else:
                self._continue(name, info, was, before)
        for name in new:
            begin = self._begin_in_view if self._of.texts else self._begin
            begin(name, self._of.infos[name])
        for name in left:
            self._drop_or_refuse(name)
        result = self._result
        columns = [column for info in self._of.infos.values() for column in info.columns]
        heirs = Counter(self._sources.values())
        result.renamed = {c: was for c, was in self._sources.items() if c != was or heirs[was] > 1}
        result.fill = {c: self._of.empty[c] for c in columns if c not in self._sources and c in self._of.empty}
        return result

    def _continue(self, name: str, info: AggregateInfo, was: str, before: AggregateInfo) -> None:
        """Record an aggregate that has state, and claim the columns of that state."""
        renamed = "" if was == name else was
        why = f"drop names '{self._stored_uid}.{was}', and the program has it" if was in self._drop else ""
        why = why or self._difference(info, before) or self._claim(name, info.columns, before.columns)
        if why:
            self._refuse(name, f"the aggregate '{self._of.texts.get(name, name)}': {why}", renamed)
        else:
            self._record(name, "renamed" if renamed else "kept", renamed)

    def _difference(self, info: AggregateInfo, before: AggregateInfo) -> str:
        """Return a difference that the aggregate cannot continue with, or an empty text."""
        if info.function != before.function:
            return f"it is {_label(info.function)}, was {_label(before.function)}: give it another name"
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
        """Let columns continue from stored ones; return the reason if they cannot."""
        for column, was in zip(columns, before, strict=True):
            owner = self._owners.setdefault(column, name)
            if self._sources.setdefault(column, was) != was:
                return f"it would have one state with '{owner}' now, and each had its own: leave one of them out"
        return ""

    def _begin(self, name: str, info: AggregateInfo) -> None:
        """Record a new aggregate."""
        shared = {self._owners[column] for column in info.columns if column in self._owners}
        if shared:
            self._record(name, "new", "", f"it shares the state of '{min(shared)}': nothing is missing")
        elif name in self._of.added:
            self._record(name, "new", "", BEGINS_EMPTY)
        else:
            is_word = name.isidentifier() and not iskeyword(name) and name not in _OPTION_NAMES
            argument = f"{name}=" if is_word else f"{json.dumps(name, ensure_ascii=False)}: "
            self._result.to_add.append(f"{argument}sl.agg.{info.function.removesuffix(_VALUES_ONLY)}(…).added()")
            why = "is new: of windows and keys in the snapshot it would have only what comes from now on"
            self._refuse(name, f"the aggregate '{name}' {why}")

    def _begin_in_view(self, name: str, info: AggregateInfo) -> None:
        """Record a new aggregate of a view, whose columns have the names of stored ones that mean the same."""
        sources = {column: was for column in info.columns if (was := self._stored_as(column))}
        self._sources.update(sources)
        what = f"the aggregate '{self._of.texts[name]}' is new"
        if len(sources) == len(info.columns):
            self._record(name, "new", "", "all that it needs is in the state: nothing is missing")
        elif self._of.is_changed:
            self._refuse(name, f"{what}, and rows may be taken back that came before it: it must be computed anew")
        elif sources and info.function == "avg":
            self._refuse(name, f"{what}: it would divide the sum of what comes from now on by the number of all rows")
        elif self._from_now:
            self._record(name, "new", "", FROM_NOW)
        else:
            self._result.needs_from_now = True
            self._refuse(name, f"{what}: of groups that are stored, it would have the rows from now on alone")

    def _stored_as(self, column: str) -> str:
        """Return the stored column with the values of a view's column, or an empty text."""
        names = (column, self._of.same.get(column, ""))
        return next((name for name in names if self._types_before.get(name) == self._types[column]), "")

    def _drop_or_refuse(self, name: str) -> None:
        """Record an aggregate that the program does not have. A view's query says by itself that it is gone."""
        if name in self._drop or self._of.texts:
            self._record(name, "dropped")
        else:
            self._result.to_drop.append(name)
            self._refuse(name, f"the aggregate '{name}' is not declared any more")

    def _record(self, name: str, action: Action, was: str = "", *details: str) -> None:
        self._result.changes.append(Change(self._uid, "", action, was, details, self._of.texts.get(name, name)))

    def _refuse(self, name: str, why: str, was: str = "") -> None:
        self._result.refusals.append(why)
        self._record(name, "refused", was, why)


def _columns_of(state: StateInfo) -> Mapping[str, DataType]:
    kind = parse_type(state.value_type)
    assert isinstance(kind, StructType)
    return {f.name: f.type for f in kind.fields}


def _result_type(info: AggregateInfo) -> DataType:
    """Return the type of a result; for percentiles, of a single one, since state does not depend on which they are."""
    kind = parse_type(info.type)
    return kind.element if info.function == "approx_percentile" and isinstance(kind, ArrayType) else kind


def _label(function: str) -> str:
    return f"{function.removesuffix(_VALUES_ONLY)} of values only" if function.endswith(_VALUES_ONLY) else function
