"""One change of a key as the page shows it: short texts, and what of the state has changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_MOST_CHARS = 500
"""Of one cell."""
_MOST_ROWS = 12
_MOST_PARTS = 40
_MISSING = object()


def cell(value: Any) -> str | None:
    """Return a value as text: a browser would round large integers."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"


def step_of(change: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of `strandline history --json` for the page."""
    of_epoch = change["call"] == "epoch"
    events = change["event"] if of_epoch else [change["event"]]
    rows = [("", row) for row in change["rows"]] + [(each["side"], each["row"]) for each in change["sides"]]
    return {
        "epoch": change["epoch"],
        "now_ms": change["now_us"] // 1000,
        "call": change["call"],
        "events": [_fields(each) for each in events[:_MOST_ROWS]],
        "events_left_out": max(len(events) - _MOST_ROWS, 0),
        "parts": _parts(change["before"], change["after"]),
        "timers": change["timers"][:_MOST_PARTS],
        "rows": [{"side": side, "fields": _fields(row)} for side, row in rows[:_MOST_ROWS]],
        "rows_left_out": max(len(rows) - _MOST_ROWS, 0),
    }


def _fields(row: Any) -> list[list[str | None]]:
    """Return a row as pairs of name and text; without names, they are empty."""
    if isinstance(row, dict):
        return [[name, cell(value)] for name, value in row.items()]
    return [["", cell(value)] for value in (row if isinstance(row, list) else [row])]


def _parts(before: Any, after: Any) -> dict[str, Any]:
    """Return the parts of the state before and after: those that have changed first, and how many are left out."""
    parts = [_part(*each) for each in _leaves("", before, after)]
    changed = [each for each in parts if each["change"]]
    same = [each for each in parts if not each["change"]]
    first = (changed + same)[:_MOST_PARTS]
    changed_left_out = max(len(changed) - _MOST_PARTS, 0)
    return {
        "shown": first,
        "changed_left_out": changed_left_out,
        "same_left_out": len(parts) - len(first) - changed_left_out,
    }


def _part(path: str, before: Any, after: Any) -> dict[str, Any]:
    change = "added" if before is _MISSING else "removed" if after is _MISSING else "changed" if before != after else ""
    old, new = (None if each is _MISSING else "null" if each is None else cell(each) for each in (before, after))
    return {"path": path, "before": old, "after": new, "change": change}


def _leaves(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the smallest parts of two values with their paths: in lists, those that differ, and one for all others."""
    if isinstance(before, dict) and isinstance(after, dict) and (before or after):
        for name in dict.fromkeys([*before, *after]):
            below = f"{path}.{name}" if path else name
            yield from _leaves(below, before.get(name, _MISSING), after.get(name, _MISSING))
    elif isinstance(before, list) and isinstance(after, list) and before != after:
        yield from _elements(path, before, after)
    else:
        yield path, before, after


def _elements(path: str, before: list[Any], after: list[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the elements between those that two lists begin and end with alike."""
    most = min(len(before), len(after))
    first = next((at for at in range(most) if before[at] != after[at]), most)
    last = next((at for at in range(most - first) if before[-1 - at] != after[-1 - at]), most - first)
    old, new = before[first : len(before) - last], after[first : len(after) - last]
    for at in range(max(len(old), len(new))):
        below = f"{path}[{first + at}]"
        if at < len(old) and at < len(new):
            yield from _leaves(below, old[at], new[at])
        else:
            yield below, old[at] if at < len(old) else _MISSING, new[at] if at < len(new) else _MISSING
    if first + last:
        count = f"{first + last} other elements"
        yield path, count, count
