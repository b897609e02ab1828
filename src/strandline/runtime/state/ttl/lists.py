"""Lists with a TTL: each element expires on its own, or the list as a whole.

A chunk holds elements that expire together, and their expiry time. An epoch appends a chunk for each expiry time of its
elements: one chunk by the clock, and by event time one for each time of an event. An append reads nothing.

If a list expires as a whole, its expiry time is in its head: a chunk without elements before all others. It counts for
all chunks that have no expiry of their own, whatever TTL the program declares now for new elements.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

from strandline.format.keys import KeyCodec
from strandline.format.values import ValueCodec
from strandline.runtime.state.handles import COMPACT_CHUNKS, ListHandle, first_chunk
from strandline.runtime.state.maps import MapTable
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.ttl.lifetimes import Lifetime

HEAD = -1
"""The number of a list's head."""


class _Chunk(NamedTuple):
    """A chunk that has elements."""

    number: int
    expires_us: int | None
    elements: list[Any]
    has_own: bool
    """Whether the expiry time is the chunk's, and not the head's."""


class ExpiringListHandle(ListHandle):
    """The list of the current key, which expires element by element."""

    __slots__ = ("_epoch", "_last", "_life", "_numbers")

    def __init__(
        self, scope: Scope, table: MapTable, numbers: KeyCodec, element: ValueCodec, name: str, life: Lifetime
    ) -> None:
        super().__init__(scope, table, element, name)
        self._life = life
        self._numbers = numbers
        self._epoch = -1
        self._last: dict[Any, int] = {}
        """By key: the number of the last chunk of this epoch."""

    def append(self, element: Any) -> None:
        element = self._coerce(element)
        key, table, expires_us = self._scope.key, self._table, self._life.renewed(None)
        number = self._last_number(key)
        chunk = table.peek(key, number)
        if chunk is not None and chunk[0] == expires_us and table.is_ours(key, number):
            table.grow(chunk[1], element)
        else:
            self._add(key, expires_us, [element])

    def __len__(self) -> int:
        return sum(len(chunk.elements) for chunk in self._chunks())

    def __bool__(self) -> bool:
        return bool(self._chunks())

    def clean(self, entries: list[bytes]) -> None:
        """Delete those of some lists, or of their chunks, that have expired."""
        numbered = []
        for entry in entries:
            key, end = self._life.keys.decode(entry)
            # The entry of a whole list is its key alone.
            numbered.append((key, HEAD if end == len(entry) else self._numbers.decode_sub(entry, end)))
        self._table.load(numbered)
        for (key, number), entry in zip(numbered, entries, strict=True):
            pair = self._table.get(key, number)
            if pair is None or (pair[0] is None and number != HEAD) or not self._life.has_ended(entry, pair[0]):
                continue
            if number == HEAD:
                self._drop_whole(key)
            else:
                self._table.put(key, number, None)

    def _chunks(self) -> list[_Chunk]:
        """Return the chunks that have not expired."""
        is_over, cell = self._life.is_over, self._table.entries(self._scope.key)
        head = cell.get(HEAD)
        chunks = []
        for number, pair in sorted(cell.items()):
            if pair is not None and pair[1]:
                expires_us, has_own = (pair[0], True) if pair[0] is not None else (head and head[0], False)
                if not is_over(expires_us):
                    chunks.append(_Chunk(number, expires_us, pair[1], has_own))
        return chunks

    def _elements(self) -> list[Any]:
        chunks = self._chunks()
        elements = [element for chunk in chunks for element in chunk.elements]
        if self._life.on_read:
            self._renew_all(chunks)
        elif len(chunks) - len({chunk.expires_us for chunk in chunks}) >= COMPACT_CHUNKS:
            # Chunks that expire together can be one. By the clock, a list that had no TTL before has many of these.
            self._put_together(chunks)
        return elements

    def _renew_all(self, chunks: list[_Chunk]) -> None:
        """Renew the lifetime of the chunks that were read."""
        after = [self._life.after_reading(chunk.expires_us) for chunk in chunks]
        if not any(expires_us is not None for expires_us in after):
            return
        for chunk, expires_us in zip(chunks, after, strict=True):
            if chunk.expires_us is None and expires_us is not None:
                self._watch(chunk.number, expires_us)
        renewed = zip(chunks, after, strict=True)
        self._put_together(
            [chunk if at is None else chunk._replace(expires_us=at, has_own=True) for chunk, at in renewed]
        )

    def _put_together(self, chunks: list[_Chunk]) -> None:
        """Merge adjacent chunks that expire together."""
        key, table = self._scope.key, self._table
        for (expires_us, has_own), some in groupby(chunks, lambda chunk: (chunk.expires_us, chunk.has_own)):
            first, *others = some
            elements = [element for chunk in (first, *others) for element in chunk.elements]
            table.put(key, first.number, (expires_us if has_own else None, elements))
            if has_own and expires_us is not None:
                # The earlier timer may be for the number of another chunk, or of a head that is gone.
                self._watch(first.number, expires_us)
            for chunk in others:
                table.put(key, chunk.number, None)

    def _replace(self, elements: list[Any]) -> None:
        key = self._scope.key
        self._drop(key)
        if elements:
            self._add(key, self._life.renewed(None), elements)

    def _add(self, key: Any, expires_us: int, elements: list[Any]) -> None:
        """Append a chunk."""
        number = self._last_number(key)
        if self._table.is_ours(key, number):
            number += 1
        if self._table.journal is not None:
            # Otherwise a failed call would change the chunk numbers of later calls.
            self._table.journal.note((self._last.__setitem__, key, self._last_number(key)))
        self._last[key] = number
        self._watch(number, expires_us)
        self._table.put_new(key, number, (expires_us, elements))

    def _watch(self, number: int, expires_us: int) -> None:
        self._life.watch(self._scope.key, expires_us, self._numbers.encode_sub(number))

    def _last_number(self, key: Any) -> int:
        epoch = self._scope.epoch
        if epoch != self._epoch:
            self._epoch, self._last = epoch, {}
        return self._last.get(key) or first_chunk(epoch)

    def _drop_whole(self, key: Any) -> None:
        """Delete the head and all chunks that expire with it."""
        for number, pair in list(self._table.entries(key).items()):
            if pair is not None and (number == HEAD or pair[0] is None):
                self._table.put(key, number, None)


class WholeListHandle(ExpiringListHandle):
    """The list of the current key, which expires as a whole. An append reads the head, but no element."""

    __slots__ = ()

    def append(self, element: Any) -> None:
        element = self._coerce(element)
        key, table = self._scope.key, self._table
        head = table.get(key, HEAD)
        if head is not None and self._life.is_over(head[0]):
            # Otherwise the new head would revive expired chunks.
            self._drop_whole(key)
            head = None
        self._renew(key, head, self._life.renewed(head and head[0]))
        number = first_chunk(self._scope.epoch)
        chunk = table.peek(key, number)
        if chunk is not None and table.is_ours(key, number):
            table.grow(chunk[1], element)
        else:
            table.put_new(key, number, (None, [element]))

    def _elements(self) -> list[Any]:
        key, chunks = self._scope.key, self._chunks()
        elements = [element for chunk in chunks for element in chunk.elements]
        if chunks and self._life.on_read:
            head = self._table.get(key, HEAD)
            renewed = self._life.after_reading(head and head[0])
            if renewed is not None:
                self._renew(key, head, renewed)
        # Elements that were added when each expired on its own still do so.
        if len(chunks) >= COMPACT_CHUNKS and not any(chunk.has_own for chunk in chunks):
            self._put_whole(key, list(elements))
        return elements

    def _replace(self, elements: list[Any]) -> None:
        key = self._scope.key
        if not elements:
            self._drop(key)
            return
        head = self._table.get(key, HEAD)
        self._renew(key, head, self._life.renewed(head and head[0]))
        self._put_whole(key, elements)

    def _put_whole(self, key: Any, elements: list[Any]) -> None:
        number = first_chunk(self._scope.epoch)
        self._drop(key, HEAD, number)
        self._table.put(key, number, (None, elements))

    def _renew(self, key: Any, head: Any, expires_us: int) -> None:
        if head is None or head[0] is None:
            self._life.watch(key, expires_us)
        if head is None or head[0] != expires_us:
            self._table.put(key, HEAD, (expires_us, []))
