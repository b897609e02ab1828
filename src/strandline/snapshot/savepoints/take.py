"""A savepoint of a checkpoint: canonical, its state as tables, or native, its files as they are.

The job whose checkpoint it is may run meanwhile: nothing is read but the checkpoint's files, which somebody must keep
from being subsumed, and the work is done by processes of their own, which give way to others.
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
"""Where a partition of an operator has its files on this machine, if it has."""

_LOOK_S = 0.1
_SHARE_BYTES = 8 << 20
"""How much a process has to write at least: to start one takes as long as to write that."""


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

    `mark` says who writes it, as `begin` has it.
    Raises ConflictError if there is anything in the folder, CorruptionError if the checkpoint is damaged,
    CheckpointError soon after `cancelled` says so, whatever the processes do, and OutcomeUnknownError when the
    savepoint may be there or appear later. After any other error nothing is left there.
    """
    here, folder = folder_at(source), folder_at(target)
    begin(folder, mark)
    try:
        with Scratch("savepoint", scratch) as directory:
            if form == "native":
                made = _Native(here, folder, directory, cancelled).savepoint(manifest)
            else:
                made = _Canonical(manifest, source, target, directory, report, local_copy, cancelled).savepoint()
            size_bytes = size_of(made.files())
            made = msgspec.structs.replace(
                made, savepoint=form, engine_version=VERSION, created_ms=(clock or SystemClock()).now_ms(),
                uploaded_bytes=size_bytes, total_bytes=size_bytes,
            )  # fmt: skip
            hit("savepoint.written")
            publish(folder, made)
    except OutcomeUnknownError:
        raise
    except BaseException:
        discard(folder)
        raise
    return made


def bring_tables(
    manifest: Manifest, source: Place, target: Place, scratch: Path, report: Report = lambda progress: None
) -> Manifest:
    """Bring what a snapshot has into a savepoint's folder that was begun, its state as tables; return what there is.

    Of a canonical savepoint, its own files are brought as they are. Nothing is published. Raises CorruptionError if the
    snapshot is damaged.
    """
    if manifest.savepoint != "canonical":
        return _Canonical(manifest, source, target, scratch, report).savepoint()
    _Native(folder_at(source), folder_at(target), scratch).bring_as_is(manifest.files())
    return manifest


def bring_source(info: SourceInfo, source: Place, target: Folder, scratch: Path | None = None) -> SourceInfo:
    """Bring the files of a snapshot's place in the sources into another folder; return it with their paths there.

    Raises CorruptionError if they are not as the snapshot says.
    """
    with Scratch("savepoint", scratch) as directory:
        brought = _Native(folder_at(source), target, directory).bring_source(info)
    assert brought is not None
    return brought


@dataclass(frozen=True)
class _Native:
    """Brings files as they are: by the storage itself where it can."""

    _here: Folder
    _target: Folder
    _scratch: Path
    _cancelled: Callable[[], bool] = _never

    def savepoint(self, manifest: Manifest) -> Manifest:
        """Return the manifest with the paths that the files have in the savepoint."""
        self._bring_all(manifest.files())
        operators = [
            msgspec.structs.replace(operator, partitions=[
                msgspec.structs.replace(part, files=[_moved(file) for file in part.files])
                for part in operator.partitions
            ])
            for operator in manifest.operators
        ]  # fmt: skip
        return msgspec.structs.replace(manifest, operators=operators, source=_moved_source(manifest.source))

    def bring_source(self, info: SourceInfo | None) -> SourceInfo | None:
        """Bring what rewinds the sources."""
        self._bring_all(info.files() if info else [])
        return _moved_source(info)

    def bring_as_is(self, files: Iterable[FileRef]) -> None:
        """Bring files of a savepoint, which have their paths already."""
        in_parallel(lambda file: self._bring(file, file.path), stored_once(files))

    def _bring_all(self, files: Iterable[FileRef]) -> None:
        # By content: partitions that hold the same, as those with broadcast state alone, have equal files.
        in_parallel(self._bring, {f.sha256: f for f in files if f.inline is None}.values())

    def _bring(self, file: FileRef, to: str = "") -> None:
        to = to or _path_of(file)
        hit("savepoint.file")
        _go_on_unless(self._cancelled, self._target)
        if self._target.take(to, self._here, file.path) and self._target.head(to).size_bytes == file.size:
            return
        local = self._scratch / file.sha256
        self._here.get_file(file.path, local)
        if (local.stat().st_size, sha256_of(local)) != (file.size, file.sha256):
            raise CorruptionError(
                f"{self._here.url}/{file.path} ('{file.name}'): not as the checkpoint's manifest says", path=file.path
            )
        self._target.put_file(to, local)
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
    """Has every partition exported by processes, several at once, and joins what is left at their edges."""

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
        """Return the manifest with tables in place of partitions."""
        parts = [part for operator in self._manifest.operators for part in self._parts(operator)]
        exporters = Exporters(self._scratch)
        try:
            with ThreadPoolExecutor(self._processes(len(parts)), "strandline-savepoint") as pool:
                asked = [pool.submit(self._run, exporters, *one, len(parts)) for one in enumerate(parts)]
                try:
                    # The first that fails ends the others, whichever of them come before it.
                    left = set(asked)
                    while left:
                        done, left = wait(left, _LOOK_S, FIRST_EXCEPTION)
                        for answer in done:
                            answer.result()
                        _go_on_unless(self._cancelled, folder_at(self._target))
                    files = [answer.result() for answer in asked]
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    exporters.stop()
                    raise
        finally:
            exporters.close()
        operators = [
            self._joined(operator, [found for part, found in zip(parts, files, strict=True) if _is_of(part, operator)])
            for operator in self._manifest.operators
        ]
        native = _Native(folder_at(self._source), folder_at(self._target), self._scratch, self._cancelled)
        return msgspec.structs.replace(
            self._manifest, operators=operators, source=native.bring_source(self._manifest.source)
        )

    def _processes(self, parts: int) -> int:
        """Return how many processes work at once: as many as there are processors, if each has enough to do."""
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

    def _joined(self, operator: OperatorInfo, found: Sequence[Files]) -> OperatorInfo:
        tables: dict[str, list[TableFile]] = {}
        folder = folder_at(self._target)
        for state in operator.states:
            files = [file for each in found for file in each.files.get(state.name, [])]
            pieces = [piece for each in found for piece in each.pieces.get(state.name, [])]
            made = join_pieces(folder, files, pieces, operator.max_parallelism, self._scratch)
            if made:
                tables[state.name] = made
        return msgspec.structs.replace(operator, partitions=[], tables=tables)

    def _run(self, exporters: Exporters, number: int, part: ExportPart, parts: int) -> Files:
        """Have one part exported by a process; hear how far it is."""

        def wrote(rows: int) -> None:
            self._rows[number] = rows
            self._say(parts)

        with tempfile.TemporaryDirectory(dir=self._scratch) as directory:
            found = exporters.export(msgspec.structs.replace(part, scratch=directory), wrote)
        self._done += 1
        self._say(parts)
        return found

    def _say(self, parts: int) -> None:
        self._report(SavepointProgress(sum(self._rows.values()), self._done, parts))


def _go_on_unless(cancelled: Callable[[], bool], target: Folder) -> None:
    if cancelled():
        raise CheckpointError(f"{target.url}: the savepoint was cancelled")


def _is_of(part: ExportPart, operator: OperatorInfo) -> bool:
    return part.operator.uid == operator.uid
