"""State of windowed aggregates: accumulators of many keys as Arrow columns, by the pane of time that they belong to.

A window is made of panes: one if it tumbles, several shared ones if it slides. An epoch's accumulators are appended to
their panes without a read or a sort; equal keys are merged when a pane is read, and now and then to save memory. So
adding is cheap whatever the state's size, and a pane that is dropped before any snapshot costs no disk.

The backend has one entry for each key group, pane and snapshot: `key group ‖ pane end ‖ epoch` → Arrow columns of all
keys. A pane is all of its entries, merged in the order of their epochs. A key group is one range of keys, and so is a
pane within it. See docs/format.md.

A pane is `whole` when memory holds all that the backend has of it; an evicted pane is not. See table.py for the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.backends.base import Backend, Entry
from strandline.core.keygroups import group_of
from strandline.core.times import END_US
from strandline.format.keys import KeyCodec
from strandline.runtime.state.panebytes import (
    MARK_END,
    PaneCodec,
    key_of,
    pack_mark,
    parts_of,
    prefix_of,
    read_mark,
)
from strandline.runtime.state.table import KeyEntries, KeysToRead, StateTable

Merge = Callable[[list[pa.RecordBatch]], pa.RecordBatch]
"""Merges batches, older ones first, into one in which each key is once."""

GROUP = "key_group"
_SLACK_ROWS = 200_000
_READ_ROWS = 200_000
_REWRITE_FACTOR = 4


class Pane:
    """The accumulators of one pane that are in memory."""

    __slots__ = ("clean", "dirty", "entries", "merged_rows", "now", "stored_rows", "whole")

    def __init__(self, *, whole: bool) -> None:
        self.now: list[pa.RecordBatch] = []
        self.dirty: list[pa.RecordBatch] = []
        self.clean: list[pa.RecordBatch] = []
        self.whole = whole
        self.entries: list[bytes] | None = [] if whole else None
        """Keys of the pane's entries in the backend, known once they are written; None: they must be scanned for."""
        self.stored_rows = self.merged_rows = 0
        """Rows written since the pane was last rewritten in full; and its number of keys at the last merge."""

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The batches in memory, older first."""
        return [*self.clean, *self.dirty, *self.now]


class PaneChanges:
    """Changes on their way to the backend."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.added: dict[int, tuple[Pane, list[pa.RecordBatch]]] = {}
        self.replaced: set[int] = set()
        """Panes whose `added` is complete: their older entries are deleted."""
        self.dropped: dict[int, Pane] = {}
        self.mark_us: int | None = None


class PaneTable(StateTable[PaneChanges]):
    """Panes of one operator partition."""

    def __init__(
        self, name: str, backend: Backend, groups: range, codec: PaneCodec, merge: Merge, cache_bytes: int
    ) -> None:
        super().__init__(name, backend)
        self.epoch = self.next_epoch = 0
        """The last committed epoch, which names frozen entries; and the present one, which the operator sets early."""
        self.panes: dict[int, Pane] = {}
        self.mark_us: int | None = None
        """A time that the operator reads again after a restore."""
        self.marked = False
        """Whether the mark is always stored; otherwise it is while there are panes that end by then."""
        self.schema = pa.schema([pa.field(GROUP, pa.int32()), *codec.schema])
        """The schema of batches in memory: the key group, then the stored columns."""
        self._groups = groups
        self._codec = codec
        self._merge = merge
        self._cache_bytes = cache_bytes
        self._mark_before: int | None = None
        self._mark_stored: int | None = None
        self._touched: set[int] = set()
        self._new: set[int] = set()
        self._gone: dict[int, Pane] = {}
        self._dropped: dict[int, Pane] = {}
        if not self._holds_all:
            self._find_panes()

    def add(self, end_us: int, batch: pa.RecordBatch) -> None:
        """Add accumulators to a pane."""
        pane = self.panes.get(end_us)
        if pane is None:
            pane = self.panes[end_us] = Pane(whole=True)
            self._new.add(end_us)
        pane.now.append(batch)
        self._touched.add(end_us)
        settle(pane.now, self._merge)

    def drop(self, end_us: int) -> None:
        """Delete a pane."""
        # In this order: a lookup in another thread finds the pane in one of the two.
        self._gone[end_us] = self.panes[end_us]
        del self.panes[end_us]

    def read(self, ends: Sequence[int], keys_of: pa.RecordBatch | None = None) -> Iterator[pa.RecordBatch]:
        """Merge panes into batches in which each key is once. With `keys_of`, only its key groups are read."""
        panes = [(end, self.panes[end]) for end in sorted(ends)]
        if all(pane.whole for _, pane in panes):
            batches = [batch for _, pane in panes for batch in pane.batches]
            if batches:
                yield self._merge(batches)
            return
        # The panes may not fit into memory: read a few key groups at a time.
        wanted = None if keys_of is None else set(np.unique(keys_of.column(0).to_numpy()).tolist())
        held = [(end, pane, _by_group(self._held(end, pane))) for end, pane in panes]
        some: list[pa.RecordBatch] = []
        rows = 0
        for group in self._groups:
            if wanted is not None and group not in wanted:
                continue
            for end, pane, parts in held:
                stored = [] if pane.whole else self._stored(group, end, self._inflight)
                some += [*stored, *parts.get(group, ())]
            rows = sum(batch.num_rows for batch in some)
            if rows >= _READ_ROWS:
                yield self._merge(some)
                some = []
        if some:
            yield self._merge(some)

    # -- methods of every table

    def commit(self) -> None:
        self.epoch = self.next_epoch
        for end in self._touched:
            pane = self.panes.get(end)
            if pane is not None:
                pane.dirty += pane.now
                pane.now = []
                settle(pane.dirty, self._merge)
        for end, pane in self._gone.items():
            pane.now = []
            if pane.entries != [] or pane.clean or any(end in layer.added for layer in self._inflight):
                self._dropped[end] = pane
        self._touched, self._new, self._gone = set(), set(), {}
        self._mark_before = self.mark_us
        self._drop_written()

    def abort(self) -> None:
        self.panes.update(self._gone)
        for end in self._touched:
            self.panes[end].now = []
        for end in self._new:
            del self.panes[end]
        self._touched, self._new, self._gone = set(), set(), {}
        self.mark_us = self._mark_before

    def changed(self) -> Iterator[Entry]:
        # Called if the state's size is limited: encode each changed pane in full.
        for end in self._gone:
            for group in self._groups:
                yield key_of(group, end, 0), None
        for end in sorted(self._touched & self.panes.keys()):
            yield from self._encode_batches(end, 0, self.panes[end].batches)

    def adopt(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        for key, value in entries:
            group, end, _ = parts_of(key)
            if end == MARK_END:
                self._mark(read_mark(value))
                continue
            pane = self.panes.setdefault(end, Pane(whole=True))
            pane.dirty.append(self._decode(group, value))
        for pane in self.panes.values():
            pane.dirty = [self._merge(pane.dirty)]

    def evict(self) -> None:
        # If the table holds all state, no batch is clean.
        over = 0 if self._holds_all else self.cached_bytes - self._cache_bytes
        # Evict those that are due last first: they are read again when they are due.
        for end in sorted(self.panes, reverse=True) if over > 0 else ():
            pane = self.panes[end]
            over -= _bytes(pane.clean)
            if pane.clean:
                # In this order: a reader that copies `clean` and then sees the pane whole has all of it.
                pane.whole = False
                pane.clean = []
            if over <= 0:
                return

    @property
    def dirty_bytes(self) -> int:
        return sum(_bytes(pane.dirty) for pane in self.panes.values())

    @property
    def cached_bytes(self) -> int:
        return sum(_bytes(pane.clean) for pane in self.panes.values())

    # -- layers

    def kept(self, some: KeysToRead) -> list[KeyEntries]:
        """Return the accumulators of some keys by their panes' ends. Reads all rows of the keys' key groups."""
        by_key: dict[bytes, KeyEntries] = {key: [] for key in some.encoded}
        groups = sorted({group_of(key) for key in by_key})
        wanted = pa.array(groups, pa.int32())
        panes = dict(self.panes)
        # Panes that this epoch has dropped, and perhaps created again.
        panes.update(self._gone)
        # List the layers before reading the backend: a layer written meanwhile is in both.
        layers = list(self._inflight)
        for end, pane in sorted(panes.items()):
            batches = [*pane.clean, *pane.dirty]
            if not pane.whole:
                stored = [batch for group in groups for batch in self._stored(group, end, layers)]
                batches = [*stored, *_frozen_of(end, layers), *pane.dirty]
            rows = [batch.filter(pc.is_in(batch.column(0), wanted)) for batch in batches]
            if any(batch.num_rows for batch in rows):
                self._pick(by_key, end, self._merge(rows), some.codec)
        return [by_key[key] for key in some.encoded]

    def some_keys(self, codec: KeyCodec, most: int) -> list[bytes]:
        """Return the keys of the first key groups: `kept` reads all rows of the key groups of its keys."""
        panes = [*list(self.panes.values()), *list(self._gone.values())]
        held = [batch for pane in panes for batch in (*pane.clean, *pane.dirty)]
        held += [batch for layer in self._inflight for _, batches in list(layer.added.values()) for batch in batches]
        held, keys = [batch for batch in held if batch.num_rows], set[bytes]()
        if held:
            # Of a key, a batch has at most one row.
            groups = np.concatenate([batch.column(0).to_numpy() for batch in held])
            last = np.sort(groups)[: most * len(held)][-1:]
            for batch in held:
                keys.update(self._keys_of(batch.filter(pc.less_equal(batch.column(0), pa.scalar(last[0]))), codec))
        stored = iter(()) if self._holds_all else self._backend.scan(self.name)
        stored_keys: set[bytes] = set()
        for key, value in stored:
            group, end, _ = parts_of(key)
            if end != MARK_END:
                stored_keys.update(self._keys_of(self._decode(group, value), codec))
            if len(stored_keys) >= most:
                break
        return sorted(keys | stored_keys)[:most]

    def _keys_of(self, rows: pa.RecordBatch, codec: KeyCodec) -> list[bytes]:
        return codec.encode_arrow(rows.column(0), rows.columns[1 : 1 + len(codec.types)])

    def _pick(self, by_key: dict[bytes, KeyEntries], end: int, rows: pa.RecordBatch, codec: KeyCodec) -> None:
        values_at = 1 + len(codec.types)
        keys = self._keys_of(rows, codec)
        fields = list(rows.schema)[values_at:]
        for at, key in enumerate(keys):
            if key in by_key:
                columns = rows.slice(at, 1).columns[values_at:]
                by_key[key].append((end, pa.StructArray.from_arrays(columns, fields=fields)))

    def _copy(self) -> PaneChanges:
        layer = PaneChanges(0)
        layer.mark_us = self._wanted_us
        # New Pane objects record the written entries: no code reads them, and the table's panes would collect them.
        layer.added = {end: (Pane(whole=False), list(pane.dirty)) for end, pane in self.panes.items()}
        return layer

    def _take(self) -> PaneChanges:
        layer = PaneChanges(self.epoch)
        # A mark stored by an earlier run, with a lateness that is gone, must not be read after the end of time.
        wanted_us = self._wanted_us
        if wanted_us != self._mark_stored:
            layer.mark_us = END_US if wanted_us is None else wanted_us
            self._mark_stored = wanted_us
        layer.dropped, self._dropped = self._dropped, {}
        for end, pane in self.panes.items():
            if pane.dirty:
                self._freeze_pane(layer, end, pane)
        return layer

    @property
    def _wanted_us(self) -> int | None:
        """The mark to store, or None. Without it, windows that an earlier run kept for a lateness are emitted again."""
        mark_us = self.mark_us
        has_given = mark_us is not None and min(self.panes, default=END_US) <= mark_us
        return mark_us if self.marked or has_given else None

    def _freeze_pane(self, layer: PaneChanges, end: int, pane: Pane) -> None:
        added = list(pane.dirty)
        rows = sum(batch.num_rows for batch in added)
        if pane.whole:
            pane.clean += added
            settle(pane.clean, self._merge)
            # A key that changes often is stored many times: now and then, rewrite the whole pane.
            if pane.stored_rows + rows > _REWRITE_FACTOR * pane.merged_rows:
                pane.clean = [self._merge(pane.clean)]
                pane.merged_rows = pane.clean[0].num_rows
                if pane.stored_rows and pane.stored_rows + rows > 2 * pane.merged_rows:
                    added, rows = list(pane.clean), pane.merged_rows
                    layer.replaced.add(end)
                    pane.stored_rows = 0
        pane.stored_rows += rows
        pane.dirty = []
        layer.added[end] = (pane, added)

    def _held(self, end: int, pane: Pane) -> list[pa.RecordBatch]:
        """Return the batches of a pane that are in memory and not in the backend, older first; if whole, all."""
        if pane.whole:
            return pane.batches
        return _frozen_of(end, self._inflight) + pane.dirty + pane.now

    def _stored(self, group: int, end: int, layers: Sequence[PaneChanges]) -> list[pa.RecordBatch]:
        """Read one key group's part of a pane, without what frozen layers hold or replace."""
        held = {layer.epoch for layer in layers if end in layer.added}
        least = max((layer.epoch for layer in layers if end in layer.replaced), default=-1)
        batches = []
        for key, value in self._backend.scan(self.name, prefix_of(group, end)):
            epoch = parts_of(key)[2]
            if epoch not in held and epoch > least:
                batches.append(self._decode(group, value))
        return batches

    def _mark(self, mark_us: int) -> None:
        """Read a key group's mark: the least counts, or the key groups that have it would miss windows."""
        self.mark_us = self._mark_before = mark_us if self.mark_us is None else min(mark_us, self.mark_us)

    def _find_panes(self) -> None:
        """List the panes in the backend, by a read of the first entry of each in each key group."""
        for group in self._groups:
            first = key_of(group, MARK_END, 0)
            while True:
                key, value = next(self._backend.scan(self.name, first[:2], first=first), (b"", b""))
                if not key:
                    break
                end = parts_of(key)[1]
                if end == MARK_END:
                    self._mark(read_mark(value))
                    self._mark_stored = self.mark_us
                elif end not in self.panes:
                    self.panes[end] = Pane(whole=False)
                first = key_of(group, end + 1, 0)

    # -- bytes

    def _encode(self, layer: PaneChanges) -> Iterator[Entry]:
        if layer.mark_us is not None:
            # At the end of time all windows were emitted, and no pane is left. If the job continues, time begins anew.
            mark = None if layer.mark_us == END_US else pack_mark(layer.mark_us)
            for group in self._groups:
                yield key_of(group, MARK_END, 0), mark
        for end, pane in layer.dropped.items():
            yield from ((key, None) for key in self._entries_of(end, pane))
        for end, (pane, batches) in layer.added.items():
            if end in layer.replaced:
                yield from ((key, None) for key in self._entries_of(end, pane))
                pane.entries = []
            for key, value in self._encode_batches(end, layer.epoch, batches):
                if pane.entries is not None:
                    pane.entries.append(key)
                yield key, value

    def _entries_of(self, end: int, pane: Pane) -> list[bytes]:
        if pane.entries is not None:
            return pane.entries
        return [key for group in self._groups for key, _ in self._backend.scan(self.name, prefix_of(group, end))]

    def _encode_batches(self, end: int, epoch: int, batches: list[pa.RecordBatch]) -> Iterator[tuple[bytes, bytes]]:
        if not batches:
            return
        for group, parts in _by_group([self._merge(batches)]).items():
            for part in parts:
                stored = pa.RecordBatch.from_arrays(part.columns[1:], schema=self._codec.schema)
                yield key_of(group, end, epoch), self._codec.pack(stored)

    def _decode(self, group: int, value: bytes) -> pa.RecordBatch:
        stored = self._codec.read(value)
        groups = pa.array(np.full(stored.num_rows, group, np.int32))
        return pa.RecordBatch.from_arrays([groups, *stored.columns], schema=self.schema)


def _frozen_of(end: int, layers: Sequence[PaneChanges]) -> list[pa.RecordBatch]:
    """Return the batches of a pane in layers, older first."""
    batches: list[pa.RecordBatch] = []
    for layer in layers:
        if end in layer.replaced:
            batches = []
        if end in layer.added:
            batches += layer.added[end][1]
    return batches


def settle(batches: list[pa.RecordBatch], merge: Merge) -> None:
    """Merge batches in place once those after the first have grown as large as it."""
    more = sum(batch.num_rows for batch in batches[1:])
    if len(batches) > 1 and more > batches[0].num_rows + _SLACK_ROWS:
        batches[:] = [merge(batches)]


def _by_group(batches: Sequence[pa.RecordBatch]) -> dict[int, list[pa.RecordBatch]]:
    """Split batches by key group."""
    by_group: dict[int, list[pa.RecordBatch]] = {}
    for batch in batches:
        for group, part in cut(batch, batch.column(0).to_numpy()):
            by_group.setdefault(group, []).append(part)
    return by_group


def cut(batch: pa.RecordBatch, numbers: np.ndarray[Any, Any]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split a batch by a number for each row; yield each number with its rows, in order."""
    if len(numbers) and numbers.min() == numbers.max():
        yield int(numbers[0]), batch
        return
    order = np.argsort(numbers, kind="stable")
    batch, numbers = batch.take(pa.array(order)), numbers[order]
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, stop in pairwise(bounds if len(numbers) else ()):
        yield int(numbers[start]), batch.slice(start, stop - start)


def _bytes(batches: Iterable[pa.RecordBatch]) -> int:
    return sum(batch.nbytes for batch in batches)
