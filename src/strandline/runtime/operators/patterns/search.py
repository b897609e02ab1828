"""The search for matches in the sorted rows of a key: the first one from each row, by the order of preference.

From a row on, all ways through the pattern are followed at once, the preferred ones first. Two ways that are at the
same step and hold the same of what conditions read have the same future: the one that is preferred stays. So a search
takes time in the number of rows and ways, and does not go back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from strandline.runtime.operators.patterns.conditions import Column, Condition, evaluator, parts_of, slots_in
from strandline.runtime.operators.patterns.memory import Columns, Memory, Slot, adder
from strandline.runtime.operators.patterns.pattern import END, Pattern, steps_of

Skip = Literal["past last row", "to next row", "to row"]


@dataclass(frozen=True)
class Matching:
    """The rules of a clause: which rows are a match, and where the search goes on."""

    pattern: Pattern
    conditions: Mapping[int, Condition]
    """By variable. A variable without one takes every row."""
    slots: tuple[Slot, ...]
    within_us: int | None = None
    """A match's last row comes less than this after its first one."""
    skip: Skip = "past last row"
    """Where the search goes on after a match."""
    skip_slot: int | None = None
    """The slot that holds the row to which it goes on: if there is none after the first one, that is the next row."""


@dataclass(frozen=True)
class Match:
    """The rows of a match, and what it holds."""

    first: int
    last: int
    memory: Memory


@dataclass(frozen=True)
class Outcome:
    """The matches of some rows, and where the search goes on when there are more."""

    matches: list[Match]
    open: list[int]
    """The rows that may still begin a match, in order."""


class Search:
    """Searches the rows of one key at a time."""

    def __init__(self, matching: Matching) -> None:
        self._matching, self._steps = matching, steps_of(matching.pattern)
        slots = matching.slots
        # What conditions read comes first in a memory: it tells ways apart.
        read = sorted({slot for each in matching.conditions.values() for slot in slots_in(each)})
        self._adders = [
            [
                (at, adder(slot), at in read)
                for at, slot in enumerate(slots)
                if slot.variables is None or variable in slot.variables
            ]
            for variable in range(max(self._steps.variables) + 1)
        ]
        self._read = read
        parts = [part for each in matching.conditions.values() for part in parts_of(each)]
        self.columns = {part.index for part in parts if isinstance(part, Column)}
        """The columns whose values are read; of all others, only rows are numbered."""
        self.columns |= {slot.column for at, slot in enumerate(slots) if at in read or not slot.is_row}
        self._conditions = {variable: evaluator(each, slots) for variable, each in matching.conditions.items()}

    def find(
        self, columns: Columns, times: Sequence[int], starts: Sequence[int], end: int, reached_us: int | None
    ) -> Outcome:
        """Return the matches that begin at some rows, of those up to `end`, which are sorted.

        No row will come before `reached_us`; None: none will come at all. A match is returned when no row that may
        still come can change it.
        """
        matches: list[Match] = []
        open_: list[int] = []
        each_alone = self._matching.skip == "to next row"
        next_ = -1
        for start in starts:
            if start < next_:
                continue
            is_decided, match = self._first_match(columns, times, start, end, reached_us)
            if not is_decided:
                if not each_alone:
                    return Outcome(matches, [each for each in starts if each >= start])
                open_.append(start)
            elif match is not None:
                matches.append(match)
                next_ = self._next_start(match)
        return Outcome(matches, open_)

    def _next_start(self, match: Match) -> int:
        matching = self._matching
        if matching.skip == "past last row":
            return match.last + 1
        if matching.skip_slot is None:
            return match.first + 1
        row = matching.slots[matching.skip_slot].row_of(match.memory[matching.skip_slot])
        return match.first + 1 if row is None else max(row, match.first + 1)

    def _first_match(
        self, columns: Columns, times: Sequence[int], start: int, end: int, reached_us: int | None
    ) -> tuple[bool, Match | None]:
        """Return whether it is known which match begins at a row, and that match."""
        within_us, steps = self._matching.within_us, self._steps
        last_us = None if within_us is None else times[start] + within_us
        memory: Memory = tuple(slot.initial for slot in self._matching.slots)
        ways = [(step, memory) for step in steps.first]
        best: Match | None = None
        for row in range(start, end):
            if last_us is not None and times[row] >= last_us:
                return True, best
            after: list[tuple[int, Memory]] = []
            seen: set[object] = set()
            for step, memory in ways:
                new_memory = self._memory_with(steps.variables[step], columns, row, memory)
                if new_memory is None:
                    continue
                held = tuple([new_memory[slot] for slot in self._read])
                is_complete = False
                for next_ in steps.next[step]:
                    if next_ == END:
                        best, is_complete = Match(start, row, new_memory), True
                        break
                    if (next_, held) not in seen:
                        seen.add((next_, held))
                        after.append((next_, new_memory))
                if is_complete:
                    # All other ways are less preferred than this match.
                    break
            if not after:
                return True, best
            ways = after
        return reached_us is None or (last_us is not None and reached_us >= last_us), best

    def _memory_with(self, variable: int, columns: Columns, row: int, memory: Memory) -> Memory | None:
        """Return what a match holds that takes a row for a variable; None if the condition is not true."""
        held, adders = list(memory), self._adders[variable]
        for slot, add, is_read in adders:
            if is_read:
                held[slot] = add(columns, row, held[slot])
        condition = self._conditions.get(variable)
        if condition is not None and condition(columns, row, held) is not True:
            return None
        for slot, add, is_read in adders:
            if not is_read:
                held[slot] = add(columns, row, held[slot])
        return tuple(held)
