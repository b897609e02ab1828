"""The table of pending timers of one kind: unique by time and key, fired in the order of their times.

A timer in memory is `time (8 bytes) ‖ encoded key`, so that bytes sort by time; stored it is `key group ‖ time ‖ key`,
so that a key group stays one range. A layer holds changes that the backend does not have: True sets a timer, False
deletes one. Newer layers override older ones, and all of them the backend. Setting a timer reads nothing.

The backend's timers are not held in memory, however many there are: for each key group, memory has a time before which
there is none, so a watermark that passes no timer costs nothing.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from strandline.backends.base import Backend, Entry
from strandline.core.errors import UserCodeError
from strandline.core.times import as_datetime
from strandline.format.keys import KeyCodec
from strandline.runtime.state.sortedbag import SortedBag
from strandline.runtime.state.table import KeyEntries, KeysToRead, StateTable

_TIME = struct.Struct(">Q")
_BIAS = 1 << 63
_GROUP = struct.Struct(">H")
_VALUE = b"\0\0"
_CHUNK = 20_000
_TIMER_BYTES = 200
_SPARE_ENTRIES = 1000
_END = b"\xff" * 9
ENDLESS_CHAIN = 1_000_000
"""The length at which a chain of timers in one epoch, each set by the call of the one before, is checked for an end."""
_NO_CHAIN = (0, 0)
_MOST_STRETCHES = 100
"""How many more times its length a checked chain may take to its end: otherwise it is an error. A chain that catches up
with days, or years, ends."""


@dataclass(slots=True, eq=False)
class TimerChanges:
    """Changes that belong together, and the timers they set in the order of their times."""

    changes: dict[bytes, bool] = field(default_factory=dict)
    order: SortedBag = field(default_factory=SortedBag)
    fresh: set[bytes] = field(default_factory=set)
    """Set timers that neither an older layer nor the backend has: a deletion of one leaves nothing to write."""

    def pending(self, timers: list[bytes], newer: list[dict[bytes, bool]]) -> list[bytes]:
        """Return those of some timers that this layer sets and that no newer change overrides."""
        return _not_in([timer for timer in timers if self.changes.get(timer)], newer)


class TimerTable(StateTable[TimerChanges]):
    """Timers of one operator partition."""

    def __init__(self, name: str, backend: Backend, groups: range) -> None:
        super().__init__(name, backend)
        self._now: dict[bytes, bool] = {}
        self._set_now: list[bytes] = []
        """A heap of the timers that this epoch set."""
        self._dirty = TimerChanges()
        self._popped: list[tuple[TimerChanges, list[bytes]]] = []
        self._first: dict[int, bytes] = {}
        self._first_before: dict[int, bytes] | None = None
        self._due: list[bytes] | None = None
        self._limit = b""
        self._until = b""
        """The bound while timers fire: a timer that is set before it fires in the same epoch."""
        self._longest: int | None = None
        self._links: dict[bytes, tuple[int, int]] = {}
        """By timer that was set while others fire, and fires with them: the length of its chain, itself included, and
        the time when the chain began, or was checked last."""
        self._link = _NO_CHAIN
        self._left: list[bytes] = []
        """Timers that exceed the permitted length of a chain, and stay pending."""
        if not self._holds_all:
            for group in groups:
                for entry, _ in islice(backend.scan(name, _GROUP.pack(group)), 1):
                    self._first[group] = _timer(entry)

    def set(self, key: bytes, at_us: int) -> None:
        """Set the timer of a key at a time; one that is pending already stays."""
        timer = _TIME.pack(at_us + _BIAS) + key
        changes = self._now
        if changes.get(timer):
            return
        if self.journal is not None:
            self.journal.note((self._take_back, timer, changes.get(timer)))
        if timer <= self._until:
            length, began_us = self._link
            if length == self._longest:
                changes[timer] = True
                self._left.append(timer)
                return
            if length == 0:
                began_us = at_us
            elif length == ENDLESS_CHAIN:
                until_us = _TIME.unpack_from(self._until)[0] - _BIAS
                if at_us <= began_us or until_us - at_us > _MOST_STRETCHES * (at_us - began_us):
                    raise _endless(at_us, until_us)
                length, began_us = 0, at_us
            self._links[timer] = length + 1, began_us
        changes[timer] = True
        if self._due is not None and timer <= self._limit:
            heapq.heappush(self._due, timer)
        else:
            heapq.heappush(self._set_now, timer)

    def delete(self, key: bytes, at_us: int) -> None:
        """Delete the timer of a key at a time, if there is one."""
        timer = _TIME.pack(at_us + _BIAS) + key
        if self.journal is not None:
            self.journal.note((self._take_back, timer, self._now.get(timer)))
        self._now[timer] = False

    def _take_back(self, timer: bytes, before: bool | None) -> None:
        # It stays in the heaps: an entry there counts only if it is set in the changes.
        if before is None:
            self._now.pop(timer, None)
        else:
            self._now[timer] = before

    def fire(
        self,
        until_us: int,
        prepare: Callable[[list[bytes]], Sequence[Any] | None],
        most: int | None = None,
        longest: int | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Yield each timer up to a time with its key, in order, and delete it; also those set meanwhile.

        `prepare` gets the encoded keys of many timers in advance, and returns the keys to yield for them; None: the
        encoded ones. After about `most` timers, those in memory not counted, the others stay pending. So do those that
        are set meanwhile at the end of a chain of `longest`, each set by the call of the one before. Without `longest`,
        the call that sets the ENDLESS_CHAINth raises UserCodeError if the chain does not come to its end soon.
        """
        left: list[bytes] = []
        self._longest, self._link, self._links, self._left = longest, _NO_CHAIN, {}, left
        self._until = bound = _TIME.pack(until_us + _BIAS) + _END
        try:
            yield from self._fire(bound, prepare, most)
        finally:
            # If the generator is closed late, after an abort, the attributes may be those of another epoch.
            if self._left is left:
                for timer in left:
                    heapq.heappush(self._set_now, timer)
                self._longest, self._left, self._until = None, [], b""

    def _fire(
        self, bound: bytes, prepare: Callable[[list[bytes]], Sequence[Any] | None], most: int | None
    ) -> Iterator[tuple[int, Any]]:
        self._drop_written()
        # The layers are listed before the backend is read: a layer written meanwhile is in both.
        stored = self._stored_until(bound)
        fired_count = 0
        while True:
            chunk = list(islice(stored, _CHUNK))
            limit = chunk[-1] if len(chunk) == _CHUNK else bound
            due = self._take_until(limit)
            due += _not_in(chunk, [self._now, *(layer.changes for layer in self._layers())])
            due.sort()
            encoded = [timer[8:] for timer in due]
            keys = prepare(encoded) or encoded
            on_the_way: list[bytes] = []
            self._due, self._limit = on_the_way, limit
            try:
                yield from self._fire_due(due, keys, on_the_way)
            finally:
                # If the generator is closed late, after an abort, the attribute may be that of another epoch.
                if self._due is on_the_way:
                    self._due = None
            fired_count += len(chunk)
            if limit is bound:
                return
            if most is not None and fired_count >= most:
                self._first = {group: max(first, limit) for group, first in self._first.items()}
                return

    def next_us(self) -> int | None:
        """Return a time before which no timer is pending; None when there is none at all. Between epochs."""
        self._drop_written()
        earliest = list(self._first.values())
        newer: list[dict[bytes, bool]] = []
        for layer in self._layers():
            while (least := layer.order.least()) is not None and not layer.pending([least], newer):
                layer.order.drop_least()
            earliest += [] if least is None else [least]
            newer.append(layer.changes)
        return _TIME.unpack_from(min(earliest))[0] - _BIAS if earliest else None

    # -- methods of every table

    def commit(self) -> None:
        now, dirty = self._now, self._dirty
        gone = {timer for layer, popped in self._popped if layer is dirty for timer in popped}
        # A timer that is set again, epoch after epoch, is in `order` once.
        ordered = (timer for timer in self._set_now if timer in gone or not dirty.changes.get(timer))
        # A timer that was deleted again, or whose call was undone, is not pending.
        dirty.order.add(timer for timer in ordered if now.get(timer))
        if self._holds_all:
            for timer, is_set in now.items():
                if is_set:
                    dirty.changes[timer] = True
                else:
                    dirty.changes.pop(timer, None)
        else:
            self._keep(now)
        if len(dirty.order) > _SPARE_ENTRIES + 2 * len(dirty.changes):
            # Timers that are deleted, or moved often, stay in `order` until their time comes: rebuild it.
            dirty.order = SortedBag(timer for timer, is_set in dirty.changes.items() if is_set)
        self._now, self._set_now, self._popped, self._first_before = {}, [], [], None

    def _keep(self, now: dict[bytes, bool]) -> None:
        """Add this epoch's changes to those to write; a fresh timer that was deleted again leaves none."""
        changes, fresh = self._dirty.changes, self._dirty.fresh
        first, older = self._first_before or self._first, [layer.changes for layer in self._inflight]
        for timer, is_set in now.items():
            if timer in fresh:
                if not is_set:
                    fresh.discard(timer)
                    del changes[timer]
                continue
            if timer not in changes and not (older and any(timer in layer for layer in older)):
                stored = first.get(timer[8] << 8 | timer[9])
                if stored is None or timer < stored:
                    # The backend has none so early in this key group.
                    if is_set:
                        fresh.add(timer)
                        changes[timer] = True
                    continue
            changes[timer] = is_set

    def abort(self) -> None:
        for layer, popped in self._popped:
            layer.order.add(popped)
        if self._first_before is not None:
            self._first = self._first_before
        self._popped, self._first_before, self._due = [], None, None
        self._longest, self._left, self._until = None, [], b""
        self._now, self._set_now = {}, []

    def changed(self) -> Iterator[Entry]:
        return _encode(self._now)

    def adopt(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        for entry, _ in entries:
            self._dirty.changes[_timer(entry)] = True
        self._dirty.order = SortedBag(self._dirty.changes)

    def kept(self, some: KeysToRead) -> list[KeyEntries]:
        """Return the times of some keys' timers. Reads all timers in memory, and those of the keys' key groups."""
        by_key: dict[bytes, KeyEntries] = {key: [] for key in some.encoded}
        # List the layers before reading the backend: a layer written meanwhile is in both.
        layers = [layer.changes for layer in self._layers()]
        changed: set[bytes] = set()
        for changes in layers:
            for timer in [timer for timer in list(changes) if timer[8:] in by_key and timer not in changed]:
                changed.add(timer)
                if changes[timer]:
                    by_key[timer[8:]].append((_TIME.unpack_from(timer)[0] - _BIAS, None))
        for prefix in () if self._holds_all else sorted({key[:2] for key in by_key}):
            for entry, _ in self._backend.scan(self.name, prefix):
                timer = _timer(entry)
                if timer[8:] in by_key and timer not in changed:
                    by_key[timer[8:]].append((_TIME.unpack_from(timer)[0] - _BIAS, None))
        return [by_key[key] for key in some.encoded]

    def some_keys(self, codec: KeyCodec, most: int) -> list[bytes]:
        """Return the keys of the first key groups: `kept` reads all timers of the key groups of its keys."""
        keys = {timer[8:] for layer in self._layers() for timer in list(layer.changes)}
        stored_keys: set[bytes] = set()
        if not self._holds_all:
            for entry, _ in islice(self._backend.scan(self.name), 10 * _CHUNK):
                stored_keys.add(_timer(entry)[8:])
                if len(stored_keys) == most:
                    break
        return sorted(keys | stored_keys)[:most]

    @property
    def dirty_bytes(self) -> int:
        return len(self._dirty.changes) * _TIMER_BYTES

    def _copy(self) -> TimerChanges:
        return TimerChanges(dict(self._dirty.changes))

    def _take(self) -> TimerChanges:
        layer, self._dirty = self._dirty, TimerChanges()
        return layer

    def _encode(self, layer: TimerChanges) -> Iterator[Entry]:
        return _encode(layer.changes)

    def _drop_written(self) -> None:
        # An abort needs the layers.
        if not self._popped and self._first_before is None:
            super()._drop_written()

    def _let_go(self, layer: TimerChanges) -> None:
        for timer in layer.order:
            group = _GROUP.unpack_from(timer, 8)[0]
            first = self._first.get(group)
            if first is None or timer < first:
                self._first[group] = timer

    # -- firing

    def _fire_due(self, due: list[bytes], keys: Sequence[Any], on_the_way: list[bytes]) -> Iterator[tuple[int, Any]]:
        changes = self._now
        known: dict[bytes, Any] = {}
        for timer, at_us, key in zip(due, _times(due), keys, strict=True):
            while on_the_way and on_the_way[0] < timer:
                yield from self._fire_one(heapq.heappop(on_the_way), known)
            # False if it was deleted meanwhile, or is a duplicate.
            if changes.get(timer, True):
                changes[timer] = False
                self._link = self._links.pop(timer, _NO_CHAIN)
                yield at_us, key
                if on_the_way:
                    # A timer that is set meanwhile has the key of an earlier one.
                    known[timer[8:]] = key
        while on_the_way:
            yield from self._fire_one(heapq.heappop(on_the_way), known)

    def _fire_one(self, timer: bytes, known: dict[bytes, Any]) -> Iterator[tuple[int, Any]]:
        if self._now.get(timer):
            self._now[timer] = False
            self._link = self._links.pop(timer, _NO_CHAIN)
            encoded = timer[8:]
            yield _TIME.unpack_from(timer)[0] - _BIAS, known.get(encoded, encoded)

    def _take_until(self, limit: bytes) -> list[bytes]:
        """Return the timers up to a limit that are set in memory."""
        due = []
        while self._set_now and self._set_now[0] <= limit:
            timer = heapq.heappop(self._set_now)
            if self._now.get(timer):
                due.append(timer)
        newer = [self._now]
        for layer in self._layers():
            popped = layer.order.take_until(limit)
            if popped:
                self._popped.append((layer, popped))
                due += layer.pending(popped, newer)
            newer.append(layer.changes)
        return due

    def _layers(self) -> list[TimerChanges]:
        """Return the layers that may override timers of the backend, from new to old."""
        return [self._dirty, *self._inflight[::-1]]

    # -- what the backend holds

    def _stored_until(self, bound: bytes) -> Iterator[bytes]:
        groups = [group for group, first in self._first.items() if first <= bound]
        if groups and self._first_before is None:
            self._first_before = dict(self._first)
        return heapq.merge(*(self._stored_of(group, self._first[group], bound) for group in groups))

    def _stored_of(self, group: int, first: bytes, bound: bytes) -> Iterator[bytes]:
        prefix = _GROUP.pack(group)
        for entry, _ in self._backend.scan(self.name, prefix, first=prefix + first[:8]):
            timer = _timer(entry)
            if timer > bound:
                self._first[group] = timer
                return
            yield timer
        del self._first[group]


def earliest(times_us: Iterable[int | None]) -> int | None:
    """Return the earliest of some times; None: there is none."""
    return min((time_us for time_us in times_us if time_us is not None), default=None)


def passed_us(watermark_us: int) -> int:
    """Return the last time that a watermark has passed: rows at the watermark itself may still come, none before."""
    return watermark_us - 1


def is_due(event_us: int | None, processing_us: int | None, watermark_us: int | None, now_us: int) -> bool:
    """Whether the watermark has passed the first event-time timer, or the clock has reached the first of its own."""
    if event_us is not None and watermark_us is not None and event_us <= passed_us(watermark_us):
        return True
    return processing_us is not None and processing_us <= now_us


def _endless(at_us: int, until_us: int) -> UserCodeError:
    return UserCodeError(
        f"on_timer set a timer for {as_datetime(at_us)}, and that is number {ENDLESS_CHAIN:,} of a chain in which each "
        f"call sets the next timer: all of them are due in the same epoch, up to {as_datetime(until_us)}",
        hint="set the next timer later than the time that is reached: timer.timestamp + a step, or, to skip what is "
        "past, max(timer.timestamp, ctx.watermark) + a step, if not ctx.is_draining (ctx.now for processing time)",
    )


def _times(timers: list[bytes]) -> list[int]:
    """Return the times of timers, in microseconds since 1970."""
    packed = np.frombuffer(b"".join([timer[:8] for timer in timers]), ">u8")
    times_us: list[int] = (packed.astype(np.uint64) ^ np.uint64(_BIAS)).view(np.int64).tolist()
    return times_us


def _not_in(timers: list[bytes], layers: list[dict[bytes, bool]]) -> list[bytes]:
    """Return the timers that none of these layers changes."""
    for changes in layers:
        # Often it is empty.
        if changes:
            timers = [timer for timer in timers if timer not in changes]
    return timers


def _timer(entry: bytes) -> bytes:
    return entry[2:10] + entry[:2] + entry[10:]


def _encode(changes: dict[bytes, bool]) -> Iterator[Entry]:
    for timer, is_set in changes.items():
        yield timer[8:10] + timer[:8] + timer[10:], _VALUE if is_set else None
