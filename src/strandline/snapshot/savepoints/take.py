"""Takes savepoints of checkpoints: canonical ones with state as tables, native ones with unchanged files.

The job may run meanwhile. Only the checkpoint's files are read, which the caller must keep from deletion, and separate
processes with low priority do the work.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from strandline.checkpoint.folder import Folder, folder_at
from strandline.checkpoint.parallel import in_parallel, sha256_of
from strandline.checkpoint.publish import OutcomeUnknownError
from strandline.core.clock import Clock, SystemClock
from strandline.core.errors import CheckpointError, CorruptionError
from strandline.core.failpoints import hit
from strandline.core.ids import Partition
from strandline.core.scratch import Scratch
from strandline.core.version import VERSION
from strandline.format.manifest import FileRef, Manifest, OperatorInfo, SourceInfo, TableFile, size_of, stored_once
from strandline.snapshot.rows.codecs import times_of
from strandline.snapshot.savepoints.export import ExportPart, Files
from strandline.snapshot.savepoints.exporters import Exporters
from strandline.snapshot.savepoints.progress import SavepointProgress
from strandline.snapshot.savepoints.savepoint import begin, discard, join_pieces, publish
from strandline.storage.place import Place

Form = Literal["canonical", "native"]
FORMS: tuple[Form, ...] = ("canonical", "native")

LocalCopy = Callable[[str, Partition], Path | None]
"""Returns the local copy of a partition's files, or None."""

_LOOK_S = 0.1
_SHARE_BYTES = 8 << 20
"""The least work of a process: its start takes as long as writing this much."""


Report = Callable[[SavepointProgress], None]


def _never() -> bool:
    return False


def _nowhere(uid: str, partition: Partition) -> Path | None:
    return None


def take_savepoint(
    manifest: Manifest,
    source: Place,
    target: Place,
    form: Form = "canonical",
    *,
    local_copy: LocalCopy = _nowhere,
    report: Report = lambda progress: None,
    scratch: Path | None = None,
    clock: Clock | None = None,
    cancelled: Callable[[], bool] = _never,
    mark: str = "",
) -> Manifest:
    """Write a savepoint of a checkpoint, whose files are relative to `source`, into the folder `target`; return it.

    `mark` identifies the writer, as in `begin`. Raises ConflictError if the folder is not empty, CorruptionError if the
    checkpoint is damaged, CheckpointError soon after `cancelled` returns True, and OutcomeUnknownError when the
    savepoint may be there or appear later. After any other error the folder is empty.
    """
    here, folder = folder_at(source), folder_at(target)
    begin(folder, mark)
    try:
        with Scratch("savepoint", scratch) as directory:
            if form == "native":
                result = _Native(here, folder, directory, cancelled).savepoint(manifest)
            else:
                result = _Canonical(manifest, source, target, directory, report, local_copy, cancelled).savepoint()
            size_bytes = size_of(result.files())
            result = msgspec.structs.replace(
                result, savepoint=form, engine_version=VERSION, created_ms=(clock or SystemClock()).now_ms(),
                uploaded_bytes=size_bytes, total_bytes=size_bytes,
            )  # fmt: skip
            hit("savepoint.written")
            publish(folder, result)
    except OutcomeUnknownError:
        raise
    except BaseException:
        discard(folder)
        raise
    return result


def bring_tables(
    manifest: Manifest, source: Place, target: Place, scratch: Path, report: Report = lambda progress: None
) -> Manifest:
    """Write a snapshot's state as tables into the folder of a savepoint after `begin`; return the manifest.

    The files of a canonical savepoint are copied unchanged. Nothing is published. Raises CorruptionError if the
    snapshot is damaged.
    """
    if manifest.savepoint != "canonical":
        return _Canonical(manifest, source, target, scratch, report).savepoint()
    _Native(folder_at(source), folder_at(target), scratch).bring_as_is(manifest.files())
    return manifest


def bring_source(info: SourceInfo, source: Place, target: Folder, scratch: Path | None = None) -> SourceInfo:
    """Copy the files of a snapshot's position in the sources into another folder; return it with their paths there.

    Raises CorruptionError if they do not match the snapshot.
    """
    with Scratch("savepoint", scratch) as directory:
        brought = _Native(folder_at(source), target, directory).bring_source(info)
    assert brought is not None
    return brought


@dataclass(frozen=True)
class _Native:
    """Copies files unchanged, inside the storage if it can."""

    _here: Folder
    _target: Folder
    _scratch: Path
    _cancelled: Callable[[], bool] = _never

    def savepoint(self, manifest: Manifest) -> Manifest:
        """Copy the files; return the manifest with their paths in the savepoint."""
        self._bring_all(manifest.files())
        operators = [
            msgspec.structs.replace(operator, partitions=[
                msgspec.structs.replace(part, files=[_moved(file) for file in part.files], planned=msgspec.UNSET)
                for part in operator.partitions
            ])
            for operator in manifest.operators
        ]  # fmt: skip
        return msgspec.structs.replace(manifest, operators=operators, source=_moved_source(manifest.source))

    def bring_source(self, info: SourceInfo | None) -> SourceInfo | None:
        """Copy the files that rewind the sources."""
        self._bring_all(info.files() if info else [])
        return _moved_source(info)

    def bring_as_is(self, files: Iterable[FileRef]) -> None:
        """Copy files of a savepoint to the same paths."""
        in_parallel(lambda file: self._bring(file, file.path), stored_once(files))

    def _bring_all(self, files: Iterable[FileRef]) -> None:
        # Copy equal files once: partitions with broadcast state alone have such.
        in_parallel(self._bring, {f.sha256: f for f in files if f.inline is None}.values())

    def _bring(self, file: FileRef, to: str = "") -> None:
        to = to or _path_of(file)
        hit("savepoint.file")
        _check_cancelled(self._cancelled, self._target)
        if self._target.take(to, self._here, file.path) and self._target.head(to).size_bytes == file.size:
            return
        local = self._scratch / file.sha256
        self._here.get_file(file.path, local)
        if (local.stat().st_size, sha256_of(local)) != (file.size, file.sha256):
            raise CorruptionError(
                f"{self._here.url}/{file.path} ('{file.name}'): not as the checkpoint's manifest says", path=file.path
            )
        self._target.put_known(to, local, file.sha256)
        local.unlink()


def _path_of(file: FileRef) -> str:
    return f"files/{file.sha256}"


def _moved(file: FileRef) -> FileRef:
    if file.inline is not None:
        return file
    return msgspec.structs.replace(file, path=_path_of(file), shared=False)


def _moved_source(info: SourceInfo | None) -> SourceInfo | None:
    if info is None:
        return None
    large = [
        msgspec.structs.replace(
            one, segments=[msgspec.structs.replace(s, path=f"files/{s.sha256}") for s in one.segments]
        )
        for one in info.large
    ]
    return msgspec.structs.replace(info, blob=_moved(info.blob), large=large)


@dataclass
class _Canonical:
    """Exports partitions in parallel processes, and joins the pieces at their ends."""

    _manifest: Manifest
    _source: Place
    _target: Place
    _scratch: Path
    _report: Report
    _local_copy: LocalCopy = _nowhere
    _cancelled: Callable[[], bool] = _never

    def __post_init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._done = 0

    def savepoint(self) -> Manifest:
        """Write the tables; return the manifest with tables in place of partitions."""
        parts = [part for operator in self._manifest.operators for part in self._parts(operator)]
        exporters = Exporters(self._scratch)
        try:
            with ThreadPoolExecutor(self._processes(len(parts)), "strandline-savepoint") as pool:
                futures = [pool.submit(self._run, exporters, *one, len(parts)) for one in enumerate(parts)]
                try:
                    # The first failure stops all others.
                    left = set(futures)
                    while left:
                        done, left = wait(left, _LOOK_S, FIRST_EXCEPTION)
                        for future in done:
                            future.result()
                        _check_cancelled(self._cancelled, folder_at(self._target))
                    files = [future.result() for future in futures]
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    exporters.stop()
                    raise
        finally:
            exporters.close()
        operators = [
            self._join(operator, [one for part, one in zip(parts, files, strict=True) if _is_of(part, operator)])
            for operator in self._manifest.operators
        ]
        native = _Native(folder_at(self._source), folder_at(self._target), self._scratch, self._cancelled)
        return msgspec.structs.replace(
            self._manifest, operators=operators, source=native.bring_source(self._manifest.source)
        )

    def _processes(self, parts: int) -> int:
        """Return the number of parallel processes: one for each processor, if each has enough work."""
        shares = 1 + size_of(self._manifest.files()) // _SHARE_BYTES
        return max(1, min(parts, shares, os.cpu_count() or 1))

    def _parts(self, operator: OperatorInfo) -> Iterator[ExportPart]:
        now_us, watermark_us = times_of(self._manifest)
        for info in operator.partitions:
            copy = self._local_copy(operator.uid, info.index)
            yield ExportPart(
                source=self._source, target=self._target,
                operator=msgspec.structs.replace(operator, partitions=[info]), local_copy=str(copy) if copy else "",
                now_us=now_us, watermark_us=watermark_us,
            )  # fmt: skip

    def _join(self, operator: OperatorInfo, results: Sequence[Files]) -> OperatorInfo:
        tables: dict[str, list[TableFile]] = {}
        folder = folder_at(self._target)
        for state in operator.states:
            files = [file for each in results for file in each.files.get(state.name, [])]
            pieces = [piece for each in results for piece in each.pieces.get(state.name, [])]
            joined = join_pieces(folder, files, pieces, operator.max_parallelism, self._scratch)
            if joined:
                tables[state.name] = joined
        return msgspec.structs.replace(operator, partitions=[], tables=tables)

    def _run(self, exporters: Exporters, number: int, part: ExportPart, parts: int) -> Files:
        """Export one part in a process, and report its progress."""

        def report(rows: int) -> None:
            self._rows[number] = rows
            self._send_progress(parts)

        with tempfile.TemporaryDirectory(dir=self._scratch) as directory:
            files = exporters.export(msgspec.structs.replace(part, scratch=directory), report)
        self._done += 1
        self._send_progress(parts)
        return files

    def _send_progress(self, parts: int) -> None:
        self._report(SavepointProgress(sum(self._rows.values()), self._done, parts))


def _check_cancelled(cancelled: Callable[[], bool], target: Folder) -> None:
    if cancelled():
        raise CheckpointError(f"{target.url}: the savepoint was cancelled")


def _is_of(part: ExportPart, operator: OperatorInfo) -> bool:
    return part.operator.uid == operator.uid
