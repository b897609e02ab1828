"""What is restored becomes what the program declares: states get the names that they have now, or are forgotten."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.backends.base import Backend, Entry
from strandline.runtime.program import EVENT_TTL, PROCESSING_TTL, Process, Program, has_ttl

_NAME_AT = 10


def move_states(backend: Backend, program: Program, process: Process) -> None:
    """Rename and forget states as the program says, in a backend just opened on what it restores.

    On RocksDB, to rename a state copies it, once: the next checkpoint has it under its new name.
    """
    if not program.was and not program.dropped:
        return
    if has_ttl(process):
        renamed = {was.encode(): name.encode() for name, was in program.was.items()}
        gone = {name.encode() for name in program.dropped}
        for table in (EVENT_TTL, PROCESSING_TTL):
            backend.write({table: list(_renamed(backend, table, renamed, gone))})
    # Forgotten first: what is renamed may get the name of one of them.
    for name in program.dropped:
        backend.forget(name)
    for name, was in program.was.items():
        backend.move(was, name)


def _renamed(backend: Backend, table: str, renamed: dict[bytes, bytes], gone: set[bytes]) -> Iterator[Entry]:
    """Have the cleaning look for entries under their states' new names; see ttl/cleaning.py."""
    for key, value in backend.scan(table):
        end = key.index(0, _NAME_AT)
        name = key[_NAME_AT:end]
        if name in renamed or name in gone:
            yield key, None
        if name in renamed:
            yield key[:_NAME_AT] + renamed[name] + key[end:], value
