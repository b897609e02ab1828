"""Snapshots of real state, as a job leaves them: two checkpoints, and savepoints of the second in both forms."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strandline.format.manifest import MANIFEST
from strandline.snapshot.savepoints.take import take_savepoint
from strandline.storage.place import Place
from tests.runtime.bench import Model
from tests.runtime.rescaling import KEYS, Job


@dataclass(frozen=True)
class Made:
    """Where they are. The second checkpoint comes after a restart at another parallelism, on the same backend."""

    checkpoints: list[Path]
    canonical: Path
    native: Path
    model: Model
    """What the second one holds."""

    def keys_with(self, state: str) -> int:
        """Return how many keys have this state."""
        return sum(state in states for states in self.model.keys.values())


def make(root: Path) -> Made:
    """Have a job live twice: every key gets a value, then half of them another one, and a list grows."""
    job, model, folders = Job(root), Model(), []
    for number, parallelism in enumerate((2, 3), 1):
        job.start(parallelism, "rocksdb")
        changed = KEYS if number == 1 else KEYS[::2]
        events = [(key, op, number, number) for op in ("set_value", "append") for key in changed]
        job.run(events)
        for event in events:
            model.answer(*event)
        job.checkpoint()
        job.stop()
        folder = root / f"storage/job/chk-{number}"
        folder.mkdir(exist_ok=True)
        (folder / "_metadata").write_bytes(MANIFEST.encode(job.manifest()))
        folders.append(folder)
    for form in ("canonical", "native"):
        source = Place(url=f"file://{root}/storage", path="job")
        take_savepoint(job.manifest(), source, Place(url=root.as_uri(), path=form), form)  # type: ignore[arg-type]
    return Made(folders, root / "canonical", root / "native", model)
