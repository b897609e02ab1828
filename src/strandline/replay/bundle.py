"""Support bundles: a zip file with all that a replay needs on another machine, and what a reader wants to know.

It has a snapshot, the records and the input of the epochs after it, the logs, versions, the plan and the program. It
has no setting of the storage, no option of a source and no variable of the environment.
"""

from __future__ import annotations

import hashlib
import io
import secrets
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.errors import ConfigurationError, CorruptionError
from strandline.core.ids import Epoch
from strandline.core.scratch import Scratch
from strandline.core.version import VERSION
from strandline.format.epochs import FAILED_RUN, EpochRecord, EpochRecords, FailedRun, pack_epochs, unpack_epochs
from strandline.format.names import StatePath
from strandline.keeper.paths import Places
from strandline.plan.graph import Node, OperatorNode
from strandline.replay.frames import Steps
from strandline.replay.keys import has_key, rows_of_key
from strandline.replay.recorded import Origin, Recorded
from strandline.replay.session import Input, SourceInput, settle
from strandline.snapshot.opening.snapshot import open_snapshot, savepoint_place
from strandline.snapshot.rows.codecs import has_rows
from strandline.snapshot.tools.patch import Edit, Patch, make_patched
from strandline.spark.job.job import Job
from strandline.storage.remote import open_store
from strandline.testing.nodes import Rows, schema_of
from strandline.types.datatypes import parse_schema

_INDEX = "bundle.json"
_LOG_BYTES = 4 << 20
"""The most of each log file, from its end."""
_HASH_CHARS = 16


class BundleIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The index of a bundle."""

    version: int = 1
    strandline: str = VERSION
    job: str
    program: str
    """The name of the program's file below `program/`; "" if it is not in the bundle."""
    arguments: list[str]
    schemas: list[str]
    """The schemas of what the program reads, in the order of the reads."""
    epoch: Epoch
    """The last epoch of the snapshot."""
    has_snapshot: bool
    names: list[str]
    """The sources' names."""
    key: str = ""
    """The only key whose rows and state it has; "" for all."""
    hashed: bool = False
    """Whether strings are replaced by hashes."""
    versions: dict[str, str] = {}
    plan: list[dict[str, Any]] = []


@dataclass(frozen=True)
class BundleOptions:
    """The content of a bundle: the program, and what is left out."""

    program: Path
    arguments: Sequence[str]
    schemas: Sequence[str]
    versions: Mapping[str, str]
    key: str = ""
    hash_values: bool = False
    with_program: bool = True


def write_bundle(path: Path, job: Job, recorded: Recorded, options: BundleOptions) -> dict[str, int]:
    """Write a bundle; return the number of rows of each epoch."""
    change = _Change(options.key, secrets.token_bytes(16) if options.hash_values else b"")
    operators = settle(job, recorded)
    steps = Steps(job._plan, operators)
    manifest, counts = recorded.origin.manifest, {}
    source: Input = SourceInput(job, recorded)
    try:
        with Scratch("bundle") as scratch, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for record in recorded.epochs:
                if record.batch < 0:
                    continue
                rows = source.rows(record, steps)
                counts[str(record.epoch)] = 0
                for number, node in enumerate(steps.front):
                    kept = change.rows(node, rows[node], job)
                    counts[str(record.epoch)] += kept.num_rows
                    archive.writestr(_input_name(record, number), _to_bytes(kept))
            if manifest is not None:
                target = savepoint_place(str(scratch / "snapshot"))
                place = recorded.origin.folder.place(dict(job.checkpoints.storage_options))
                make_patched(manifest, place, target, Patch(edits=change.edits(manifest.operators)), scratch=scratch)
                _add_folder(archive, scratch / "snapshot", "snapshot")
            packed = pack_epochs(EpochRecords(tasks=recorded.tasks, epochs=recorded.epochs))
            archive.writestr("epochs", packed)
            if recorded.failure is not None:
                failure = msgspec.structs.replace(recorded.failure, epochs=b"", files={})
                archive.writestr("failure", FAILED_RUN.encode(failure))
                archive.writestr("failure.txt", failure.failure)
            for log in _logs_of(job):
                archive.writestr(f"logs/{log.name}", _tail(log))
            program = ""
            if options.with_program:
                program = options.program.name
                for file in _modules_beside(options.program):
                    archive.write(file, f"program/{file.relative_to(options.program.absolute().parent)}")
            index = BundleIndex(
                job=job.name, program=program, arguments=list(options.arguments), schemas=list(options.schemas),
                epoch=recorded.origin.epoch, has_snapshot=manifest is not None, names=recorded.names, key=options.key,
                hashed=options.hash_values, versions=dict(options.versions), plan=list(_describe(job)),
            )  # fmt: skip
            archive.writestr(_INDEX, msgspec.json.format(msgspec.json.encode(index), indent=2))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        source.close()
    return counts


class Bundle:
    """An opened bundle, unpacked into a temporary directory until it is closed."""

    def __init__(self, path: Path) -> None:
        self._scratch = Scratch("bundle")
        self._path = path
        try:
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if name.startswith("/") or ".." in name.split("/"):
                        raise CorruptionError(f"{path}: it names '{name}', outside of its folder")
                archive.extractall(self._scratch.path)
            self.index = msgspec.json.decode((self._scratch.path / _INDEX).read_bytes(), type=BundleIndex)
        except (zipfile.BadZipFile, OSError, msgspec.MsgspecError) as error:
            self._scratch.close()
            raise ConfigurationError(
                f"{path} is not a bundle: {error}", hint="give a file that `strandline bundle` has written"
            ) from None
        except BaseException:
            self._scratch.close()
            raise

    @property
    def program(self) -> Path | None:
        """The program in the bundle; None if it has none."""
        return self._scratch.path / "program" / self.index.program if self.index.program else None

    def recorded(self, job: Job, to: int | None) -> Recorded:
        """Return what the bundle has recorded, up to an epoch."""
        folder = self._scratch.path
        jobdir = JobDirectory(open_store("memory://"), job.name)
        origin = Origin(None, jobdir, jobdir, str(self._path))
        if self.index.has_snapshot:
            snapshot = open_snapshot(str(folder / "snapshot"))
            origin = Origin(snapshot.manifest, snapshot.folder, jobdir, str(self._path))
        records = unpack_epochs((folder / "epochs").read_bytes(), str(self._path))
        epochs = [record for record in records.epochs if to is None or record.epoch <= to]
        failure: FailedRun | None = None
        if (folder / "failure").exists():
            failure = FAILED_RUN.decode((folder / "failure").read_bytes(), str(self._path))
        return Recorded(origin, epochs, records.tasks, {}, self.index.names, {}, failure)

    def rows(self, record: EpochRecord, steps: Steps) -> Mapping[Node, Rows]:
        """Return the rows of an epoch: the bundle is the input of a replay."""
        rows = {}
        for number, node in enumerate(steps.front):
            data = (self._scratch.path / _input_name(record, number)).read_bytes()
            with pa.ipc.open_stream(data) as reader:
                table = reader.read_all().combine_chunks()
            if table.schema.names != schema_of(node.columns).names:
                raise ConfigurationError(
                    f"{self._path}: epoch {record.epoch} has rows of the columns {', '.join(table.schema.names[:-1])}, "
                    f"and the program's steps give {', '.join(node.columns.names)}",
                    hint="replay with the program that is in the bundle",
                )
            batches = table.to_batches()
            rows[node] = batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
        return rows

    def close(self) -> None:
        """Remove the unpacked files."""
        self._scratch.close()


class _Change:
    """Leaves out other keys, and replaces strings by hashes, in rows and in tables of state alike."""

    def __init__(self, key: str, salt: bytes) -> None:
        self._key = key
        self._salt = salt

    def rows(self, node: Node, rows: Rows, job: Job) -> Rows:
        """Return the rows of a node as the bundle has them."""
        if self._key:
            rows = rows_of_key(node, rows, job._plan.pipeline.operators, self._key)
        return _hashed(rows, self._salt) if self._salt else rows

    def edits(self, operators: Sequence[Any]) -> dict[str, Edit]:
        """Return the change of each table of a snapshot."""
        if not self._key and not self._salt:
            return {}
        edits: dict[str, Edit] = {}
        for operator in operators:
            for state in filter(has_rows, operator.states):
                name = StatePath(operator.uid, state.name).quoted
                edits[name] = self._edit(_key_columns(operator), state.kind == "broadcast")
        return edits

    def _edit(self, keys: Sequence[str], is_broadcast: bool) -> Callable[[pa.RecordBatch], pa.RecordBatch | None]:
        def edit(rows: pa.RecordBatch) -> pa.RecordBatch:
            if self._key and not is_broadcast:
                rows = rows.filter(has_key(rows, keys, self._key))
            if self._salt:
                # Another key has another key group.
                rows = _hashed(rows, self._salt)
                if "key_group" in rows.schema.names:
                    rows = rows.drop_columns(["key_group"])
            return rows

        return edit


def hashed_text(text: str, salt: bytes) -> str:
    """Return what stands for a string: the same for the same one, in the whole bundle."""
    return hashlib.sha256(salt + text.encode()).hexdigest()[:_HASH_CHARS]


def _hashed(rows: pa.RecordBatch, salt: bytes) -> pa.RecordBatch:
    arrays = [_hash_array(column, salt) for column in rows.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


def _hash_array(array: pa.Array, salt: bytes) -> pa.Array:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.array([None if text is None else hashed_text(text, salt) for text in array.to_pylist()], kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([_hash_value(data, salt) for data in array.to_pylist()], kind)
    if pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_map(kind) or pa.types.is_large_list(kind):
        return pa.array([_hash_value(value, salt) for value in array.to_pylist()], kind)
    return array


def _hash_value(value: Any, salt: bytes) -> Any:
    match value:
        case str():
            return hashed_text(value, salt)
        case bytes():
            return hashlib.sha256(salt + value).digest()
        case dict():
            return {name: _hash_value(part, salt) for name, part in value.items()}
        case list():
            return [_hash_value(part, salt) for part in value]
        case tuple():
            return tuple(_hash_value(part, salt) for part in value)
    return value


def _key_columns(operator: Any) -> list[str]:
    return list(parse_schema(operator.key_schema).names)


def _describe(job: Job) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a job's plan, as data."""
    nodes = job._plan.pipeline.nodes
    for node in nodes:
        data: dict[str, Any] = {"node": type(node).__name__.removesuffix("Node"), "columns": node.columns.ddl}
        data["reads"] = [nodes.index(parent) for parent in node.parents]
        if isinstance(node, OperatorNode):
            data |= {"uid": node.uid, "function": node.name, "keys": list(node.keys), "order_by": list(node.order_by)}
        yield data


def _logs_of(job: Job) -> list[Path]:
    logs = Places(Path(job.settings.local_dir).absolute(), "", job.name).logs
    return sorted(path for path in logs.glob("*.log") if path.is_file()) if logs.is_dir() else []


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        return file.read()


def _modules_beside(program: Path) -> list[Path]:
    """Return a program's file and the modules below its folder that are imported."""
    folder = program.absolute().parent
    files = {program.absolute()}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).suffix == ".py" and Path(file).absolute().is_relative_to(folder):
            path = Path(file).absolute()
            if not {"site-packages", ".venv", "venv"} & set(path.parts):
                files.add(path)
    return sorted(files)


def _input_name(record: EpochRecord, number: int) -> str:
    return f"input/epoch-{record.epoch}/{number}.arrow"


def _to_bytes(rows: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue()


def _add_folder(archive: zipfile.ZipFile, folder: Path, name: str) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.endswith(".writing"):
            archive.write(path, f"{name}/{path.relative_to(folder)}")
