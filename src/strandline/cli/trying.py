"""The process of one trial: each program has its own, with its own modules, session and settings of Spark.

`python -m strandline.cli.trying FOLDER` reads its order from standard input, since options of a storage may be secret,
and writes the result into the folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import typer

from strandline.cli.driver import terminate
from strandline.control.wire import ProgressMessage
from strandline.core.errors import StrandlineError
from strandline.replay.outcomes import compare_with_job
from strandline.replay.trial import TrialOptions, TrialResult, recorded_for, run_trial

_RESULT = "result.json"
_PROGRESS = "progress.json"
_POLL_S = 0.2


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


def run_orders(
    orders: Sequence[TrialOrder], folders: Sequence[Path], report: Callable[[ProgressMessage], object]
) -> list[TrialResult]:
    """Run trials at the same time, each in a process and a folder of its own; return their results.

    `report` is called with the epochs that have run in all of them.
    """
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
        while any(process.poll() is None for process in processes):
            report(_progress_in(folders))
            time.sleep(_POLL_S)
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait()
    return [_result_in(folder) for folder in folders]


def _progress_in(folders: Sequence[Path]) -> ProgressMessage:
    """Return the progress of all trials together; without a total, as long as one has none."""
    done, totals = 0, list[int]()
    for folder in folders:
        with suppress(FileNotFoundError):
            epochs, total = msgspec.json.decode((folder / _PROGRESS).read_bytes(), type=tuple[int, int])
            done += epochs
            totals.append(total)
    if len(totals) < len(folders):
        return ProgressMessage("starting")
    return ProgressMessage("running epochs", done, sum(totals), "epochs")


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
        options = TrialOptions(order.drop, order.from_now, order.epochs, order.files)
        result = run_trial(
            job, recorded, options, folder, lambda done, total: _write(folder / _PROGRESS, (done, total))
        )
        return result if order.keys is None else compare_with_job(result, folder, storage, order.keys)
    except StrandlineError as error:
        return TrialResult(error=str(error))
    except typer.Exit:
        return TrialResult(error="the program has ended with an error, before it came to its job")


def _write(path: Path, value: object) -> None:
    """Write a file in one step."""
    hidden = path.with_suffix(".tmp")
    hidden.write_bytes(msgspec.json.encode(value))
    hidden.replace(path)


def main() -> None:
    """Run the trial of a folder."""
    signal.signal(signal.SIGTERM, terminate)
    folder = Path(sys.argv[1])
    with suppress(KeyboardInterrupt):
        result = _run(folder)
        _write(folder / _RESULT, result)


if __name__ == "__main__":
    main()
