"""The one interface behind which every state backend stands. It knows bytes, not types."""

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

    A restore fills an empty directory with every file of one snapshot, each called by its `name`, and opens the backend
    there. Shared files may be hard links to a copy that others use; the rest must be copies, since they are written to.
    """

    name: str
    path: Path
    size_bytes: int
    shared: bool


class Backend(Protocol):
    """The state of one operator partition, on this machine.

    Keys are `2-byte key group ‖ encoded key ‖ …`, ordered as bytes. Not thread-safe, with two exceptions: `get_many`,
    `scan` and `read_group` may run in one thread while `write` or `persist` runs in another; and where the backend does
    not keep all with the caller, `get_many` and `scan` may run in any threads meanwhile.
    """

    @property
    def keeps_all(self) -> bool:
        """Who holds the state.

        True: the caller, as live objects; it takes all over with `scan` after opening, and gives all to each `persist`.
        False: the backend; `persist` gets what changed since the last write.
        """

    @property
    def inline(self) -> bool:
        """True: snapshot files are small and travel inside the manifest."""

    @property
    def limit_bytes(self) -> int | None:
        """How far the encoded state may grow, if there is a limit."""

    @property
    def unread(self) -> Mapping[int, BaseException]:
        """By thread: why state could not be read there, though whoever wanted it may have gone on all the same."""

    def get_many(self, state: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read many keys at once, in order; None where there is no value."""
        ...

    def scan(self, state: str, prefix: bytes = b"", first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Walk the entries whose key begins with `prefix`, in key order, those below `first` left out."""
        ...

    def read_group(self, state: str, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return the entries whose key begins with `prefix`, in key order: few of them or none, and asked for often."""
        ...

    def release(self, state: str) -> None:
        """Forget the entries of a state that the caller has taken over with `scan`.

        Only where `keeps_all`: from then on the state's entries are the caller's alone, `persist` writes exactly those
        that `changes` gives, and to read or write the state here is a mistake (ValueError). Elsewhere nothing happens.
        """
        ...

    def write(self, changes: Changes) -> None:
        """Apply entries. Not durable, and no reader of a snapshot sees a part of it.

        A reader in another thread may see some of the entries before the others.
        """
        ...

    def persist(self, changes: Changes, into: Path) -> list[LocalFile]:
        """Apply the last entries and write a snapshot of everything into `into`, a directory not yet there.

        Files may be hard links; they stay valid when the backend goes on or closes.
        """
        ...

    def clip(self, groups: range) -> None:
        """Forget every key group outside a range; what has none (`BROADCAST_GROUP`) stays. Before any other use."""
        ...

    def load(self, state: str, entries: Iterator[tuple[bytes, bytes]]) -> None:
        """Take in another snapshot's entries, in key order, of key groups that are not here. Before any other use."""
        ...

    def move(self, state: str, to: str) -> None:
        """Give all entries of a state to another, which has none of their keys, and forget it. Before any other use.

        Nothing happens if it is not there.
        """
        ...

    def forget(self, state: str) -> None:
        """Delete a state with all of its entries; nothing if it is not there. Before any other use."""
        ...

    def metrics(self) -> dict[str, int]:
        """Return sizes and counts for people to look at; names end in their unit."""
        ...

    def close(self) -> None:
        """Free everything in memory; files stay."""
        ...
