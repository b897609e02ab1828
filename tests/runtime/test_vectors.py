"""The table of vectorised value states beside a dict: writes, evictions, freezes and look-ups in any order."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from strandline.backends.base import Entry
from strandline.format.keys import KeyCodec
from strandline.runtime.state.table import KeysToRead
from strandline.runtime.state.vectors import VectorTable
from strandline.types.datatypes import LongType

_KEYS = [b"%02d" % number for number in range(24)]
_CODEC = KeyCodec([LongType()])
some_keys = st.lists(st.sampled_from(_KEYS), min_size=1, max_size=12)


class Stored:
    """A backend of one state, as far as a table uses it."""

    def __init__(self, *, keeps_all: bool) -> None:
        self.keeps_all = keeps_all
        self.entries: dict[bytes, bytes] = {}

    def get_many(self, state: str, keys: list[bytes]) -> list[bytes | None]:
        assert not self.keeps_all
        return list(map(self.entries.get, keys))

    def write(self, entries: Iterator[Entry]) -> None:
        written = dict(entries)
        self.entries.update({key: value for key, value in written.items() if value is not None})
        for key in [key for key, value in written.items() if value is None]:
            self.entries.pop(key, None)


class Beside(RuleBasedStateMachine):
    """Does the same with the table and with a dict."""

    @initialize(keeps_all=st.booleans(), cache=st.sampled_from([0, 800, 2000, 1 << 20]))
    def begin(self, keeps_all: bool, cache: int) -> None:
        self.backend: Any = Stored(keeps_all=keeps_all)
        self.table = VectorTable("state", self.backend, cache)
        self.committed: dict[bytes, bytes] = {}
        self.now: dict[bytes, bytes] = {}
        self.frozen: list[tuple[Callable[[], Iterator[Entry]], dict[bytes, bytes]]] = []
        self.count = 0

    @rule(keys=some_keys)
    def read(self, keys: list[bytes]) -> None:
        places = self.table.find(keys)
        assert self.table.get(places) == list(map(self.now.get, keys))
        assert self.table.find(keys, places) is places

    @rule(keys=some_keys, deletes=st.sets(st.sampled_from(_KEYS)), reads_first=st.booleans())
    def write(self, keys: list[bytes], deletes: set[bytes], reads_first: bool) -> None:
        values = []
        for key in keys:
            self.count += 1
            values.append(None if key in deletes else b"%d" % self.count)
        known = self.table.find(keys) if reads_first else None
        self.table.put(self.table.find(keys, known), values)
        for key, value in zip(keys, values, strict=True):
            self.now.pop(key, None)
            if value is not None:
                self.now[key] = value

    @rule(kept=st.booleans())
    def end(self, kept: bool) -> None:
        changed = dict(self.table.changed())
        differ = {key for key in _KEYS if self.now.get(key) != self.committed.get(key)}
        assert differ <= changed.keys()
        assert all(self.now.get(key) == value for key, value in changed.items())
        if kept:
            self.table.commit()
            self.committed = dict(self.now)
        else:
            self.table.abort()
            self.now = dict(self.committed)

    @rule()
    def freeze(self) -> None:
        if self.now == self.committed and not dict(self.table.changed()):
            self.frozen.append((self.table.freeze(), dict(self.committed)))
            assert self.backend.keeps_all or not self.table.dirty_bytes

    @rule()
    def write_oldest(self) -> None:
        """Write the oldest frozen layer, as the background thread does."""
        if self.frozen:
            encode, wanted = self.frozen.pop(0)
            entries = list(encode())
            assert len({key for key, _ in entries}) == len(entries)
            if self.backend.keeps_all:
                assert dict(entries) == wanted
            else:
                self.backend.write(iter(entries))
                assert self.backend.entries == wanted
            self.table.release()

    @rule()
    def evict(self) -> None:
        self.table.evict()

    @invariant()
    def look_up(self) -> None:
        """Committed values are what look-ups find, also during an epoch."""
        if hasattr(self, "table"):
            kept = self.table.kept(KeysToRead(_KEYS, _KEYS, _CODEC))
            wanted = [self.committed.get(key) for key in _KEYS]
            assert kept == [[] if value is None else [(None, value)] for value in wanted]


TestVectorTable = Beside.TestCase


@pytest.mark.parametrize("keeps_all", [False, True])
def test_memory_is_bounded(keeps_all: bool) -> None:
    """What is not used, or has no value, does not stay: 100,000 keys pass through the table."""
    backend: Any = Stored(keeps_all=keeps_all)
    table = VectorTable("state", backend, 1 << 20)
    most = 0
    for start in range(0, 100_000, 1000):
        keys = [b"%06d" % number for number in range(start, start + 1000)]
        table.put(table.find(keys), [b"x"] * 1000)
        table.commit()
        table.put(table.find(keys), [None] * 1000 if keeps_all else [b"y"] * 1000)
        table.commit()
        encode = table.freeze()
        backend.write(encode())
        table.release()
        table.evict()
        most = max(most, table.cached_bytes + table.dirty_bytes)
    assert most < (3 << 20)
    if not keeps_all:
        assert backend.entries == {b"%06d" % number: b"y" for number in range(100_000)}
        assert table.get(table.find([b"000000", b"099999", b"none"])) == [b"y", b"y", None]


def test_changes_that_are_not_written_yet_hold_no_other_keys() -> None:
    table = VectorTable("state", Stored(keeps_all=False), 1 << 16)  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        for start in range(0, 100_000, 1000):
            keys = [b"%060d" % number for number in range(start, start + 1000)]
            table.put(table.find(keys).some([0]), [b"x"])
            table.commit()
            table.evict()
        del keys
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 << 20
    assert len(dict(table.freeze()())) == 100


def test_what_was_used_last_stays() -> None:
    backend: Any = Stored(keeps_all=False)
    table = VectorTable("state", backend, 256 << 10)
    hot = [b"%06d" % number for number in range(100)]
    table.find(hot)
    for start in range(1000, 50_000, 500):
        table.find([b"%06d" % number for number in range(start, start + 500)])
        table.find(hot)
        table.evict()
    misses = table.misses
    table.find(hot)
    assert table.misses == misses
