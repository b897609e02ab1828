"""What Spark's progress files say of a file source: which files it has read, and in which of its steps.

A file source numbers its steps; a step is the files that one batch brought. `sources/{i}/{n}` names those of step n,
every tenth time `sources/{i}/{n}.compact` names those of all steps up to n, in order. `offsets/{batch}` says which
step each source had reached: a line for each time that it stands in the plan, in the order of the plan, so that a
source that stands there twice has one number and two lines. `numbers` are the sources' numbers by line; without any,
each stands there once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
from msgspec import structs

_VERSION = b"v1"


class LoggedFile(msgspec.Struct, frozen=True):
    """A file that was read."""

    path: str
    """A URI."""
    timestamp: int
    """When it was last changed, in ms since 1970."""
    step: int = msgspec.field(name="batchId")


class _Offset(msgspec.Struct):
    logOffset: int  # noqa: N815


_file = msgspec.json.Decoder(LoggedFile)


class UnreadableLogError(ValueError):
    """Spark's files are not as this Spark is known to write them."""


def reached_steps(
    files: Mapping[str, bytes], batch: int, sources: list[int], numbers: Sequence[int] = ()
) -> dict[int, int]:
    """Return which step each of these file sources had reached after a batch; -1 before the first."""
    lines = files[f"offsets/{batch}"].splitlines()
    if lines[0] != _VERSION:
        raise UnreadableLogError(f"offsets/{batch} is of version {lines[0][:20]!r}, expected v1")
    # The second line is about the whole query.
    if numbers and len(numbers) != len(lines) - 2:
        raise UnreadableLogError(f"offsets/{batch} is of {len(lines) - 2} sources, expected {len(numbers)}")
    return {source: _step(lines[2 + (numbers.index(source) if numbers else source)]) for source in sources}


def _step(line: bytes) -> int:
    if line.strip() == b"-":
        return -1
    try:
        return msgspec.json.decode(line, type=_Offset).logOffset
    except msgspec.MsgspecError as error:
        raise UnreadableLogError(f"{line[:80]!r} is no offset of a source of files") from error


def damage_in_logs(files: Mapping[str, bytes], batch: int, numbers: Sequence[int] = ()) -> str:
    """Return what is missing of the file sources' logs after a batch; empty if they are whole.

    Spark reads them when it starts: from the newest step that has all before it to the newest of all, each. While it
    runs it does not, and would not notice that one is gone.
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
    """Return the URIs of all files that a source has read, or has planned to."""
    return frozenset(iterate_paths(files, source))


def logged_times(files: Mapping[str, bytes], source: int) -> dict[str, int]:
    """Return when each file was last changed, in ms since 1970, that a source has read, or has planned to."""
    lines = (_decoded(line) for name, data in _log_of(files, source) for line in _lines(data, name))
    return {line.path: line.timestamp for line in lines}


def iterate_paths(files: Mapping[str, bytes], source: int) -> Iterator[str]:
    """Yield the URIs of all files that a source has read, or has planned to, some of them twice."""
    return (_decoded(line).path for name, data in _log_of(files, source) for line in _lines(data, name))


def last_step(files: Mapping[str, bytes], source: int) -> int:
    """Return the newest step of a source's log; -1 if it has none."""
    names = (name.rpartition("/")[2].removesuffix(".compact") for name, _ in _log_of(files, source))
    return max((int(name) for name in names if name.isdigit()), default=-1)


def with_moved_files(files: Mapping[str, bytes], source: int, before: str, now: str) -> dict[str, bytes]:
    """Return a source's log as if its files had always been below the directory `now`, not `before`: both are URIs."""
    made = {}
    for name, data in _log_of(files, source):
        logged = map(_decoded, _lines(data, name))
        moved = [structs.replace(file, path=now + file.path.removeprefix(before)) for file in logged]
        made[name] = b"\n".join([_VERSION, *map(msgspec.json.encode, moved)])
    return made


def only_files(files: Mapping[str, bytes], source: int, kept: Collection[str]) -> dict[str, bytes]:
    """Return Spark's files as if a source had read no others than those kept, which are URIs."""
    made = dict(files)
    for name, data in _log_of(files, source):
        lines = [line for line in _lines(data, name) if _decoded(line).path in kept]
        made[name] = b"\n".join([_VERSION, *lines])
    return made


def _log_of(files: Mapping[str, bytes], source: int) -> list[tuple[str, bytes]]:
    return [(name, data) for name, data in files.items() if name.startswith(f"sources/{source}/")]


def _decoded(line: bytes) -> LoggedFile:
    try:
        return _file.decode(line)
    except msgspec.MsgspecError as error:
        raise UnreadableLogError(f"{line[:80]!r} names no file") from error


def _lines(data: bytes, where: str) -> list[bytes]:
    version, *lines = data.splitlines()
    if version != _VERSION:
        raise UnreadableLogError(f"{where} is of version {version[:20]!r}, expected v1")
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
            # Spark has compacted the log, and deleted the single step's file some time later.
            last = max((number for number in compacted if number >= step), default=-1)
            data = compacted.get(last)
        if data is None:
            raise UnreadableLogError(f"{folder}{step} is not there, nor any file that would have it compacted")
        yield from _between(data, step - 1, min(last, up_to), f"{folder}{last}")
        step = last + 1


def _between(data: bytes, above: int, up_to: int, where: str) -> list[LoggedFile]:
    """Read a log file from its end: of a long history, mostly the newest steps are wanted."""
    if not data.startswith(_VERSION):
        raise UnreadableLogError(f"{where} is of version {data[:20]!r}, expected v1")
    found: list[LoggedFile] = []
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
            found.append(logged)
    found.reverse()
    return found
