"""The command in processes that are forked from one which has imported it: to import it is most of what it takes.

A fork leaves what it was forked from behind and ends as the installed command does. That the command starts as a program
is seen by tests that run it on a terminal, or end it.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


class Forks:
    """One command after the other."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._begun = 0
        self._running: int | None = None
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.forks"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, args: list[str], environment: dict[str, str]) -> int:
        """Start a command; return its process."""
        self._give_up()
        self._begun += 1
        for path in self._output():
            path.touch()
        out, err = map(str, self._output())
        request = {"args": args, "environment": environment, "out": out, "err": err}
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        self._running = self._answer()
        return self._running

    def printed(self) -> str:
        """Return what the command has printed until now."""
        return self._output()[0].read_text()

    def wait(self) -> tuple[int, str, str]:
        """Return the command's exit code, once it has ended, and all that it printed and said."""
        code, self._running = self._answer(), None
        out, err = self._output()
        return code, out.read_text(), err.read_text()

    def end(self) -> None:
        """End what commands are forked from."""
        self._give_up()
        self._server.communicate()

    def _give_up(self) -> None:
        """End a command that a test which failed has left."""
        if self._running is not None:
            os.kill(self._running, signal.SIGKILL)
            self.wait()

    def _output(self) -> tuple[Path, Path]:
        return self._directory / f"{self._begun}.out", self._directory / f"{self._begun}.err"

    def _answer(self) -> int:
        return int(self._server.stdout.readline())


def _next_request() -> Any:
    """Fork for each request, and wait for it; in the fork, return what it is to do."""
    held = b""
    while True:
        while b"\n" not in held:
            got = os.read(0, 1 << 16)
            if not got:
                return None
            held += got
        line, _, held = held.partition(b"\n")
        child = os.fork()
        if not child:
            return json.loads(line)
        os.write(1, f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(asked: dict[str, Any]) -> None:
    files = ("/dev/null", os.O_RDONLY), (asked["out"], os.O_WRONLY), (asked["err"], os.O_WRONLY)
    for number, (path, how) in enumerate(files):
        opened = os.open(path, how)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = ["strandline", *asked["args"]]


def _serve() -> None:
    from strandline.cli.main import app, main
    from strandline.plan import pipeline  # noqa: F401
    from strandline.spark.base import session  # noqa: F401

    # Arguments are read with a library that is not imported before there are any.
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        app(["run"], prog_name="strandline")
    gc.freeze()
    # Ctrl-C is for the fork.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked = _next_request()
    if asked is None:
        return
    signal.signal(signal.SIGINT, before)
    _become(asked)
    main()


if __name__ == "__main__":
    _serve()
