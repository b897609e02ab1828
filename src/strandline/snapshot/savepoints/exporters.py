"""Pool of the processes that export a snapshot's parts (`export.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from strandline.checkpoint.folder import folder_at
from strandline.core.errors import StrandlineError
from strandline.core.failure import from_failure
from strandline.snapshot.savepoints.export import NO_MORE, Answer, ExportPart, Failed, Files

_LOG_CHARS = 2000
_PATIENCE_S = 10.0
"""The time that exports get to finish their uploads."""


class Exporters:
    """Starts a process if none is idle. Several threads may use it; call `close` after they have ended."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._all: list[_Exporter] = []
        self._idle: deque[_Exporter] = deque()
        self._stopped = False

    def export(self, part: ExportPart, report: Callable[[int], None]) -> Files:
        """Export one part; `report` gets the number of its rows so far.

        Raises the error of the process, and StrandlineError if the process ends without an answer.
        """
        try:
            exporter = self._idle.pop()
        except IndexError:
            exporter = _Exporter(self._scratch)
            self._all.append(exporter)
        if self._stopped:
            exporter.process.terminate()
        files = exporter.export(part, report)
        self._idle.append(exporter)
        return files

    def stop(self) -> None:
        """Terminate all processes, so that `export` raises."""
        # Set this first: a thread that starts a process now terminates it by itself.
        self._stopped = True
        for exporter in self._all:
            exporter.process.terminate()
        _wait(self._all)

    def close(self) -> None:
        """End all processes, after the last export."""
        for exporter in self._all:
            if exporter in self._idle:
                exporter.dismiss()
            else:
                exporter.process.terminate()
        _wait(self._all)
        for exporter in self._all:
            exporter.close()


class _Exporter:
    """One process."""

    def __init__(self, scratch: Path) -> None:
        # A file without a name vanishes with the processes that have it open.
        self._log = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "strandline.snapshot.savepoints.export"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip

    def export(self, part: ExportPart, report: Callable[[int], None]) -> Files:
        stdin, stdout = self._pipes()
        _send(stdin, msgspec.json.encode(part) + b"\n")
        # A process that is killed may leave an incomplete line.
        for line in filter(lambda line: line.endswith(b"\n"), iter(stdout.readline, b"")):
            answer = msgspec.json.decode(line, type=Answer)
            if isinstance(answer, Files):
                return answer
            if isinstance(answer, Failed):
                raise from_failure(answer.failure)
            report(answer.rows)
        (info,) = part.operator.partitions
        code = self.process.wait()
        self._log.seek(0)
        output = self._log.read().decode(errors="replace")[-_LOG_CHARS:].strip()
        raise StrandlineError(
            f"the process that wrote operator '{part.operator.uid}', partition {info.index}, into the savepoint "
            f"{folder_at(part.target).url} has ended with {code}: {output or 'it printed nothing'}",
            hint="take the savepoint again; nothing is left of this one",
        )

    def dismiss(self) -> None:
        _send(self._pipes()[0], NO_MORE)

    def close(self) -> None:
        for file in (*self._pipes(), self._log):
            with suppress(BrokenPipeError):
                file.close()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return self.process.stdin, self.process.stdout


def _send(stdin: IO[bytes], line: bytes) -> None:
    """Send a line to a process. Ignores one that has ended: its exit code and its log show why."""
    with suppress(BrokenPipeError):
        stdin.write(line)
        stdin.flush()


def _wait(exporters: Iterable[_Exporter]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    for exporter in exporters:
        try:
            exporter.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            exporter.process.kill()
            exporter.process.wait()
