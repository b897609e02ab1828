"""The operators of views in a partition, against plain Python: after every epoch, all that they gave adds up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from strandline.core.errors import CorruptionError
from strandline.runtime.operators.views.bags import WEIGHT
from strandline.runtime.operators.views.joins import Joining
from strandline.runtime.operators.views.recomputing import Collecting, Comparing
from strandline.types.datatypes import parse_schema
from tests.soak import BACKENDS, examples
from tests.views.operators import (
    COLUMNS,
    KEY,
    KEY_TYPES,
    ROWS,
    Change,
    Life,
    Operator,
    bag,
    changes,
    cut,
    exact,
    row_of,
)

RIGHTS = "m bigint, y double"
RIGHT_ROWS: list[tuple[Any, ...]] = [(1, 0.0), (1, -0.0), (None, None), (1, float("nan"))]
HOWS = ("inner", "left", "right", "full", "semi", "anti", "existence")
Counts = dict[tuple[int, int], int]


def times(keys: Sequence[Any], rows: Sequence[Any], counts: Counts) -> dict[str, list[tuple[Any, Any]]]:
    """Return the keys and rows that are there, by key."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    for (at_key, at_row), count in counts.items():
        found.setdefault(exact(keys[at_key]), []).extend([(keys[at_key], row_of(at_key, rows[at_row]))] * count)
    return {key: some for key, some in found.items() if some}


def joined(how: str, left: list[Any], right: list[Any]) -> list[tuple[Any, ...]]:
    """Return the rows of a join of the rows of one key."""
    none_left, none_right = (None,) * 4, (None,) * 2
    match how:
        case "semi":
            return left if right else []
        case "anti":
            return [] if right else left
        case "existence":
            return [(*row, bool(right)) for row in left]
    pairs = [(*a, *b) for a in left for b in right]
    if how in ("left", "full") and not right:
        pairs += [(*a, *none_right) for a in left]
    if how in ("right", "full") and not left:
        pairs += [(*none_left, *b) for b in right]
    return pairs


def joining(how: Any, key_type: str, kind: str, root: Path) -> Operator:
    left = f"struct<{KEY}: {key_type}, n: bigint, x: double, s: string, l: array<double>, {WEIGHT}: bigint>"
    right = f"struct<{KEY}: {key_type}, m: bigint, y: double, {WEIGHT}: bigint>"
    output = (
        COLUMNS
        if how in ("semi", "anti")
        else f"{COLUMNS}, e boolean"
        if how == "existence"
        else f"{COLUMNS}, {RIGHTS}"
    )
    process = Joining(how, parse_schema(COLUMNS), parse_schema(RIGHTS), parse_schema(output))
    return Operator(kind, root, process, key_type, f"left {left}, right {right}", output)


def halves(lefts: Sequence[Change], rights: Sequence[Change]) -> list[tuple[Any, ...]]:
    """Return changes of both sides as pairs of which one half is null, with the key last."""
    return [
        *(((key, *row, weight), None, key) for key, row, weight in lefts),
        *((None, (key, *row, weight), key) for key, row, weight in rights),
    ]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", BACKENDS)
@examples(40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_joins(tmp_path_factory: pytest.TempPathFactory, kind: str, how: str, data: st.DataObject) -> None:
    key_type, keys = KEY_TYPES[data.draw(st.sampled_from(sorted(KEY_TYPES)))]
    bench = joining(how, key_type, kind, tmp_path_factory.mktemp("join"))
    life, left, right = Life(data, bench), {}, {}
    for _ in range(data.draw(st.integers(1, 6))):
        lefts = data.draw(changes(keys, ROWS, left))
        rights = data.draw(changes(keys, RIGHT_ROWS, right))
        given = life.epoch(cut(data.draw, data.draw(st.permutations(halves(lefts, rights)))))
        assert {row[-1] for row in given} <= {1, -1}
        # A row that is added is not taken back in the same epoch.
        assert sum(abs(n) for n in bag(given).values()) == len(given)
        sides = times(keys, ROWS, left), times(keys, RIGHT_ROWS, right)
        wanted = [
            exact(row)
            for key in {*sides[0], *sides[1]}
            for row in joined(how, *([row for _, row in side.get(key, [])] for side in sides))
        ]
        assert life.given == Counter(wanted)
    bench.close()


@pytest.mark.parametrize("kind", BACKENDS)
@examples(60)
@given(data=st.data())
def test_rows_are_collected(tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject) -> None:
    """An epoch gives all rows of the keys that changed, and a row of nulls with weight 0 for those that have none."""
    key_type, keys = KEY_TYPES[data.draw(st.sampled_from(sorted(KEY_TYPES)))]
    key = f"{KEY} {key_type}"
    process = Collecting(parse_schema(key), parse_schema(COLUMNS))
    bench = Operator(
        kind, tmp_path_factory.mktemp("rows"), process, key_type, f"{COLUMNS}, {WEIGHT} bigint", f"{key}, {COLUMNS}"
    )
    life, counts = Life(data, bench), {}
    for _ in range(data.draw(st.integers(1, 6))):
        before = times(keys, ROWS, counts)
        added = data.draw(changes(keys, ROWS, counts))
        given = life.epoch(cut(data.draw, [(key, *row, weight) for key, row, weight in added]))
        after = times(keys, ROWS, counts)
        net = bag((key, row, weight) for key, row, weight in added)
        changed = {exact(key) for key, row, _ in added if exact((key, row)) in net}
        touched = {exact(key): key for key, _, _ in added}
        wanted = [exact((*each, 1)) for key in changed for each in after.get(key, [])]
        nothing = [key for key in touched if key not in after and (key in changed or key not in before)]
        wanted += [exact((touched[key], (None,) * 4, 0)) for key in nothing]
        assert Counter(exact((key, tuple(row), weight)) for key, *row, weight in given) == Counter(wanted)
    bench.close()


@pytest.mark.parametrize("kind", BACKENDS)
@examples(60)
@given(data=st.data())
def test_results_are_compared(tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject) -> None:
    """Each epoch has all results of some keys: those that differ from the last ones are given."""
    key_type, keys = KEY_TYPES[data.draw(st.sampled_from(sorted(KEY_TYPES)))]
    process = Comparing(parse_schema(f"{KEY} {key_type}"), parse_schema(COLUMNS))
    bench = Operator(
        kind, tmp_path_factory.mktemp("results"), process, key_type, f"{COLUMNS}, {WEIGHT} bigint", COLUMNS
    )
    life = Life(data, bench)
    last: dict[int, list[Any]] = {}
    results = st.lists(st.sampled_from(ROWS), max_size=3)
    for _ in range(data.draw(st.integers(1, 6))):
        now = data.draw(st.dictionaries(st.integers(0, len(keys) - 1), results, max_size=4))
        now = {at: [row_of(at, row) for row in some] for at, some in now.items()}
        rows = [(keys[at], *row, 1) for at, some in now.items() for row in some]
        rows += [(keys[at], *(None,) * 4, 0) for at, some in now.items() if not some]
        given = life.epoch(cut(data.draw, data.draw(st.permutations(rows))))
        assert sum(abs(n) for n in bag(given).values()) == len(given)
        last |= now
        assert life.given == Counter(exact(row) for some in last.values() for row in some)
    bench.close()


@pytest.mark.parametrize("which", ["left", "right", "rows"])
def test_a_row_is_taken_back_that_was_never_there(tmp_path: Path, which: str) -> None:
    key_type, keys = KEY_TYPES["text"]
    if which == "rows":
        process = Collecting(parse_schema(f"{KEY} {key_type}"), parse_schema(COLUMNS))
        bench = Operator(
            "rocksdb", tmp_path, process, key_type, f"{COLUMNS}, {WEIGHT} bigint", f"{KEY} {key_type}, {COLUMNS}"
        )
        given = [(keys[0], *ROWS[0], 1)], [(keys[0], *ROWS[1], -1)]
    else:
        bench = joining("inner", key_type, "rocksdb", tmp_path)
        made = [(keys[0], ROWS[0] if which == "left" else RIGHT_ROWS[0], 1)]
        gone = [(keys[0], ROWS[1] if which == "left" else RIGHT_ROWS[1], -1)]
        given = (
            (halves(made, []), halves(gone, [])) if which == "left" else (halves([], made), halves([], gone))
        )  # fmt: skip
    bench.epoch_of([given[0]])
    with pytest.raises(CorruptionError, match=r"operator 'op'.*: a row was taken back that it does not have"):
        bench.epoch_of([given[1]])
    # What failed left nothing.
    assert bench.epoch_of([]) == []
    bench.close()
