"""What a program may change about expiry and still go on from its checkpoint. Needs no Spark session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import strandline as sl
from strandline.core.errors import IncompatibleStateError
from strandline.format.manifest import Manifest, OperatorInfo, StateInfo
from strandline.runtime.program import state_infos
from strandline.spark.compat import check_compatible


def declared(ttl: sl.TTL | None) -> list[StateInfo]:
    class Function(sl.KeyedProcess):
        seen = sl.Value("bigint", ttl=ttl)

    return state_infos(Function())


def go_on(before: list[StateInfo], now: list[StateInfo]) -> None:
    operator: dict[str, Any] = {"uid": "op", "key_schema": "k int", "max_parallelism": 128, "parallelism": 1}
    stored = OperatorInfo(**operator, backend="rocksdb", states=before, partitions=[])
    manifest = Manifest(
        job="job",
        generation=1,
        checkpoint=1,
        epoch=1,
        mode="full",
        created_ms=0,
        engine_version="0",
        operators=[stored],
    )
    check_compatible(manifest, [SimpleNamespace(**operator, states=now)], "rocksdb", [])  # type: ignore[list-item]


TTLS = [None, sl.TTL("1h"), sl.TTL("2h", refresh="read"), sl.TTL("1h", time="event")]


@pytest.mark.parametrize("before", TTLS, ids=str)
@pytest.mark.parametrize("now", TTLS, ids=str)
def test_a_ttl_may_change(before: sl.TTL | None, now: sl.TTL | None) -> None:
    go_on(declared(before), declared(now))


def test_a_state_with_a_ttl_may_not_vanish() -> None:
    with pytest.raises(IncompatibleStateError, match="the state 'seen' is not declared any more"):
        go_on(declared(sl.TTL("1h")), [])
