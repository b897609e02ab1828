"""`strandline lookup`: reads keys of a running job's state, through its driver."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.jobs import STATUS_TIMEOUT_S, OfDirectory, RunningJob
from strandline.cli.output import Table, json_text, print_json, say
from strandline.cli.stores import AsJson, LocalDir, root_of
from strandline.control.client import Driver, call, find_driver
from strandline.control.commands import LIST_KEYS, LOOKUP, ListKeys, LookUp


def lookup(
    job: RunningJob,
    table_: Annotated[str, typer.Argument(metavar="TABLE", help="An operator's uid and a state's name: detect.seen.")],
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY...]",
            help='Plain text, or JSON, as for keys of several columns: ["ann", 7]. Without one, some keys are listed.',
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="List no more keys than these.")] = 20,
    partition: Annotated[
        int | None, typer.Option(min=0, metavar="N", show_default=False, help="List keys of this partition alone.")
    ] = None,
    directory: OfDirectory = None,
    local_dir: LocalDir = None,
    json: AsJson = False,
) -> None:
    """Show what the state of a running job has of some keys.

    It is that of its last epoch, and no epoch waits for the look-up. With --json, a line for each key. Keys that are
    listed are any, not the newest or the largest: to search all, use `strandline state query` on a checkpoint.
    """
    driver = find_driver(root_of(local_dir), job, directory)
    if not keys:
        _list_keys(driver, ListKeys(table_, limit, partition), as_json=json)
        return
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


def _list_keys(driver: Driver, wanted: ListKeys, *, as_json: bool) -> None:
    answer = call(driver, LIST_KEYS, wanted, timeout_s=STATUS_TIMEOUT_S)
    if as_json:
        for key, value in zip(answer.keys, answer.values, strict=True):
            plain = key[0] if len(key) == 1 else key
            print_json({"table": answer.table, "epoch": answer.epoch, "key": plain, "value": value})
        return
    output = Table(*answer.columns, "value", is_data=True)
    for key, value in zip(answer.keys, answer.values, strict=True):
        output.add(*(part if isinstance(part, str) else json_text(part) for part in key), json_text(value))
    output.print()
    say(f"as of epoch {answer.epoch}{'; there may be more keys' if answer.has_more else ''}")
