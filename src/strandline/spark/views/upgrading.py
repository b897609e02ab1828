"""Compares the views of two programs, before a start and by its rules: what becomes of each operator, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from strandline.format.manifest import OperatorInfo
from strandline.plan.aggregatestate import FROM_NOW
from strandline.plan.changes import Change
from strandline.plan.pipeline import Operator
from strandline.plan.upgrade import Upgrade
from strandline.spark.views.relations import Part
from strandline.spark.views.sums import ROWS_TEXT

Outcome = Literal["kept", "extended", "rebuilt", "new", "refused", "lost", "dropped"]
Views = Mapping[str, Sequence[Part]]
"""The operators of each view of a program, in their order."""
ANEW = "to have it right, run it in a job of its own, which reads its sources from their beginning, or from history"


@dataclass(frozen=True)
class PartChange:
    """The fate of one operator."""

    view: str
    """The first view that has it; "" if only the snapshot does."""
    part: str
    """What it does, as in `View.explain()`; "" if only the snapshot has it."""
    outcome: Outcome
    uid: str
    """In the new program, or else in the snapshot."""
    was: str = ""
    """Its uid in the snapshot, if that differs."""
    details: tuple[str, ...] = ()
    rows: int | None = None
    """The rows of its state in the snapshot, if that has them."""
    size_bytes: int | None = None
    next_step: str = ""


@dataclass(frozen=True)
class ViewUpgrade:
    """Compares the views of two programs, of which the old one may be unknown."""

    old: Views
    new: Views
    stored: Sequence[OperatorInfo]
    """The operators of the old program, or those of a snapshot."""
    operators: Sequence[Operator]
    """The operators of the new program."""
    upgrade: Upgrade
    texts: Mapping[str, Mapping[str, str]]
    """By uid of the old program: its aggregates, by their names in the state."""

    def changes(self) -> list[PartChange]:
        """Return what becomes of each operator by view: those of the new program, and then others of the old one."""
        changes = [self._of_new(view, part) for view, part in self._first(self.new)]
        continued = {each.stored.uid for each in self.upgrade.migrations.values() if each.stored}
        changes += [self._of_gone(info) for info in self.stored if info.uid not in continued]
        order = [*self.new, *self.old, ""]
        return sorted(changes, key=lambda change: order.index(change.view))

    def _first(self, views: Views) -> Iterator[tuple[str, Part]]:
        """Yield the operators that run, each with the first view that has it."""
        seen = set[str]()
        known = {*self.upgrade.migrations, *(info.uid for info in self.stored)}
        for view, parts in views.items():
            for part in parts:
                if part.uid in known - seen:
                    seen.add(part.uid)
                    yield view, part

    def _of_new(self, view: str, part: Part) -> PartChange:
        uid = part.uid
        changes = [change for change in self.upgrade.changes if change.uid == uid]
        info = self.upgrade.migrations[uid].stored
        details = self._details(changes, info)
        refusals = [why for change in changes if change.action == "refused" for why in change.details]
        if refusals:
            step = "write the query as it was" if info else ANEW
            if uid in self.upgrade.from_now:
                step = f"add --from-now {uid} to have what is new count from now on; {ANEW}"
            outcome: Outcome = "refused"
        elif info is None:
            is_rebuilt = self._is_rebuilt(uid)
            outcome = "rebuilt" if is_rebuilt else "new"
            how = "its results are computed anew in the first epoch, of rows that are kept"
            details = [how if is_rebuilt else "begins empty: it has the rows from now on alone"]
            step = "" if is_rebuilt else ANEW
        else:
            is_extended = any(change.aggregate and change.action in ("new", "dropped") for change in changes)
            outcome, step = ("extended" if is_extended else "kept"), ""
            if any(FROM_NOW in change.details for change in changes):
                step = ANEW
        was = info.uid if info and info.uid != uid else ""
        return PartChange(view, part.what, outcome, uid, was, tuple(details), *_figures(info), step)

    def _is_rebuilt(self, uid: str) -> bool:
        """Whether the results of a new operator are computed of rows that are kept."""
        rows = next(each.computed_of for each in self.operators if each.uid == uid)
        return any(self.upgrade.migrations[each].replays for each in rows)

    def _details(self, changes: Sequence[Change], info: OperatorInfo | None) -> list[str]:
        texts = self.texts.get(info.uid, {}) if info else {}
        details = list[str]()
        for change in changes:
            if change.aggregate and change.aggregate != ROWS_TEXT:
                name = texts.get(change.aggregate, change.aggregate)
                is_said = change.action == "refused" and name in change.details[0]
                details += change.details if is_said else [": ".join([f"{change.action} {name}", *change.details])]
            elif change.action == "refused" and not change.state:
                details += change.details
        return details

    def _of_gone(self, info: OperatorInfo) -> PartChange:
        view, part = next(((v, p) for v, p in self._first(self.old) if p.uid == info.uid), ("", None))
        is_lost = info.uid in self.upgrade.drop
        step = f"write it as it was, or give its state up: add --drop {info.uid}" if is_lost else ""
        details = [] if part is None else self._differences(view, part)
        if part is None:
            texts = (name for state in info.states for name in state.aggregates or ())
            details = [f"key {info.key_schema}", *(f"lost {name}" for name in texts)]
        outcome: Outcome = "lost" if is_lost else "dropped"
        what = part.what if part else ""
        return PartChange(view, what, outcome, info.uid, "", tuple(details), *_figures(info), step)

    def _differences(self, view: str, part: Part) -> list[str]:
        """Return what the operator in the place of one that is lost does otherwise."""
        kind = part.uid.partition("-")[0]
        new = [(where, each) for where, each in self._first(self.new) if self._begins(each.uid)]
        alike = [(where == view, each) for where, each in new if each.uid.startswith(f"{kind}-")]
        if not alike:
            return ["no view has it any more"]
        _, other = max(alike, key=lambda pair: (pair[0], len({*pair[1].reads} & {*part.reads})))
        before = [text for text in (part.what, *part.reads) if text not in (other.what, *other.reads)]
        now = [text for text in (other.what, *other.reads) if text not in (part.what, *part.reads)]
        if self._is_rebuilt(other.uid):
            return [f"{other.uid} computes results anew; a sink of changes is not told that these are gone"]
        differences = [f"{when}: {'; '.join(texts)}" for when, texts in (("before", before), ("now", now)) if texts]
        return [f"in its place: {other.uid}", *(differences or ["it reads, or keeps, other columns"])]

    def _begins(self, uid: str) -> bool:
        return self.upgrade.migrations[uid].stored is None


def _figures(info: OperatorInfo | None) -> tuple[int | None, int | None]:
    """Return the rows and the bytes of an operator's state, as far as a snapshot has them."""
    if info is None or not (info.partitions or info.tables):
        return None, None
    tables = [file for files in (info.tables or {}).values() for file in files]
    files = [file for partition in info.partitions for file in partition.files]
    size_bytes = sum(file.size for file in [*files, *(table.file for table in tables)])
    return sum(table.rows for table in tables) if info.tables else None, size_bytes
