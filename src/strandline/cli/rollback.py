"""`strandline rollback`: a job goes back to an older checkpoint of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.checkpoints import checkpoint_number
from strandline.cli.output import print_json
from strandline.cli.stores import AsJson, LocalDir, StorageOptions, job_directory
from strandline.control.client import Driver, find_driver
from strandline.core.clock import SystemClock
from strandline.core.errors import ConfigurationError, NotFoundError
from strandline.core.settings import default_local_dir
from strandline.snapshot.origin import rollback as set_back


def rollback(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name.", show_default=False)],
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="The number of a checkpoint that it has retained.")
    ],
    directory: Annotated[
        str, typer.Option("--directory", metavar="DIRECTORY", help="Its checkpoint directory.", show_default=False)
    ],
    local_dir: LocalDir = None,
    option: StorageOptions = None,
    json: AsJson = False,
) -> None:
    """Have a stopped job go on from an older checkpoint when it starts next.

    What it published later is void from now on, and its sinks take back what they have shown since, when it starts. A
    driver that still runs on another machine is fenced: it publishes nothing any more.
    """
    number = checkpoint_number(checkpoint)
    try:
        driver: Driver | None = find_driver((local_dir or default_local_dir()).absolute(), job, directory)
    except NotFoundError:
        driver = None
    if driver is not None:
        # A running job will be told through its driver (control/commands.py).
        raise ConfigurationError(
            f"job '{job}' is running (process {driver.pid}), and only a stopped one can be set back",
            hint=f"`strandline stop {job}`, then roll it back, and start it again",
        )
    jobdir = job_directory(directory, job, option)
    generation = set_back(jobdir, number, SystemClock())
    if json:
        print_json({"job": job, "checkpoint": number, "generation": generation})
    else:
        print(f"job '{job}' goes on from checkpoint {number} when it starts next")
