"""The processes that export a snapshot's parts (`export.py`): as many as work at once, each used for many parts."""

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
"""How long exports may take to end what they upload."""


class Exporters:
    """Begins a process where none is idle. From several threads; `close` after they have ended."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._all: list[_Exporter] = []
        self._idle: deque[_Exporter] = deque()
        self._stopped = False

    def export(self, part: ExportPart, wrote: Callable[[int], None]) -> Files:
        """Have one part exported; `wrote` hears how many of its rows are written by now.

        Raises what the process says, and StrandlineError if it ends before it has answered.
        """
        try:
            exporter = self._idle.pop()
        except IndexError:
            exporter = _Exporter(self._scratch)
            self._all.append(exporter)
        if self._stopped:
            exporter.process.terminate()
        found = exporter.export(part, wrote)
        self._idle.append(exporter)
        return found

    def stop(self) -> None:
        """End all processes, whatever they are at: `export` raises."""
        # Before: a thread that begins a process just now sees to that one itself.
        self._stopped = True
        for exporter in self._all:
            exporter.process.terminate()
        _wait(self._all)

    def close(self) -> None:
        """End what is left; nobody exports any more."""
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
        # Without a name, it goes with who has it open.
        self._log = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "strandline.snapshot.savepoints.export"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip

    def export(self, part: ExportPart, wrote: Callable[[int], None]) -> Files:
        stdin, stdout = self._pipes()
        _tell(stdin, msgspec.json.encode(part) + b"\n")
        # A line without an end is of one that was killed.
        for line in filter(lambda line: line.endswith(b"\n"), iter(stdout.readline, b"")):
            answer = msgspec.json.decode(line, type=Answer)
            if isinstance(answer, Files):
                return answer
            if isinstance(answer, Failed):
                raise from_failure(answer.failure)
            wrote(answer.rows)
        (info,) = part.operator.partitions
        code = self.process.wait()
        self._log.seek(0)
        said = self._log.read().decode(errors="replace")[-_LOG_CHARS:].strip()
        raise StrandlineError(
            f"the process that wrote operator '{part.operator.uid}', partition {info.index}, into the savepoint "
            f"{folder_at(part.target).url} has ended with {code}: {said or 'it says nothing'}",
            hint="take the savepoint again; nothing is left of this one",
        )

    def dismiss(self) -> None:
        _tell(self._pipes()[0], NO_MORE)

    def close(self) -> None:
        for file in (*self._pipes(), self._log):
            with suppress(BrokenPipeError):
                file.close()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return self.process.stdin, self.process.stdout


def _tell(stdin: IO[bytes], line: bytes) -> None:
    """Say something to a process. One that has ended does not hear it: its code and its log say why."""
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
