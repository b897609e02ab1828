"""Verification with a progress bar: on a terminal, on standard error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from strandline.checkpoint.check import VerifyReport, verify
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.cli.output import console
from strandline.core.errors import StrandlineError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import decode_manifest


class WatchedJobDirectory(JobDirectory):
    """Tells how many bytes were read as files."""

    def __init__(self, jobdir: JobDirectory, on_bytes: Callable[[int], object]) -> None:
        super().__init__(jobdir.store, jobdir.job)
        self._on_bytes = on_bytes

    def get_file(self, path: str, target: Path) -> None:
        super().get_file(path, target)
        self._on_bytes(target.stat().st_size)


def verify_all(wanted: Sequence[tuple[JobDirectory, CheckpointId]]) -> list[tuple[str, CheckpointId, VerifyReport]]:
    """Verify checkpoints one after the other; return job, checkpoint and report of each."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        return [(jobdir.job, number, verify(jobdir, number)) for jobdir, number in wanted]
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("reading", total=sum(_bytes_to_read(*one) for one in wanted))
        reports = []
        for jobdir, number in wanted:
            progress.update(task, description=f"{jobdir.job} checkpoint {number}")
            watched = WatchedJobDirectory(jobdir, lambda size: progress.advance(task, size))
            reports.append((jobdir.job, number, verify(watched, number)))
    return reports


def _bytes_to_read(jobdir: JobDirectory, checkpoint: CheckpointId) -> int:
    """Return how much a verification reads; one that cannot be known yet counts nothing."""
    try:
        manifest = jobdir.read(manifest_path(checkpoint), decode_manifest)
    except StrandlineError:
        return 0
    return sum({file.path: file.size for file in manifest.files() if file.path}.values())
