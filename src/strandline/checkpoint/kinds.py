"""Kinds of snapshots, one for each mode: they decide which files are uploaded and which are referenced.

A partition chooses its kind once, when it opens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from strandline.backends.base import LocalFile
from strandline.core.settings import Mode
from strandline.format.manifest import FileRef

_INLINE_UP_TO_BYTES = 4 << 10

Place = Literal["inline", "exclusive", "shared"]
"""The place of a file: in the manifest, among this checkpoint's own files, or among files that later ones may share."""

SnapshotKind = Callable[[LocalFile, Mapping[str, FileRef]], FileRef | Place]
"""Returns for a local file the stored one to reference instead, or its place.

The mapping holds the same partition's files in the last CONFIRMED checkpoint, never in a later one, by name.
"""


def kind_of(mode: Mode, *, inline: bool = False) -> SnapshotKind:
    """Return the kind of a mode; `inline` is for backends whose files are few and small."""
    return _all_inline if inline else _KINDS[mode]


def _full(file: LocalFile, base: Mapping[str, FileRef]) -> FileRef | Place:
    """Upload every file, for this checkpoint alone."""
    return "inline" if not file.shared and file.size_bytes <= _INLINE_UP_TO_BYTES else "exclusive"


def _incremental(file: LocalFile, base: Mapping[str, FileRef]) -> FileRef | Place:
    """Upload files that never change once."""
    if not file.shared:
        return _full(file, base)
    known = base.get(file.name)
    if known is not None and known.shared and known.path and known.size == file.size_bytes:
        return known
    return "shared"


def _all_inline(file: LocalFile, base: Mapping[str, FileRef]) -> Place:
    return "inline"


_KINDS: dict[Mode, SnapshotKind] = {
    "full": _full,
    "incremental": _incremental,
    "changelog": _incremental,
    "continuous": _incremental,
}
