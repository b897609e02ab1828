"""Collects what the model of checkpoints needs to know of a job: from its manifests, its status, and its storage."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import mean, median

from strandline.api.config import Continuous
from strandline.checkpoint import costs
from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.costs import MB, Setting, Workload
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.history import CheckpointStats, PartitionStats
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import fetch
from strandline.control.client import Driver, call
from strandline.control.commands import STATUS, NoArguments
from strandline.control.status import Status
from strandline.core.errors import ConfigurationError, CorruptionError, NotFoundError
from strandline.core.scratch import Scratch
from strandline.format.manifest import FileRef, Manifest, PartitionInfo, size_of
from strandline.snapshot.opening.snapshot import Snapshot, find_snapshot

_PROBED_BYTES = 64 * MB
_LEAST_PROBED_BYTES = 1 * MB
_PROBED_FILES = 16
_TRIES = 3
_LOOK_S = 0.2
_STATUS_TIMEOUT_S = 10.0
_LEAST_UPLOAD_BYTES = 16 * MB
"""A smaller upload takes as long as its requests."""
_LEAST_DURABLE_S = 0.02
_KEEPERS_SHARE = 0.5
"""Of the processing of a row, what happens in keepers (docs/where-the-time-goes.svg)."""
_LOG = ".log"
_LOOPS, _ROUNDS, _LOOP_S = 15, 400_000, 0.0185
"""Loops of Python, their rounds, and how long one takes on the machine of the model's constants."""


@dataclass(frozen=True)
class Observation:
    """A job as it is, and how its figures are known."""

    job: str
    directory: str
    """The url of its checkpoint directory."""
    snapshot: str
    work: Workload
    now: Setting | None
    """Its mode and interval; None if the interval is not known."""
    origins: dict[str, str]
    """By field of the workload: how it was measured, or where its assumed value is from."""
    uploaded_per_s: float | None = None
    """What its checkpoints upload, measured."""

    @property
    def assumed(self) -> list[str]:
        """The fields that were not measured."""
        return [name for name, origin in self.origins.items() if origin.startswith("assumed")]


@dataclass(frozen=True)
class _Point:
    """One checkpoint of a job's newest generation."""

    number: int
    at_s: float
    uploaded_bytes: int
    parts: Sequence[PartitionInfo | PartitionStats]
    rows: int | None = None


@dataclass
class _Watch:
    """The statuses of a running job, and the checkpoints in them."""

    statuses: list[tuple[float, Status]] = field(default_factory=list)
    checkpoints: dict[int, CheckpointStats] = field(default_factory=dict)


def observe_snapshot(url: str, options: Mapping[str, str], changed_per_s: float | None, delay_s: float) -> Observation:
    """Observe a job by a snapshot and, of a job's own checkpoint, by those that are retained beside it."""
    return _observe(url, options, changed_per_s, delay_s, None)


def observe_job(
    driver: Driver, url: str, options: Mapping[str, str], changed_per_s: float | None, delay_s: float,
    watch_s: float, on_progress: Callable[[float], object] = lambda _: None,
) -> Observation:  # fmt: skip
    """Observe a running job for some seconds, and by its checkpoints at a url."""
    watch, began = _Watch(), time.monotonic()
    while not watch.statuses or time.monotonic() - began < watch_s:
        status = call(driver, STATUS, NoArguments(), timeout_s=_STATUS_TIMEOUT_S)
        watch.statuses.append((time.monotonic(), status))
        if status.last_checkpoint is not None:
            watch.checkpoints[status.last_checkpoint.checkpoint] = status.last_checkpoint
        on_progress(min(1.0, (time.monotonic() - began) / watch_s) if watch_s else 1.0)
        time.sleep(_LOOK_S)
    return _observe(url, options, changed_per_s, delay_s, watch)


def _observe(
    url: str, options: Mapping[str, str], changed_per_s: float | None, delay_s: float, watch: _Watch | None
) -> Observation:
    snapshot, read_per_s = _probe(url, options)
    manifest = snapshot.manifest
    parts = [part for operator in manifest.operators for part in operator.partitions]
    files = [file for part in parts for file in part.files]
    log_bytes = size_of(file for file in files if file.name.endswith(_LOG))
    in_keepers = sum(keeper.state_bytes or 0 for keeper in watch.statuses[-1][1].keepers) if watch else 0
    # A base may be from a time when the state was small.
    in_log = log_bytes / (Continuous().log if manifest.mode == "continuous" else 1)
    state_bytes = max(size_of(files) - log_bytes, _tables_bytes(manifest), in_keepers or in_log)
    partitions = max((operator.parallelism for operator in manifest.operators), default=0)
    if not partitions:
        raise ConfigurationError(
            f"{snapshot.url}: it has no keyed operator, so no state: no mode is cheaper or faster than another",
            hint="use the default mode, and an interval that is as long as a sink's rows may be invisible",
        )
    share = max((size_of(part.files) for part in parts), default=0) / max(size_of(files), 1)
    work = Workload(
        state_bytes, partitions, 0.0, 0.0, largest_bytes=share * state_bytes, log_bytes=log_bytes,
        restart_delay_s=delay_s, is_written_whole=any(operator.backend != "rocksdb" for operator in manifest.operators),
    )  # fmt: skip
    origins = {
        "state_bytes": f"measured: {snapshot.url}",
        "read_per_s": "measured: files of the snapshot were read"
        if read_per_s
        else "assumed: the snapshot has too little to read, or too large files; a local disk of docs/benchmarks.md",
    }
    slowness = _slowness()
    origins["slowness"] = f"measured: at best it takes {slowness:.1f} times as long as the model's"
    work = replace(work, slowness=slowness, read_per_s=read_per_s or work.read_per_s)
    points = _points(snapshot, watch)
    work = _with_uploads(_with_rows(work, points, watch, origins), points, origins)
    work = _with_phases(work, watch, origins)
    gaps = _gaps(points)
    work = _with_changes(work, manifest, gaps, changed_per_s, origins)
    directory = snapshot.folder.url.rpartition("/")[0] if snapshot.kind == "checkpoint" else "…"
    log = Continuous() if manifest.mode == "continuous" else costs.DEFAULT_LOG
    now = Setting(manifest.mode, median(took_s for took_s, _ in gaps), log) if gaps else None
    uploaded_per_s = sum(each for _, each in gaps) / sum(took_s for took_s, _ in gaps) if gaps else None
    return Observation(manifest.job, directory, snapshot.url, work, now, origins, uploaded_per_s)


def _tables_bytes(manifest: Manifest) -> int:
    return size_of(t.file for o in manifest.operators for tables in (o.tables or {}).values() for t in tables)


def _probe(url: str, options: Mapping[str, str]) -> tuple[Snapshot, float | None]:
    """Return the newest snapshot, and how many bytes of it a restore reads in a second; None if that is not known."""
    for left in reversed(range(_TRIES)):
        snapshot = find_snapshot(url, options, fsync=False)
        try:
            return snapshot, _read_per_s(snapshot.folder, snapshot.manifest)
        except (NotFoundError, CorruptionError):
            # A running job may have replaced the checkpoint meanwhile.
            if not left:
                raise
    raise AssertionError


def _read_per_s(folder: Folder, manifest: Manifest) -> float | None:
    sample: dict[str, FileRef] = {}
    size_bytes = 0
    for file in sorted(manifest.stored(), key=lambda file: -file.size):
        if size_bytes + file.size <= _PROBED_BYTES and len(sample) < _PROBED_FILES:
            sample[file.name], size_bytes = file, size_bytes + file.size
    if size_bytes < _LEAST_PROBED_BYTES:
        return None
    with Scratch("plan") as scratch:
        began = time.perf_counter()
        fetch(folder, list(sample.values()), scratch / "files")
        return size_bytes / (time.perf_counter() - began)


def _slowness() -> float:
    """Return how much longer this machine takes for the same work than the one of the model's constants.

    The fastest loop counts: others share the processor with the job itself, which does not work while it recovers.
    """
    loops_s = []
    for _ in range(_LOOPS):
        began, value = time.perf_counter(), 0
        for number in range(_ROUNDS):
            value = (value * 31 + number) & 0xFFFFFF
        loops_s.append(time.perf_counter() - began)
    return min(loops_s) / _LOOP_S


def _points(snapshot: Snapshot, watch: _Watch | None) -> list[_Point]:
    """Return the checkpoints of the newest generation that are known, oldest first."""
    newest, folder = snapshot.manifest, snapshot.folder
    known = {newest.checkpoint: newest}
    if snapshot.kind == "checkpoint":
        catalog = read_catalog(JobDirectory(folder.store, newest.job, folder=folder.path))
        known |= {i: each for i, each in catalog.live.items() if each.generation == newest.generation}
    points: dict[int, _Point] = {
        number: _Point(
            number, each.triggered_ms / 1000, each.uploaded_bytes, [p for o in each.operators for p in o.partitions],
            (each.totals or {}).get("rows_in", 0),
        )
        for number, each in known.items()
    }  # fmt: skip
    for number, stats in watch.checkpoints.items() if watch else ():
        points.setdefault(number, _Point(number, stats.triggered_ms / 1000, stats.uploaded_bytes, stats.partitions))
    return [points[number] for number in sorted(points)]


def _gaps(points: list[_Point]) -> list[tuple[float, int]]:
    """Return for each point the average time since the checkpoint before, and its upload.

    The first point has none: it may have uploaded all state. A watch may miss checkpoints between two points.
    """
    return [
        ((after.at_s - before.at_s) / (after.number - before.number), after.uploaded_bytes)
        for before, after in pairwise(points)
        if after.at_s > before.at_s
    ]


def _with_rows(work: Workload, points: list[_Point], watch: _Watch | None, origins: dict[str, str]) -> Workload:
    origins["capacity_per_s"] = f"assumed: {costs.ROWS_PER_S:,} rows/s a partition"
    counted = [point for point in points if point.rows is not None]
    if watch is not None and len(watch.statuses) > 1:
        (first_s, first), (last_s, last) = watch.statuses[0], watch.statuses[-1]
        seen = f"measured: the running job, for {last_s - first_s:.0f} s"
        origins |= {"rows_per_s": seen, "hosts": seen, "buffered_bytes": seen}
        epochs = [(status.last_epoch_rows, status.last_epoch_ms / 1000) for _, status in watch.statuses]
        epochs = [(rows, took_s) for rows, took_s in epochs if rows and took_s]
        in_keepers = sum(k.all_rows_in / k.all_ms * 1000 for k in last.keepers if k.all_ms)
        capacity = max([rows / took_s for rows, took_s in epochs] + [_KEEPERS_SHARE * in_keepers])
        work = replace(
            work, rows_per_s=max(0, last.rows_in - first.rows_in) / (last_s - first_s),
            hosts=max(1, len({keeper.host for keeper in last.keepers})),
            buffered_bytes=max([k.metrics.get("memtable_bytes", 0) for k in last.keepers], default=0),
        )  # fmt: skip
        if capacity:
            origins["capacity_per_s"] = seen
            work = replace(work, capacity_per_s=max(capacity, work.rows_per_s))
        if epochs:
            origins["epoch_s"] = seen
            work = replace(work, epoch_s=mean(took_s for _, took_s in epochs))
    elif len(counted) > 1 and counted[-1].at_s > counted[0].at_s:
        origins["rows_per_s"] = f"measured: {len(counted)} checkpoints"
        rows = (counted[-1].rows or 0) - (counted[0].rows or 0)
        work = replace(work, rows_per_s=max(0, rows) / (counted[-1].at_s - counted[0].at_s))
    else:
        origins["rows_per_s"] = "assumed: no rows; two retained checkpoints, or the running job, would tell"
    origins.setdefault("buffered_bytes", f"assumed: {costs.BUFFERED_BYTES // costs.MB} MB a partition")
    origins.setdefault("hosts", "assumed: all partitions are on one machine")
    origins.setdefault("epoch_s", f"assumed: {costs.EPOCH_S * 1000:.0f} ms")
    return work


def _with_uploads(work: Workload, points: list[_Point], origins: dict[str, str]) -> Workload:
    """Take the speed of uploads from the largest one; a changelog's are small, and its bases are uploaded beside."""
    uploads = [
        (sum(part.uploaded_bytes for part in point.parts), max(part.async_ms for part in point.parts) / 1000)
        for point in points
        if point.parts and not work.log_bytes
    ]
    size_bytes, took_s = max(uploads, default=(0, 0.0))
    if size_bytes < _LEAST_UPLOAD_BYTES or not took_s:
        origins["write_per_s"] = "assumed: no checkpoint has uploaded enough; a local disk of docs/benchmarks.md"
        return replace(work, write_per_s=min(work.write_per_s, work.read_per_s))
    origins["write_per_s"] = "measured: the largest upload of the checkpoints"
    return replace(work, write_per_s=size_bytes / took_s)


def _with_phases(work: Workload, watch: _Watch | None, origins: dict[str, str]) -> Workload:
    """Take the phases of checkpoints from those that were watched."""
    watched = [stats for stats in (watch.checkpoints.values() if watch else ()) if stats.phases is not None]
    if not watched:
        origins["durable_s"] = "assumed: the phases of checkpoints in docs/benchmarks.md"
        return work
    origins["durable_s"] = f"measured: the phases of {len(watched)} checkpoints"
    upload_s = median(stats.uploaded_bytes for stats in watched) / work.write_per_s
    durable_s = median(stats.phases.durable_ms for stats in watched if stats.phases) / 1000
    shown_s = [max(sink.shown_ms for sink in stats.sinks) / 1000 for stats in watched if stats.sinks]
    return replace(
        work, durable_s=max(_LEAST_DURABLE_S, durable_s - upload_s), shown_s=median(shown_s) if shown_s else 0.0,
        published_s=median(stats.phases.published_ms for stats in watched if stats.phases) / 1000,
    )  # fmt: skip


def _with_changes(
    work: Workload, manifest: Manifest, gaps: list[tuple[float, int]], known: float | None, origins: dict[str, str]
) -> Workload:
    """Derive the bytes that change a second from what checkpoints upload; a full one does not tell."""
    if known is not None:
        changed, origin = known, "measured: --changes"
    elif gaps and manifest.mode in ("changelog", "continuous") and not work.is_written_whole:
        # The median: a few upload a base beside.
        changed = median(uploaded / took_s for took_s, uploaded in gaps)
        origin = f"measured: the uploads of {len(gaps)} checkpoints"
        if manifest.mode == "continuous":
            changed /= costs.rewritten(Continuous())
            origin += f", of which a log of {Continuous().log:g} times the state is written again"
    elif gaps and manifest.mode == "incremental" and not work.is_written_whole:
        changed = sum(each for _, each in gaps) / sum(took_s for took_s, _ in gaps) / costs.AMPLIFICATION
        origin = f"measured: the uploads of {len(gaps)} checkpoints, of which merges are {costs.AMPLIFICATION - 1:.1f}"
    elif work.rows_per_s:
        changed, origin = work.rows_per_s * costs.ROW_BYTES, f"assumed: {costs.ROW_BYTES} bytes a row"
    else:
        raise ConfigurationError(
            f"{manifest.job}: how much of its state changes is not known: one checkpoint does not tell",
            hint="name the running job, retain two checkpoints (retain=2), or say it: --changes 5MB (a second)",
        )
    origins["changed_per_s"] = origin
    return replace(work, changed_per_s=changed)
