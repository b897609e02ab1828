from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import ConfigurationError
from strandline.core.ids import KeyGroup, Partition
from strandline.core.keygroups import check_parallelism, default_max_parallelism, partition_of, range_of

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "key_groups.json").read_text())


@pytest.mark.parametrize("case", VECTORS["ranges"], ids=lambda c: f"{c['max_parallelism']}/{c['parallelism']}")
def test_ranges_are_flinks(case: dict[str, Any]) -> None:
    found = [range_of(Partition(p), case["max_parallelism"], case["parallelism"]) for p in range(case["parallelism"])]
    assert [[r[0], r[-1]] for r in found] == case["ranges"]


@pytest.mark.parametrize(("parallelism", "expected"), VECTORS["default_max_parallelism"].items())
def test_default_max_parallelism_is_flinks(parallelism: str, expected: int) -> None:
    assert default_max_parallelism(int(parallelism)) == expected


@pytest.mark.parametrize("max_parallelism", [1, 7, 10, 128, 200])
def test_ranges_and_partitions_agree_for_every_parallelism(max_parallelism: int) -> None:
    for parallelism in range(1, max_parallelism + 1):
        owners = [partition_of(KeyGroup(g), max_parallelism, parallelism) for g in range(max_parallelism)]
        for p in range(parallelism):
            key_groups = range_of(Partition(p), max_parallelism, parallelism)
            assert [g for g in range(max_parallelism) if owners[g] == p] == list(key_groups)


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(0, 128), (129, 128), (1, 0), (1, 32769), (-1, 128)])
def test_parallelism_that_cannot_be_served(parallelism: int, max_parallelism: int) -> None:
    with pytest.raises(ConfigurationError, match="'detect'"):
        check_parallelism("detect", parallelism, max_parallelism)


def test_parallelism_at_the_limits() -> None:
    check_parallelism("detect", 1, 1)
    check_parallelism("detect", 32768, 32768)
