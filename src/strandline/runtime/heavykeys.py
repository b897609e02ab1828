"""The keys with the most rows of an operator partition lately: estimates, from a sample, in bounded memory.

A key gets a counter when it is sampled; a row that comes now weighs twice as much as one of half a minute ago. Of too
many counters, Misra and Gries' rule keeps the largest: all lose as much as the largest of those that go, so a count is
never too high, and too low by at most the sum of these losses, which is below the weight of all rows divided by
_COUNTERS. No part of this is state: no checkpoint has it, and a new keeper begins with nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from heapq import nlargest
from typing import Any, NamedTuple

import numpy as np

from strandline.core.heavykey import LEAST_ROWS, MOST_KEYS, HeavyKey
from strandline.types.jsonforms import to_json
from strandline.types.records import Record

_HALF_LIFE_US = 30_000_000
_COUNTERS = 128
"""Kept at least; there are at most twice as many, and a sample more."""
_LEAST_SAMPLE, _ROWS_A_SAMPLE = 64, 256
"""The rows of a batch that are counted: all of a small one, one in so many of a large one."""
_MOST_WAITING, _PAUSE_US = 16_384, 100_000
"""After so many rows, or so much time, a batch is sampled, which counts for the rows before it, too."""
_MOST_CHARS = 100
"""Of each value of a key, in counters and answers."""
_LEAST_SHARE = 0.01
_LARGEST_WEIGHT = 1e9
_HIDDEN = "__strandline_"
_OF_VIEW = f"{_HIDDEN}key"
"""The key of a view's operator, a struct unless it is one column without nulls."""


class _Long(NamedTuple):
    """A value that is too long for a counter."""

    begins: Any
    hash: int


class HeavyKeys:
    """The counters of one partition. What an aborted epoch has counted stays counted."""

    def __init__(self, columns: Sequence[str], partition: int) -> None:
        self._columns = columns
        self._partition = partition
        self._random = np.random.default_rng(partition)
        self._now_us = self._due_us = 0
        self._waiting = 0
        """The rows since the last sample."""
        self._weight = 1.0
        """Of a row that comes now. Weights grow, in place of all counters being reduced again and again."""
        self._counts: dict[Any, float] = {}
        self._all = 0.0
        """The weight of all rows, as the next two."""
        self._lost = 0.0
        """How much a count may be too low."""
        self._variance = 0.0
        """Of a count, by sampling alone: this times p(1 - p) if the key has the share p."""

    @property
    def rows(self) -> float:
        """The number of rows; those of half a minute ago count half, and so on."""
        return self._all / self._weight

    def begin(self, now_us: int) -> None:
        """Go on to the time of an epoch."""
        if self._now_us and now_us > self._now_us:
            self._weight *= 2.0 ** min(60.0, (now_us - self._now_us) / _HALF_LIFE_US)
            if self._weight > _LARGEST_WEIGHT:
                self._rescale()
        # A clock that was set back must not stop the sampling until it is where it was.
        self._now_us, self._due_us = now_us, min(self._due_us, now_us + _PAUSE_US)

    def sample(self, rows: int) -> Sequence[int]:
        """Return the places of the rows to count: one at random in each of equal parts of a batch, or none of it."""
        self._waiting += rows
        if not rows or (self._waiting < _MOST_WAITING and self._now_us < self._due_us):
            return ()
        self._due_us = self._now_us + _PAUSE_US
        count = max(_LEAST_SAMPLE, rows // _ROWS_A_SAMPLE)
        if rows <= count:
            return range(rows)
        # Not every n-th row: the keys may come in turns.
        places = (np.arange(count) + self._random.random(count)) * (rows / count)
        chosen: list[int] = np.minimum(places.astype(np.int64), rows - 1).tolist()
        return chosen

    def add(self, keys: Sequence[Any]) -> None:
        """Count the keys of a sample."""
        if not keys:
            return
        counts, rows, self._waiting = self._counts, self._waiting, 0
        weight = self._weight * rows / len(keys)
        for key in map(_bounded, keys):
            counts[key] = counts.get(key, 0.0) + weight
        self._all += self._weight * rows
        self._variance += len(keys) * weight * weight * (1 - len(keys) / rows)
        if len(counts) > 2 * _COUNTERS:
            self._drop_smallest()

    def heaviest(self) -> list[HeavyKey]:
        """Return the keys with the largest shares, largest first; none that has hardly any, or of hardly any rows."""
        if self.rows < LEAST_ROWS:
            return []
        variance, half = self._variance / self._all**2, self._lost / self._all / 2
        heaviest = []
        for key, count in nlargest(MOST_KEYS, self._counts.items(), key=lambda item: item[1]):
            share = min(1.0, count / self._all + half)
            # Two standard deviations; and what they leave out of a key that has all rows of a sample, or hardly any.
            error = half + 2 * (share * (1 - share) * variance) ** 0.5 + 3 * variance
            if share >= _LEAST_SHARE and share > error:
                heaviest.append(HeavyKey(self._named(key), round(share, 4), round(error, 4), self._partition))
        return heaviest

    def _drop_smallest(self) -> None:
        floor = sorted(self._counts.values(), reverse=True)[_COUNTERS]
        self._counts = {key: count - floor for key, count in self._counts.items() if count > floor}
        self._lost += floor

    def _rescale(self) -> None:
        self._counts = {key: count / self._weight for key, count in self._counts.items()}
        self._all, self._lost = self._all / self._weight, self._lost / self._weight
        self._variance /= self._weight**2
        self._weight = 1.0

    def _named(self, key: Any) -> dict[str, str]:
        """Return a key's columns as text; of a view, its values: an aggregate of all rows has none."""
        if len(self._columns) > 1:
            return dict(zip(self._columns, map(_text, key), strict=True))
        if self._columns[0] == _OF_VIEW and isinstance(key, Record):
            return {name: _text(value) for name, value in key._asdict().items() if name != "side"}
        return {self._columns[0].removeprefix(_HIDDEN): _text(key)}


def _bounded(key: Any) -> Any:
    """Return a key in which no value is long: another one for each key, but for equal hashes."""
    if isinstance(key, str | bytes):
        return key if len(key) <= _MOST_CHARS else _Long(key[:_MOST_CHARS], hash(key))
    if isinstance(key, Record):
        return key._make([_bounded(part) for part in key])
    return tuple(map(_bounded, key)) if isinstance(key, tuple) else key


def _text(value: Any) -> str:
    if isinstance(value, _Long):
        return f"{_text(value.begins)}…"
    return value if isinstance(value, str) else json.dumps(to_json(value), ensure_ascii=False)
