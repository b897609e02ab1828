"""SeaweedFS on loopback: object storage with a wheel of its own, as real as a bucket of a cloud."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.servers import end_with_parent, free_ports

_ACCESS_KEY, _SECRET_KEY = "strandline-tests", "a-secret-of-these-tests"
_BUCKET = "bucket"


@dataclass
class Seaweed:
    """A running server; its bucket is made by the first write."""

    _process: subprocess.Popen[bytes]
    _directory: Path
    _ports: list[int]
    """Those of S3 first."""

    def url(self, path: str = "") -> str:
        return f"s3://{_BUCKET}/{path}".rstrip("/")

    @property
    def options(self) -> dict[str, str]:
        return {
            "endpoint": f"http://127.0.0.1:{self._ports[0]}",
            "access_key_id": _ACCESS_KEY,
            "secret_access_key": _SECRET_KEY,
            "region": "us-east-1",
            "allow_http": "true",
        }

    def pause(self) -> None:
        """Answer nobody any more, until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
        for port in self._ports:
            # It makes them there whatever its options are, and leaves them.
            for socket in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                socket.unlink(missing_ok=True)


def start() -> Seaweed | None:
    """Start a server that ends with this process; None where there is no program for this machine."""
    program = Path(sys.executable).with_name("weed")
    if not program.exists():
        return None
    try:
        return _start(program)
    except AssertionError:
        # Another process may have taken a port that was free before.
        return _start(program)


def _start(program: Path) -> Seaweed:
    directory = Path(tempfile.mkdtemp(prefix="seaweed-"))
    (directory / "data").mkdir()
    (directory / "s3.json").write_text(
        json.dumps({
            "identities": [{
                "name": "tests", "actions": ["Admin", "Read", "Write", "List"],
                "credentials": [{"accessKey": _ACCESS_KEY, "secretKey": _SECRET_KEY}],
            }]
        })
    )  # fmt: skip
    names = ("s3.port", "master.port", "volume.port", "filer.port")
    ports = free_ports(2 * len(names))
    listening = [f"-{name}={ports[i]}" for i, name in enumerate(names)]
    listening += [f"-{name}.grpc={ports[len(names) + i]}" for i, name in enumerate(names)]
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(
            [
                program, "-logtostderr=true", "server", f"-dir={directory}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                *listening, "-filer", "-s3", f"-s3.config={directory}/s3.json", "-s3.port.iceberg=0",
                "-s3.port.lance=0", "-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=32",
            ],
            # It takes options from variables of their names, such as MASTER, which Spark's programs have.
            env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=end_with_parent,
        )  # fmt: skip
    server = Seaweed(process, directory, ports)
    try:
        _wait_until_it_answers(server)
    except BaseException:
        server.stop()
        raise
    return server


def _wait_until_it_answers(server: Seaweed) -> None:
    """It listens before all its parts have found each other: a bucket can be made when they have."""
    from strandline.core.errors import UnavailableError
    from strandline.storage.remote import open_store

    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(server.options["endpoint"], timeout=5):
                pass
        except urllib.error.HTTPError:
            break
        except OSError:
            pass
        if server._process.poll() is not None or time.monotonic() > deadline:
            log = (server._directory / "log").read_text()
            # It says what is wrong before it lists its options.
            raise AssertionError(f"{log[:2000]}\n…\n{log[-3000:]}")
        time.sleep(0.05)
    while True:
        try:
            open_store(server.url(), server.options).put("first", b"")
            return
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
