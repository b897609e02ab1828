"""Savepoints of a running job: each is made from a new checkpoint while epochs continue."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from strandline.checkpoint.folder import folder_at
from strandline.checkpoint.history import CheckpointStats
from strandline.checkpoint.jobdir import manifest_path
from strandline.checkpoint.publish import OutcomeUnknownError
from strandline.control.events import SavepointEnd
from strandline.control.status import Savepoint
from strandline.core.errors import CheckpointError, ConfigurationError, ConflictError, CorruptionError
from strandline.core.ids import Partition
from strandline.format.manifest import MANIFEST, Manifest
from strandline.keeper.paths import local_copy
from strandline.snapshot.opening.snapshot import savepoint_place
from strandline.snapshot.savepoints.take import FORMS, Form, Report, take_savepoint
from strandline.spark.job.attempt import Blueprint
from strandline.storage.place import Place

_LATER = "take it when the target is available again; a checkpoint may be taken at any time"
_AFTER_DRAIN = (
    "the job ends all the same, drained. When the target is available again, start the job: it delivers these rows. "
    "`strandline snapshots copy --canonical` then makes a savepoint of its last checkpoint"
)


def target_of(blueprint: Blueprint, url: str | Path, form: str) -> Place:
    """Return the place of a new savepoint; raise ConfigurationError for a wrong form or place."""
    if form not in FORMS:
        raise ConfigurationError(f"format is {form!r}, expected one of {', '.join(FORMS)}")
    ck = blueprint.checkpoints
    return savepoint_place(str(url), ck.storage_options, fsync=blueprint.settings.fsync)


def save(
    blueprint: Blueprint,
    take_checkpoint: Callable[[], CheckpointStats],
    target: Place,
    form: Form,
    report: Report,
    is_ending: Callable[[], bool],
    shows_all: Callable[[], bool],
) -> Savepoint:
    """Take a checkpoint and make a savepoint from it; until then, the checkpoint is kept. Fails if the job ends.

    `shows_all` tells whether sinks have shown all rows of the newest checkpoint.
    """
    b, started = blueprint, time.monotonic()
    with b.holds:
        stats = take_checkpoint()
        _check_delivered(b, shows_all)
        path = manifest_path(stats.checkpoint)
        manifest = b.jobdir.read(path, MANIFEST.decode)
        if manifest.checkpoint != stats.checkpoint:
            raise CorruptionError(f"{b.jobdir.url}/{path}: is checkpoint {manifest.checkpoint}")
        source = b.jobdir.place(b.checkpoints.storage_options, fsync=b.settings.fsync)
        try:
            manifest = take_savepoint(
                manifest, source, target, form, report=report, clock=b.clock, scratch=b.places.root,
                local_copy=lambda uid, index: local_copy(b.places.state(uid, Partition(index)), stats.checkpoint),
                cancelled=is_ending,
            )  # fmt: skip
        except (ConflictError, OutcomeUnknownError):
            raise
        except Exception as error:
            # Any error can be a consequence of the end, which deletes the job's local directories.
            if not is_ending():
                raise
            raise CheckpointError(
                f"job '{b.name}' ended before its savepoint {folder_at(target).url} was complete; no file is left",
                hint="stop with a savepoint, or take one when the job runs again",
            ) from error
    savepoint = savepoint_of(manifest, target, started)
    b.events.write(SavepointEnd(**asdict(savepoint)))
    return savepoint


def _check_delivered(b: Blueprint, shows_all: Callable[[], bool]) -> None:
    """Raise CheckpointError if rows wait for delivery: a job that restores the savepoint would not deliver them."""
    for name, sink, _ in b.plan.sinks:
        waits = sink.status()
        if waits is not None and waits.waiting_rows:
            raise CheckpointError(
                f"job '{b.name}': no savepoint is taken while {waits.waiting_rows:,} rows of sink '{name}' wait for "
                f"its target: {waits.failure}",
                hint=_AFTER_DRAIN if b.draining.requested.is_set() else _LATER,
            )
    # Sinks of a program's own need not have a status.
    if not shows_all():
        raise CheckpointError(
            f"job '{b.name}': no savepoint is taken while a sink could not show rows of the newest checkpoint",
            hint="take it when the sink has shown them; a checkpoint may be taken at any time",
        )


def savepoint_of(manifest: Manifest, target: Place, started: float) -> Savepoint:
    """Return the description of a savepoint with this manifest."""
    assert manifest.savepoint
    return Savepoint(
        url=folder_at(target).url, form=manifest.savepoint, checkpoint=manifest.checkpoint, epoch=manifest.epoch,
        total_bytes=manifest.total_bytes, duration_ms=round((time.monotonic() - started) * 1000),
    )  # fmt: skip
