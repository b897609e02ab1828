"""The state that a replay has reached, compared with a checkpoint byte by byte, and named where it differs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from strandline.backends.base import LocalFile
from strandline.backends.reading import FileKind, PartitionReader, file_kind, open_reader
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.restore import fetch
from strandline.core.errors import StrandlineError
from strandline.core.keygroups import BROADCAST_GROUPS
from strandline.core.scratch import Scratch
from strandline.format.manifest import Manifest, OperatorInfo, StateInfo
from strandline.snapshot.rows.codecs import has_rows, rows_of

_MOST = 20
Entry = tuple[bytes, bytes | None]


@dataclass(frozen=True)
class StateDifference:
    """An entry of state that differs."""

    operator: str
    state: str
    key: str
    """The key, as text; of an entry that is no row, its bytes in hex."""
    one: str
    """The value on the first side, as text; "-" if there is none."""
    other: str

    def __str__(self) -> str:
        return f"{self.operator}.{self.state}, key {self.key}: {self.one} and {self.other}"


def compare_with_checkpoint(
    snapshots: dict[str, tuple[str, list[list[LocalFile]]]], manifest: Manifest, folder: Folder
) -> list[StateDifference]:
    """Return up to 20 entries in which a checkpoint (first) and a replay's snapshots (other) differ.

    `snapshots` has, by operator, the backend and the files of each partition.
    """
    differences: list[StateDifference] = []
    with Scratch("replay-state") as scratch, ExitStack() as open_:
        for number, operator in enumerate(manifest.operators):
            recorded, replayed = [], []
            for part in operator.partitions:
                place = scratch / f"{number}-{part.index}"
                fetch(folder, part.files, place)
                recorded.append(_open(file_kind(operator.backend), place, open_))
            backend, parts = snapshots[operator.uid]
            for index, files in enumerate(parts):
                place = scratch / f"{number}-{index}-replayed"
                lay_down(files, place)
                replayed.append(_open(file_kind(backend), place, open_))
            for state in operator.states:
                differences += _differences(operator, state, recorded, replayed, most=_MOST - len(differences))
    return differences


def compare_snapshots(
    operators: Sequence[OperatorInfo],
    one: dict[str, tuple[str, list[list[LocalFile]]]],
    other: dict[str, tuple[str, list[list[LocalFile]]]],
) -> list[StateDifference]:
    """Return up to 20 entries in which the snapshots of two replays differ."""
    differences: list[StateDifference] = []
    with Scratch("replay-state") as scratch, ExitStack() as open_:
        for number, operator in enumerate(operators):
            sides: tuple[list[PartitionReader], list[PartitionReader]] = ([], [])
            for side, (backend, parts) in enumerate((one[operator.uid], other[operator.uid])):
                for index, files in enumerate(parts):
                    place = scratch / f"{number}-{side}-{index}"
                    lay_down(files, place)
                    sides[side].append(_open(file_kind(backend), place, open_))
            for state in operator.states:
                differences += _differences(operator, state, *sides, most=_MOST - len(differences))
    return differences


def lay_down(files: Sequence[LocalFile], into: Path) -> None:
    """Put the files of a partition's local snapshot into a directory, each under its name."""
    into.mkdir(parents=True)
    for file in files:
        target = into / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        (os.link if file.shared else shutil.copyfile)(file.path, target)


def _open(kind: FileKind, place: Path, open_: ExitStack) -> PartitionReader:
    reader = open_reader(kind, place)
    open_.callback(reader.close)
    return reader


def _differences(
    operator: OperatorInfo,
    state: StateInfo,
    one: Sequence[PartitionReader],
    other: Sequence[PartitionReader],
    *,
    most: int,
) -> list[StateDifference]:
    if state.kind == "panes":
        return _pane_differences(operator, state, one, other, most)
    differences: list[StateDifference] = []
    for key, before, after in _merge(*(_entries(operator, state, side) for side in (one, other))):
        if before != after:
            if len(differences) >= most:
                break
            name, ours = _text(operator, state, key, before)
            other_name, theirs = _text(operator, state, key, after)
            differences.append(StateDifference(operator.uid, state.name, name or other_name, ours, theirs))
    return differences


def _entries(
    operator: OperatorInfo, state: StateInfo, parts: Sequence[PartitionReader]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield all entries of a state in the order of their keys; those of broadcast state once."""
    groups = range(operator.max_parallelism)
    broadcast = (part.scan(state.name, BROADCAST_GROUPS) for part in parts[:1])
    return chain(*(part.scan(state.name, groups) for part in parts), *broadcast)


def _merge(
    one: Iterator[tuple[bytes, bytes]], other: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Yield each key of two sorted sequences with both values."""
    ours, theirs = next(one, None), next(other, None)
    while ours is not None or theirs is not None:
        if theirs is None or (ours is not None and ours[0] < theirs[0]):
            assert ours is not None
            yield ours[0], ours[1], None
            ours = next(one, None)
        elif ours is None or theirs[0] < ours[0]:
            yield theirs[0], None, theirs[1]
            theirs = next(other, None)
        else:
            yield ours[0], ours[1], theirs[1]
            ours, theirs = next(one, None), next(other, None)


def _pane_differences(
    operator: OperatorInfo,
    state: StateInfo,
    one: Sequence[PartitionReader],
    other: Sequence[PartitionReader],
    most: int,
) -> list[StateDifference]:
    """Compare panes by their rows: how a pane is divided into entries depends on when keepers wrote it to disk.

    An entry is a batch of Arrow, whose unused bytes may differ, too.
    """
    differences: list[StateDifference] = []
    ours, theirs = (_by_group(operator, state, side) for side in (one, other))
    for group in sorted({*ours, *theirs}):
        before, after = ours.get(group, []), theirs.get(group, [])
        if before == after:
            continue
        rows, other_rows = (_pane_rows(operator, state, entries) for entries in (before, after))
        for key in sorted({*rows, *other_rows}):
            if rows.get(key) != other_rows.get(key) and len(differences) < most:
                texts = rows.get(key, "-"), other_rows.get(key, "-")
                differences.append(StateDifference(operator.uid, state.name, key, *texts))
    return differences


def _by_group(
    operator: OperatorInfo, state: StateInfo, parts: Sequence[PartitionReader]
) -> dict[bytes, list[tuple[bytes, bytes]]]:
    groups: dict[bytes, list[tuple[bytes, bytes]]] = {}
    for key, value in _entries(operator, state, parts):
        groups.setdefault(key[:2], []).append((key, value))
    return groups


def _pane_rows(operator: OperatorInfo, state: StateInfo, entries: list[tuple[bytes, bytes]]) -> dict[str, str]:
    rows = rows_of(operator, state).decode(entries).to_pylist()
    texts = [_row_text(row) for row in rows]
    return dict(texts)


def _row_text(row: dict[str, Any]) -> tuple[str, str]:
    """Return a row's key and value as text."""
    keys = [name for name in list(row)[1:] if name != "value"]
    value: Any = row.get("value", {name: row[name] for name in keys[1:]})
    return ", ".join(f"{name}={row[name]!r}" for name in keys), repr(value)


def _text(operator: OperatorInfo, state: StateInfo, key: bytes, value: bytes | None) -> tuple[str, str]:
    """Return an entry's key and value as text."""
    if value is None:
        return "", "-"
    with suppress(StrandlineError, ValueError, AssertionError):
        if has_rows(state):
            (row,) = rows_of(operator, state).decode([(key, value)]).to_pylist()
            return _row_text(row)
    return key.hex(), value.hex()
