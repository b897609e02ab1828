"""Patterns of rows: regular expressions whose letters are variables, as steps that a search follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.core.errors import ConfigurationError

END = -1
"""In place of a step: the pattern is complete."""
_MOST_STEPS = 5_000


@dataclass(frozen=True)
class Row:
    """One row of a variable."""

    variable: int


@dataclass(frozen=True)
class Chain:
    """Parts that follow each other: A B."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True)
class Choice:
    """One of several parts, those before are preferred: A | B."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True)
class Repeat:
    """A part that follows itself: A*, A{2,3}?."""

    part: Pattern
    least: int
    most: int | None
    is_greedy: bool = True


Pattern = Row | Chain | Choice | Repeat


def can_be_empty(pattern: Pattern) -> bool:
    """Whether a pattern matches no rows at all."""
    match pattern:
        case Row():
            return False
        case Chain(parts):
            return all(map(can_be_empty, parts))
        case Choice(parts):
            return any(map(can_be_empty, parts))
        case Repeat(part, least):
            return least == 0 or can_be_empty(part)


def variables_of(pattern: Pattern) -> list[int]:
    """Return the variables of a pattern in the order of their first occurrence."""
    match pattern:
        case Row(variable):
            return [variable]
        case Chain(parts) | Choice(parts):
            return list(dict.fromkeys(each for part in parts for each in variables_of(part)))
        case Repeat(part):
            return variables_of(part)


def not_empty(*parts: Pattern) -> Pattern | None:
    """Return parts in a row without the ways in which none takes a row, in the same order; None if no way is left.

    A repetition that takes no row is none: without it, each repetition of a pattern takes one.
    """
    if not parts:
        return None
    first, *rest = parts
    if not can_be_empty(first):
        return Chain(parts)
    match first:
        case Chain(inner):
            return not_empty(*inner, *rest)
        case Choice(inner):
            return _choice([not_empty(each, *rest) for each in inner])
        case Repeat(part, least, most, is_greedy) if least:
            fewer = Repeat(part, least - 1, None if most is None else most - 1, is_greedy)
            return not_empty(part, fewer, *rest)
        case Repeat(part, _, most, is_greedy) if most != 0:
            again = Repeat(part, 0, None if most is None else most - 1, is_greedy)
            once = not_empty(part)
            ways = [None if once is None else Chain((once, again, *rest)), not_empty(*rest)]
            return _choice(ways if is_greedy else ways[::-1])
    return not_empty(*rest)


def _choice(parts: Sequence[Pattern | None]) -> Pattern | None:
    ways = tuple(part for part in parts if part is not None)
    return Choice(ways) if len(ways) > 1 else next(iter(ways), None)


@dataclass(frozen=True)
class Steps:
    """A pattern as steps. A step takes a row of its variable; after it, the next ones are tried in their order."""

    first: tuple[int, ...]
    """The steps that a match can begin with, in the order of preference."""
    variables: tuple[int, ...]
    """By step: the variable of its row."""
    next: tuple[tuple[int, ...], ...]
    """By step: those that can follow, in the order of preference, and END."""


def steps_of(pattern: Pattern) -> Steps:
    """Return the steps of a pattern. Raise ConfigurationError if they are too many."""
    builder = _Builder()
    entry = builder.enter(pattern, END)
    return Steps(
        builder.reached(entry),
        tuple(variable for variable, _ in builder.rows),
        tuple(builder.reached(then) for _, then in builder.rows),
    )


class _Builder:
    """Numbers places: those of rows from 0 on, and forks, which take no row, below END."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []
        """Variables, and the place after each."""
        self._forks: list[Sequence[int]] = []

    def enter(self, pattern: Pattern, then: int) -> int:
        """Return the place at which a pattern begins that has `then` after it."""
        match pattern:
            case Row(variable):
                self._check_size()
                self.rows.append((variable, then))
                return len(self.rows) - 1
            case Chain(parts):
                for part in reversed(parts):
                    then = self.enter(part, then)
                return then
            case Choice(parts):
                return self._fork([self.enter(part, then) for part in parts])
            case Repeat(part, least, most, is_greedy):
                place, once = then, not_empty(part)
                if once is not None and most is None:
                    place = self._fork([])
                    self._forks[END - 1 - place] = _preferred(self.enter(once, place), then, is_greedy)
                elif once is not None and most is not None:
                    for _ in range(most - least):
                        place = self._fork(_preferred(self.enter(once, place), then, is_greedy))
                for _ in range(least):
                    place = self.enter(part, place)
                return place

    def reached(self, place: int) -> tuple[int, ...]:
        """Return the steps that a place leads to, in the order of preference."""
        steps: dict[int, None] = {}
        seen: set[int] = set()
        stack = [place]
        while stack:
            place = stack.pop()
            if place >= END:
                steps.setdefault(place)
            elif place not in seen:
                seen.add(place)
                stack += reversed(self._forks[END - 1 - place])
        return tuple(steps)

    def _fork(self, places: Sequence[int]) -> int:
        self._check_size()
        self._forks.append(places)
        return END - len(self._forks)

    def _check_size(self) -> None:
        if len(self.rows) + len(self._forks) >= _MOST_STEPS:
            raise ConfigurationError(
                f"the pattern has more than {_MOST_STEPS} steps, as each repetition {{n,m}} is m of them",
                hint="write a smaller number of repetitions, or * and + in place of them",
            )


def _preferred(inside: int, outside: int, is_greedy: bool) -> tuple[int, int]:
    return (inside, outside) if is_greedy else (outside, inside)
