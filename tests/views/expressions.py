"""Random relational expressions over tables that change: each node in plain Python, and as an operator of views.

All rows have the same columns, ROW, so that any node may be another's input. What Spark does in a view between two
operators (columns, filters, groups computed anew) is done here by the same plain function that says what is right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cmp_to_key
from typing import Any, ClassVar

from strandline.runtime.operators.aggregates.accumulators import FieldSpec
from strandline.runtime.operators.views.bags import WEIGHT
from strandline.runtime.operators.views.joins import PAIRED, Joining
from strandline.runtime.operators.views.recomputing import Collecting, Comparing
from strandline.runtime.operators.views.top import Order, Top
from strandline.runtime.operators.views.totals import COUNT, Totals
from strandline.runtime.operators.views.versions import Versions
from strandline.runtime.rowlayout import ROWS
from strandline.types.datatypes import parse_schema
from tests.views.operators import KEY, Shape, exact
from tests.views.test_operators import HOWS
from tests.views.test_top import compared

Row = tuple[Any, ...]
Rows = list[Row]
Change = tuple[Row, int]
"""A row, and its weight."""

ROW = "k bigint, s string, n bigint, x double"
_NAMES, _TYPES = ("k", "s", "n", "x"), ("bigint", "string", "bigint", "double")
_NULLS: Row = (None,) * 4
_OTHERS = "k2 bigint, s2 string, n2 bigint, x2 double"
NAN = float("nan")
VALUES: tuple[list[Any], ...] = (
    [1, 2, 3, None], ["a", "b", "", "é\0", None], [-3, 0, 1, 5, None], [0.0, -0.0, 1.5, -2.5, NAN, None],
)  # fmt: skip
KEYS: list[tuple[int, ...]] = [(0,), (0,), (1,), (0, 1), (3,), ()]
"""The columns that keys are made of."""


def unsigned(value: Any) -> Any:
    """Return a value as Spark has it in keys: 0.0 for -0.0."""
    return value + 0.0 if isinstance(value, float) else value


def plain(row: Row) -> Row:
    """Return a row without negative zeros, which are others in a state and equal in an order."""
    return tuple(map(unsigned, row))


def key_type(at: Sequence[int], *, side: bool = False) -> str:
    fields = [f"k{number}: {_TYPES[i]}" for number, i in enumerate(at)]
    return f"struct<{', '.join([*fields, *['side: int'] * (side or not at)])}>"


def key_of(row: Row, at: Sequence[int], side: int | None = None) -> Row:
    """Return the key of a row; `side` is what a null has in place of 0, so that it equals none of another side."""
    key = tuple(unsigned(row[i]) for i in at)
    if side is None:
        return key or (0,)
    return (*key, side if None in key else 0)


def grouped(rows: Iterable[Row], at: Sequence[int], side: int | None = None) -> dict[str, tuple[Row, Rows]]:
    """Return the rows of each key, and the key, by its text."""
    found: dict[str, tuple[Row, Rows]] = {}
    for row in rows:
        key = key_of(row, at, side)
        found.setdefault(exact(key), (key, []))[1].append(row)
    return found


@dataclass(frozen=True, eq=False)
class Node:
    """A relation."""

    inputs: tuple[Node, ...]
    is_operator: ClassVar[bool] = False

    @property
    def appends(self) -> bool:
        """Whether its rows only come."""
        return False

    def rows(self, given: Sequence[Rows]) -> Rows:
        """Return its rows, of all rows of its inputs."""
        raise NotImplementedError

    def text(self) -> str:
        """Return what it is, without its inputs."""
        said = [f"{name}={value!r}" for name, value in vars(self).items() if name != "inputs"]
        return f"{type(self).__name__}({', '.join(said)})"


@dataclass(frozen=True, eq=False)
class Source(Node):
    """A table whose rows come, or come and go."""

    number: int
    only_come: bool

    @property
    def appends(self) -> bool:
        return self.only_come


@dataclass(frozen=True, eq=False)
class Linear(Node):
    """Rows made of one row each, some of them: what Spark does with them goes for their changes as well."""

    of: str
    FUNCTIONS: ClassVar[dict[str, Callable[[Row], list[Row]]]] = {
        "filter": lambda row: [row] if row[2] is not None and row[2] >= 0 else [],
        "nulls": lambda row: [row] if row[1] is None or row[0] == 1 else [],
        "fewer": lambda row: [(row[0], row[1], None, row[3])],
        "one": lambda row: [(1, "a", row[2], None)],
        "swap": lambda row: [(row[2], row[1], row[0], row[3])],
        "unsigned": lambda row: [plain(row)],
        "explode": lambda row: [row, (row[0], "b", 1, row[3])],
    }

    @property
    def appends(self) -> bool:
        return self.inputs[0].appends

    def rows(self, given: Sequence[Rows]) -> Rows:
        return [made for row in given[0] for made in self.FUNCTIONS[self.of](row)]


@dataclass(frozen=True, eq=False)
class United(Node):
    """All rows of several relations."""

    @property
    def appends(self) -> bool:
        return all(each.appends for each in self.inputs)

    def rows(self, given: Sequence[Rows]) -> Rows:
        return [row for rows in given for row in rows]


@dataclass(frozen=True, eq=False)
class Operator(Node):
    """A relation that an operator of views computes."""

    is_operator: ClassVar[bool] = True

    def shape(self) -> Shape:
        """Return the operator."""
        raise NotImplementedError

    def feed(self, changes: Sequence[Sequence[Change]], rng: random.Random) -> Rows:
        """Return the operator's input rows."""
        raise NotImplementedError

    def read(self, output: Rows) -> list[Change]:
        """Return the operator's output as changes of this relation."""
        raise NotImplementedError


def touched(at: Sequence[int], changes: Sequence[Change], rng: random.Random) -> Rows:
    """Return changes by key; now and then, a row of weight 0 that only touches a key is among them."""
    found = [(key_of(row, at), *row, weight) for row, weight in changes]
    if rng.random() < 0.2:
        key = tuple(rng.choice(VALUES[i]) for i in at)
        found.append((tuple(map(unsigned, key)) or (0,), *_NULLS, 0))
    return found


@dataclass(frozen=True, eq=False)
class Joined(Operator):
    """A join by equal keys; null equals nothing. `picked` says for each column from which side it comes."""

    how: Any
    at: tuple[int, ...]
    other: tuple[int, ...]
    picked: tuple[bool, ...]

    @property
    def appends(self) -> bool:
        return self.how in ("inner", "semi") and all(each.appends for each in self.inputs)

    def shape(self) -> Shape:
        result = f"{ROW}, {_OTHERS}" if self.how in PAIRED else f"{ROW}, e boolean" if self.how == "existence" else ROW
        process = Joining(self.how, parse_schema(ROW), parse_schema(_OTHERS), parse_schema(result))
        kind = key_type(self.at, side=True)
        sides = (
            f"{name} struct<{KEY}: {kind}, {', '.join(each.replace(' ', ': ') for each in ddl.split(', '))}, {WEIGHT}: bigint>"
            for name, ddl in (("left", ROW), ("right", _OTHERS))
        )
        return Shape(process, kind, ", ".join(sides), result)

    def feed(self, changes: Sequence[Sequence[Change]], rng: random.Random) -> Rows:
        lefts, rights = (
            [(key_of(row, at, side), row, weight) for row, weight in some]
            for side, at, some in zip((1, 2), (self.at, self.other), changes, strict=True)
        )
        found: Rows = [((key, *row, weight), None, key) for key, row, weight in lefts]
        return found + [(None, (key, *row, weight), key) for key, row, weight in rights]

    def read(self, output: Rows) -> list[Change]:
        return [(self._row(row[:4], row[4:-1]), row[-1]) for row in output]

    def _row(self, left: Row, rest: Row) -> Row:
        if self.how == "existence":
            return (*left[:1], str(rest[0]), *left[2:])
        return tuple(rest[i] if self.picked[i] else left[i] for i in range(4)) if self.how in PAIRED else left

    def rows(self, given: Sequence[Rows]) -> Rows:
        lefts, rights = grouped(given[0], self.at, 1), grouped(given[1], self.other, 2)
        found = []
        for key in {**lefts, **rights}:
            left, right = (side[key][1] if key in side else [] for side in (lefts, rights))
            match self.how:
                case "semi":
                    found += [(row, ()) for row in left if right]
                case "anti":
                    found += [(row, ()) for row in left if not right]
                case "existence":
                    found += [(row, (bool(right),)) for row in left]
                case how:
                    found += [(one, other) for one in left for other in right]
                    found += [(one, _NULLS) for one in left if not right and how in ("left", "full")]
                    found += [(_NULLS, other) for other in right if not left and how in ("right", "full")]
        return [self._row(*row) for row in found]


@dataclass(frozen=True, eq=False)
class Totalled(Operator):
    """Counts and sums by key; of rows that only come, extremes as well."""

    at: tuple[int, ...]

    @property
    def _extremes(self) -> bool:
        return self.inputs[0].appends

    def shape(self) -> Shape:
        kind = key_type(self.at)
        fields = [FieldSpec(name, "bigint", "sum") for name in (COUNT, "count_n", "sum_n", "count_all")]
        counted = ["", "count_n", ""]
        if self._extremes:
            fields += [FieldSpec("max_s", "string", "max"), FieldSpec("min_x", "double", "min")]
            counted += ["", ""]
        columns = ", ".join(f"{each.name} {each.ddl}" for each in fields)
        results = ", ".join(f"{each.name} {each.ddl}" for each in fields[1:])
        process = Totals(parse_schema(f"{KEY} {kind}"), fields, counted, is_whole=not self.at)
        return Shape(process, kind, f"{ROWS} bigint, {columns}", f"{KEY} {kind}, {results}")

    def feed(self, changes: Sequence[Sequence[Change]], rng: random.Random) -> Rows:
        found = [self._added(*change) for change in changes[0]]
        if rng.random() < 0.5:
            # Spark may have added up some.
            first, *others = found or [None]
            for other in others:
                if exact(first[0]) == exact(other[0]):  # type: ignore[index]
                    first = self._both(first, other)  # type: ignore[arg-type]
                    others = [each for each in others if each is not other]
            found = [first, *others] if first is not None else []
        return found + [((0,), 0, *(0, 0, None, 0), *[None] * (2 * self._extremes))] * (not self.at)

    def _added(self, row: Row, weight: int) -> Row:
        _, s, n, x = row
        sums = (weight, weight * (n is not None), None if n is None else n * weight, weight)
        return (key_of(row, self.at), 1, *sums, *((s, unsigned(x)) if self._extremes else ()))

    @staticmethod
    def _both(one: Row, other: Row) -> Row:
        def of(function: Any, at: int) -> Any:
            some = [each[at] for each in (one, other) if each[at] is not None]
            return function(some) if some else None

        last = (of(lambda some: max(some, key=str.encode), 6), of(least, 7)) if len(one) > 6 else ()
        return (one[0], *(of(sum, at) for at in range(1, 6)), *last)

    def read(self, output: Rows) -> list[Change]:
        return [
            (self._row(tuple(row[0].values()), row[1], row[2], row[3], *(row[4:-1] or (None, None))), row[-1])
            for row in output
        ]

    def _row(self, key: Row, count_n: int, sum_n: int | None, count_all: int, max_s: Any, min_x: Any) -> Row:
        found = [count_all, max_s, sum_n, min_x if 3 not in self.at else count_n]
        for value, at in zip(key, self.at, strict=False):
            found[at] = value
        return tuple(found)

    def rows(self, given: Sequence[Rows]) -> Rows:
        groups = grouped(given[0], self.at)
        if not self.at:
            groups.setdefault("", ((0,), []))
            groups = dict(list(groups.items())[:1])
        found = []
        for key, rows in groups.values():
            ns = [row[2] for row in rows if row[2] is not None]
            texts = [row[1] for row in rows if row[1] is not None]
            xs = [unsigned(row[3]) for row in rows if row[3] is not None]
            extremes = (max(texts, key=str.encode) if texts else None, least(xs) if xs else None)
            extremes = extremes if self._extremes else (None, None)
            found.append(self._row(key, len(ns), sum(ns) if ns else None, len(rows), *extremes))
        return found


def least(values: Iterable[float]) -> float:
    """Return the least number; NaN is the greatest."""
    return min(values, key=lambda x: (x != x, x))


@dataclass(frozen=True, eq=False)
class Distinct(Operator):
    """Each row once."""

    @property
    def appends(self) -> bool:
        return self.inputs[0].appends

    def shape(self) -> Shape:
        kind = key_type(range(4))
        process = Totals(parse_schema(f"{KEY} {kind}"), [FieldSpec(COUNT, "bigint", "sum")], [])
        return Shape(process, kind, f"{ROWS} bigint, {COUNT} bigint", f"{KEY} {kind}")

    def feed(self, changes: Sequence[Sequence[Change]], rng: random.Random) -> Rows:
        return [(plain(row), 1, weight) for row, weight in changes[0]]

    def read(self, output: Rows) -> list[Change]:
        return [(tuple(row[0].values()), row[-1]) for row in output]

    def rows(self, given: Sequence[Rows]) -> Rows:
        return list({exact(plain(row)): plain(row) for row in given[0]}.values())


@dataclass(frozen=True, eq=False)
class First(Operator):
    """The first rows of each key in an order, each with its number in a column."""

    at: tuple[int, ...]
    orders: tuple[Order, ...]
    count: int | None
    numbering: Any
    into: int

    def shape(self) -> Shape:
        kind, appends = key_type(self.at), self.inputs[0].appends and self.count is not None
        process = Top(
            parse_schema(f"{KEY} {kind}"), parse_schema(ROW), self.orders, self.count, self.numbering, "number",
            appends=appends,
        )  # fmt: skip
        return Shape(process, kind, f"{ROW}, {WEIGHT} bigint", f"{ROW}, number int")

    def feed(self, changes: Sequence[Sequence[Change]], rng: random.Random) -> Rows:
        return touched(self.at, [(self._ordered(row), weight) for row, weight in changes[0]], rng)

    def _ordered(self, row: Row) -> Row:
        # Which of two rows that are equal in the order comes first is a matter of their arrival.
        return plain(row) if self.numbering == "row_number" else row

    def read(self, output: Rows) -> list[Change]:
        return [(self._row(row[:4], row[4]), row[-1]) for row in output]

    def _row(self, row: Row, number: int) -> Row:
        return (*row[: self.into], number, *row[self.into + 1 :])

    def rows(self, given: Sequence[Rows]) -> Rows:
        found = []
        for _, rows in grouped(map(self._ordered, given[0]), self.at).values():
            place = distinct = 0
            before: Row | None = None
            for number, row in enumerate(sorted(rows, key=cmp_to_key(self._compare)), 1):
                if before is None or self._compare(before, row):
                    place, distinct = number, distinct + 1
                before = row
                got = {"row_number": number, "rank": place, "dense_rank": distinct}[self.numbering]
                if self.count is None or got <= self.count:
                    found.append(self._row(row, got))
        return found

    def _compare(self, a: Row, b: Row) -> int:
        return next((found for order in self.orders if (found := compared(a[order.at], b[order.at], order))), 0)


_TOTAL = tuple(Order(at, False, False) for at in range(4))


def in_order(rows: Rows) -> Rows:
    """Return rows in an order in which only equal ones are equal."""
    return sorted(map(plain, rows), key=cmp_to_key(First((), (), _TOTAL, None, "row_number", 0)._compare))


def _changes_before(rows: Rows) -> Rows:
    """Return each row with the number of the one before."""
    found = in_order(rows)
    return [(row[0], row[1], before[2], row[3]) for row, before in zip(found, [_NULLS, *found], strict=False)]


def _greatest(rows: Rows) -> Rows:
    """Return the rows with the greatest number, as often as they are there."""
    numbers = [row[2] for row in rows if row[2] is not None]
    return [row for row in rows if numbers and row[2] == max(numbers)]


def _summary(rows: Rows) -> Rows:
    """Return one row: how many different texts there are, the first one, and the middle number."""
    texts = sorted({row[1] for row in rows if row[1] is not None})
    numbers = sorted(row[2] for row in rows if row[2] is not None)
    middle = numbers[len(numbers) // 2] if numbers else None
    return [(len(texts), texts[0] if texts else None, middle, None if not rows else 0.5)]


@dataclass(frozen=True, eq=False)
class Collected(Operator):
    """Rows by key, of which Groups computes the groups that changed anew: an operator without a meaning of its own."""

    at: tuple[int, ...]

    def shape(self) -> Shape:
        key = f"{KEY} {key_type(self.at)}"
        process = Collecting(parse_schema(key), parse_schema(ROW))
        return Shape(process, key_type(self.at), f"{ROW}, {WEIGHT} bigint", f"{key}, {ROW}")

    def feed(self, changes: Sequence[Sequence[Change]], rng: random.Random) -> Rows:
        seed = [((0,), *_NULLS, 0)] * (not self.at)
        return touched(self.at, changes[0], rng) + seed

    def read(self, output: Rows) -> list[Change]:
        return [((tuple(key.values()), *row), weight) for key, *row, weight in output]


@dataclass(frozen=True, eq=False)
class Groups(Operator):
    """What a function makes of all rows of a key. Its input is Collected."""

    of: str
    FUNCTIONS: ClassVar[dict[str, Callable[[Rows], Rows]]] = {
        "before": _changes_before, "greatest": _greatest, "summary": _summary,
    }  # fmt: skip

    @property
    def at(self) -> tuple[int, ...]:
        collected = self.inputs[0]
        assert isinstance(collected, Collected)
        return collected.at

    def shape(self) -> Shape:
        key = f"{KEY} {key_type(self.at)}"
        process = Comparing(parse_schema(key), parse_schema(ROW))
        return Shape(process, key_type(self.at), f"{ROW}, {WEIGHT} bigint", ROW)

    def feed(self, changes: Sequence[Sequence[Change]], rng: random.Random) -> Rows:
        keys: dict[str, tuple[Row, Rows]] = {}
        for (key, *row), weight in changes[0]:
            rows = keys.setdefault(exact(key), (key, []))[1]
            rows += [tuple(row)] * weight
        found: Rows = []
        for key, rows in keys.values():
            results = self._computed(rows)
            found += [(key, *row, 1) for row in results] or [(key, *_NULLS, 0)]
        return found

    def _computed(self, rows: Rows) -> Rows:
        return self.FUNCTIONS[self.of](rows) if rows or not self.at else []

    def read(self, output: Rows) -> list[Change]:
        return [(row[:-1], row[-1]) for row in output]

    def rows(self, given: Sequence[Rows]) -> Rows:
        """Return the results; what is given are the rows of the input's input."""
        groups = [rows for _, rows in grouped(given[0], self.at).values()]
        return [row for rows in groups or [[]] for row in self._computed(rows)]


@dataclass(frozen=True, eq=False)
class Newest(Operator):
    """A table of versions by k: its input is a source of versions, whose changes have a third part, whether it is gone."""

    number: int
    is_ordered: bool

    def shape(self) -> Shape:
        kind = key_type((0,))
        process = Versions(parse_schema(f"{KEY} {kind}"), parse_schema(ROW), 2 if self.is_ordered else None)
        return Shape(process, kind, f"{ROW}, deleted boolean", ROW)

    def read(self, output: Rows) -> list[Change]:
        return [(row[:-1], row[-1]) for row in output]

    def feed(self, changes: Sequence[Sequence[Change]], rng: random.Random) -> Rows:
        # A change of versions is a row, and 1 if it deletes.
        return [(key_of(row, (0,)), *row, bool(gone)) for row, gone in changes[0]]

    def of_versions(self, epochs: Iterable[Sequence[Change]]) -> Rows:
        """Return the rows of the table, after the versions of some epochs."""
        newest: dict[Any, Change] = {}
        for changes in epochs:
            for row, gone in changes:
                before = newest[row[0]][0][2] if self.is_ordered and row[0] in newest else None
                # A deletion without a value to order by is newer than all before it.
                if before is None or (gone if row[2] is None else row[2] >= before):
                    newest[row[0]] = row, gone
        return [row for row, gone in newest.values() if not gone]


def random_row(rng: random.Random) -> Row:
    return tuple(map(rng.choice, VALUES))


@dataclass
class Maker:
    """Makes expressions by chance."""

    rng: random.Random
    sources: list[Node] = field(default_factory=list)
    made: list[Node] = field(default_factory=list)

    def source(self) -> Node:
        if len(self.sources) < 3 and (not self.sources or self.rng.random() < 0.5):
            number = len(self.sources)
            kind = self.rng.choice(["appends", "changes", "newest"])
            self.sources.append(
                Newest((), number, self.rng.random() < 0.5)
                if kind == "newest"
                else Source((), number, kind == "appends")
            )
        return self.rng.choice(self.sources)

    def node(self, depth: int) -> Node:
        """Return an expression; parts of it may be used several times."""
        rng = self.rng
        if depth <= 0:
            return self.source()
        if self.made and rng.random() < 0.15:
            return rng.choice(self.made)
        kind = rng.choice(
            ["join", "join", "totals", "distinct", "first", "first", "groups", "groups", "linear", "union"]
        )
        inputs = [self.node(depth - 1)]
        if kind in ("join", "union"):
            inputs.append(inputs[0] if rng.random() < 0.1 else self.node(rng.randrange(depth)))
        self.made.append(self._of(kind, tuple(inputs)))
        return self.made[-1]

    def _of(self, kind: str, inputs: tuple[Node, ...]) -> Node:
        rng, at = self.rng, self.rng.choice(KEYS)
        match kind:
            case "join":
                other = {(0,): rng.choice([(0,), (2,)])}.get(at, at)
                return Joined(inputs, rng.choice(HOWS), at, other, tuple(rng.random() < 0.5 for _ in range(4)))
            case "totals":
                return Totalled(inputs, at)
            case "distinct":
                return Distinct(inputs)
            case "first":
                numbering = rng.choice(["row_number", "rank", "dense_rank"])
                by = rng.sample(range(4), 4 if numbering == "row_number" else rng.randint(0, 2))
                orders = tuple(Order(i, rng.random() < 0.5, rng.random() < 0.5) for i in by)
                return First(inputs, at, orders, rng.choice([None, 1, 2, 3]), numbering, rng.choice([0, 2]))
            case "groups":
                return Groups((Collected(inputs, at),), rng.choice(sorted(Groups.FUNCTIONS)))
            case "linear":
                return Linear(inputs, rng.choice(sorted(Linear.FUNCTIONS)))
        return United(inputs)
