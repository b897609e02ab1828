"""The kinds of snapshots, one for each mode: what a checkpoint uploads of a partition's files, and what it references.

A partition chooses its kind once, when it opens; whatever is uploaded then asks it, file by file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from strandline.backends.base import LocalFile
from strandline.format.manifest import FileRef, Mode

_INLINE_UP_TO_BYTES = 4 << 10

Place = Literal["inline", "exclusive", "shared"]
"""Where a file goes: into the manifest, to this checkpoint's own files, or to those that later ones may reference."""

SnapshotKind = Callable[[LocalFile, Mapping[str, FileRef]], FileRef | Place]
"""Says of a local file which stored one is referenced instead, or where it goes.

The mapping has by name the same partition's files in the last CONFIRMED checkpoint, never in a later one.
"""


def kind_of(mode: Mode, *, inline: bool = False) -> SnapshotKind:
    """Return the kind of a mode. With `inline`, a backend says that its files are few and small."""
    return _all_inline if inline else _KINDS[mode]


def _full(file: LocalFile, base: Mapping[str, FileRef]) -> FileRef | Place:
    """Everything is uploaded anew, and is this checkpoint's own."""
    return "inline" if not file.shared and file.size_bytes <= _INLINE_UP_TO_BYTES else "exclusive"


def _incremental(file: LocalFile, base: Mapping[str, FileRef]) -> FileRef | Place:
    """What never changes is uploaded once."""
    if not file.shared:
        return _full(file, base)
    known = base.get(file.name)
    if known is not None and known.shared and known.path and known.size == file.size_bytes:
        return known
    return "shared"


def _all_inline(file: LocalFile, base: Mapping[str, FileRef]) -> Place:
    return "inline"


_KINDS: dict[Mode, SnapshotKind] = {"full": _full, "incremental": _incremental}
