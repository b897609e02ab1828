"""A multiset of bytes with bulk inserts and a fast minimum: sorted runs, which are merged when of similar size.

Each run is descending, so its least items are at its end, where removal is cheap however long the run is. An item
takes part in O(log n) merges.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import itemgetter


class SortedBag:
    """A multiset of bytes in sorted runs."""

    __slots__ = ("_runs",)

    def __init__(self, items: Iterable[bytes] = ()) -> None:
        self._runs: list[list[bytes]] = []
        self.add(items)

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def __iter__(self) -> Iterator[bytes]:
        for run in self._runs:
            yield from run

    def add(self, items: Iterable[bytes]) -> None:
        """Add items, in any order."""
        run = sorted(items, reverse=True)
        if not run:
            return
        runs = self._runs
        runs.append(run)
        while len(runs) > 1 and len(runs[-2]) <= 2 * len(runs[-1]):
            # Python's sort merges two sorted runs in linear time.
            last = runs.pop()
            runs[-1] = sorted(runs[-1] + last, reverse=True)

    def least(self) -> bytes | None:
        """Return the least item, or None if the bag is empty."""
        return min((run[-1] for run in self._runs), default=None)

    def drop_least(self) -> None:
        """Remove one least item."""
        run = min(self._runs, key=itemgetter(-1))
        run.pop()
        if not run:
            self._runs.remove(run)

    def take_until(self, limit: bytes) -> list[bytes]:
        """Remove and return every item up to and including a limit, in any order."""
        items: list[bytes] = []
        for run in self._runs:
            if run[-1] <= limit:
                cut = bisect_left(run, True, key=lambda item: item <= limit)
                items += run[cut:]
                del run[cut:]
        if items:
            self._runs = [run for run in self._runs if run]
        return items
