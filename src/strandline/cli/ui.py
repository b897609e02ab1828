"""`strandline ui`: a page of this machine's jobs, or of those of checkpoint directories, in a browser."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from strandline.cli.output import say
from strandline.cli.stores import JobsOrDirectories, LocalDir, StorageOptions, jobs_of
from strandline.core.errors import ConfigurationError

_PORT = 8740


def ui(
    what: JobsOrDirectories = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="The port on loopback; 0: any free one.")
    ] = _PORT,
    values: Annotated[
        Literal["hidden", "shown"], typer.Option(help="Whether the page shows keys and values of state.")
    ] = "hidden",
    read_only: Annotated[bool, typer.Option("--read-only", help="Without buttons that change a job.")] = False,
    local_dir: LocalDir = None,
    option: StorageOptions = None,
) -> None:
    """Show jobs, their checkpoints and their state in a browser.

    It serves running, stopped and dead jobs until Ctrl-C, on this machine only, at the address that it prints.
    """
    try:
        from strandline.ui.app import Page
        from strandline.ui.browse import Browser
        from strandline.ui.server import serve
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("starlette", "uvicorn", "anyio"):
            raise
        raise ConfigurationError(
            f"`strandline ui` needs {missing}, which is not installed", hint="pip install 'strandline[ui]'"
        ) from None
    # A directory that is not there is an error now, and not in the browser.
    jobs = jobs_of(what, local_dir, option)

    def announce(address: str) -> None:
        print(address, flush=True)
        say("strandline: the page is at this address until Ctrl-C; who has it may do all that the page does")

    serve(Page(jobs, Browser(jobs.options, values == "shown"), read_only), port, announce)
