"""`strandline logs`: prints the logs of this machine's keepers and drivers, and the events of jobs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from strandline.cli.output import print_json
from strandline.cli.stores import LocalDir, root_of
from strandline.core.errors import NotFoundError
from strandline.core.ids import Partition
from strandline.keeper.paths import Places

_BLOCK_BYTES = 64 << 10
_POLL_S = 0.2
_FILE = re.compile(r"(.+)-(\d+)\.log")


@dataclass(frozen=True, order=True)
class LogFile:
    """The log of one operator partition's keepers, of this run and of earlier ones."""

    job: str
    operator: str
    partition: int
    path: Path


def logs(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="The job; without it, all jobs.")] = None,
    local_dir: LocalDir = None,
    operator: Annotated[str | None, typer.Option(metavar="UID", help="Only this operator.")] = None,
    partition: Annotated[int | None, typer.Option(metavar="N", help="Only this partition.")] = None,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many last lines of each log.")] = 20,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is written from now on.")] = False,
    driver: Annotated[
        bool, typer.Option("--driver", help="What its drivers told and warned of, instead of its keepers.")
    ] = False,
    events: Annotated[
        bool, typer.Option("--events", help="The events of its drivers, which are JSON, instead of its keepers' logs.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line of log.")] = False,
) -> None:
    """Show the logs of a job's keepers or drivers on this machine.

    The logs outlive the job.
    """
    root = root_of(local_dir)
    of_driver = driver or events
    if of_driver and (operator is not None or partition is not None or (driver and events)):
        raise typer.BadParameter("--driver and --events exclude each other, and --operator and --partition")
    find = partial(find_logs, root, job, operator, partition)
    if of_driver:
        find = partial(find_driver_logs, root, job, events)
    files = find()
    if not files and not follow:
        raise _no_driver_log(root, job) if of_driver else _no_keeper_log(root, job, operator, partition)
    several_jobs = len({file.job for file in files}) > 1
    plain = len(files) == 1 and not follow

    def show(file: LogFile, line: str) -> None:
        if events:
            # A line is JSON already, and names its job.
            print(line, flush=follow)
        elif json:
            of = {"job": file.job} if driver else {"operator": file.operator, "partition": file.partition}
            print_json({"file": str(file.path), **of, "line": line})
        elif plain or (driver and not several_jobs):
            print(line, flush=follow)
        else:
            of_job = f"{file.job}/" if several_jobs else ""
            name = f"{file.job}" if driver else f"{of_job}{file.operator}[{file.partition}]"
            print(f"{name} {line}", flush=follow)

    if follow:
        try:
            _follow(find, lines, show)
        except KeyboardInterrupt:
            return
    for file in files:
        for line in tail(file.path, lines)[0]:
            show(file, line)


def find_logs(
    local_dir: Path, job: str | None = None, operator: str | None = None, partition: int | None = None
) -> list[LogFile]:
    """Return the keepers' logs, by job, operator and partition, with names as they are escaped in file names."""
    places = Places(local_dir, "", job or "-")
    folders = [places.logs] if job is not None else sorted(places.logs.parent.glob("*"))
    files = []
    for path in (path for folder in folders for path in folder.glob("*.log")):
        match = _FILE.fullmatch(path.name)
        if not match or (partition is not None and int(match[2]) != partition):
            continue
        if operator is not None and path.name != places.log(operator, Partition(int(match[2]))).name:
            continue
        files.append(LogFile(path.parent.name, match[1], int(match[2]), path))
    return sorted(files)


def find_driver_logs(local_dir: Path, job: str | None = None, events: bool = False) -> list[LogFile]:
    """Return the drivers' logs, or the logs of events, by job."""
    places = Places(local_dir, "", job or "-")
    wanted = places.event_log if events else places.driver_log
    paths = [wanted] if job is not None else places.logs.parent.glob(f"*/{wanted.name}")
    return sorted(LogFile(path.parent.name, "", 0, path) for path in paths if path.exists())


def tail(path: Path, lines: int, *, whole: bool = False) -> tuple[list[str], int]:
    """Return a file's last lines, and the offset of the next one. With `whole`, leave out an unfinished line."""
    data, end = b"", 0
    # The file may have been deleted since it was listed.
    with suppress(FileNotFoundError), open(path, "rb") as file:
        end = at = file.seek(0, 2)
        while at > 0 and data.count(b"\n") <= lines:
            step = min(_BLOCK_BYTES, at)
            at -= step
            file.seek(at)
            data = file.read(step) + data
    complete, newline, rest = data.rpartition(b"\n")
    ended = complete.split(b"\n") if newline else []
    if whole:
        end -= len(rest)
    elif rest:
        ended.append(rest)
    return [line.decode(errors="replace") for line in ended[-lines:]] if lines else [], end


def read_new_lines(path: Path, at: int) -> tuple[list[str], int]:
    """Return the lines ended since offset `at`, and the next offset; from the start if the file is shorter now."""
    try:
        with open(path, "rb") as file:
            if file.seek(0, 2) < at:
                at = 0
            file.seek(at)
            data = file.read()
    except FileNotFoundError:
        return [], 0
    complete, newline, _ = data.rpartition(b"\n")
    if not newline:
        return [], at
    return [line.decode(errors="replace") for line in complete.split(b"\n")], at + len(complete) + 1


def _follow(find: Callable[[], list[LogFile]], lines: int, show: Callable[[LogFile, str], None]) -> NoReturn:
    """Show the last lines, then each new one, also of new logs, until interrupted."""
    at: dict[LogFile, int] = {}
    for file in find():
        last, at[file] = tail(file.path, lines, whole=True)
        for line in last:
            show(file, line)
    while True:
        for file in find():
            new, at[file] = read_new_lines(file.path, at.get(file, 0))
            for line in new:
                show(file, line)
        time.sleep(_POLL_S)


def _no_driver_log(local_dir: Path, job: str | None) -> NotFoundError:
    there = [file.job for file in find_driver_logs(local_dir)]
    return NotFoundError(
        f"{local_dir}: no driver of {f'job {job!r}' if job is not None else 'any job'} has written a log",
        hint=f"there are those of {', '.join(there)}"
        if there
        else "give the job's Settings.local_dir with --local-dir; a driver logs on its own machine",
    )


def _no_keeper_log(local_dir: Path, job: str | None, operator: str | None, partition: int | None) -> NotFoundError:
    wanted = [f"{what} {name}" for what, name in (("operator", operator), ("partition", partition)) if name is not None]
    of = f" of job '{job}'" if job is not None else ""
    there = sorted({f"{file.job} (operator {file.operator})" for file in find_logs(local_dir)})
    return NotFoundError(
        f"{local_dir}: no keeper log{of}{', ' if wanted else ''}{', '.join(wanted)}",
        hint=f"there are logs of {', '.join(there)}"
        if there
        else "give the job's Settings.local_dir with --local-dir; keepers log on the machine that they run on",
    )
