"""The command on a terminal: what it shows there, and what it prints elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from tests.cli.conftest import environment


def on_terminal(*args: object) -> tuple[int, str, bytes]:
    """Run `strandline` with standard error on a terminal; return its code, what it printed, and what the terminal got."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "strandline.cli.main", *map(str, args)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env=environment(TERM="xterm-256color", COLUMNS="100"), text=True
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(ours, 65536)
            except OSError:  # How Linux says that nobody holds the other end any more.
                break
        os.close(ours)
        printed, _ = process.communicate(timeout=60)
    return process.returncode, printed, seen
