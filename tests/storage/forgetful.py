"""A disk that knows what was synced, and what a power cut may leave of the rest. Seeded."""

from __future__ import annotations

import hashlib
import pickle
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from strandline.storage.local import Disk


class Killed(BaseException):
    """The process is gone: nothing catches this."""


@dataclass(eq=False)
class _File:
    data: bytes
    synced: bool = False


@dataclass(eq=False)
class _Directory:
    names: dict[str, _Node] = field(default_factory=dict)
    since_sync: dict[str, list[_Node | None]] = field(default_factory=dict)
    """What each name that changed has stood for since the last sync, from what it stood for then; None: nothing."""

    def set(self, name: str, node: _Node | None) -> None:
        self.since_sync.setdefault(name, [self.names.get(name)]).append(node)
        self.names.pop(name, None)
        if node is not None:
            self.names[name] = node


_Node = _File | _Directory


class ForgetfulDisk(Disk):
    """Works in a directory, in which nothing else may write, as a real one does, but syncs only in its own books.

    Of a file that was not synced, a power cut leaves all bytes, some of the first, or none; of each name in a directory
    that was not synced, anything that it has stood for since, independently of all others. That is what POSIX allows,
    and more than what any one file system does.

    `leave_out` says of which syncs (the method's name and the path) nothing is done. `kill_in` n kills the process in
    its n-th change of the disk from now on: that one is not done (of a file, the first half is written), and nothing
    after it, until `revive`. `on_change` is told before each change what a kill in it would leave: what another disk may
    begin with.
    """

    def __init__(
        self, root: Path, leave_out: Callable[[str, Path], bool] = lambda method, path: False, left: bytes = b""
    ) -> None:
        self.root = root
        self._depth = len(root.parts)
        self.leave_out = leave_out
        self.changes = 0
        self.on_change: Callable[[bytes], None] | None = None
        self._kill_at: int | None = None
        self._tree: _Directory = pickle.loads(left) if left else _Directory()
        _materialise(self._tree, root)

    def kill_in(self, changes: int) -> None:
        self._kill_at = self.changes + changes

    def revive(self) -> None:
        """Let a new process go on with what the killed one has left: all of it, as the machine has not stopped."""
        self._kill_at = None

    def power_cut(self, rng: random.Random) -> None:
        """Leave what was synced, and of the rest what chance wants; a new process goes on with that."""
        self.revive()
        torn: dict[_File, _File] = {}
        self._tree = _survivor(self._tree, torn, rng)
        for path in self.root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        _materialise(self._tree, self.root)

    def write(self, path: Path, data: bytes) -> None:
        half = data[: len(data) // 2]
        if not self._alive(path, half):
            super().write(path, half)
            self._set(path, _File(half))
            raise Killed
        super().write(path, data)
        self._set(path, _File(data))

    def copy(self, source: Path, path: Path) -> str:
        data = source.read_bytes()
        self.write(path, data)
        return hashlib.sha256(data).hexdigest()

    def sync_file(self, path: Path) -> None:
        self._live()
        file = self._node(path)
        assert isinstance(file, _File)
        file.synced |= not self.leave_out("sync_file", path)

    def sync_directory(self, path: Path) -> None:
        self._live()
        if not path.is_dir():
            raise FileNotFoundError(path)
        if path.parts[: self._depth] == self.root.parts and not self.leave_out("sync_directory", path):
            directory = self._node(path)
            assert isinstance(directory, _Directory)
            directory.since_sync.clear()

    def rename(self, old: Path, new: Path) -> None:
        self._live()
        super().rename(old, new)
        self._set(new, self._node(old))
        self._set(old, None)

    def link(self, old: Path, new: Path) -> None:
        self._live()
        super().link(old, new)
        self._set(new, self._node(old))

    def unlink(self, path: Path) -> None:
        self._live()
        super().unlink(path)
        self._set(path, None)

    def mkdir(self, path: Path) -> None:
        self._live()
        super().mkdir(path)
        self._set(path, _Directory())

    def rmdir(self, path: Path) -> None:
        self._live()
        super().rmdir(path)
        self._set(path, None)

    def _live(self) -> None:
        if not self._alive():
            raise Killed

    def _alive(self, path: Path | None = None, half: bytes = b"") -> bool:
        """Count a change; False in the one that the process is killed in. After that, there is no process."""
        self.changes += 1
        if self.on_change is not None:
            self.on_change(self._left(path, half))
        if self._kill_at is not None and self.changes > self._kill_at:
            raise Killed
        return self.changes != self._kill_at

    def _left(self, path: Path | None, half: bytes) -> bytes:
        """Return what a kill leaves in a change, which may be that of a file of which one half is written."""
        left = pickle.dumps(self._tree)
        # Where there is no directory, nothing is written.
        if path is None or not path.parent.is_dir():
            return left
        tree = self._tree
        self._tree = pickle.loads(left)
        self._set(path, _File(half))
        left, self._tree = pickle.dumps(self._tree), tree
        return left

    def _node(self, path: Path) -> _Node:
        node: _Node = self._tree
        for name in path.parts[self._depth :]:
            assert isinstance(node, _Directory)
            node = node.names[name]
        return node

    def _set(self, path: Path, node: _Node | None) -> None:
        directory = self._node(path.parent)
        assert isinstance(directory, _Directory)
        directory.set(path.name, node)


def _survivor(directory: _Directory, torn: dict[_File, _File], rng: random.Random) -> _Directory:
    """Return what is left of a directory. A file with two names is the same one under both."""
    left = _Directory()
    for name in sorted(directory.names.keys() | directory.since_sync.keys()):
        found = rng.choice(directory.since_sync.get(name) or [directory.names[name]])
        if isinstance(found, _Directory):
            left.names[name] = _survivor(found, torn, rng)
        elif found is not None:
            kept = rng.choice((0, rng.randint(0, len(found.data)), len(found.data)))
            file = _File(found.data if found.synced else found.data[:kept], synced=True)
            left.names[name] = torn.setdefault(found, file)
    return left


def _materialise(directory: _Directory, path: Path) -> None:
    for name, node in directory.names.items():
        if isinstance(node, _Directory):
            (path / name).mkdir()
            _materialise(node, path / name)
        else:
            (path / name).write_bytes(node.data)
