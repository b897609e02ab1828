"""Migrates restored state to the program's declarations.

States are renamed or deleted. Entries of a state whose TTL was removed lose their expiry times. The timers of the
cleaning move between event time and processing time if the TTL does.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.api.states import declared_states
from strandline.backends.base import Backend, Entry
from strandline.format.values import packed_expiry, without_expiry
from strandline.runtime.program import EVENT_TTL, PROCESSING_TTL, Process, Program, has_ttl

_NAME_AT = 10
"""The position of the state's name in a timer of the cleaning; see ttl/cleaning.py."""
_BATCH_BYTES = 8 << 20
"""How much of a state is rewritten at once: values may be large, and memory may not hold them all."""


def move_states(backend: Backend, program: Program, process: Process) -> None:
    """Rename and delete states as the program declares, in a backend that was just opened on a snapshot.

    On RocksDB, a rename copies the state, once: the next checkpoint has it under its new name.
    """
    restored = program.restore.stored if program.restore else None
    before = {info.name: info.ttl for info in restored.states if info.ttl} if restored else {}
    if restored and not before and has_ttl(process):
        for table in (EVENT_TTL, PROCESSING_TTL):
            # These timers are left over from an earlier program, whose states may be different ones.
            backend.write({table: ((key, None) for key, _ in backend.scan(table))})
    if program.was or program.dropped:
        _move(backend, program, process)
    for name, state in declared_states(process).items():
        was = before.get(program.was.get(name, name))
        if was and state.ttl is None:
            # Otherwise, if a TTL is declared again later, it reads these old times and expires everything at once.
            _remove_expiry_times(backend, name)
        elif was and state.ttl and was.time != state.ttl.time:
            # A timer fires only in its own kind of time, which the job may not have any more.
            source, target = (EVENT_TTL, PROCESSING_TTL) if was.time == "event" else (PROCESSING_TTL, EVENT_TTL)
            deleted = ((key, None) for key, _ in _cleaning_timers(backend, source, name))
            backend.write({target: _cleaning_timers(backend, source, name), source: deleted})


def _move(backend: Backend, program: Program, process: Process) -> None:
    if has_ttl(process):
        new_names = {was.encode(): name.encode() for name, was in program.was.items()}
        deleted = {name.encode() for name in program.dropped}
        for table in (EVENT_TTL, PROCESSING_TTL):
            backend.write({table: _renamed_timers(backend, table, new_names, deleted)})
    # Delete first: a renamed state may get the name of a deleted one.
    for name in program.dropped:
        backend.forget(name)
    for name, was in program.was.items():
        backend.move(was, name)


def _remove_expiry_times(backend: Backend, state: str) -> None:
    """Rewrite those entries of a state that have an expiry time, without it."""
    entries: list[Entry] = []
    size = 0
    for key, value in backend.scan(state):
        if packed_expiry(value) is not None:
            entries.append((key, without_expiry(value)))
            size += len(value)
        if size > _BATCH_BYTES:
            backend.write({state: entries})
            entries, size = [], 0
    backend.write({state: entries})


def _cleaning_timers(backend: Backend, table: str, state: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the cleaning's timers of a state."""
    return ((key, value) for key, value in backend.scan(table) if _state_of_timer(key) == state.encode())


def _state_of_timer(key: bytes) -> bytes:
    """Return the state's name in a timer of the cleaning."""
    return key[_NAME_AT : key.index(0, _NAME_AT)]


def _renamed_timers(
    backend: Backend, table: str, new_names: dict[bytes, bytes], deleted: set[bytes]
) -> Iterator[Entry]:
    """Yield changes that move the cleaning's timers to their states' new names, and delete those of deleted states."""
    for key, value in backend.scan(table):
        name = _state_of_timer(key)
        if name in new_names or name in deleted:
            yield key, None
        if name in new_names:
            yield key[:_NAME_AT] + new_names[name] + key[_NAME_AT + len(name) :], value
