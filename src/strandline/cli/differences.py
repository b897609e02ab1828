"""Differences between two snapshots: as data for programs, and as tables for people."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from strandline.cli.output import Table
from strandline.snapshot.tools.comparison import KeyDiff
from strandline.snapshot.tools.diff import SnapshotDiff, StateDiff

_MOST_CHARS = 200


def as_data(diff: SnapshotDiff) -> dict[str, Any]:
    """Return all differences as data for JSON."""
    states = [{"equal": state.is_equal, **asdict(state)} for state in diff.states]
    return {"equal": diff.is_equal, **asdict(diff), "states": states}


def print_diff(diff: SnapshotDiff) -> None:
    """Print a table of the states that differ, then some of their keys, and the names of the equal states."""
    numbers = ("added", "changed", "removed", "rows before", "rows after")
    output = Table("operator", "state", *numbers, "", right=numbers)
    for state in diff.states:
        if state.is_equal:
            continue
        figures: tuple[object, ...] = ("-",) * len(numbers)
        if not (state.only or state.why_not):
            counts = state.added, state.changed, state.removed
            figures = (*counts, state.rows_before + state.rows_unread, state.rows_after + state.rows_unread)
        output.add(state.operator, state.state or "-", *figures, _remark(state))
    if output.rows:
        output.print()
    for state in diff.states:
        for key in state.keys:
            _print_key(state, key)
    if equal := [state for state in diff.states if state.is_equal]:
        names = ", ".join(f"{state.operator}.{state.state}" for state in equal)
        print(f"no differences: {names}")
    if diff.groups_read < diff.groups:
        print(f"read: {diff.groups_read} of {diff.groups} key groups")


def _remark(state: StateDiff) -> str:
    if state.only:
        return f"only {state.only}"
    if state.why_not:
        return f"not compared: {state.why_not}"
    return "; ".join(state.notes)


def _print_key(state: StateDiff, key: KeyDiff) -> None:
    print(f"{state.operator}.{state.state}: {key.change} {_text(key.key)}")
    for sign, rows, count in (("-", key.before, key.rows_before), ("+", key.after, key.rows_after)):
        for row in rows:
            print(f"  {sign} {_text(row)}")
        if count > len(rows):
            print(f"  {sign} and {count - len(rows)} more rows")


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…"
