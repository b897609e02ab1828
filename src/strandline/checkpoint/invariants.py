"""Verification of invariant 2, byte for byte: the newest published manifest is restorable in full. A mode for tests.

The environment variable STRANDLINE_VERIFY=1 enables it. It reads all files of a checkpoint before each publication and
each deletion. A violation is a fault of this program or of the storage: nothing is deleted after it.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.check import verify_files
from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.errors import CorruptionError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import Manifest


def is_verifying() -> bool:
    """Whether this process verifies."""
    return os.environ.get("STRANDLINE_VERIFY") == "1"


def check_publication(jobdir: JobDirectory, manifest: Manifest) -> None:
    """Raise CorruptionError unless every file of the manifest to publish is in storage, undamaged."""
    for problem in verify_files(jobdir, manifest.files()):
        raise _broken(jobdir, f"checkpoint {manifest.checkpoint} is to be published: {problem.path}: {problem.problem}")


def check_deletion(jobdir: JobDirectory, manifests: Collection[CheckpointId], files: Collection[str]) -> None:
    """Raise CorruptionError unless the newest remaining manifest is whole and no remaining one needs `files`."""
    catalog = read_catalog(jobdir)
    staying = {i: m for i, m in catalog.manifests.items() if i not in manifests and i not in catalog.void}
    doomed = set(files)
    for checkpoint, manifest in staying.items():
        for path in sorted(doomed & manifest.paths())[:1]:
            raise _broken(jobdir, f"{path} is to be deleted, and checkpoint {checkpoint} needs it")
    live = [i for i in catalog.live if i in staying]
    damaged = [i for i in catalog.damaged if i not in manifests and not catalog.passed_over(i)]
    if not live and any(i in catalog.live for i in manifests):
        raise _broken(jobdir, f"checkpoints {sorted(manifests)} are to be deleted, and no other would stay")
    if damaged and max(damaged) > max(live, default=0):
        raise _broken(jobdir, f"the newest checkpoint that stays cannot be read: {catalog.damaged[max(damaged)]}")
    for problem in verify_files(jobdir, staying[max(live)].files()) if live else []:
        raise _broken(jobdir, f"checkpoint {max(live)} stays, and lacks {problem.path}: {problem.problem}")


def _broken(jobdir: JobDirectory, violation: str) -> CorruptionError:
    return CorruptionError(
        f"invariant broken: {jobdir.url}: {violation}",
        hint="nothing was deleted: keep the directory as it is, and report this with the driver's log",
    )
