"""Parses Spark's log of a file source: the files that it has read, and the step of each.

A file source numbers its steps; a step is the files of one batch. `sources/{i}/{n}` lists those of step n, and every
tenth time `sources/{i}/{n}.compact` lists those of all steps up to n, in order. `offsets/{batch}` has the last step of
each source: a line for each leaf of the plan, in the order of the plan, so that a source that is in the plan twice has
one number and two lines. `numbers` are the sources' numbers by line; without them, each source has one line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec
from msgspec import structs

_VERSION = b"v1"


class LoggedFile(msgspec.Struct, frozen=True):
    """A file that was read."""

    path: str
    """A URI."""
    timestamp: int
    """The modification time, in ms since 1970."""
    step: int = msgspec.field(name="batchId")


class _Offset(msgspec.Struct):
    logOffset: int  # noqa: N815


_file = msgspec.json.Decoder(LoggedFile)


class UnreadableLogError(ValueError):
    """Spark's log does not have the known format."""


def offset_lines(files: Mapping[str, bytes], batch: int) -> list[bytes]:
    """Return the lines of the sources' offsets after a batch; none without a file of the batch."""
    # The first two lines have the version, and metadata of the query.
    return files.get(f"offsets/{batch}", b"").splitlines()[2:]


def reached_steps(
    files: Mapping[str, bytes], batch: int, sources: list[int], numbers: Sequence[int] = ()
) -> dict[int, int]:
    """Return the last step of each of these file sources after a batch; -1 before the first."""
    lines = files[f"offsets/{batch}"].splitlines()
    if lines[0] != _VERSION:
        raise UnreadableLogError(f"offsets/{batch} has version {lines[0][:20]!r}, expected v1")
    # The second line has metadata of the query.
    if numbers and len(numbers) != len(lines) - 2:
        raise UnreadableLogError(f"offsets/{batch} has {len(lines) - 2} sources, expected {len(numbers)}")
    return {source: _step(lines[2 + (numbers.index(source) if numbers else source)]) for source in sources}


def _step(line: bytes) -> int:
    if line.strip() == b"-":
        return -1
    try:
        return msgspec.json.decode(line, type=_Offset).logOffset
    except msgspec.MsgspecError as error:
        raise UnreadableLogError(f"{line[:80]!r} is not an offset of a file source") from error


def damage_in_logs(files: Mapping[str, bytes], batch: int, numbers: Sequence[int] = ()) -> str:
    """Return the name of a log file that is missing after a batch, "" if all exist.

    When Spark starts, it reads the newest compacted file and all later steps. A running query does not read them, and
    would not notice that one is missing.
    """
    lines = files[f"offsets/{batch}"].splitlines()[2:]
    for source, line in zip(numbers or range(len(lines)), lines, strict=False):
        if b'"logOffset"' not in line:
            continue
        folder = f"sources/{source}/"
        names = [name.removeprefix(folder) for name in files if name.startswith(folder)]
        steps = {int(step): compact for step, compact, _ in (n.partition(".compact") for n in names) if step.isdigit()}
        first = max((step for step, compact in steps.items() if compact), default=0)
        for step in range(first, max(_step(line), *steps, -1) + 1):
            if step not in steps:
                return f"{folder}{step}"
    return ""


def logged_paths(files: Mapping[str, bytes], source: int) -> frozenset[str]:
    """Return the URIs of all files that a source has read or planned."""
    return frozenset(iterate_paths(files, source))


def logged_times(files: Mapping[str, bytes], source: int) -> dict[str, int]:
    """Return the modification times, in ms since 1970, of all files that a source has read or planned."""
    lines = (_decoded(line) for name, data in _log_of(files, source) for line in _lines(data, name))
    return {line.path: line.timestamp for line in lines}


def iterate_paths(files: Mapping[str, bytes], source: int) -> Iterator[str]:
    """Yield the URIs of all files that a source has read or planned, some of them twice."""
    return (_decoded(line).path for name, data in _log_of(files, source) for line in _lines(data, name))


def last_step(files: Mapping[str, bytes], source: int) -> int:
    """Return the newest step of a source's log; -1 if it has none."""
    names = (name.rpartition("/")[2].removesuffix(".compact") for name, _ in _log_of(files, source))
    return max((int(name) for name in names if name.isdigit()), default=-1)


def uncompacted_steps(files: Mapping[str, bytes], source: int) -> int:
    """Return the number of steps of a source's log if none of them is compacted, else 0."""
    if any(name.endswith(".compact") for name, _ in _log_of(files, source)):
        return 0
    return last_step(files, source) + 1


def with_moved_files(files: Mapping[str, bytes], source: int, new_path: Callable[[str], str]) -> dict[str, bytes]:
    """Return a source's log with the new path of each file; paths are URIs."""
    moved_log = {}
    for name, data in _log_of(files, source):
        logged = map(_decoded, _lines(data, name))
        moved = [structs.replace(file, path=new_path(file.path)) for file in logged]
        moved_log[name] = b"\n".join([_VERSION, *map(msgspec.json.encode, moved)])
    return moved_log


def only_files(files: Mapping[str, bytes], source: int, kept: Collection[str]) -> dict[str, bytes]:
    """Return Spark's log without a source's files that are not in `kept`, which are URIs."""
    filtered = dict(files)
    for name, data in _log_of(files, source):
        lines = [line for line in _lines(data, name) if _decoded(line).path in kept]
        filtered[name] = b"\n".join([_VERSION, *lines])
    return filtered


def _log_of(files: Mapping[str, bytes], source: int) -> list[tuple[str, bytes]]:
    return [(name, data) for name, data in files.items() if name.startswith(f"sources/{source}/")]


def _decoded(line: bytes) -> LoggedFile:
    try:
        return _file.decode(line)
    except msgspec.MsgspecError as error:
        raise UnreadableLogError(f"{line[:80]!r} is not an entry of a file") from error


def _lines(data: bytes, where: str) -> list[bytes]:
    version, *lines = data.splitlines()
    if version != _VERSION:
        raise UnreadableLogError(f"{where} has version {version[:20]!r}, expected v1")
    return [line for line in lines if line]


def files_read(files: Mapping[str, bytes], source: int, above: int, up_to: int) -> Iterator[LoggedFile]:
    """Return the files of the steps after `above` up to `up_to`, in order of steps."""
    folder = f"sources/{source}/"
    compacted = {
        int(name.removeprefix(folder).removesuffix(".compact")): data
        for name, data in files.items()
        if name.startswith(folder) and name.endswith(".compact")
    }
    step = above + 1
    while step <= up_to:
        last, data = step, files.get(f"{folder}{step}")
        if data is None:
            # Spark has compacted the log, and has deleted the step's file later.
            last = max((number for number in compacted if number >= step), default=-1)
            data = compacted.get(last)
        if data is None:
            raise UnreadableLogError(f"{folder}{step} is missing, and no compacted file has this step")
        yield from _between(data, step - 1, min(last, up_to), f"{folder}{last}")
        step = last + 1


def step_file(files: Mapping[str, bytes], source: int, step: int) -> bytes:
    """Return the file of a source's log that lists the files of one step, as it was before Spark compacted the log."""
    logged = files_read(files, source, step - 1, step)
    return b"\n".join([_VERSION, *map(msgspec.json.encode, logged)])


def log_of_step(source: int, first: int, last: int, logged: Sequence[LoggedFile], interval: int) -> dict[str, bytes]:
    """Return a log of a file source in which only the steps after `first` up to `last` have files.

    It begins with the newest step up to `first` that Spark would compact, or with step 0.
    """
    begin = max(first + 1 - (first + 1) % interval - 1, 0)
    files = {}
    for step in range(begin, last + 1):
        is_compacted = (step + 1) % interval == 0
        entries = [file for file in logged if file.step == step or (is_compacted and file.step < step)]
        name = f"sources/{source}/{step}{'.compact' if is_compacted else ''}"
        files[name] = b"\n".join([_VERSION, *map(msgspec.json.encode, entries)])
    return files


def _between(data: bytes, above: int, up_to: int, where: str) -> list[LoggedFile]:
    """Read a log file from its end: callers mostly need the newest steps of a long history."""
    if not data.startswith(_VERSION):
        raise UnreadableLogError(f"{where} has version {data[:20]!r}, expected v1")
    read: list[LoggedFile] = []
    end = len(data)
    while end > len(_VERSION):
        start = data.rfind(b"\n", 0, end)
        line = data[start + 1 : end]
        end = start
        if not line:
            continue
        logged = _decoded(line)
        if logged.step <= above:
            break
        if logged.step <= up_to:
            read.append(logged)
    read.reverse()
    return read
