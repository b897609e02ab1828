"""Processes beside a job: one writes into its source at a steady rate, one sees its rows in their end.

In processes of their own they do not hold up the driver, which is Python too. They end with their standard input, so
also when the process that started them is killed.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from benchmarks._ends import End, Row

_PAUSE_S = 0.01
_GRACE_S = 1.0
"""How long the reader looks on after the last row: one might come twice."""
_END_S = 30.0


class Client:
    """Such a process; a line on its standard input says what it is to do before it ends."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def tell(self, number: int) -> None:
        """Write the line."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % number)
        self._process.stdin.flush()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def answer(self, timeout: float) -> bytes:
        """Return what it prints, when it has ended by itself."""
        assert self._process.stdout is not None
        # Its answer fits into the pipe.
        code = self._process.wait(timeout)
        if code:
            raise SystemExit(f"a process beside the job ended with {code}")
        return self._process.stdout.read()

    def check(self) -> None:
        """Raise SystemExit if it has ended too soon."""
        if not self.is_running:
            raise SystemExit(f"a process beside the job ended with {self._process.returncode}")


@contextmanager
def client(what: Feeder | Reader) -> Iterator[Client]:
    """Run a feeder or a reader, which is over at the end of the context, if not before."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks._clients"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdin is not None
        pickle.dump(what, process.stdin)
        process.stdin.flush()
        yield Client(process)
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Feeder:
    """Writes the numbers from 0 on into a topic of two partitions, at a rate, each with the time at which it was due.

    So rows that are written late, since the machine is busy, are as old as they are for who waits for them. It ends
    with a line, and answers how many there are.
    """

    servers: str
    topic: str
    rate: int

    def run(self, lines: Any) -> None:
        """Write until there is a line."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 2, "acks": "all"})
        over: list[bytes] = []
        threading.Thread(target=lambda: over.append(lines.readline()), daemon=True).start()
        began, clock, rows = time.time(), time.monotonic(), 0
        while not over:
            due = int((time.monotonic() - clock) * self.rate)
            for number in range(rows, due):
                at_ms = int((began + number / self.rate) * 1000)
                producer.produce(self.topic, b"%d" % number, partition=number % 2, timestamp=at_ms)
            rows = max(rows, due)
            producer.poll(0)
            time.sleep(_PAUSE_S)
        if not over[0]:
            # The process that started this one is gone, and perhaps the broker.
            os._exit(1)
        if producer.flush(_END_S):
            raise SystemExit("the broker did not take all rows")
        print(rows, flush=True)


@dataclass(frozen=True)
class Reader:
    """Looks for new rows in an end all the time, and notes when it sees each. A line says how many there will be.

    When they are all there, it writes a file of NumPy with `ids`, `at`, `amounts` and `seen`, and ends.
    """

    end: End
    file: Path

    def run(self, lines: Any) -> None:
        """Look until all rows were seen; with the end of the input, also without."""
        wanted: list[int] = []
        threading.Thread(target=lambda: wanted.append(int(lines.readline() or -1)), daemon=True).start()
        rows: list[Row] = []
        seen: list[float] = []
        until = None
        while until is None or time.monotonic() < until:
            new = self.end.new()
            if new:
                rows += new
                seen += [time.time()] * len(new)
            elif wanted and until is None and len(rows) >= wanted[0]:
                if wanted[0] < 0:
                    return
                until = time.monotonic() + _GRACE_S
            time.sleep(_PAUSE_S)
        count = self.end.count() if self.end.counts_all else len(rows)
        np.savez(
            self.file, ids=np.array([row.id for row in rows]), at=np.array([row.at for row in rows]),
            amounts=np.array([row.amount for row in rows]), seen=np.array(seen), count=np.array(count),
        )  # fmt: skip


def main() -> int:
    """Run what the other process asks for; return the exit code."""
    try:
        pickle.load(sys.stdin.buffer).run(sys.stdin.buffer)
        sys.stdout.flush()
    except (BrokenPipeError, FileNotFoundError):
        # Whoever has started this process is gone, and the directory too.
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    # The thread that reads may still wait for a line.
    os._exit(main())
