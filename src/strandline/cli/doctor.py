"""`strandline doctor`: checks that this machine can run jobs, and prints the next step for each problem."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from strandline import __version__
from strandline.cli.output import Table, print_json
from strandline.cli.stores import LocalDir, root_of
from strandline.core.errors import StrandlineError
from strandline.core.ids import Generation, Partition
from strandline.core.settings import default_state_memory_bytes
from strandline.core.texts import size_text
from strandline.keeper.paths import Places

# The versions that pyproject.toml requires of the most important packages; a test compares the two.
SUPPORTED = {
    "pyspark": ">=4.1,<4.4",
    "pandas": ">=2.2,<3",
    "pyarrow": ">=18",
    "rocksdict": ">=0.3.27",
    "obstore": ">=0.8",
}

_MIN_FREE_DISK_BYTES = 1 << 30
_MIN_MEMORY_BYTES = 2 << 30
_FIND_JAVA = """
    from strandline.spark.base.class_archive import archive_of
    from strandline.spark.base.session import check_java
    java = check_java()
    print(java, archive_of(java), sep="|")"""


@dataclass(frozen=True)
class Check:
    """The result of one check, and the next step if there is a problem."""

    check: str
    ok: bool
    result: str
    next_step: str = ""


def doctor(
    local_dir: LocalDir = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a check.")] = False,
) -> None:
    """Check that this machine can run jobs.

    Exit code 1 if something is in the way.
    """
    checks = list(examine(root_of(local_dir)))
    if json:
        for check in checks:
            print_json({"check": check.check, "ok": check.ok, "found": check.result, "next_step": check.next_step})
    else:
        from rich.text import Text

        output = Table("check", "", "found", "next step")
        for check in checks:
            mark = Text("ok", style="green") if check.ok else Text("problem", style="red")
            output.add(check.check, mark, check.result, check.next_step)
        output.print()
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


def versions() -> dict[str, str]:
    """Return the versions of Strandline, Python and the packages that matter most."""
    own_versions = {"strandline": __version__, "python": platform.python_version()}
    return own_versions | {package: _version(package) or "not installed" for package in SUPPORTED}


def examine(local_dir: Path) -> Iterator[Check]:
    """Run every check."""
    yield _python()
    for package, supported in SUPPORTED.items():
        yield check_package(package, _version(package), supported)
    yield check_java()
    yield check_local_dir(local_dir)
    yield check_sockets(local_dir)
    yield check_disk(shutil.disk_usage(_existing(local_dir)).free, local_dir)
    yield check_memory(_memory_bytes(), default_state_memory_bytes())


def _python() -> Check:
    ok = sys.version_info >= (3, 11) and sys.platform == "linux"
    description = f"{platform.python_version()} on {platform.system()}, {sys.executable}"
    return Check("python", ok, description, "" if ok else "use Python 3.11 or newer on Linux")


def check_package(package: str, version: str | None, supported: str) -> Check:
    """Check that a package is installed in a supported version."""
    ok = version is not None and all(_holds(version, bound) for bound in supported.split(","))
    step = "" if ok else f'pip install "{package}{supported}" into the environment of {sys.executable}'
    return Check(package, ok, version or "not installed", step)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _holds(version: str, bound: str) -> bool:
    at_least = bound.startswith(">=")
    limit = _numbers(bound.lstrip("><="))
    return _numbers(version) >= limit if at_least else _numbers(version)[: len(limit)] < limit


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def check_java() -> Check:
    """Check Java by the Spark layer, in a child process: importing Spark here would slow down every command."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run(
        [sys.executable, "-c", f"try:{_FIND_JAVA}\nexcept Exception as e:\n raise SystemExit(str(e))"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if process.returncode != 0:
        message, _, step = process.stderr.strip().partition("\n  next step: ")
        return Check("java", False, message or "cannot be found out", step or "install pyspark first")
    java, _, archive = process.stdout.strip().partition("|")
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    advice = "" if Path(archive).exists() else "; `strandline warm-up` would shorten the starts of drivers"
    return Check("java", True, f"{version.partition(chr(10))[0].strip()}, {java}{advice}")


def check_local_dir(local_dir: Path) -> Check:
    """Check that working state can be written to the directory; leave no file there."""
    place = _existing(local_dir)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"strandline")
    except OSError as error:
        step = "make it writable, or give another local_dir in Settings"
        return Check("local_dir", False, f"{place} cannot be written: {error.strerror}", step)
    return Check("local_dir", True, str(local_dir) if place == local_dir else f"{local_dir} (made by the first job)")


def check_sockets(local_dir: Path) -> Check:
    """Check that the paths of keepers' sockets are not longer than the system allows."""
    try:
        path = Places(local_dir, "file:///", "job").socket("uid", Partition(9999), Generation(99999))
    except StrandlineError as error:
        return Check("sockets", False, error.message, error.hint)
    return Check("sockets", True, f"paths of up to {len(str(path))} characters")


def check_disk(free_bytes: int, local_dir: Path) -> Check:
    """Check that the disk has room for working state."""
    ok = free_bytes >= _MIN_FREE_DISK_BYTES
    step = f"make room, or put local_dir on a larger disk: it needs about twice the size of the state ({local_dir})"
    return Check("disk", ok, f"{size_text(free_bytes)} free", "" if ok else step)


def check_memory(memory_bytes: int, state_memory_bytes: int) -> Check:
    """Check that Spark and the default state_memory fit into the memory of this machine or container."""
    description = f"{size_text(memory_bytes)}; state_memory is {size_text(state_memory_bytes)} by default"
    if memory_bytes < _MIN_MEMORY_BYTES:
        return Check("memory", False, description, f"Spark and its keepers need {size_text(_MIN_MEMORY_BYTES)} or more")
    if state_memory_bytes > memory_bytes // 2:
        step = "the default is a quarter of the machine: give Settings(state_memory=…) for this container"
        return Check("memory", False, description, step)
    return Check("memory", True, description)


def _memory_bytes() -> int:
    """Return the memory of the machine, or of the container if it has less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):
            continue
    return min(limits)


def _existing(path: Path) -> Path:
    """Return the path, or the nearest directory above it that exists."""
    return next(one for one in (path, *path.parents) if one.exists())
