"""A savepoint of a job that runs: of a checkpoint that is taken for it, while epochs go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from strandline.checkpoint.folder import folder_at
from strandline.checkpoint.history import CheckpointStats
from strandline.checkpoint.jobdir import manifest_path
from strandline.checkpoint.publish import OutcomeUnknownError
from strandline.control.status import Savepoint
from strandline.core.errors import CheckpointError, ConfigurationError, ConflictError, CorruptionError
from strandline.core.ids import Partition
from strandline.format.manifest import MANIFEST, Manifest
from strandline.keeper.paths import local_copy
from strandline.snapshot.opening.snapshot import savepoint_place
from strandline.snapshot.savepoints.take import FORMS, Form, Report, take_savepoint
from strandline.spark.job.attempt import Blueprint
from strandline.storage.place import Place


def target_of(blueprint: Blueprint, url: str | Path, form: str) -> Place:
    """Return where a savepoint is to go; refuse what cannot be one, before anything is done."""
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
) -> Savepoint:
    """Take a checkpoint, which stays until it is a savepoint as well, or until the job ends: then it is given up."""
    b, started = blueprint, time.monotonic()
    with b.holds:
        stats = take_checkpoint()
        _check_delivered(b)
        path = manifest_path(stats.checkpoint)
        manifest = b.jobdir.read(path, MANIFEST.decode)
        if manifest.checkpoint != stats.checkpoint:
            raise CorruptionError(f"{b.jobdir.url}/{path}: is checkpoint {manifest.checkpoint}")
        source = b.jobdir.place(b.checkpoints.storage_options, fsync=b.settings.fsync)
        try:
            made = take_savepoint(
                manifest, source, target, form, report=report, clock=b.clock, scratch=b.places.root,
                local_copy=lambda uid, index: local_copy(b.places.state(uid, Partition(index)), stats.checkpoint),
                cancelled=is_ending,
            )  # fmt: skip
        except (ConflictError, OutcomeUnknownError):
            raise
        except Exception as error:
            # Whatever it was: the directories on this machine go with the job.
            if not is_ending():
                raise
            raise CheckpointError(
                f"job '{b.name}' ended before its savepoint {folder_at(target).url} was complete; nothing is left",
                hint="stop with a savepoint, or take one when the job runs again",
            ) from error
    return told(made, target, started)


def _check_delivered(b: Blueprint) -> None:
    """Whoever goes on from the savepoint elsewhere would not deliver what is listed in it: that is this job's."""
    for name, sink, _ in b.plan.sinks:
        waits = sink.status()
        if waits is not None and waits.waiting_rows:
            raise CheckpointError(
                f"job '{b.name}': no savepoint is taken while {waits.waiting_rows:,} rows of sink '{name}' wait for "
                f"what it writes to: {waits.failure}",
                hint="take it when that is back; a checkpoint may be taken at any time",
            )


def told(made: Manifest, target: Place, started: float) -> Savepoint:
    """Return what is said of a savepoint that was made."""
    assert made.savepoint
    return Savepoint(
        url=folder_at(target).url, form=made.savepoint, checkpoint=made.checkpoint, epoch=made.epoch,
        total_bytes=made.total_bytes, duration_ms=round((time.monotonic() - started) * 1000),
    )  # fmt: skip
