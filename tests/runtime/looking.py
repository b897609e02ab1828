"""Looks keys of a partition up as a driver does, in the process of the test."""

from __future__ import annotations

from typing import Any

from strandline.core.ids import Partition
from strandline.format.manifest import OperatorInfo
from strandline.keeper.lookups import FirstKeys, LookupResult, list_first, look_up, table_of
from strandline.runtime.program import state_infos
from tests.runtime.bench import MAX_PARALLELISM, Bench


def operator_of(bench: Bench, key_schema: str = "`k` string") -> OperatorInfo:
    return OperatorInfo(
        uid="op", backend="rocksdb", parallelism=1, max_parallelism=MAX_PARALLELISM, key_schema=key_schema,
        states=state_infos(bench.process), partitions=[],
    )  # fmt: skip


def _asker(bench: Bench) -> Any:
    def ask(uid: str, asked: Any) -> Any:
        answered = bench.partition.look_up(asked[Partition(0)])
        assert answered is not None
        return {Partition(0): answered}

    return ask


def find(bench: Bench, state: str, key: Any, now_us: int = 0, key_schema: str = "`k` string") -> LookupResult:
    return look_up(table_of([operator_of(bench, key_schema)], f"op.{state}"), key, now_us, _asker(bench))


def first(bench: Bench, state: str, most: int, now_us: int = 0, key_schema: str = "`k` string") -> FirstKeys:
    return list_first(table_of([operator_of(bench, key_schema)], f"op.{state}"), most, None, now_us, _asker(bench))


def value_of(bench: Bench, state: str, key: Any, now_us: int = 0) -> Any:
    return find(bench, state, key, now_us).value
