"""`strandline lookup`: reads keys of a running job's state, through its driver."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.jobs import STATUS_TIMEOUT_S, OfDirectory, RunningJob
from strandline.cli.output import Table, json_text, print_json, say
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
    """Show what the state of a running job has of some keys.

    It is that of its last epoch, and no epoch waits for the look-up. With --json, a line for each key.
    """
    driver = find_driver(root_of(local_dir), job, directory)
    result = call(driver, LOOKUP, LookUp(table_, keys), timeout_s=STATUS_TIMEOUT_S)
    if json:
        for key, value in zip(keys, result.values, strict=True):
            print_json({"table": result.table, "epoch": result.epoch, "key": key, "value": value})
        return
    output = Table("key", "value", is_data=True)
    for key, value in zip(keys, result.values, strict=True):
        output.add(key, "-" if value is None else json_text(value))
    output.print()
    say(f"as of epoch {result.epoch}")
