"""The process of one trial: each program has its own, with its own modules, session and settings of Spark.

`python -m strandline.cli.trying FOLDER` reads its order from standard input, since options of a storage may be secret,
and writes the result into the folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import typer

from strandline.cli.driver import terminate
from strandline.core.errors import StrandlineError
from strandline.replay.outcomes import compare_with_job
from strandline.replay.trial import TrialOptions, TrialResult, recorded_for, run_trial

_RESULT = "result.json"


class TrialOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The order for a process: a program, its snapshot and its input."""

    program: str
    arguments: list[str]
    job: str
    start: str
    options: dict[str, str]
    """Of the storage, beside the job's own."""
    epochs: int | None
    files: dict[str, list[str]] | None
    drop: list[str]
    from_now: list[str]
    keys: int | None
    """If the state is to be compared with the job's checkpoint: how many keys of each state to show."""


def run_orders(orders: Sequence[TrialOrder], folders: Sequence[Path]) -> list[TrialResult]:
    """Run trials at the same time, each in a process and a folder of its own; return their results."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for order, folder in zip(orders, folders, strict=True):
            folder.mkdir()
            command = [sys.executable, "-m", "strandline.cli.trying", str(folder)]
            environment = {**os.environ, "TMPDIR": str(folder)}
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment)
            processes.append(process)
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as pipe:
                pipe.write(msgspec.json.encode(order))
        for process in processes:
            process.wait()
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait()
    return [_result_in(folder) for folder in folders]


def _result_in(folder: Path) -> TrialResult:
    try:
        return msgspec.json.decode((folder / _RESULT).read_bytes(), type=TrialResult)
    except FileNotFoundError:
        return TrialResult(error="its process has ended without a result")


def _run(folder: Path) -> TrialResult:
    from strandline.cli.replaying import job_of

    order = msgspec.json.decode(sys.stdin.buffer.read(), type=TrialOrder)
    try:
        job = job_of(Path(order.program), order.arguments, order.job)
        storage = {**job.checkpoints.storage_options, **order.options}
        recorded = recorded_for(job, order.start, storage, epochs=order.files is None)
        result = run_trial(job, recorded, TrialOptions(order.drop, order.from_now, order.epochs, order.files), folder)
        return result if order.keys is None else compare_with_job(result, folder, storage, order.keys)
    except StrandlineError as error:
        return TrialResult(error=str(error))
    except typer.Exit:
        return TrialResult(error="the program has ended with an error, before it came to its job")


def main() -> None:
    """Run the trial of a folder."""
    signal.signal(signal.SIGTERM, terminate)
    folder = Path(sys.argv[1])
    with suppress(KeyboardInterrupt):
        result = _run(folder)
        (folder / _RESULT).write_bytes(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
