"""`strandline explain NEW.SQL --upgrade OLD.SQL`, and EXPLAIN UPGRADE: prints what becomes of each view's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from strandline.cli.output import print_json, say
from strandline.core.texts import size_text

if TYPE_CHECKING:
    from strandline.format.manifest import OperatorInfo
    from strandline.plan.upgrade import Upgrade
    from strandline.spark.views.upgrading import PartChange


def stored_operators(url: str, options: Mapping[str, str]) -> Sequence[OperatorInfo]:
    """Return the operators of a snapshot; `options` are those of its storage."""
    from strandline.snapshot.opening.snapshot import find_snapshot

    return find_snapshot(url, dict(options), fsync=False).manifest.operators


def print_changes(changes: Sequence[PartChange], upgrade: Upgrade, *, json: bool = False) -> bool:
    """Print what becomes of each operator; return whether a job can go on."""
    fits = not upgrade.refusals
    if json:
        print_json({
            "fits": fits,
            "parts": [asdict(change) for change in changes],
            "refusals": list(upgrade.refusals),
            "drop": list(upgrade.drop),
            "from_now": list(upgrade.from_now),
        })  # fmt: skip
        return fits
    view = None
    for change in changes:
        if change.view != view:
            view = change.view
            print(f"{view or 'in the snapshot alone'}:")
        was = f", was {change.was}" if change.was else ""
        what = change.part or "an operator"
        print(f"  {change.outcome}  {what}  ({change.uid}{was}{_state_text(change)})")
        for detail in change.details:
            print(f"    {detail}")
        if change.next_step:
            print(f"    next step: {change.next_step}")
    if not changes:
        print("no view keeps state")
    if fits:
        print("the job can go on")
        return True
    print("the job cannot go on")
    for option, names in (("--from-now", upgrade.from_now), ("--drop", upgrade.drop)):
        if names:
            say(f"next step: {' '.join(f'{option} {name}' for name in names)}, as the text above says")
    return False


def _state_text(change: PartChange) -> str:
    figures = [f"{change.rows:,} rows"] if change.rows is not None else []
    figures += [size_text(change.size_bytes)] if change.size_bytes is not None else []
    return f"; state: {', '.join(figures)}" if figures else ""
