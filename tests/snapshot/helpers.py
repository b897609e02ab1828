"""A job in miniature that restores what it is told to, and snapshots that belong to somebody else."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

from msgspec import structs

from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.clock import Clock
from strandline.format.manifest import MANIFEST, FileRef, Manifest
from strandline.snapshot.opening.origin import Origin, decide, verify
from strandline.storage.local import LocalStore
from tests.checkpoint.helpers import LIFE, Run, manifest


class Job(Run):
    """One run of a job below a directory, started as with `restore=wanted`."""

    def __init__(
        self,
        root: Path,
        clock: Clock,
        wanted: str | None = None,
        *,
        claimed: bool = False,
        again: str = "",
        name: str = "job",
        **given: Any,
    ) -> None:
        self.wanted = wanted
        self.claimed = claimed
        self.again = again
        given.setdefault("source_bytes", 1_000)
        super().__init__(LocalStore(root / "ck", fsync=False), root / "tmp", clock, name=name, **given)

    def restore(self) -> tuple[Manifest | None, Manifest | None, str]:
        """As a driver does once it has the claim: look, read what it is to have instead, record."""
        self.origin: Origin = decide(
            self.jobdir, self.wanted, claimed=self.claimed, again=self.again, owned=self.claim, fsync=False
        )
        verify(self.jobdir, self.origin)
        self.choice = self.origin.choice
        self.origin.make_base(self.jobdir, self.claim)
        return self.origin.manifest, self.origin.confirmed, self.origin.depends_on


def jobdir_at(root: Path, name: str = "job") -> JobDirectory:
    return JobDirectory(LocalStore(root / "ck", fsync=False), name)


def write_savepoint(
    path: Path,
    *,
    life: str = LIFE,
    job: str = "other",
    epoch: int = 70,
    checkpoint: int = 9,
    generation: int = 4,
    seed: int = 0,
) -> Manifest:
    """Write a savepoint of two files."""
    rng = random.Random(seed)
    (path / "data").mkdir(parents=True)
    files = []
    for _ in range(2):
        data = rng.randbytes(300)
        name = f"data/{hashlib.sha256(data).hexdigest()}"
        (path / name).write_bytes(data)
        files.append(FileRef(name=name[5:], size=len(data), sha256=hashlib.sha256(data).hexdigest(), path=name))
    taken_of = manifest(checkpoint, files, generation=generation, job=job, epoch=epoch)
    savepoint = structs.replace(taken_of, life=life, savepoint="native", created_ms=1_700_000_000_000 + seed)
    (path / "_metadata").write_bytes(MANIFEST.encode(savepoint))
    return savepoint


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a directory, and its bytes."""
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def url(path: Path) -> str:
    return path.as_uri()
