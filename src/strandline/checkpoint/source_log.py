"""The progress of the sources: the opaque files of Spark's streaming checkpoint directory.

The new bytes of a checkpoint must not grow with the job's age, though some of these files do: a file source repeats its
whole history in every tenth file of its log. So each file is cut into segments, found by their content, whose sizes
are the binary decomposition of the file's length. A file that grew at its end shares all but its last few segments with
its older version. The rest of every file, less than one block, goes into one compressed archive.
"""

from __future__ import annotations

import hashlib
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import UNSET

from strandline.checkpoint.folder import Folder, delete_quietly
from strandline.checkpoint.jobdir import JobDirectory, exclusive_path, shared_path
from strandline.checkpoint.parallel import in_parallel
from strandline.core.errors import CorruptionError, NotFoundError, UnavailableError
from strandline.core.failpoints import hit
from strandline.core.ids import CheckpointId
from strandline.format.frame import frame, unframe
from strandline.format.manifest import FileRef, Segment, SourceFile, SourceInfo

SOURCE_MAGIC = b"SLSOURC1"
SOURCE_VERSION = 1
BLOCK_BYTES = 64 << 10
INLINE_UP_TO_BYTES = 16 << 10

_LARGEST_SEGMENT_BLOCKS = 1024
"""64 MiB. It limits the upload of a checkpoint when a file's length passes a power of two."""
_TRIES = 10
_WRITE_TIMEOUT_S = 30.0
_WRITE_POLL_S = 0.001
_NAME = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")


def capture(directory: Path, batch: int) -> dict[str, bytes]:
    """Read the files by which a query continues after `batch`: metadata, last two offsets and commits, sources' logs.

    If Spark deletes old files during the read, all files are read again. Raises UnavailableError if the batch is not
    committed yet, or if each of several reads fails.
    """
    required = ["metadata"] + [f"{kind}/{b}" for kind in ("offsets", "commits") for b in (batch - 1, batch) if b >= 0]
    for name in required:
        if not (directory / name).is_file():
            raise UnavailableError(f"{directory / name}: missing, so batch {batch} cannot be captured")
    return _read(directory, required)


def read_offsets(directory: Path, batch: int, is_over: Callable[[], bool]) -> dict[str, bytes]:
    """Read Spark's log of the offsets up to which a batch that has begun will read, by its name in the log.

    Waits for it: another thread of Spark writes it while Spark prepares the batch. Raises UnavailableError after a
    time-out, or when the run `is_over`.
    """
    name = f"offsets/{batch}"
    deadline = time.monotonic() + _WRITE_TIMEOUT_S
    while True:
        try:
            return {name: (directory / name).read_bytes()}
        except FileNotFoundError:
            if is_over():
                raise UnavailableError(f"{directory / name}: the run ended before Spark wrote it") from None
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"{directory / name}: Spark has not written it within {_WRITE_TIMEOUT_S:.0f} s",
                    hint="see whether the disk of local_dir is full or slow; Spark's log has its error",
                ) from None
        time.sleep(_WRITE_POLL_S)


def capture_start(directory: Path) -> dict[str, bytes] | None:
    """Read the start of a query's sources: metadata, the sources' logs, and the first offsets if they exist.

    Returns None until Spark has written its metadata. Without `offsets/0`, a source may not have chosen its start yet.
    Raises UnavailableError if each of several reads fails.
    """
    if not (directory / "metadata").is_file():
        return None
    return _read(directory, ["metadata"] + ["offsets/0"] * (directory / "offsets/0").is_file())


def read_logs(directory: Path) -> dict[str, bytes]:
    """Read the sources' logs. Raises UnavailableError if each of several reads fails."""
    return _read(directory, [])


def _read(directory: Path, required: Sequence[str]) -> dict[str, bytes]:
    """Read the required files and those of the sources; start over when one disappears."""
    for _ in range(_TRIES):
        try:
            names = [*required, *(p.relative_to(directory).as_posix() for p in _durable(directory / "sources"))]
            return {name: (directory / name).read_bytes() for name in names}
        except FileNotFoundError:
            continue
    raise UnavailableError(f"{directory}: files disappeared during each of {_TRIES} tries to read it")


def _durable(directory: Path) -> list[Path]:
    """Return the files below a directory, without checksums and temporary files."""
    return sorted(
        path
        for path in directory.rglob("*")
        if not path.name.startswith(".") and path.suffix not in (".crc", ".tmp") and path.is_file()
    )


def upload_source(
    jobdir: JobDirectory,
    files: Mapping[str, bytes],
    checkpoint: CheckpointId,
    batch: int,
    base: SourceInfo | None,
    names: Sequence[str] = (),
) -> SourceInfo:
    """Store captured files; reference segments in `base`, which is of the last CONFIRMED checkpoint.

    With `batch` -1, they are those of `capture_start`, for a checkpoint before the first batch. On failure, uploaded
    files are deleted if possible.
    """
    known = {(s.size, s.sha256): s for large in (base.large if base else []) for s in large.segments}
    new: dict[tuple[int, str], tuple[Segment, memoryview]] = {}
    large = []
    tails = {}
    for name, data in sorted(files.items()):
        segments = []
        for piece in _pieces(data):
            key = (len(piece), hashlib.sha256(piece).hexdigest())
            if key not in known:
                known[key] = Segment(size=key[0], sha256=key[1], path=shared_path())
                new[key] = (known[key], piece)
            segments.append(known[key])
        if segments:
            large.append(SourceFile(name=name, segments=segments))
        tails[name] = data[sum(s.size for s in segments) :]
    archive = pack(tails)
    sha256 = hashlib.sha256(archive).hexdigest()
    inline = archive if len(archive) <= INLINE_UP_TO_BYTES else None
    blob = FileRef(
        name="source", size=len(archive), sha256=sha256, inline=inline,
        path="" if inline is not None else exclusive_path(checkpoint),
    )  # fmt: skip
    todo = [(segment.path, piece) for segment, piece in new.values()]
    todo += [(blob.path, memoryview(archive))] if blob.path else []
    hit("upload.source")
    try:
        in_parallel(lambda item: jobdir.put(item[0], bytes(item[1])), todo)
    except BaseException:
        delete_quietly(jobdir, [path for path, _ in todo])
        raise
    return SourceInfo(batch=batch, blob=blob, large=large, names=list(names) or UNSET, directory=jobdir.url)


def read_source(folder: Folder, info: SourceInfo) -> dict[str, bytes]:
    """Return the captured files. Raises CorruptionError naming a missing or damaged file."""
    stored = {file.path: file for file in info.files()}
    pieces = dict(zip(stored, in_parallel(lambda file: _get(folder, file), stored.values()), strict=True))
    tails = unpack(pieces[info.blob.path], f"{folder.url}/{info.blob.path or '(inline source progress)'}")
    heads = {large.name: b"".join(pieces[s.path] for s in large.segments) for large in info.large}
    return {name: heads.get(name, b"") + tail for name, tail in tails.items()}


def write_files(files: Mapping[str, bytes], directory: Path) -> None:
    """Write captured files into `directory`."""
    for name, data in files.items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _get(folder: Folder, file: FileRef) -> bytes:
    if file.inline is not None:
        return file.inline

    def checked(data: bytes, where: str) -> bytes:
        if len(data) != file.size or hashlib.sha256(data).hexdigest() != file.sha256:
            raise CorruptionError(f"{where}: its checksum does not match: it was damaged", path=file.path)
        return data

    try:
        return folder.read(file.path, checked)
    except NotFoundError as error:
        where = f"{folder.url}/{file.path}"
        raise CorruptionError(f"{where}: missing, but the source progress needs it", path=file.path) from error


def _pieces(data: bytes) -> Iterator[memoryview]:
    """Cut the whole blocks of a file into segments of descending powers of two."""
    view, at, blocks = memoryview(data), 0, len(data) // BLOCK_BYTES
    while blocks:
        take = min(1 << (blocks.bit_length() - 1), _LARGEST_SEGMENT_BLOCKS)
        yield view[at : at + take * BLOCK_BYTES]
        at += take * BLOCK_BYTES
        blocks -= take


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return an archive: length-prefixed names and bytes, compressed and framed."""
    parts = []
    for name, data in sorted(files.items()):
        encoded = name.encode()
        parts += [_NAME.pack(len(encoded)), encoded, _LENGTH.pack(len(data)), data]
    return frame(SOURCE_MAGIC, SOURCE_VERSION, zlib.compress(b"".join(parts)))


def unpack(data: bytes, where: str) -> dict[str, bytes]:
    """Read an archive; raise CorruptionError naming `where`."""
    payload = unframe(data, SOURCE_MAGIC, SOURCE_VERSION, where)
    files = {}
    try:
        plain = zlib.decompress(payload)
        at = 0
        while at < len(plain):
            (length,) = _NAME.unpack_from(plain, at)
            name = plain[at + _NAME.size : at + _NAME.size + length].decode()
            at += _NAME.size + length
            (length,) = _LENGTH.unpack_from(plain, at)
            at += _LENGTH.size
            if name.startswith("/") or ".." in name.split("/"):
                raise CorruptionError(f"{where}: the source progress names '{name}', outside of its directory")
            files[name] = plain[at : at + length]
            if len(files[name]) != length:
                raise CorruptionError(f"{where}: '{name}' is truncated")
            at += length
    except (zlib.error, struct.error, UnicodeDecodeError) as error:
        raise CorruptionError(f"{where}: the archive cannot be read: {error}") from error
    return files
