"""The newest versions of a table's rows in a partition, against plain Python: whatever comes first."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.runtime.operators.views.versions import Versions
from strandline.types.datatypes import parse_schema
from tests.soak import BACKENDS, examples
from tests.views.operators import KEY, KEY_TYPES, Life, Operator, bag, cut, exact

COLUMNS = "k bigint, at bigint, x double"
Version = tuple[int, int | None, float | None, bool]
"""The number of the key, the order, a value, and whether the row is deleted."""


def versions(kind: str, root: Path, key_type: str, order_by: int | None) -> Operator:
    process = Versions(parse_schema(f"{KEY} {key_type}"), parse_schema(COLUMNS), order_by)
    return Operator(kind, root, process, key_type, f"{COLUMNS}, deleted boolean", COLUMNS)


def is_older(one: Version, other: Version) -> bool:
    """Whether a version is older than one that came before it.

    One without an order is older than all others, but for one that deletes.
    """
    return other[1] is not None and (not one[3] if one[1] is None else one[1] < other[1])


entries = st.tuples(
    st.integers(0, 3), st.none() | st.integers(0, 4), st.sampled_from([0.0, -0.0, float("nan"), None]), st.booleans()
)


@pytest.mark.parametrize("is_ordered", [True, False], ids=["ordered", "last"])
@pytest.mark.parametrize("kind", BACKENDS)
@examples(60)
@given(data=st.data())
def test_the_newest_version_of_each_key(
    tmp_path_factory: pytest.TempPathFactory, kind: str, is_ordered: bool, data: st.DataObject
) -> None:
    key_type, keys = KEY_TYPES[data.draw(st.sampled_from(["text", "number", "double"]))]
    bench = versions(kind, tmp_path_factory.mktemp("versions"), key_type, 1 if is_ordered else None)
    life = Life(data, bench)
    newest: dict[int, Version] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        epoch: list[Version] = data.draw(st.lists(entries, max_size=8))
        for each in epoch:
            if not (is_ordered and each[0] in newest and is_older(each, newest[each[0]])):
                newest[each[0]] = each
        rows: list[Any] = [(keys[at], at, order, x, gone) for at, order, x, gone in epoch]
        found = life.epoch(cut(data.draw, rows))
        assert sum(abs(n) for n in bag(found).values()) == len(found)
        assert life.given == Counter(exact((at, order, x)) for at, order, x, gone in newest.values() if not gone)
    bench.close()
