"""Finds the stored operator that each operator of a program continues from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
    operators: Collection[Matchable], stored: Sequence[OperatorInfo], without: Collection[str] = ()
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
    pairs = [
        (-_in_common(operator, info), operator.uid, info.uid)
        for operator in operators
        for info in stored
        if operator.uid not in matches and info.uid not in without and _is_alike(operator, info)
    ]
    while pairs:
        _, uid, stored_uid = min(pairs, key=lambda pair: (pair[2] in continued, *pair))
        matches[uid] = by_uid[stored_uid]
        continued.add(stored_uid)
        pairs = [pair for pair in pairs if pair[1] != uid]
    return matches


def _is_alike(operator: Matchable, info: OperatorInfo) -> bool:
    is_of_group = operator.aggregated is not None and info.uid.startswith(f"{operator.group}-")
    return bool(operator.group) and (info.uid == operator.group or is_of_group)


def _in_common(operator: Matchable, info: OperatorInfo) -> int:
    now = {*operator.aggregated.infos} if operator.aggregated else set[str]()
    return len(now & {name for state in info.states for name in state.aggregates or ()})
