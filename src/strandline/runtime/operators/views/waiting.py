"""Rows of keys with their times, kept until the watermark has passed them: for ASOF joins and patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.backends.base import Backend
from strandline.format.keys import KeyCodec
from strandline.format.manifest import StateInfo
from strandline.format.schemas import Schemas
from strandline.runtime.operators.views.bags import Numbers, lists_by_key
from strandline.runtime.operators.views.inputs import EpochOperator
from strandline.runtime.state.columnar import BatchKeys
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.table import StateTable
from strandline.runtime.state.timers import TimerTable, passed_us
from strandline.types.datatypes import StructType

_ENDS = "timers.ends"


@dataclass(frozen=True)
class FlaggedRows:
    """Rows of keys, each with a time and a flag."""

    of_key: Numbers
    at: Numbers
    flag: Numbers
    rows: pa.StructArray

    def __len__(self) -> int:
        return len(self.at)

    def take(self, chosen: Numbers) -> FlaggedRows:
        """Return some of the rows."""
        return FlaggedRows(self.of_key[chosen], self.at[chosen], self.flag[chosen], self.rows.take(pa.array(chosen)))

    def plus(self, other: FlaggedRows) -> FlaggedRows:
        """Return the rows of both."""
        names = ("of_key", "at", "flag")
        parts = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names}
        return FlaggedRows(rows=pa.concat_arrays([self.rows, other.rows]), **parts)


class WaitingOperator(EpochOperator):
    """An operator whose states are lists of rows with times, and which the watermark wakes, by key."""

    def __init__(self, key: StructType, flags: Mapping[str, str]) -> None:
        """`flags`: by state, what its flag is called; "" if it has none, and all are true."""
        super().__init__()
        self._key, self._flags = key, dict(flags)
        self.own_tables = [StateInfo(name=_ENDS, kind="timers", value_type="")]

    def bind(
        self, backend: Backend, groups: range, schemas: Mapping[str, Schemas], cache_bytes: int
    ) -> Sequence[StateTable[Any]]:
        self._codec = KeyCodec([field.type for field in self._key.fields])
        self._ends = TimerTable(_ENDS, backend, groups)
        return [self._ends]

    @property
    def next_due_us(self) -> int | None:
        return self._ends.next_us()

    def _due(self, scope: Scope) -> BatchKeys | None:
        """Fire the timers that the watermark has passed; return their keys."""
        encoded: list[bytes] = []
        for _ in self._ends.fire(passed_us(scope.watermark_us or 0), lambda keys: encoded.extend(keys)):
            pass
        if not encoded:
            return None
        keys = BatchKeys.decoded(list(dict.fromkeys(encoded)), self._codec)
        keys.are_distinct = True
        return keys

    def _wake(self, keys: BatchKeys, of_key: Numbers, times: Numbers) -> None:
        """Set timers of keys."""
        for key, at_us in {*zip(of_key.tolist(), times.tolist(), strict=True)}:
            self._ends.set(keys.encoded[key], at_us)

    def _stored(self, name: str, keys: BatchKeys) -> FlaggedRows:
        """Return the rows of keys in a state."""
        values = vars(self)[name].get_many(keys)
        sizes = values.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        entries = values.flatten()
        of_key, flag = np.repeat(np.arange(len(keys)), sizes), np.ones(len(entries), bool)
        if flag_name := self._flags[name]:
            flag = entries.field(flag_name).to_numpy(zero_copy_only=False).astype(bool)
        at, *_, rows = entries.flatten()
        return FlaggedRows(of_key, at.to_numpy(zero_copy_only=False), flag, rows)

    def _put(self, name: str, keys: BatchKeys, rows: FlaggedRows, changed: Numbers) -> None:
        """Store the rows of those keys that have changed."""
        parts = {"at": pa.array(rows.at), self._flags[name]: pa.array(rows.flag), "row": rows.rows}
        parts.pop("", None)
        entries = pa.StructArray.from_arrays([*parts.values()], names=[*parts])
        chosen = np.unique(changed)
        values = lists_by_key(entries, rows.of_key, len(keys))
        vars(self)[name].put_many(keys.take(chosen), values.take(pa.array(chosen)))
