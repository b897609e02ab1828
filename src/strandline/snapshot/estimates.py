"""From what was counted in some key groups to how many there are in all, and how far off that may be."""

from __future__ import annotations

import math
from dataclasses import dataclass

_Z = 1.96


@dataclass(frozen=True, slots=True)
class Count:
    """How many keys there are."""

    found: int = 0
    """In the key groups that were read."""
    estimate: int = 0
    """In all of them."""
    error: int = 0
    """By how much the estimate is off at most, in 95 of 100 samples; 0 if everything was read."""


NONE = Count()


class Tally:
    """Counts key group by key group."""

    def __init__(self) -> None:
        self._total = 0
        self._squares = 0

    def add(self, count: int) -> None:
        """Add what a key group has; those that have nothing may be left out."""
        self._total += count
        self._squares += count * count

    def count(self, groups: int, population: int) -> Count:
        """Return how many there are, when `groups` key groups of `population` were read.

        Keys fall into key groups as if by chance, so that few may be missed altogether; but what changed them need not
        have been chance, as a partition that was restored wrongly. The larger error of both is given.
        """
        total = self._total
        if groups >= population:
            return Count(total, total)
        part = groups / population
        variance = max(0.0, self._squares - total * total / groups) / (groups - 1)
        uneven = _student(groups - 1) * population * math.sqrt(variance / groups * (1 - part))
        # The rule of three: what was not seen at all may still be there, up to three times in 95 of 100 samples.
        by_chance = (_Z * math.sqrt(total * (1 - part)) + 3 * (1 - part)) / part
        return Count(total, round(total / part), math.ceil(max(uneven, by_chance)))


def _student(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's distribution, within 1 % from 5 degrees of freedom on."""
    z = _Z
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
