"""Connections that a process keeps from one delivery of a run to the next."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any, Generic, Protocol, TypeVar

from strandline.ends.target import Writer

Key = tuple[str, int, int, tuple[Any, ...]]
"""The sink, the generation and the lane that a connection is for, and what else identifies its target."""


class Keepable(Protocol):
    """A connection that may be kept."""

    idle_since: float

    def end(self) -> None:
        """Close the connection."""


C = TypeVar("C", bound=Keepable)


def key_of(writer: Writer, lane: int, *target: Any) -> Key:
    """Return the key of a lane's connection."""
    return (writer.sink, writer.generation, lane, target)


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
        self._connections: dict[Key, C] = {}
        self._last_uses: dict[Key, float] = {}
        self._lock = threading.Lock()
        # Also when the process exits.
        weakref.finalize(self, _end_all, self._connections)

    def __reduce__(self) -> Any:
        return IdleConnections, (self._idle_s, 0)

    def note_use(self, key: Key) -> bool:
        """Note a use of a lane; return whether the one before was a short time ago, so that a kept connection pays."""
        now = time.monotonic()
        with self._lock:
            before = self._last_uses.get(key, float("-inf"))
            self._last_uses[key] = now
        return self._most > 0 and now - before < self._idle_s

    def take(self, key: Key) -> C | None:
        with self._lock:
            return self._connections.pop(key, None)

    def put(self, key: Key, connection: C) -> None:
        """Keep a connection; end those that have been idle for long, or are too many."""
        now = time.monotonic()
        with self._lock:
            old = [self._connections.pop(key)] if key in self._connections else []
            connection.idle_since = now
            self._connections[key] = connection
            for each, other in list(self._connections.items()):
                if len(self._connections) > self._most or now - other.idle_since > self._idle_s:
                    old.append(self._connections.pop(each))
        for other in old:
            other.end()

    def end(self, writer: Writer | None = None) -> None:
        """End the connections of a writer, or all."""
        with self._lock:
            keys = [key for key in self._connections if writer is None or is_of(key, writer)]
            old = [self._connections.pop(key) for key in keys]
            for key in [key for key in self._last_uses if writer is None or is_of(key, writer)]:
                del self._last_uses[key]
        for each in old:
            each.end()


def _end_all(connections: dict[Key, C]) -> None:
    while connections:
        connections.popitem()[1].end()
