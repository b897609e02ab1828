"""The interface of every state backend. It handles bytes, not types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Entry = tuple[bytes, bytes | None]
"""An encoded key and its encoded value; None deletes."""

Changes = Mapping[str, Iterable[Entry]]
"""Entries by state name. A key appears at most once for each state."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of a local snapshot. A `shared` one never changes under its name while the backend lives,
    nor after a restore from a snapshot that holds it; other files belong to one snapshot alone.

    A restore fills an empty directory with every file of one snapshot, each under its `name`, and opens the backend
    there. Shared files may be hard links to a copy that others use; the others must be copies, since they change.
    """

    name: str
    path: Path
    size_bytes: int
    shared: bool


@dataclass(frozen=True, slots=True)
class Base:
    """All state of a backend at one time, from which snapshots with a log begin."""

    directory: Path
    files: list[LocalFile]
    first_log: int
    """The number of the first log that has changes since then."""
    sequence: int
    """The number of the newest entry in it."""

    @property
    def size_bytes(self) -> int:
        """The size of its files."""
        return sum(file.size_bytes for file in self.files)


class LoggedSnapshots(Protocol):
    """Snapshots as a base and the log of the changes since. One thread at a time calls it, the one that writes."""

    @property
    def base(self) -> Base | None:
        """The base of snapshots, before the first one None."""

    @property
    def size_bytes(self) -> int:
        """The size of the log since the base."""

    @property
    def is_long(self) -> bool:
        """Whether a new base is worth its upload: a restore replays the log, and storage keeps it beside the state."""

    def append(self, changes: Changes, into: Path) -> list[LocalFile]:
        """Apply the last entries, and write a snapshot into `into`, as `Backend.persist` does. All files are shared.

        The first snapshot makes the first base, and so does one with a log that is much too long.
        """
        ...

    def rebase(self) -> Base:
        """Write a new base. Snapshots begin with it from `begin_at` on."""
        ...

    def begin_at(self, base: Base) -> None:
        """Begin later snapshots with a new base; drop the old one and the log before the new one."""
        ...

    def clean(self) -> bool:
        """Do what bounds the log beside new bases, for a moment; return whether to go on. After each snapshot."""
        ...


class Live(Protocol):
    """A backend's records for another process of this machine, which goes on with its state after a kill."""

    def note(self, version: int, *, cleaning: bool = False) -> None:
        """Record that all changes of a version were written, and no later ones. After each `write`.

        With `cleaning`, `clean` may follow, and then another note.
        """

    def write(self, name: str, data: bytes) -> None:
        """Write a record in place of the one of this name."""

    def read(self, name: str) -> bytes:
        """Return a record; raise UnavailableError if it is missing or damaged."""
        ...


class Backend(Protocol):
    """The state of one operator partition, on this machine.

    Keys are `2-byte key group ‖ encoded key ‖ …`, ordered as bytes. Not thread-safe, with two exceptions: `get_many`,
    `scan` and `read_group` may run in one thread while `write` or `persist` runs in another; and unless `keeps_all`,
    `get_many` and `scan` may run in any threads meanwhile.
    """

    @property
    def keeps_all(self) -> bool:
        """The owner of the state.

        True: the caller, as live objects; it reads all with `scan` after opening, and passes all to each `persist`.
        False: the backend; `persist` gets the changes since the last write.
        """

    @property
    def inline(self) -> bool:
        """True: snapshot files are small and stored inside the manifest."""

    @property
    def limit_bytes(self) -> int | None:
        """The largest size of the encoded state, if there is a limit."""

    @property
    def changelog(self) -> LoggedSnapshots | None:
        """Its snapshots with a log, if it was opened with one."""

    @property
    def live(self) -> Live | None:
        """Its records, if what is written to it survives a kill of the process."""

    @property
    def unread(self) -> Mapping[int, BaseException]:
        """By thread: the error of a read that failed there, since the user's function may have caught it."""

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read many keys at once, in order; None where there is no value."""
        ...

    def scan(self, state: str, prefix: bytes = b"", first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the entries whose key begins with `prefix` and is not below `first`, in key order."""
        ...

    def read_group(self, state: str, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return the entries whose key begins with `prefix`, in key order: for frequent reads of few entries."""
        ...

    def release(self, state: str) -> None:
        """Drop the entries of a state that the caller has read with `scan`.

        With `keeps_all`, only the caller has the state's entries from then on: `persist` writes exactly those in
        `changes`, and reads and writes of the state raise ValueError. In other backends, it has no effect.
        """
        ...

    def write(self, changes: Changes) -> None:
        """Apply entries. They survive a kill if the backend is `live`. No snapshot contains only a part of them.

        A reader in another thread may see some of the entries before the others.
        """
        ...

    def persist(self, changes: Changes, into: Path) -> list[LocalFile]:
        """Apply the last entries and write a snapshot of all state into `into`, a directory that does not exist yet.

        Files may be hard links; they stay valid when the backend continues or closes.
        """
        ...

    def clip(self, groups: range) -> None:
        """Delete every key group outside a range, except BROADCAST_GROUP. Before any other use."""
        ...

    def load(self, state: str, entries: Iterator[tuple[bytes, bytes]]) -> None:
        """Add another snapshot's entries, in key order, of key groups that are absent here. Before any other use."""
        ...

    def move(self, state: str, to: str) -> None:
        """Move all entries of a state to another, which has none of their keys, and delete it. Before any other use.

        It has no effect if the state is absent.
        """
        ...

    def forget(self, state: str) -> None:
        """Delete a state with all of its entries, if it exists. Before any other use."""
        ...

    def metrics(self) -> dict[str, int]:
        """Return sizes and counts for monitoring; names end in their unit."""
        ...

    def close(self) -> None:
        """Free all memory; files stay."""
        ...
