"""`strandline rollback`: returns a job, running or not, to an older checkpoint of its own."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from strandline.cli.jobs import OfDirectory, call_with_progress
from strandline.cli.output import print_result
from strandline.cli.stores import AsJson, LocalDir, StorageOptions, job_directory, root_of
from strandline.control.client import find_driver, is_directory
from strandline.control.commands import ROLLBACK, Rollback
from strandline.control.journal import records
from strandline.core.clock import SystemClock
from strandline.core.errors import ConfigurationError, NotFoundError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.core.settings import parse_duration_ms
from strandline.snapshot.opening.origin import rollback as set_back


def rollback(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name.", show_default=False)],
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="The number of a checkpoint that it has retained.")
    ],
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long a running job may take.")] = "5 min",
    directory: OfDirectory = None,
    local_dir: LocalDir = None,
    option: StorageOptions = None,
    json: AsJson = False,
) -> None:
    """Have a job go on from an older checkpoint.

    A job that runs here does it at once, any other one when it starts next. What it published later is void from now
    on, and its sinks take back what they have shown since. Of a job that does not run here, --directory says where its
    checkpoints are; a driver of it elsewhere publishes nothing any more.
    """
    number, timeout_s = _number(checkpoint), parse_duration_ms(timeout, "--timeout") / 1000
    try:
        driver = find_driver(root_of(local_dir), job, directory)
    except NotFoundError as error:
        if directory is None:
            hint = f"if it is stopped, say with --directory where its checkpoints are; {error.hint}"
            raise NotFoundError(error.message, hint=hint) from error
        for record in records(root_of(local_dir), job):
            if is_directory(record.directory, directory) and not record.fate:
                # It would be fenced, and the job would end.
                raise UnavailableError(
                    f"the driver of job '{job}' (process {record.pid}) runs on this machine and does not answer: the "
                    "job was not set back",
                    hint="its machine may be overloaded, or the process stopped; try again, or end the process first",
                ) from error
        set_back(job_directory(directory, job, option), number, SystemClock())
        result = {"job": job, "checkpoint": number, "running": False}
    else:
        call_with_progress(driver, ROLLBACK, Rollback(number, timeout_s))
        result = {"job": job, "checkpoint": number, "running": True}
    when = "" if result["running"] else " when it starts next"
    print_result(result, f"job '{job}' goes on from checkpoint {number}{when}", json=json)


def _number(text: str) -> CheckpointId:
    """Return a checkpoint's number from 17 or chk-17."""
    match = re.fullmatch(r"(?:chk-)?(\d+)", text)
    if not match:
        raise ConfigurationError(f"checkpoint is {text!r}, expected a number")
    return CheckpointId(int(match[1]))
