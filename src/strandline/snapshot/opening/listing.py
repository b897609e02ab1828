"""Lists and verifies snapshots in any folder, without a job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from strandline.checkpoint.check import (
    Kind,
    OnBytes,
    Problem,
    SnapshotSummary,
    State,
    VerifyReport,
    ignore_bytes,
    summaries,
    summary_of,
    verify_manifest,
)
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.jobdir import manifest_id
from strandline.core.errors import CorruptionError, NotFoundError
from strandline.format.manifest import MANIFEST
from strandline.snapshot.opening.deletion import DELETING
from strandline.snapshot.opening.snapshot import (
    METADATA,
    as_job,
    check_form,
    find_snapshot,
    job_paths,
    open_folder,
    savepoint_paths,
)


def list_snapshots(url: str, options: Mapping[str, str] | None = None) -> list[SnapshotSummary]:
    """List the savepoints and checkpoints at a path or url and below it, newest first.

    It checks sizes, but not contents. Raises NotFoundError for a local directory that does not exist.
    """
    here = open_folder(url, options, fsync=False)
    sizes = {info.path: info.size_bytes for info in here.list()}
    if METADATA in sizes:
        return [_single(here, url, options)]
    if DELETING in sizes:
        return [_half_deleted(here)]
    snapshots = [summary for job in job_paths(sizes) for summary in _checkpoints(Folder(here.store, job))]
    snapshots += [_savepoint(Folder(here.store, path), sizes) for path in savepoint_paths(sizes)]
    for path in sizes:
        folder, _, name = path.rpartition("/")
        if name == DELETING and f"{folder}/{METADATA}" not in sizes:
            snapshots.append(_half_deleted(Folder(here.store, folder)))
    return sorted(snapshots, key=lambda summary: (summary.created_ms, summary.checkpoint), reverse=True)


def current(snapshots: Sequence[SnapshotSummary]) -> list[SnapshotSummary]:
    """Return of each job's folder the newest checkpoint that is not void, damaged or not, and every savepoint."""
    newest: dict[str, SnapshotSummary] = {}
    for one in snapshots:
        place = one.url if one.kind == "savepoint" else one.url.rpartition("/")[0]
        before = newest.get(place)
        if one.state != "void" and (before is None or before.checkpoint < one.checkpoint):
            newest[place] = one
    return list(newest.values())


def verify_snapshot(
    url: str, options: Mapping[str, str] | None = None, on_bytes: OnBytes = ignore_bytes
) -> VerifyReport:
    """Read every byte of a snapshot, and return each file that is missing or damaged.

    `on_bytes` is called with each file's size. A void checkpoint has a problem, too. Raises NotFoundError as
    `open_snapshot` does.
    """
    try:
        snapshot = find_snapshot(url, options, fsync=False)
    except CorruptionError as error:
        return VerifyReport(0, 0, [Problem(METADATA, error.message)])
    report = verify_manifest(snapshot.folder, snapshot.manifest, on_bytes)
    refused = [Problem(METADATA, snapshot.refused)] if snapshot.refused else []
    if snapshot.kind == "savepoint":
        try:
            check_form(snapshot.manifest, snapshot.url)
        except CorruptionError as error:
            refused.append(Problem(METADATA, error.message))
    return VerifyReport(report.files, report.bytes, report.problems + refused)


def _checkpoints(folder: Folder) -> list[SnapshotSummary]:
    try:
        jobdir = as_job(folder)
    except NotFoundError:
        # Without a readable manifest, only the folder says the job's name, and its checkpoints cannot be checked.
        job = unquote(folder.url.rpartition("/")[2])
        return [
            SnapshotSummary(
                f"{folder.url}/chk-{number}", "checkpoint", "damaged", "its manifest cannot be read", job, number,
                info.modified_ms,
            )
            for info in folder.list()
            if (number := manifest_id(info.path)) is not None
        ]  # fmt: skip
    return [] if jobdir is None else summaries(jobdir)


def _half_deleted(folder: Folder) -> SnapshotSummary:
    reason = "its deletion was broken off: `strandline snapshots delete` ends it"
    return SnapshotSummary(folder.url, "savepoint", "damaged", reason)


def _savepoint(folder: Folder, sizes: Mapping[str, int]) -> SnapshotSummary:
    try:
        manifest = folder.read(METADATA, MANIFEST.decode)
    except CorruptionError as error:
        return SnapshotSummary(folder.url, "savepoint", "damaged", error.message)
    missing = [f.path for f in manifest.stored() if sizes.get(f"{folder.path}/{f.path}") != f.size]
    state: State = "damaged" if missing else "complete"
    reason = f"{len(missing)} files are missing or have another size, as {missing[0]}" if missing else ""
    return summary_of(manifest, folder.url, state, reason)


def _single(here: Folder, url: str, options: Mapping[str, str] | None) -> SnapshotSummary:
    try:
        snapshot = find_snapshot(url, options, fsync=False)
    except CorruptionError as error:
        kind: Kind = "checkpoint" if re.search(r"/chk-\d+$", here.url) else "savepoint"
        return SnapshotSummary(here.url, kind, "damaged", error.message)
    reason = snapshot.refused or "; ".join(snapshot.missing()[:3])
    state: State = "void" if snapshot.refused.startswith("void") else "damaged" if reason else "complete"
    return summary_of(snapshot.manifest, snapshot.url, state, reason)
