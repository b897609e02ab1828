"""A standby: keeps the files of other machines' partitions on this machine, so that a restore here downloads nothing.

It only reads what is published: files that never change, of the newest checkpoint. It is no keeper and writes no state,
so that a partition cannot have two writers. Each file has its checksum as its name, and gets the name when it is
complete and verified. So a restore of any checkpoint takes what fits, and a download that was ended is never taken.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.parallel import sha256_of
from strandline.checkpoint.restore import download
from strandline.core import failpoints
from strandline.core.errors import NotFoundError, StrandlineError, UnavailableError, discreet
from strandline.core.ids import CheckpointId, Generation
from strandline.format.manifest import MANIFEST, FileRef, Manifest
from strandline.keeper.lock import mark_standby, remove_standby
from strandline.keeper.paths import local_copies, partition_directory, standby_files
from strandline.keeper.protocol import StandbyState
from strandline.runtime.program import Followed

log = logging.getLogger(__name__)

_PAUSE_S = 1.0
"""The least time between two looks at the storage: each reads a whole manifest, also if checkpoints follow faster."""
_RESERVE_BYTES = 512 << 20
"""Keepers on this machine write to the same disk: without space, they would fail for a copy."""
_END_S = 1.0
"""How long the end of a job waits for a download in progress."""


class Standby:
    """The standbys that one keeper has, in a thread of their own."""

    def __init__(self, generation: Generation, root: Path, followed: Sequence[Followed], jobdir: JobDirectory) -> None:
        """`root` is the directory of the job on this machine."""
        self._generation, self._root, self._jobdir = generation, root, jobdir
        self._lock, self._copying = threading.Lock(), threading.Lock()
        host = socket.gethostname()
        self._states = {each: StandbyState(uid=each.uid, partition=each.partition, host=host) for each in followed}
        self._newest: CheckpointId | None = None
        self._is_new = threading.Event()
        # Before the first epoch: keepers sweep the machine after it.
        for each in followed:
            # The thread meets the same error and reports it.
            with suppress(OSError):
                mark_standby(self._directory(each), self._generation)
        threading.Thread(target=self._run, name="strandline-standby", daemon=True).start()

    def follow(self, checkpoint: CheckpointId | None) -> None:
        """Note the newest published checkpoint."""
        if checkpoint != self._newest:
            self._newest = checkpoint
            self._is_new.set()

    def states(self) -> list[StandbyState]:
        """Return how far each is. Thread-safe."""
        with self._lock:
            return list(self._states.values())

    def forget(self) -> None:
        """Remove all files: the job will not restart on this machine soon. What is left is for a sweep."""
        followed = list(self._states)
        if self._copying.acquire(timeout=_END_S):
            # Not released: nothing is copied any more.
            for each in followed:
                with suppress(OSError):
                    remove_standby(self._directory(each), self._generation)

    def _directory(self, followed: Followed) -> Path:
        return partition_directory(self._root, followed.uid, followed.partition)

    def _run(self) -> None:
        while True:
            self._is_new.wait()
            self._is_new.clear()
            if (checkpoint := self._newest) is not None and not self._follow(checkpoint):
                self._is_new.set()
            time.sleep(_PAUSE_S)

    def _follow(self, checkpoint: CheckpointId) -> bool:
        """Copy what a checkpoint has of all followed partitions; return False if it has to be tried again."""
        failure = ""
        try:
            manifest = self._jobdir.read(manifest_path(checkpoint), MANIFEST.decode)
            for each in self.states():
                self._copy(Followed(each.uid, each.partition), manifest)
        except Exception as error:
            if not self._is_subsumed(checkpoint):
                failure = f"checkpoint {checkpoint} is not copied: {discreet(error)}"
        with self._lock:
            is_known = all(state.failure == failure for state in self._states.values())
            self._states = {
                each: msgspec.structs.replace(state, failure=failure) for each, state in self._states.items()
            }
        if failure and not is_known:
            log.warning("standby: %s", failure)
        return not failure

    def _is_subsumed(self, checkpoint: CheckpointId) -> bool:
        """Whether a newer checkpoint has replaced one: the keeper hears of it by the next request."""
        try:
            self._jobdir.head(manifest_path(checkpoint))
        except NotFoundError:
            return True
        except StrandlineError:
            pass
        return self._newest != checkpoint

    def _copy(self, followed: Followed, manifest: Manifest) -> None:
        directory = self._directory(followed)
        files = {file.sha256: file for file in _files_of(manifest, followed) if file.inline is None}
        into = standby_files(directory)
        for sha256, file in files.items():
            with self._copying:
                if not mark_standby(directory, self._generation):
                    return
                into.mkdir(mode=0o700, exist_ok=True)
                if not (into / sha256).exists() and not _link_copy(directory, file, into / sha256):
                    self._download(followed, file, into / sha256)
        # Last: as long as the copy of a newer checkpoint is incomplete, a restore uses what there is of the one before.
        with self._copying:
            if not mark_standby(directory, self._generation):
                return
            for path in into.iterdir() if into.exists() else ():
                if path.name not in files:
                    path.unlink(missing_ok=True)
            # What a keeper of an earlier run has left here.
            for path in directory.iterdir():
                if path.is_dir() and path != into:
                    shutil.rmtree(path, ignore_errors=True)
        self._change(followed, checkpoint=manifest.checkpoint, total_bytes=sum(file.size for file in files.values()))

    def _download(self, followed: Followed, file: FileRef, target: Path) -> None:
        if shutil.disk_usage(target.parent).free - file.size < _RESERVE_BYTES:
            raise UnavailableError(
                f"{target.parent}: the disk has no room for {file.size} bytes: a standby leaves {_RESERVE_BYTES} for "
                "the keepers"
            )
        temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        started_s = time.thread_time()
        try:
            download(self._jobdir, file, temporary)
            failpoints.hit("standby.downloaded")
            temporary.rename(target)
        finally:
            temporary.unlink(missing_ok=True)
        before = self._states[followed]
        cpu_ms = round(before.cpu_ms + (time.thread_time() - started_s) * 1000, 3)
        self._change(followed, downloaded_bytes=before.downloaded_bytes + file.size, cpu_ms=cpu_ms)

    def _change(self, followed: Followed, **fields: float) -> None:
        with self._lock:
            self._states[followed] = msgspec.structs.replace(self._states[followed], **fields)


def _link_copy(directory: Path, file: FileRef, target: Path) -> bool:
    """Link a file from the local copies that a keeper of an earlier run has left; return False if it is not there."""
    for _, copy in local_copies(directory):
        path = copy / file.name
        with suppress(OSError):
            if path.stat().st_size == file.size and sha256_of(path) == file.sha256:
                os.link(path, target)
                return True
    return False


def _files_of(manifest: Manifest, followed: Followed) -> list[FileRef]:
    return [
        file
        for operator in manifest.operators
        if operator.uid == followed.uid
        for part in operator.partitions
        if part.index == followed.partition
        for file in part.files
    ]
