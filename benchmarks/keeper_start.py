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
from strandline.keeper.birth import Nursery, start_program
from strandline.keeper.watchdog import process_start

BENCHMARK = "keeper_start"
FORK = "fork"
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
    nursery = Nursery()
    started: dict[str, list[Started]] = {FORK: [], PROGRAM: []}
    with tempfile.TemporaryDirectory(prefix="sl-") as directory:
        # The nursery's own start is the first one's.
        started[FORK].append(Started(Path(directory), 0, nursery))
        try:
            for at in range(count):
                progress(f"{at + 1} of {count}")
                started[FORK].append(Started(Path(directory), 2 * at + 1, nursery))
                started[PROGRAM].append(Started(Path(directory), 2 * at + 2, None))
            own = {subject: median(keeper.own_mb() for keeper in keepers) for subject, keepers in started.items()}
        finally:
            for keeper in [*started[FORK], *started[PROGRAM]]:
                os.kill(keeper.pid, signal.SIGKILL)
            nursery.close()
    first, *rest = started[FORK]
    ms = {FORK: median(k.ms for k in rest), PROGRAM: median(k.ms for k in started[PROGRAM])}
    cpu_ms = {FORK: median(k.cpu_ms for k in rest), PROGRAM: median(k.cpu_ms for k in started[PROGRAM])}
    for metric, found in (("start_ms", ms), ("cpu_ms", cpu_ms), ("own_mb", own)):
        emit(BENCHMARK, FORK, metric, found[FORK], peer=PROGRAM, peer_value=found[PROGRAM],
             ratio=round(found[PROGRAM] / max(found[FORK], 0.01), 1))  # fmt: skip
    emit(BENCHMARK, FORK, "first_start_ms", first.ms, peer=PROGRAM, peer_value=ms[PROGRAM])


if __name__ == "__main__":
    main()
