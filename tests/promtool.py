"""Prometheus' promtool, which tests its rules: the machine's, or the one of Debian's package.

apt checks the package against what its distribution signs. Nothing is installed, which would start a server: one program
of the package is kept under build/, and no lists but those there are changed.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.servers import locked

_HOME = Path(__file__).parent.parent / "build" / "promtool"


class UnavailableToolError(Exception):
    """There is no promtool to be had on this machine."""


@functools.cache
def program() -> str:
    """Return where promtool is, fetched first if need be; UnavailableToolError if it cannot be."""
    if (found := shutil.which("promtool")) is not None:
        return found
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UnavailableToolError("there is no promtool, which comes with Prometheus, and no apt-get to fetch it with")
    with locked(_HOME.parent / "promtool.lock"):
        if not _HOME.exists():
            _fetch()
    return str(_HOME / "promtool")


def _fetch() -> None:
    made = Path(tempfile.mkdtemp(dir=_HOME.parent, prefix="promtool-"))
    try:
        if _run(made, "apt-get", "download", "prometheus").returncode:
            # The machine's lists are old or were never fetched, and only root may write them.
            for directory in ("lists/partial", "cache/archives/partial"):
                (made / directory).mkdir(parents=True)
            own = ("-o", f"Dir::State::Lists={made}/lists", "-o", f"Dir::Cache={made}/cache")
            # If one of several sources does not answer, another may have it.
            _run(made, "apt-get", *own, "update")
            done = _run(made, "apt-get", *own, "download", "prometheus")
            if done.returncode:
                raise UnavailableToolError(
                    f"there is no promtool, and its package cannot be fetched: {done.stdout[-2000:]}"
                )
        done = _run(made, "dpkg-deb", "-x", next(made.glob("prometheus_*.deb")).name, "content")
        assert done.returncode == 0, done.stdout
        ready = made / "ready"
        ready.mkdir()
        (made / "content/usr/bin/promtool").rename(ready / "promtool")
        ready.rename(_HOME)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _run(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=directory, env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
