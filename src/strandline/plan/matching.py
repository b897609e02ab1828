"""Finds the stored operator that each operator of a program continues from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from strandline.format.manifest import OperatorInfo
from strandline.runtime.builtin import Aggregated


class Matchable(Protocol):
    """An operator of a program, as far as stored ones are compared with it."""

    @property
    def uid(self) -> str: ...
    @property
    def was(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def aggregated(self) -> Aggregated | None: ...


def match_operators(
    operators: Iterable[Matchable], stored: Sequence[OperatorInfo], without: Collection[str] = ()
) -> dict[str, OperatorInfo]:
    """Return by uid the stored operator of each operator that has one, but for the uids in `without`.

    It has the operator's uid or its former one. An operator of a view to which the user has given a uid continues from
    one that means the same, too, and an aggregation from another one of its group: of several, from that which no other
    operator continues from, and with which it has the most aggregates in common.
    """
    by_uid = {info.uid: info for info in stored}
    matches = {
        each.uid: info for each in operators if (info := by_uid.get(each.uid) or by_uid.get(each.was)) is not None
    }
    continued = {info.uid for info in matches.values()}
    for operator in sorted(operators, key=lambda each: each.uid):
        if operator.uid in matches or not operator.group:
            continue
        beginning = f"{operator.group}-"
        alike = [
            info
            for uid, info in by_uid.items()
            if uid not in without and (uid == operator.group or (operator.aggregated and uid.startswith(beginning)))
        ]
        if alike:
            best = min(alike, key=lambda info: (info.uid in continued, -_in_common(operator, info), info.uid))
            matches[operator.uid] = best
            continued.add(best.uid)
    return matches


def _in_common(operator: Matchable, info: OperatorInfo) -> int:
    now = {*operator.aggregated.infos} if operator.aggregated else set[str]()
    return len(now & {name for state in info.states for name in state.aggregates or ()})
