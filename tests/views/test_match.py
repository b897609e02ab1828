"""MATCH_RECOGNIZE against plain Python, which goes back where Strandline follows all ways at once."""

from __future__ import annotations

from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from strandline.core.errors import ConfigurationError, UserCodeError
from strandline.core.times import END_US, LAST_US
from strandline.runtime.operators.patterns.conditions import Call, Column, Condition, Held, Literal, evaluator
from strandline.runtime.operators.patterns.memory import Slot
from strandline.runtime.operators.patterns.pattern import (
    Chain,
    Choice,
    Pattern,
    Repeat,
    Row,
    can_be_empty,
    steps_of,
    variables_of,
)
from strandline.runtime.operators.patterns.search import Match, Matching, Search, Skip
from strandline.runtime.operators.views.match import MatchRecognizing
from strandline.runtime.operators.views.top import Order
from strandline.types.datatypes import BooleanType, DecimalType, DoubleType, IntegerType, LongType, parse_schema
from tests.soak import examples
from tests.views.operators import KEY_TYPES, Life, cut, exact
from tests.views.watched import KINDS, Watched, watched

COLUMNS = "x bigint, id bigint, one bigint"
RESULT = (
    "first bigint, last bigint, n bigint, s bigint, second bigint, xs bigint, a bigint, b bigint, c bigint, d bigint"
)
BOOLEAN = BooleanType()
LAG_US = 3
PREVIOUS = 3
"""The column of x one row before, behind those of the row."""
SLOTS = (
    Slot("first", 1), Slot("last", 1), Slot("sum", 2, frozenset({0}), empty=0), Slot("sum", 0),
    Slot("last", 1, frozenset({0, 1}), skip=1), Slot("max", 0, frozenset({1})),
    *(Slot("last", 0, frozenset({variable}), skip=1) for variable in range(3)),
    Slot("first", 0, frozenset({0})),
)  # fmt: skip
"""The first six are the result; conditions read the others, too."""
Taken = tuple[tuple[int, int], ...]
"""Variables, and the row of each."""


@dataclass(frozen=True)
class Rule:
    """A condition, and the same in Python: of x of all rows of the key, the rows taken, and the one that is taken."""

    condition: Callable[[int], Condition] | None
    holds: Callable[[Sequence[Any], Taken, int], bool]


def _compare(function: str, one: Condition, other: Condition) -> Call:
    return Call(function, (one, other), BOOLEAN)


def _rows(taken: Taken, *variables: int) -> list[int]:
    return [row for variable, row in taken if variable in variables]


def _is_less(one: Any, other: Any) -> bool:
    return one is not None and other is not None and one < other


def _grows(variable: int) -> Condition:
    last = Held(6 + variable)
    return Call("Or", (_compare("GreaterThan", Column(0), last), Call("IsNull", (last,), BOOLEAN)), BOOLEAN)


def _grown(xs: Sequence[Any], taken: Taken, row: int) -> bool:
    rows = _rows(taken, taken[-1][0])
    return len(rows) < 2 or xs[rows[-2]] is None or _is_less(xs[rows[-2]], xs[row])


RULES = [
    Rule(None, lambda xs, taken, row: True),
    Rule(lambda v: _compare("EqualTo", Column(0), Literal(1)), lambda xs, taken, row: xs[row] == 1),
    Rule(lambda v: Call("Not", (_compare("EqualTo", Column(0), Literal(1)),), BOOLEAN), lambda xs, taken, row: xs[row] not in (None, 1)),
    Rule(_grows, _grown),
    Rule(
        lambda v: _compare("LessThan", Held(3), Literal(5)),
        lambda xs, taken, row: _is_less(_total(xs[each] for _, each in taken), 5),
    ),
    Rule(
        lambda v: _compare("GreaterThan", Column(0), Column(PREVIOUS)),
        lambda xs, taken, row: row > 0 and _is_less(xs[row - 1], xs[row]),
    ),
    Rule(
        lambda v: _compare("GreaterThanOrEqual", Column(0), Held(9)),
        lambda xs, taken, row: bool(_rows(taken, 0)) and not _is_less(xs[row], xs[_rows(taken, 0)[0]])
        and xs[row] is not None and xs[_rows(taken, 0)[0]] is not None,
    ),
]  # fmt: skip


def _total(values: Any) -> int | None:
    known = [each for each in values if each is not None]
    return sum(known) if known else None


# -- the same in Python

PARTIAL = "partial"
Take = Callable[[Taken, int], Any]
"""Whether a row is taken, the last one of those taken; PARTIAL if it may come."""


def ways(pattern: Pattern, row: int, taken: Taken, take: Take) -> Iterator[Any]:
    """Yield how a pattern may go on from a row, the preferred way first; PARTIAL where it takes a row that may come."""
    match pattern:
        case Row(variable):
            found = take((*taken, (variable, row)), row)
            if found is PARTIAL:
                yield PARTIAL
            elif found:
                yield row + 1, (*taken, (variable, row))
        case Chain(()):
            yield row, taken
        case Chain((first, *rest)):
            for each in ways(first, row, taken, take):
                yield from [each] if each is PARTIAL else ways(Chain(tuple(rest)), each[0], each[1], take)
        case Choice(parts):
            for part in parts:
                yield from ways(part, row, taken, take)
        case Repeat(part, least, most, is_greedy):
            yield from _repeated(part, least, most, is_greedy, row, taken, take)


def _repeated(
    part: Pattern, least: int, most: int | None, is_greedy: bool, row: int, taken: Taken, take: Take
) -> Iterator[Any]:
    if not is_greedy and least <= 0:
        yield row, taken
    if most is None or most > 0:
        for each in ways(part, row, taken, take):
            if each is PARTIAL:
                yield PARTIAL
            elif each[0] > row or least > 0:
                yield from _repeated(
                    part, least - 1, None if most is None else most - 1, is_greedy, each[0], each[1], take
                )
    if is_greedy and least <= 0:
        yield row, taken


@dataclass
class Reference:
    """What MATCH_RECOGNIZE answers over the rows of one key, in their order, if no other row comes before a time."""

    matching: Matching
    rules: Sequence[Rule]
    rows: Sequence[tuple[int, Any, int]]
    """Times, x, ids."""
    reached_us: int

    def matches(self) -> Iterator[tuple[Any, ...]]:
        start = 0
        while start < len(self.rows):
            event: Any = next(ways(self.matching.pattern, start, (), partial(self._take, start)), None)
            next_ = start + 1
            if event is PARTIAL:
                if self.matching.skip != "to next row":
                    return
            elif event is not None:
                last, taken = event
                if self.matching.skip == "past last row":
                    next_ = last
                elif self.matching.skip == "to row":
                    wanted = _rows(taken, 0, 1)
                    next_ = max(start + 1, wanted[-2] if len(wanted) > 1 else 0)
                yield self._result(taken)
            start = next_

    def _take(self, start: int, taken: Taken, row: int) -> Any:
        within_us, first_us = self.matching.within_us, self.rows[start][0]
        if row == len(self.rows):
            ends = self.reached_us == END_US or (within_us is not None and self.reached_us >= first_us + within_us)
            return False if ends else PARTIAL
        if within_us is not None and self.rows[row][0] >= first_us + within_us:
            return False
        return self.rules[taken[-1][0]].holds([x for _, x, _ in self.rows], taken, row)

    def _result(self, taken: Taken) -> tuple[Any, ...]:
        ids, xs = [each[2] for each in self.rows], [each[1] for each in self.rows]
        second = _rows(taken, 0, 1)
        known = [xs[row] for row in _rows(taken, 1) if xs[row] is not None]
        return (
            ids[taken[0][1]], ids[taken[-1][1]], len(_rows(taken, 0)), _total(xs[row] for _, row in taken),
            ids[second[-2]] if len(second) > 1 else None, max(known, default=None),
        )  # fmt: skip


# -- by chance

PATTERNS = st.recursive(
    st.builds(Row, st.integers(0, 2)),
    lambda part: st.one_of(
        st.lists(part, min_size=1, max_size=3).map(lambda parts: Chain(tuple(parts))),
        st.lists(part, min_size=2, max_size=2).map(lambda parts: Choice(tuple(parts))),
        st.builds(
            lambda part, least, more, greedy: Repeat(part, least, None if more is None else least + more, greedy),
            part, st.integers(0, 2), st.sampled_from([None, 0, 1, 2]), st.booleans(),
        ),
    ),
    max_leaves=5,
).filter(lambda pattern: not can_be_empty(pattern))  # fmt: skip


@st.composite
def matchings(draw: st.DrawFn) -> tuple[Matching, list[Rule]]:
    rules = [draw(st.sampled_from(RULES)) for _ in range(3)]
    conditions = {at: rule.condition(at) for at, rule in enumerate(rules) if rule.condition is not None}
    pattern = draw(PATTERNS)
    skip: Skip = draw(st.sampled_from(["past last row", "to next row", "to row"]))
    within_us = draw(st.sampled_from([None, 1, 4, 9]))
    return Matching(pattern, conditions, SLOTS, within_us, skip, 4 if skip == "to row" else None), rules


def operator(matching: Matching, key_type: str, kind: str, root: Path, *, is_phased: bool = False) -> Any:
    key, columns = parse_schema(f"k {key_type}"), parse_schema(COLUMNS)
    order = [Order(1, is_descending=True, nulls_last=False)]
    process = MatchRecognizing(key, columns, parse_schema(RESULT), matching, order, [(0, 1)], LAG_US)
    return watched(kind, root, process, key_type, f"{COLUMNS}, at bigint", RESULT, is_phased=is_phased)


@pytest.mark.parametrize("kind", KINDS)
@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_matches(tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject) -> None:
    """After each epoch, what came is the answer over the rows that the watermark has passed, however they are cut."""
    key_type, keys = KEY_TYPES[data.draw(st.sampled_from(sorted(KEY_TYPES)))]
    matching, rules = data.draw(matchings())
    is_phased = data.draw(st.booleans(), label="is_phased")
    bench = operator(matching, key_type, kind, tmp_path_factory.mktemp("match"), is_phased=is_phased)
    life = Life(data, bench)
    rows: dict[Any, list[tuple[int, Any, int]]] = {}
    watermark: int | None = None
    number = late = 0

    def arrive() -> list[Any]:
        """Return the input of some rows, of which those count that are not late."""
        nonlocal number, late
        some = []
        for key, x, at in data.draw(st.lists(arrivals(keys, watermark or 0), max_size=7)):
            number += 1
            some.append((key, x, number, 1, at))
            if at is None:
                continue
            if watermark is not None and at < watermark - LAG_US:
                late += 1
            else:
                rows.setdefault(exact(key), []).append((at, x, number))
        return some

    for last in [*[False] * data.draw(st.integers(1, 5)), True]:
        bench.fired_us, late = watermark, 0
        # What timers of an operator before give comes before the watermark moves.
        bench.fired = arrive() if is_phased else ()
        if data.draw(st.integers(0, 3)):
            watermark = (-5 if watermark is None else watermark) + data.draw(st.integers(0, 6))
        bench.watermark_us = watermark = END_US if last else watermark
        life.epoch(cut(data.draw, data.draw(st.permutations([] if last else arrive()))))
        next_us = bench.next_us
        # A timer that is due already would have the driver run epochs for ever.
        assert next_us is None or watermark is None or next_us >= watermark
        assert bench.late_rows == late
        # Rows of the epoch are behind no watermark yet.
        expected: Counter[str] = Counter()
        for of_key in rows.values():
            reached = watermark if watermark == END_US else (-END_US if watermark is None else watermark) - LAG_US
            known = sorted((row for row in of_key if row[0] < reached), key=lambda row: (row[0], -row[2]))
            expected.update(exact(each) for each in Reference(matching, rules, known, reached).matches())
        found: Counter[str] = Counter()
        for row, count in life.given.items():
            found[exact(literal_eval(row)[:6])] += count
        assert found == expected
    bench.close()


def arrivals(keys: Sequence[Any], around: int) -> st.SearchStrategy[Any]:
    """Return a key, x, and a time near the watermark, or none."""
    times = st.one_of(st.none(), *[st.integers(around - 5, around + 8)] * 8)
    return st.tuples(st.sampled_from(keys[:2]), st.sampled_from([None, 0, 1, 2, 3]), times)


@examples(400, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_search_of_one_key(data: st.DataObject) -> None:
    """The search without an operator around it: more rows, more often, up to any time."""
    matching, rules = data.draw(matchings())
    steps = data.draw(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, 0, 1, 2, 3])), max_size=10))
    times = [sum(step for step, _ in steps[: at + 1]) for at in range(len(steps))]
    xs, ids = [x for _, x in steps], [*range(len(steps))]
    reached = data.draw(st.one_of(st.just(END_US), st.integers(max(times, default=0) + 1, 60)))
    columns = [xs, ids, [1] * len(ids), [None, *xs[:-1]]]
    outcome = Search(matching).find(columns, times, ids, len(ids), None if reached == END_US else reached)

    def value(match: Match, at: int) -> Any:
        slot, held = SLOTS[at], match.memory[at]
        if not slot.is_row:
            return held
        return None if (row := slot.row_of(held)) is None else columns[slot.column][row]

    matches = [tuple(value(match, at) for at in range(6)) for match in outcome.matches]
    rows = [*zip(times, xs, ids, strict=True)]
    assert matches == [*Reference(matching, rules, rows, reached).matches()]


def test_a_pattern_is_followed_in_the_order_of_preference() -> None:
    """Ways that no condition tells apart are one: time is linear where going back would take 2 ** 40 tries."""
    both = Repeat(Choice((Row(0), Row(1))), 0, None)
    matching = Matching(Chain((both, Row(2))), {2: Literal(False)}, (Slot("last", 0, frozenset({0})),))
    found = Search(matching).find([[*range(40)]], [*range(40)], [0], 40, None)
    assert (found.matches, found.open) == ([], [])


def test_what_uids_are_made_of_stays() -> None:
    """The text of a matching is a part of its operator's uid: another one would be another operator."""
    pattern = Chain((Row(0), Choice((Repeat(Row(1), 1, None, False), Row(2)))))
    condition = Call("GreaterThan", (Column(0), Held(0)), BOOLEAN)
    assert repr(Matching(pattern, {1: condition}, (Slot("last", 0, frozenset({0, 1}), 1),), 5)) == (
        "Matching(pattern=Chain(parts=(Row(variable=0), Choice(parts=(Repeat(part=Row(variable=1), least=1, most=None, "
        "is_greedy=False), Row(variable=2))))), conditions={1: Call(function='GreaterThan', arguments=(Column(index=0), "
        "Held(slot=0)), type=BooleanType(), zone='')}, slots=(Slot(how='last', column=0, variables=frozenset({0, 1}), skip=1, "
        "empty=None),), within_us=5, skip='past last row', skip_slot=None)"
    )


def test_too_many_steps_are_refused() -> None:
    pattern = Repeat(Repeat(Row(0), 1, 100), 1, 100)
    with pytest.raises(ConfigurationError, match="more than 5000 steps"):
        steps_of(pattern)
    assert variables_of(pattern) == [0]


_LONG, _NEGATIVE = Decimal("12345678901234567890123456789012345.67"), Decimal("-12345678901234567890123456789012345.67")


@pytest.mark.parametrize(
    ("function", "values", "kind", "expected"),
    [
        ("Add", (2, 3), IntegerType(), 5),
        ("Add", (None, 3), IntegerType(), None),
        ("Add", (Decimal("1.05"), Decimal("0.10")), DecimalType(3, 1), Decimal("1.2")),
        ("Subtract", (2, 3), LongType(), -1),
        ("Multiply", (Decimal("1.5"), Decimal("1.5")), DecimalType(4, 1), Decimal("2.3")),
        ("Divide", (1.0, 4.0), DoubleType(), 0.25),
        ("Divide", (None, 0.0), DoubleType(), None),
        ("Cast", (3,), DecimalType(3, 1), Decimal("3.0")),
        ("Subtract", (Decimal(0), _LONG), DecimalType(38, 2), _NEGATIVE),
        ("UnaryMinus", (_LONG,), DecimalType(38, 2), _NEGATIVE),
        ("Abs", (_NEGATIVE,), DecimalType(38, 2), _LONG),
        ("Abs", (Decimal("9" * 38),), DecimalType(38, 0), Decimal("9" * 38)),
        ("And", (False, None), BOOLEAN, False),
        ("And", (None, True), BOOLEAN, None),
        ("And", (None, False), BOOLEAN, False),
        ("Or", (None, True), BOOLEAN, True),
        ("Or", (False, None), BOOLEAN, None),
        ("Not", (None,), BOOLEAN, None),
        ("EqualTo", (float("nan"), float("nan")), BOOLEAN, True),
        ("LessThan", (1e308, float("nan")), BOOLEAN, True),
        ("EqualNullSafe", (None, None), BOOLEAN, True),
        ("EqualNullSafe", (None, 1), BOOLEAN, False),
        ("In", (1, None, 2), BOOLEAN, None),
        ("In", (1, None, 1), BOOLEAN, True),
        ("CaseWhen", (None, 1, True, 2), LongType(), 2),
        ("If", (False, 1, 2), LongType(), 2),
        ("Coalesce", (None, 3), LongType(), 3),
        ("IsNaN", (None,), BOOLEAN, False),
    ],
)
def test_conditions_are_evaluated_as_spark_does(function: str, values: Any, kind: Any, expected: Any) -> None:
    call = Call(function, tuple(map(Literal, values)), kind)
    assert evaluator(call, ())((), 0, ()) == expected


@pytest.mark.parametrize(
    ("function", "values", "kind"),
    [
        ("Add", (1 << 31, 0), IntegerType()),
        ("Divide", (1.0, 0.0), DoubleType()),
        ("Add", (Decimal("99.5"), Decimal("0.5")), DecimalType(3, 1)),
    ],
)
def test_what_does_not_fit_is_an_error(function: str, values: Any, kind: Any) -> None:
    with pytest.raises(UserCodeError, match="MATCH_RECOGNIZE"):
        evaluator(Call(function, tuple(map(Literal, values)), kind), ())((), 0, ())


def test_sums_of_long_decimals_are_exact() -> None:
    """Python's own sum rounds to 28 digits."""
    values = [Decimal("12345678901234567890123456789012345.67"), Decimal("0.01")]
    matching = Matching(Chain((Row(0), Row(0))), {}, (Slot("sum", 0),))
    (match,) = Search(matching).find([values], [0, 1], [0], 2, None).matches
    assert str(match.memory[0]) == "12345678901234567890123456789012345.68"


def test_rows_of_the_last_time_are_matched_at_the_end(tmp_path: Path) -> None:
    """Also if the match that was open when they came has ended before."""
    is_one = RULES[1].condition
    assert is_one is not None
    matching = Matching(Chain((Row(0), Row(1))), {0: is_one(0)}, SLOTS)
    key, columns = parse_schema("k struct<k0: bigint>"), parse_schema(COLUMNS)
    process = MatchRecognizing(key, columns, parse_schema(RESULT), matching, [], [], 0)
    bench = Watched("rocksdb", tmp_path, process, "struct<k0: bigint>", f"{COLUMNS}, at bigint", RESULT)
    given = []
    last_us = [LAST_US, LAST_US, (1 << 63) - 1, (1 << 63) - 1]
    for bench.watermark_us, rows in (
        (0, [(1, 1, 5)]),
        (10, [(1, number, at) for number, at in enumerate(last_us, 3)]),
        (20, [(2, 2, 30)]),
        (40, []),
        (END_US, []),
    ):
        given += bench.epoch_of([[((7,), x, number, 1, at) for x, number, at in rows]] * bool(rows))
    assert [row[:2] for row in given] == [(1, 2), (3, 4), (5, 6)]
    assert not bench.left()
    bench.close()


@pytest.mark.parametrize("within_us", [None, 10])
def test_rows_are_in_state_for_as_long_as_a_match_may_have_them(tmp_path: Path, within_us: int | None) -> None:
    """An open match keeps its rows until WITHIN has passed, to the microsecond, or for ever; all others are dropped."""
    is_one = RULES[1].condition
    assert is_one is not None
    matching = Matching(
        Chain((Row(0), Repeat(Row(1), 1, None), Row(2))), {0: is_one(0), 2: Literal(False)}, SLOTS, within_us
    )
    key, columns = parse_schema("k struct<k0: bigint>"), parse_schema(COLUMNS)
    process = MatchRecognizing(key, columns, parse_schema(RESULT), matching, [], [], 0)
    bench = Watched("rocksdb", tmp_path, process, "struct<k0: bigint>", f"{COLUMNS}, at bigint", RESULT)
    for number, x in ((0, 2), (1000, 1)):
        bench.watermark_us = number
        bench.epoch_of([[((7,), x, 1, 1, number), ((7,), x, 2, 1, number + 2)]])
        bench.watermark_us = number + 3
        bench.epoch_of([])
        # No match begins with 2.
        assert bool(bench.left()) is (x == 1)
    for bench.watermark_us, is_there in ((1009, True), (1012, within_us is None), (END_US, False)):
        bench.epoch_of([])
        assert bool(bench.left()) is is_there
    bench.close()


def test_rows_of_equal_times_are_in_an_order_of_their_values(tmp_path: Path) -> None:
    """In whatever order they come; also of columns that have no order, and of what Spark takes for equal."""
    columns = "x double, l array<bigint>, m map<string, bigint>"
    rows: list[Any] = [
        (0.0, [1], {"a": 1}),
        (-0.0, [1], {"a": 1}),
        (float("nan"), None, None),
        (0.0, [2], {"a": 1}),
        (0.0, [1], {"b": 1}),
    ]
    slots = tuple(Slot("first", at, frozenset({variable})) for variable in range(5) for at in range(3))
    matching = Matching(Chain(tuple(map(Row, range(5)))), {}, slots)
    names = [
        f"{name}{number} {kind}"
        for number in range(5)
        for name, _, kind in (part.partition(" ") for part in columns.split(", ", 2))
    ]
    results = set()
    for number, batch in enumerate((rows, rows[::-1], [*rows[2:], *rows[:2]])):
        process = MatchRecognizing(
            parse_schema("k struct<k0: bigint>"),
            parse_schema(columns),
            parse_schema(", ".join(names)),
            matching,
            [],
            [],
            0,
        )
        bench = Watched(
            "filesystem",
            tmp_path / str(number),
            process,
            "struct<k0: bigint>",
            f"{columns}, at bigint",
            ", ".join(names),
        )
        bench.watermark_us = 0
        bench.epoch_of([[((7,), *row, 5) for row in batch]])
        bench.watermark_us = 6
        results.add(exact(bench.epoch_of([])))
        bench.close()
    assert len(results) == 1
    assert results != {"[]"}
