"""Connections that a process keeps from one delivery of a run to the next."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any, Generic, Protocol, TypeVar

from strandline.ends.target import Writer

Key = tuple[str, int, tuple[Any, ...]]
"""The sink and the generation that a connection is for, and what else it must have in common with another one."""


class Keepable(Protocol):
    """A connection that may be kept."""

    idle_since: float

    def end(self) -> None:
        """Close the connection."""


C = TypeVar("C", bound=Keepable)


def key_of(writer: Writer, *others: Any) -> Key:
    """Return the key of a writer's connections."""
    return (writer.sink, writer.generation, others)


def is_of(key: Key, writer: Writer) -> bool:
    """Whether a connection is one of this writer."""
    return key[:2] == (writer.sink, writer.generation)


class IdleConnections(Generic[C]):
    """Intact connections between two deliveries.

    What a connection has read or set before may have changed since: other processes write the same target, and it may
    have been restarted, replaced by a server with older data, or restored. So after `take`, the target has to read
    the lane's record again, and each transaction has to check, as on a new connection, that no other writer has claimed
    or written the lane. A connection whose last use raised an error must not be kept.

    A pickled copy is empty and keeps none: the processes of tasks do not learn when the run ends.
    """

    def __init__(self, idle_s: float = 120.0, most: int = 32) -> None:
        self._idle_s, self._most = idle_s, most
        self._connections: list[tuple[Key, C]] = []
        """Those that are idle for the longest time come first."""
        self._last_uses: dict[Key, float] = {}
        self._lock = threading.Lock()
        # Also when the process exits. A kept connection must not refer to this object.
        weakref.finalize(self, _end_all, self._connections)

    def __reduce__(self) -> Any:
        return IdleConnections, (self._idle_s, 0)

    def note_use(self, key: Key) -> bool:
        """Note a use; return whether the one before was a short time ago, so that it pays to keep a connection."""
        now = time.monotonic()
        with self._lock:
            before = self._last_uses.get(key, float("-inf"))
            self._last_uses[key] = now
        return self._most > 0 and now - before < self._idle_s

    def take(self, key: Key) -> C | None:
        """Return the connection with this key that was used last."""
        with self._lock:
            places = [place for place, (each, _) in enumerate(self._connections) if each == key]
            return self._connections.pop(places[-1])[1] if places else None

    def put(self, key: Key, connection: C) -> None:
        """Keep a connection; end those that have been idle for long, or are too many."""
        connection.idle_since = now = time.monotonic()
        old = []
        with self._lock:
            self._connections.append((key, connection))
            for pair in list(self._connections):
                if len(self._connections) > self._most or now - pair[1].idle_since > self._idle_s:
                    self._connections.remove(pair)
                    old.append(pair[1])
        for each in old:
            each.end()

    def end(self, writer: Writer | None = None) -> None:
        """End the connections of a writer, or all."""
        with self._lock:
            old = [each for key, each in self._connections if writer is None or is_of(key, writer)]
            # In place: the finalizer has this list.
            self._connections[:] = [pair for pair in self._connections if pair[1] not in old]
            for key in [key for key in self._last_uses if writer is None or is_of(key, writer)]:
                del self._last_uses[key]
        for each in old:
            each.end()


def _end_all(connections: list[tuple[Key, C]]) -> None:
    while connections:
        connections.pop()[1].end()
