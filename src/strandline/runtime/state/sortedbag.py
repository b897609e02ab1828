"""A sorted bag of bytes that takes many at once and gives the least at once: sorted runs, merged when they are alike.

Each run is descending, so that its least are at its end, where taking them is cheap however long the run is. An element
takes part in as many merges as the logarithm of their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Runs:
    """Sorted runs of bytes; what is in twice is given twice."""

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
        """Take items, in any order."""
        run = sorted(items, reverse=True)
        if not run:
            return
        runs = self._runs
        runs.append(run)
        while len(runs) > 1 and len(runs[-2]) <= 2 * len(runs[-1]):
            # Sorting two sorted runs is merging them.
            last = runs.pop()
            runs[-1] = sorted(runs[-1] + last, reverse=True)

    def least(self) -> bytes | None:
        """Return the least item, None if there is none."""
        return min((run[-1] for run in self._runs), default=None)

    def drop_least(self) -> None:
        """Remove one least item."""
        run = min(self._runs, key=_last)
        run.pop()
        if not run:
            self._runs.remove(run)

    def take_until(self, limit: bytes) -> list[bytes]:
        """Remove and return every item up to and including a limit, in any order."""
        found: list[bytes] = []
        for run in self._runs:
            if run[-1] <= limit:
                cut = _first_within(run, limit)
                found += run[cut:]
                del run[cut:]
        if found:
            self._runs = [run for run in self._runs if run]
        return found


def _last(run: list[bytes]) -> bytes:
    return run[-1]


def _first_within(run: list[bytes], limit: bytes) -> int:
    """Return where the items of a descending run begin that are not above a limit."""
    low, high = 0, len(run)
    while low < high:
        middle = (low + high) // 2
        if run[middle] > limit:
            low = middle + 1
        else:
            high = middle
    return low
