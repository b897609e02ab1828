"""The next base of a changelog, which is uploaded beside the checkpoints and not as part of one.

A file that no checkpoint has is garbage as soon as a newer checkpoint is published. So a checkpoint first has the paths
as planned ones, and the upload begins when it is published, if all later checkpoints have these paths, too: one that
was in flight when they were chosen may not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

from strandline.backends.base import Base, LocalFile
from strandline.checkpoint.folder import delete_quietly
from strandline.checkpoint.jobdir import JobDirectory, shared_path
from strandline.checkpoint.kinds import SnapshotKind
from strandline.checkpoint.upload import upload_file
from strandline.core import failpoints
from strandline.core.errors import CheckpointError, discreet
from strandline.core.ids import CheckpointId
from strandline.format.manifest import FileRef

log = logging.getLogger(__name__)

Stage = Enum("Stage", ["PLANNED", "UPLOADING", "UPLOADED"])


class NextBase:
    """A base on its way to the storage. Thread-safe."""

    def __init__(
        self, base: Base, known: Mapping[str, FileRef], kind: SnapshotKind, newest: Callable[[], CheckpointId]
    ) -> None:
        """`known` are files of the last confirmed checkpoint, by name: those that the base has too stay there.

        `newest` returns the newest checkpoint that was triggered.
        """
        self.base = base
        self._missing = [file for file in base.files if not isinstance(kind(file, known), FileRef)]
        self._newest = newest
        self._lock = threading.Lock()
        self._stage = Stage.PLANNED
        self._is_cancelled = False
        self.files: dict[str, FileRef] = {}
        """By name, the files that were uploaded."""
        self._plan()

    def _plan(self) -> None:
        self._paths = {file.name: shared_path() for file in self._missing}
        # After that: the reports on all later checkpoints have these paths.
        self._since = self._newest()

    @property
    def planned(self) -> list[str]:
        """The paths that the next checkpoints must have until they use the base."""
        return list(self._paths.values())

    @property
    def is_uploaded(self) -> bool:
        """Whether snapshots may begin with it."""
        return self._stage is Stage.UPLOADED

    @property
    def uploaded_bytes(self) -> int:
        """The size of the uploaded files."""
        return sum(file.size for file in self.files.values())

    def confirm(
        self, planned: Sequence[str], jobdir: JobDirectory, checkpoint: CheckpointId, uploader: ThreadPoolExecutor
    ) -> None:
        """Begin the upload if a published checkpoint has these planned paths."""
        with self._lock:
            if self._stage is not Stage.PLANNED or checkpoint < self._since or planned != self.planned:
                return
            self._stage = Stage.UPLOADING
        uploader.submit(self._upload, jobdir, checkpoint)

    def cancel(self) -> None:
        """End the upload soon."""
        self._is_cancelled = True

    def _upload(self, jobdir: JobDirectory, checkpoint: CheckpointId) -> None:
        try:
            failpoints.hit("keeper.rebase.upload")
            refs = [self._upload_one(jobdir, file, checkpoint) for file in self._missing]
            failpoints.hit("keeper.rebase.uploaded")
        except BaseException as error:
            with self._lock:
                # New paths: storage may still execute what it has refused.
                refused = self.planned
                self._plan()
                self._stage = Stage.PLANNED
            delete_quietly(jobdir, refused)
            if not self._is_cancelled:
                log.warning("the upload of a new base failed, and begins again with other paths: %s", discreet(error))
            return
        with self._lock:
            self.files = {ref.name: ref for ref in refs}
            self._stage = Stage.UPLOADED

    def _upload_one(self, jobdir: JobDirectory, file: LocalFile, checkpoint: CheckpointId) -> FileRef:
        if self._is_cancelled:
            raise CheckpointError("the keeper ends")
        return upload_file(jobdir, file, self._paths[file.name], shared=True, checkpoint=checkpoint)
