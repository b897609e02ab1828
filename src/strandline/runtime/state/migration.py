"""What is restored becomes what the program declares.

States get the names that they have now, or are forgotten; what stays for good from now on loses when it would expire;
and what expires by another time than it did is cleaned by that.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.api.states import declared_states
from strandline.backends.base import Backend, Entry
from strandline.format.values import packed_expiry, without_expiry
from strandline.runtime.program import EVENT_TTL, PROCESSING_TTL, Process, Program, has_ttl

_NAME_AT = 10
_AT_ONCE_BYTES = 8 << 20
"""A value may be large: of a whole state, a part is in memory."""


def move_states(backend: Backend, program: Program, process: Process) -> None:
    """Rename and forget states as the program says, in a backend just opened on what it restores.

    On RocksDB, to rename a state copies it, once: the next checkpoint has it under its new name.
    """
    restored = program.restore.stored if program.restore else None
    before = {info.name: info.ttl for info in restored.states if info.ttl} if restored else {}
    if restored and not before and has_ttl(process):
        for table in (EVENT_TTL, PROCESSING_TTL):
            # Carried along from a program before that one, whose states may be others by now.
            backend.write({table: ((key, None) for key, _ in backend.scan(table))})
    if program.was or program.dropped:
        _move(backend, program, process)
    for name, state in declared_states(process).items():
        was = before.get(program.was.get(name, name))
        if was and state.ttl is None:
            # Else a TTL that it is given later would find times that count for nothing, and all be over at once.
            _take_times_away(backend, name)
        elif was and state.ttl and was.time != state.ttl.time:
            # Else the end of event time would not clean it, or no time would, where there is no event time any more.
            source, target = (EVENT_TTL, PROCESSING_TTL) if was.time == "event" else (PROCESSING_TTL, EVENT_TTL)
            gone = ((key, None) for key, _ in _cleaning_of(backend, source, name))
            backend.write({target: _cleaning_of(backend, source, name), source: gone})


def _move(backend: Backend, program: Program, process: Process) -> None:
    if has_ttl(process):
        renamed = {was.encode(): name.encode() for name, was in program.was.items()}
        gone = {name.encode() for name in program.dropped}
        for table in (EVENT_TTL, PROCESSING_TTL):
            backend.write({table: _renamed(backend, table, renamed, gone)})
    # Forgotten first: what is renamed may get the name of one of them.
    for name in program.dropped:
        backend.forget(name)
    for name, was in program.was.items():
        backend.move(was, name)


def _take_times_away(backend: Backend, state: str) -> None:
    """Write those entries of a state anew that say when they expire, without that."""
    some: list[Entry] = []
    size = 0
    for key, value in backend.scan(state):
        if packed_expiry(value) is not None:
            some.append((key, without_expiry(value)))
            size += len(value)
        if size > _AT_ONCE_BYTES:
            backend.write({state: some})
            some, size = [], 0
    backend.write({state: some})


def _cleaning_of(backend: Backend, table: str, state: str) -> Iterator[tuple[bytes, bytes]]:
    """Give the cleaning's timers of a state."""
    return ((key, value) for key, value in backend.scan(table) if _state_in(key) == state.encode())


def _state_in(key: bytes) -> bytes:
    """Return whose timer of the cleaning it is."""
    return key[_NAME_AT : key.index(0, _NAME_AT)]


def _renamed(backend: Backend, table: str, renamed: dict[bytes, bytes], gone: set[bytes]) -> Iterator[Entry]:
    """Have the cleaning look for entries under their states' new names; see ttl/cleaning.py."""
    for key, value in backend.scan(table):
        name = _state_in(key)
        if name in renamed or name in gone:
            yield key, None
        if name in renamed:
            yield key[:_NAME_AT] + renamed[name] + key[_NAME_AT + len(name) :], value
