"""Migrates restored state to the program's declarations.

States get their new names, or are deleted; entries of a state whose TTL was removed lose their expiry times; and the
timers of the cleaning move between event time and processing time if the TTL has changed its time.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.api.states import declared_states
from strandline.backends.base import Backend, Entry
from strandline.format.values import packed_expiry, without_expiry
from strandline.runtime.program import EVENT_TTL, PROCESSING_TTL, Process, Program, has_ttl

_NAME_AT = 10
_AT_ONCE_BYTES = 8 << 20
"""How much of a state is rewritten at once: values may be large, so memory holds only a part."""


def move_states(backend: Backend, program: Program, process: Process) -> None:
    """Rename and delete states as the program declares, in a backend that was just opened on a snapshot.

    On RocksDB, a rename copies the state, once: the next checkpoint has it under its new name.
    """
    restored = program.restore.stored if program.restore else None
    before = {info.name: info.ttl for info in restored.states if info.ttl} if restored else {}
    if restored and not before and has_ttl(process):
        for table in (EVENT_TTL, PROCESSING_TTL):
            # Left over from an earlier program, whose states may be different ones.
            backend.write({table: ((key, None) for key, _ in backend.scan(table))})
    if program.was or program.dropped:
        _move(backend, program, process)
    for name, state in declared_states(process).items():
        was = before.get(program.was.get(name, name))
        if was and state.ttl is None:
            # Otherwise a TTL that is declared again later would read these old times and expire everything at once.
            _remove_expiry_times(backend, name)
        elif was and state.ttl and was.time != state.ttl.time:
            # Otherwise the end of event time would not clean it, or nothing would, if event time is gone from the job.
            source, target = (EVENT_TTL, PROCESSING_TTL) if was.time == "event" else (PROCESSING_TTL, EVENT_TTL)
            gone = ((key, None) for key, _ in _cleaning_of(backend, source, name))
            backend.write({target: _cleaning_of(backend, source, name), source: gone})


def _move(backend: Backend, program: Program, process: Process) -> None:
    if has_ttl(process):
        renamed = {was.encode(): name.encode() for name, was in program.was.items()}
        gone = {name.encode() for name in program.dropped}
        for table in (EVENT_TTL, PROCESSING_TTL):
            backend.write({table: _renamed(backend, table, renamed, gone)})
    # Delete first: a renamed state may get the name of a deleted one.
    for name in program.dropped:
        backend.forget(name)
    for name, was in program.was.items():
        backend.move(was, name)


def _remove_expiry_times(backend: Backend, state: str) -> None:
    """Rewrite those entries of a state that have an expiry time, without it."""
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
    """Yield the cleaning's timers of a state."""
    return ((key, value) for key, value in backend.scan(table) if _state_in(key) == state.encode())


def _state_in(key: bytes) -> bytes:
    """Return the state's name in a timer of the cleaning."""
    return key[_NAME_AT : key.index(0, _NAME_AT)]


def _renamed(backend: Backend, table: str, renamed: dict[bytes, bytes], gone: set[bytes]) -> Iterator[Entry]:
    """Yield the cleaning's timers under their states' new names; see ttl/cleaning.py."""
    for key, value in backend.scan(table):
        name = _state_in(key)
        if name in renamed or name in gone:
            yield key, None
        if name in renamed:
            yield key[:_NAME_AT] + renamed[name] + key[_NAME_AT + len(name) :], value
