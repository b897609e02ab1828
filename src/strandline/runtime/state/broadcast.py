"""Broadcast rules: every partition applies them once an epoch, in the same order, to maps that are equal everywhere.

A Broadcast state is a map without a key. Each partition stores its entries under a key group that no key has. They are
the same bytes everywhere, so a partition of any range of key groups can restore any copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.api.joins import Broadcast, KeyedBroadcastProcess
from strandline.backends.base import Backend
from strandline.core.errors import OutputError, UserCodeError
from strandline.core.keygroups import BROADCAST_GROUP, first_key
from strandline.format.keys import KeyCodec
from strandline.format.values import ValueCodec
from strandline.runtime.output_rows import rows_of
from strandline.runtime.rowlayout import RowLayout
from strandline.runtime.state.handles import MapHandle
from strandline.runtime.state.journal import Journal
from strandline.runtime.state.maps import Cell, MapTable
from strandline.runtime.state.scope import NoKey, Scope
from strandline.runtime.state.table import KeyEntries, KeysToRead
from strandline.types.columns import to_python
from strandline.types.datatypes import StructType, parse_type
from strandline.types.ordering import comparable

_NO_GROUP = first_key(BROADCAST_GROUP)


class BroadcastTable(MapTable):
    """The entries of one Broadcast state, under the key None."""

    def unwritten(self) -> list[dict[Any, Cell]]:
        """Return nothing: the table's key has no key group to remember."""
        return []

    def kept(self, some: KeysToRead) -> list[KeyEntries]:
        """Return what committed epochs wrote of some keys of the map, which are encoded."""
        (entries,) = super().kept(KeysToRead([None], [_NO_GROUP], some.codec))
        by_key = {self._encode_sub(sub): value for sub, value in entries}
        return [[(None, by_key[key])] if key in by_key else [] for key in some.encoded]

    def some_keys(self, codec: KeyCodec, most: int) -> list[bytes]:
        """Return the first keys of the map, which are encoded."""
        (entries,) = super().kept(KeysToRead([None], [_NO_GROUP], codec))
        return sorted(self._encode_sub(sub) for sub, _ in entries)[:most]


class BroadcastHandle(MapHandle):
    """A map without a key, which only on_broadcast can change."""

    __slots__ = ()

    what = "Broadcast"

    def __init__(self, scope: Scope, table: MapTable, keys: KeyCodec, values: ValueCodec, name: str) -> None:
        super().__init__(_KeylessScope(scope), table, keys, values, name)  # type: ignore[arg-type]

    def __setitem__(self, sub: Any, value: Any) -> None:
        self._check()
        super().__setitem__(sub, value)

    def __delitem__(self, sub: Any) -> None:
        self._check()
        super().__delitem__(sub)

    def clear(self) -> None:
        self._check()
        super().clear()

    def _check(self) -> None:
        if not self._scope.in_broadcast:
            raise UserCodeError(
                f"operator '{self._scope.uid}', state '{self._name}': a Broadcast was changed outside of on_broadcast",
                hint="send what is to change as an event of the broadcast stream, so that every partition hears of it",
            )


class _KeylessScope:
    """A scope without a current key: the `ctx` of on_broadcast."""

    key = None

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scope, name)


class Broadcasts:
    """The broadcast rules of one partition: collects those of an epoch, and applies them when all have arrived."""

    def __init__(
        self,
        process: KeyedBroadcastProcess,
        scope: Scope,
        rule: StructType,
        order_by: Sequence[str],
        journal: Journal | None = None,
    ) -> None:
        self._process = process
        self._scope = scope
        self._rule = rule
        self._journal = journal
        self._codec = ValueCodec(rule)
        self._order = [(at, comparable(rule.fields[at].type)) for at in map(rule.names.index, order_by)]
        self._waiting: list[tuple[Any, Any, int | None]] = []

    def bind(
        self,
        name: str,
        state: Broadcast,
        values: ValueCodec,
        backend: Backend,
        cache_bytes: int,
    ) -> tuple[MapTable, MapHandle]:
        """Return the table and the handle of a state."""
        sub = KeyCodec([parse_type(state.key_type)])
        table = BroadcastTable(
            name,
            backend,
            lambda key: _NO_GROUP,
            lambda entry: (None, len(_NO_GROUP)),
            sub.encode_sub,
            sub.decode_sub,
            values,
            cache_bytes,
        )
        table.journal = self._journal
        return table, BroadcastHandle(self._scope, table, sub, values, name)

    def take(self, batch: pa.RecordBatch, layout: RowLayout) -> pa.RecordBatch:
        """Keep the rules in a batch, which are its right halves, and return the other rows."""
        at = layout.columns_at + 1
        column = batch.column(at)
        if column.null_count == len(column):
            return batch
        is_rule = column.is_valid()
        rules = batch.filter(is_rule)
        stamps = layout.times(rules)
        times: list[int | None] = [None] * rules.num_rows if stamps is None else stamps.to_pylist()
        for rule, time in zip(to_python(rules.column(at), self._rule), times, strict=True):
            plain = tuple(rule)
            order = [sortable(plain[at]) for at, sortable in self._order]
            # Last by the rule's bytes: the order of arrival differs between partitions.
            key = (order, (time is not None, time), self._codec.encode(rule))
            self._waiting.append((key, rule, time))
        return batch.filter(pc.invert(is_rule))

    def apply(self, failed: Callable[..., Exception | None]) -> None:
        """Call on_broadcast for each rule of the epoch. `failed` returns the error to raise, or counts it."""
        scope, waiting = self._scope, self._waiting
        self._waiting = []
        # The flag before a time keeps None from being compared with a number.
        waiting.sort(key=lambda each: each[0])
        hint = "use Broadcast states alone there, and the others in on_event or on_timer"
        scope.key, scope.in_broadcast = NoKey(scope.uid, "on_broadcast", hint), True
        context: Any = _KeylessScope(scope)
        try:
            for _, rule, time in waiting:
                scope.time_us = time
                if self._journal is not None:
                    self._journal.begin()
                try:
                    # A generator runs only when it is iterated.
                    output: Any = self._process.on_broadcast(rule, context)  # type: ignore[func-returns-value]
                    for row in rows_of(output):
                        raise OutputError(
                            f"on_broadcast gave the row {row!r}, and it runs in every partition",
                            hint="change Broadcast states there, and give rows in on_event or on_timer",
                        )
                except BaseException as error:
                    raised = failed(error, "on_broadcast", event=rule)
                    if raised is not None:
                        raise raised from error
        finally:
            scope.in_broadcast = False
            scope.leave_key()

    def forget(self) -> None:
        """Forget the rules of an epoch that failed."""
        self._waiting = []
