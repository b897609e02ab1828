"""The command on a terminal: what it shows there, and what it prints elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

from tests.cli.conftest import environment


def on_terminal(*args: object, whole: bool = False, **more: str) -> tuple[int, str, bytes]:
    """Run `strandline` with standard error on a terminal; return its code, what it printed, and what the terminal got.

    `whole`: standard output is there, too.
    """
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "strandline.cli.main", *map(str, args)]
    with subprocess.Popen(
        command, stdout=theirs if whole else subprocess.PIPE, stderr=theirs, text=True,
        env=environment(**{"TERM": "xterm-256color", "COLUMNS": "100", **more}),
    ) as process:  # fmt: skip
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(ours, 65536)
            except OSError:  # How Linux says that nobody holds the other end any more.
                break
        os.close(ours)
        printed, _ = process.communicate(timeout=60)
    return process.returncode, printed or "", seen


def check_width(width: int, *args: object) -> list[str]:
    """Run a command on a terminal of this width, and return its lines: none is wider, and no date is broken."""
    code, _, seen = on_terminal(*args, whole=True, COLUMNS=str(width))
    lines = [line.rstrip() for line in screen(seen)]
    assert code == 0, lines
    assert max(map(len, lines)) <= width, "\n".join(lines)
    text = "\n".join(lines)
    assert len(re.findall(r"\b20\d\d-", text)) == len(re.findall(r"\b20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\b", text)) > 0
    return lines


def screen(seen: bytes) -> list[str]:
    """Return the lines that a terminal shows after all that it got, without colours and empty ones at the end."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", seen.decode()):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part.startswith("\x1b"):
            if part[-1] == "A":
                row -= int(part[2:-1])
                assert row >= 0
            elif part[-1] == "J":
                lines[row:] = [lines[row][:column]]
            elif part[-1] == "K":
                lines[row] = ""
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    while lines and not lines[-1].strip():
        lines.pop()
    return lines
