"""The files that live checkpoints reference. Derived from manifests, so it can always be rebuilt."""

from __future__ import annotations

from collections import Counter

from strandline.core.ids import CheckpointId
from strandline.format.manifest import Manifest


class SharedFiles:
    """The live checkpoints and their files, by path. Not thread-safe."""

    def __init__(self) -> None:
        self._files: dict[CheckpointId, frozenset[str]] = {}
        self.live: Counter[str] = Counter()
        """The number of live checkpoints that reference a file, by path; at least one."""

    @property
    def checkpoints(self) -> list[CheckpointId]:
        """Live checkpoints, oldest first."""
        return sorted(self._files)

    def files_of(self, checkpoint: CheckpointId) -> frozenset[str]:
        """Return the paths that a live checkpoint references."""
        return self._files[checkpoint]

    def complete(self, manifest: Manifest) -> None:
        """Add a published checkpoint; adding it twice changes nothing."""
        checkpoint = manifest.checkpoint
        if checkpoint not in self._files:
            self._files[checkpoint] = frozenset(f.path for f in manifest.stored())
            self.live.update(self._files[checkpoint])

    def drop(self, checkpoint: CheckpointId) -> list[str]:
        """Remove a checkpoint whose manifest is deleted; return the paths no live checkpoint references any more."""
        dropped = self._files.pop(checkpoint, frozenset())
        self.live.subtract(dropped)
        unreferenced = sorted(path for path in dropped if not self.live[path])
        for path in unreferenced:
            del self.live[path]
        return unreferenced
