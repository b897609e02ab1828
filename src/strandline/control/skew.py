"""Skew in words: how evenly the rows and the state of an operator are divided, and which keys are the reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil

from strandline.control.status import KeeperStatus, Status
from strandline.core.heavykey import LEAST_ROWS, MOST_KEYS, HeavyKey

_SKEWED, _UNEVEN = 1.5, 1.2
"""How many times an even share a partition has that is said to be so."""


def merged_keys(keepers: Iterable[KeeperStatus]) -> list[HeavyKey]:
    """Return the heaviest keys of an operator's partitions, with their shares of the rows of all of them."""
    keepers = list(keepers)
    rows = sum(keeper.recent_rows for keeper in keepers)
    merged = [
        replace(key, share=round(key.share * part, 4), error=round(key.error * part, 4))
        for keeper in keepers
        for part in (keeper.recent_rows / rows if rows else 0.0,)
        for key in keeper.heaviest_keys
    ]
    return sorted(merged, key=lambda key: -key.share)[:MOST_KEYS]


def heavy_keys(keepers: Sequence[KeeperStatus]) -> list[HeavyKey]:
    """Return those of an operator's keys that make a partition uneven, each by itself, heaviest first."""
    least = (_UNEVEN - 1) / max(1, len(keepers) - 1)
    return [key for key in merged_keys(keepers) if key.share - key.error >= least]


def key_text(key: HeavyKey) -> str:
    """Return a key as `card=17, shop=oslo`; "" if it is hidden."""
    return ", ".join(f"{column}={value}" for column, value in key.key.items())


def share_text(share: float) -> str:
    """Return a share in percent."""
    return "<1 %" if 0 < share < 0.01 else f"{share:.0%}".replace("%", " %")


def skew_text(status: Status, uid: str) -> str:
    """Return how evenly an operator's rows and state are divided among its partitions, and why not more evenly."""
    keepers = [keeper for keeper in status.keepers if keeper.uid == uid]
    rows = sum(keeper.all_rows_in for keeper in keepers)
    if not rows:
        return "No rows since the last start or restart."
    heavy = heavy_keys(keepers)
    if len(keepers) == 1:
        more = "among more partitions, one would still have all rows of such a key"
        return f"One partition: it has all rows.{_keys_text(heavy, more)}"
    most = max(keepers, key=lambda keeper: keeper.all_rows_in)
    times = most.all_rows_in / rows * len(keepers)
    if times < _UNEVEN:
        text = "Rows are spread evenly."
    else:
        share = share_text(most.all_rows_in / rows)
        uneven = f"partition {most.partition} has {share} of the rows, {times:.1f} times an even share"
        text = f"{'Skewed' if times >= _SKEWED else 'Somewhat uneven'}: {uneven}."
    if heavy:
        text += _keys_text(heavy, "more partitions do not divide a key, all of whose rows go to one of them")
    elif times >= _UNEVEN and most.recent_rows >= LEAST_ROWS:
        reason = "key groups are uneven, and another parallelism may divide them better"
        text += f" {_no_key_text(merged_keys(keepers))}: {reason}."
    return text + _state_text(keepers)


def without_keys(status: Status) -> Status:
    """Return a status that names no key."""
    return replace(
        status,
        keepers=[replace(each, heaviest_keys=_unnamed(each.heaviest_keys)) for each in status.keepers],
        operators=[replace(each, heaviest_keys=_unnamed(each.heaviest_keys)) for each in status.operators],
    )


def _unnamed(keys: Sequence[HeavyKey]) -> list[HeavyKey]:
    return [replace(key, key={}) for key in keys]


def _keys_text(heavy: Sequence[HeavyKey], consequence: str) -> str:
    if not heavy:
        return ""
    named = f", {text}," if (text := key_text(heavy[0])) else ""
    about = f"about {share_text(heavy[0].share)} (± {max(1, ceil(round(100 * heavy[0].error, 3)))} %)"
    if len(heavy) == 1:
        return f" One key{named} has {about} of this operator's rows lately: {consequence}."
    together = share_text(sum(key.share for key in heavy))
    return (
        f" {len(heavy)} keys have about {together} of this operator's rows lately, the heaviest{named} {about}: "
        f"{consequence}."
    )


def _no_key_text(keys: Sequence[HeavyKey]) -> str:
    if not keys:
        return "No single key has many rows"
    return f"No single key is heavy, the heaviest has about {share_text(keys[0].share)} of the rows"


def _state_text(keepers: Sequence[KeeperStatus]) -> str:
    sizes = {keeper.partition: keeper.state_bytes for keeper in keepers if keeper.state_bytes is not None}
    largest = max(sizes, key=lambda partition: sizes[partition], default=0)
    if not sum(sizes.values()) or sizes[largest] / sum(sizes.values()) * len(sizes) < _SKEWED:
        return ""
    return f" Partition {largest} has {share_text(sizes[largest] / sum(sizes.values()))} of the state."
