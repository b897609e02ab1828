"""What it takes to start a keeper: forked from the nursery, beside a program of its own.

Both are started in turn, many times; a keeper has started when its socket is there. Besides how long that takes: the
processor time it has used by then, and the memory that is its own alone, while all others live.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks._harness import emit, progress
from strandline.keeper.spawning import Nursery, start_program
from strandline.keeper.watchdog import process_start

BENCHMARK = "keeper_start"
FORK = "fork"
FIRST = "first-fork"
PROGRAM = "program"
_TICKS = os.sysconf("SC_CLK_TCK")


class Started:
    """A keeper, and what it took."""

    def __init__(self, directory: Path, at: int, nursery: Nursery | None) -> None:
        listens_at, log = directory / f"{at}.sock", directory / "log"
        me = os.getpid()
        arguments = [str(listens_at), str(directory / f"op-{at}"), str(me), process_start(me), "1"]
        begun = time.perf_counter()
        if nursery is not None:
            pid = nursery.start(arguments, log, os.environ)
            assert pid is not None, log.read_text()
        else:
            pid = start_program("strandline.keeper.process", arguments, log, os.environ)
        while not listens_at.exists():
            assert process_start(pid), log.read_text()
            time.sleep(0.0005)
        self.pid = pid
        self.ms = (time.perf_counter() - begun) * 1000
        used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        self.cpu_ms = (int(used[11]) + int(used[12])) * 1000 / _TICKS

    def own_mb(self) -> float:
        """Return the memory that no other process has."""
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def main() -> None:
    """Start keepers in turn, and print what each way takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=30, help="how many of each")
    count = parser.parse_args().count
    started: dict[str, list[Started]] = {FIRST: [], FORK: [], PROGRAM: []}
    nursery = Nursery()
    with tempfile.TemporaryDirectory(prefix="sl-") as directory:
        root = Path(directory)
        try:
            for at in range(count):
                progress(f"{at + 1} of {count}")
                if at % 5 == 0:
                    # The first birth waits for the nursery.
                    nursery.close()
                    started[FIRST].append(Started(root, 3 * at, nursery))
                started[FORK].append(Started(root, 3 * at + 1, nursery))
                started[PROGRAM].append(Started(root, 3 * at + 2, None))
            own = {subject: median(keeper.own_mb() for keeper in keepers) for subject, keepers in started.items()}
        finally:
            for keepers in started.values():
                for keeper in keepers:
                    os.kill(keeper.pid, signal.SIGKILL)
            nursery.close()
    ms = {subject: median(keeper.ms for keeper in keepers) for subject, keepers in started.items()}
    # Of a fork's, the clock shows nothing.
    cpu_ms = {
        subject: max(median(keeper.cpu_ms for keeper in keepers), 1000 / _TICKS) for subject, keepers in started.items()
    }
    for metric, found in (("start_ms", ms), ("cpu_ms_at_most", cpu_ms), ("own_mb", own)):
        for subject in (FORK, FIRST):
            ratio = round(found[PROGRAM] / found[subject], 1)
            emit(BENCHMARK, subject, metric, round(found[subject], 1), peer=PROGRAM,
                 peer_value=round(found[PROGRAM], 1), ratio=ratio)  # fmt: skip


if __name__ == "__main__":
    main()
