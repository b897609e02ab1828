"""Opens an operator partition: restores its files, opens its backend, and binds the user's function to it."""

from __future__ import annotations

import gc
import logging
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from strandline.api.config import Changelog, Continuous
from strandline.backends.base import Backend
from strandline.backends.heap import HeapBackend
from strandline.backends.options import MemoryBudget
from strandline.backends.rocksdb import RocksDBBackend
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import damage_in
from strandline.core import failpoints
from strandline.core.errors import CorruptionError, UnavailableError
from strandline.core.ids import Epoch, Partition
from strandline.keeper.paths import drop_copies
from strandline.keeper.restoring import PartitionRestore
from strandline.keeper.snapshots import Known, Snapshots
from strandline.keeper.standby import Standby
from strandline.runtime.partition import OperatorPartition
from strandline.runtime.program import Process, Program, groupings, state_infos
from strandline.runtime.state.migration import move_states
from strandline.runtime.task.task import Task
from strandline.storage.remote import open_store
from strandline.storage.retrying import RetryingStore

log = logging.getLogger(__name__)

# How a partition's share of state_memory is divided.
_BLOCK_CACHE = 0.30
_WRITE_BUFFERS = 0.20
_OBJECTS = 0.35
_WRITE_BEHIND = 0.15


@dataclass(frozen=True)
class OpenPartition:
    """A partition that is ready for epochs."""

    program: Program
    partition: OperatorPartition
    snapshots: Snapshots
    restoring: PartitionRestore | None
    standby: Standby | None
    follows: str = ""
    """The keeper that died, with whose state this one went on."""


def open_partition(program: Program, partition: Partition, directory: Path, keeper: str) -> OpenPartition:
    """Bring the partition's state to the version the run starts from, and bind the user's function to it.

    `keeper` is the unique name of this process.
    """
    jobdir, restoring = _sources(program, partition, directory)
    try:
        return _open(program, partition, directory, keeper, jobdir, restoring)
    except BaseException:
        if restoring is not None:
            restoring.unverified.clear()
        raise


def _open(
    program: Program,
    partition: Partition,
    directory: Path,
    keeper: str,
    jobdir: JobDirectory,
    restoring: PartitionRestore | None,
) -> OpenPartition:
    restore = program.restore
    _drop_unfinished(directory)
    for path in directory.glob("db-*"):
        shutil.rmtree(path, ignore_errors=True)
    drop_copies(directory, keep=[restore.checkpoint] if restore else [])
    database = directory / f"db-{program.generation}"
    if restoring is not None:
        failpoints.hit("keeper.restore.before")
        _fetch(restoring, database, copies=True)
        failpoints.hit("keeper.restore.after")
    process = program.load()
    opened, damage = None, ""
    try:
        opened = open_task(program, process, partition, database, restoring)
    except UnavailableError:
        # A file that was linked without a read may be on a failing disk: the next restore reads the storage.
        if restoring is not None:
            restoring.drop_copies()
        raise
    except CorruptionError as error:
        if restoring is None:
            raise
        damage = error.message.replace(str(database), "")
        log.warning("could not be opened, restoring from storage alone: %s", str(error))
    if opened is None:
        # The files in storage passed their checks, so that only the copy on this machine may be damaged. Frames of the
        # error may keep the database and its lock open: so try outside the `except` block, in another directory.
        gc.collect()
        for path in directory.glob("db-*"):
            shutil.rmtree(path, ignore_errors=True)
        assert restoring is not None
        database = directory / f"db-{program.generation}-again"
        _fetch(restoring, database, copies=False)
        with _damage_here_or_in(restoring, database, damage):
            opened = open_task(program, process, partition, database, restoring)
    backend, task = opened
    known = Known(keeper, restore.checkpoint if restore else None, restoring.known_files if restoring else {})
    snapshots = Snapshots(
        program, partition, task.store, backend, jobdir, directory, known, _write_behind_bytes(program)
    )  # fmt: skip
    if restoring is not None:
        snapshots.verify(restoring.unverified)
    version = restore.epoch if restore else Epoch(0)
    standby = _standby(program, partition, directory, jobdir)
    return OpenPartition(program, OperatorPartition(task, version), snapshots, restoring, standby)


def _drop_unfinished(directory: Path) -> None:
    """Remove what a killed keeper leaves: RocksDB links a snapshot's files under a name with `.tmp` first."""
    for path in directory.glob("chk-*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def resume_partition(
    program: Program, partition: Partition, directory: Path, keeper: str, version: Epoch
) -> OpenPartition:
    """Go on with the state that a keeper of this run, which has died, left at this version.

    Raises UnavailableError or CorruptionError if it is not there.
    """
    jobdir, restoring = _sources(program, partition, directory)
    _drop_unfinished(directory)
    database = directory / f"db-{program.generation}-again"
    if not database.exists() and not (database := directory / f"db-{program.generation}").exists():
        raise UnavailableError(f"{database}: there is no state of a keeper that has died")
    process = program.load()
    backend = open_backend(program, process, database, resumed=version)
    with _closing_on_error(backend):
        task = _task(program, process, partition, backend, database)
        assert backend.live is not None
        known = Known.of(backend.live)
    snapshots = Snapshots(
        program, partition, task.store, backend, jobdir, directory, replace(known, keeper=keeper),
        _write_behind_bytes(program),
    )  # fmt: skip
    log.info("goes on at epoch %d, with the state of the keeper before", version)
    standby = _standby(program, partition, directory, jobdir)
    return OpenPartition(program, OperatorPartition(task, version), snapshots, restoring, standby, known.keeper)


def _standby(program: Program, partition: Partition, directory: Path, jobdir: JobDirectory) -> Standby | None:
    followed = program.followed.get(partition)
    return Standby(program.generation, directory.parent, followed, jobdir) if followed else None


def _sources(program: Program, partition: Partition, directory: Path) -> tuple[JobDirectory, PartitionRestore | None]:
    """Return the job's folder in the storage, and the restore from what the run started with, if there is one."""
    store = open_store(program.store_url, program.store_options, fsync=program.fsync)
    jobdir = JobDirectory(RetryingStore(store), program.job)
    restore = program.restore
    if restore is None or restore.stored is None:
        return jobdir, None
    return jobdir, PartitionRestore(program, partition, directory, jobdir, restore, restore.stored)


def _write_behind_bytes(program: Program) -> int:
    return int(program.partition_memory_bytes * _WRITE_BEHIND)


def _fetch(restoring: PartitionRestore, database: Path, *, copies: bool) -> None:
    with damage_in(restoring.restore.own_checkpoint):
        from_copy, from_storage = restoring.fetch(database, copies=copies)
    log.info(
        "restored checkpoint %d: %d bytes from the local copy, %d from storage",
        restoring.restore.checkpoint, from_copy, from_storage,
    )  # fmt: skip


@contextmanager
def _damage_here_or_in(restoring: PartitionRestore, database: Path, damage: str) -> Iterator[None]:
    """Decide where the damage is that a second opening meets, in files that were right as they came from storage.

    It is in the checkpoint if a file in storage is named, or if the first opening met the same damage: then a file was
    damaged before its upload. Else this machine reads wrong bytes. The checkpoint is kept, and the job restarts.
    """
    try:
        yield
    except CorruptionError as error:
        if "path" in error.fields or error.message.replace(str(database), "") == damage:
            with damage_in(restoring.restore.own_checkpoint):
                raise
        restoring.drop_copies()
        raise CorruptionError(
            f"{socket.gethostname()}, {database.parent}: this machine reads files of checkpoint "
            f"{restoring.restore.checkpoint} as damaged that were right when they came from storage: {error.message}",
            hint="the checkpoint is kept; check the memory of this machine, and the disk of local_dir",
            is_local=True,
        ) from error


def open_task(
    program: Program, process: Process, partition: Partition, database: Path, restoring: PartitionRestore | None = None
) -> tuple[Backend, Task]:
    """Bind a partition's function to a backend in a directory that is empty or holds restored files."""
    backend = open_backend(program, process, database)
    with _closing_on_error(backend):
        if restoring is not None:
            restoring.fill(backend, [info.name for info in state_infos(process)], database)
        move_states(backend, program, process)
        return backend, _task(program, process, partition, backend, database)


def _task(program: Program, process: Process, partition: Partition, backend: Backend, database: Path) -> Task:
    cache_bytes = int(program.partition_memory_bytes * _OBJECTS)
    return Task(program, process, partition, backend, cache_bytes, database.parent)


@contextmanager
def _closing_on_error(backend: Backend) -> Iterator[None]:
    """Release the database on an error, so that a retry can open it and gets the same error."""
    try:
        yield
    except BaseException:
        backend.close()
        raise


def open_backend(program: Program, process: Process, database: Path, resumed: Epoch | None = None) -> Backend:
    """Open the backend that a program names, in a directory that is empty or holds a snapshot's files.

    With `resumed`, it has the state of this version that a process left which was killed.
    """
    states = [info.name for info in state_infos(process)]
    if program.backend == "rocksdb":
        memory = program.partition_memory_bytes
        budget = MemoryBudget(
            block_cache_bytes=int(memory * _BLOCK_CACHE), write_buffer_bytes=int(memory * _WRITE_BUFFERS)
        )
        logs: dict[str, Changelog | Continuous] = {"changelog": program.changelog, "continuous": program.continuous}
        return RocksDBBackend(
            database, states, memory=budget, groupings=groupings(program, process),
            changelog=logs.get(program.mode),
            is_live=program.local_log, resumed=resumed,
        )  # fmt: skip
    in_memory = program.backend == "memory"
    return HeapBackend(database, states, inline=in_memory, limit_bytes=program.limit_bytes if in_memory else None)
