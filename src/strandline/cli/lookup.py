"""`strandline lookup`: keys of a running job's state, asked for through its driver."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.jobs import LOOK_S, OfDirectory, RunningJob
from strandline.cli.output import add_row, console, json_text, print_json, say, table
from strandline.cli.stores import AsJson, LocalDir, root_of
from strandline.control.client import call, find_driver
from strandline.control.commands import LOOKUP, LookUp


def lookup(
    job: RunningJob,
    table_: Annotated[str, typer.Argument(metavar="TABLE", help="An operator's uid and a state's name: detect.seen.")],
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY...", help='Plain text, or JSON, as for keys of several columns: ["ann", 7].'),
    ],
    directory: OfDirectory = None,
    local_dir: LocalDir = None,
    json: AsJson = False,
) -> None:
    """Show what a running job's state has of some keys, as of its last epoch. No epoch waits for that.

    With --json, a line for each key.
    """
    driver = find_driver(root_of(local_dir), job, directory)
    found = call(driver, LOOKUP, LookUp(table_, keys), timeout_s=LOOK_S)
    if json:
        for key, value in zip(keys, found.values, strict=True):
            print_json({"table": found.table, "epoch": found.epoch, "key": key, "value": value})
        return
    made = table("key", "value")
    for key, value in zip(keys, found.values, strict=True):
        add_row(made, key, "-" if value is None else json_text(value))
    console().print(made)
    say(f"as of epoch {found.epoch}")
