"""`strandline test` and `compare`: a program on production's state and input, beside another one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.output import Table, json_text, print_json, say
from strandline.cli.progress import progress_bar
from strandline.cli.replaying import Arguments, JobName
from strandline.cli.stores import AsJson, StorageOptions, parse_options
from strandline.core.errors import ConfigurationError, StrandlineError
from strandline.core.scratch import Scratch

if TYPE_CHECKING:
    from strandline.replay.outcomes import Outcome, SinkDiff
    from strandline.replay.trial import TrialResult

_CODES = {"equal": 0, "differs": 1, "unknown": 2}
_MAGIC = set("*?[")

Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="[SOURCE=]FILES",
        show_default=False,
        help="Rows to read in place of the recorded epochs: a file, a folder or a pattern; each file (.json, .csv, "
        ".parquet or .orc) is an epoch. Repeated, with the source's name if there are several.",
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, show_default=False, help="Only the first recorded epochs after the snapshot."),
]
Dropped = Annotated[
    list[str] | None,
    typer.Option(
        "--drop", metavar="UID[.NAME]", show_default=False, help="Stored state that the new program may lose; repeated."
    ),
]
BeginFromNow = Annotated[
    list[str] | None,
    typer.Option(
        "--from-now",
        metavar="UID",
        show_default=False,
        help="An aggregation of a view whose new aggregates may begin empty; repeated.",
    ),
]
Rows = Annotated[int, typer.Option(metavar="N", min=0, help="Show so many rows of each sink and keys of each state.")]
_PROGRAM: dict[str, Any] = {"exists": True, "dir_okay": False, "readable": True}


def try_out(
    program: Annotated[
        Path, typer.Argument(metavar="PROGRAM", help="The new program, APP.PY or FILE.SQL.", **_PROGRAM)
    ],
    args: Arguments = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="SNAPSHOT",
            show_default=False,
            help="The path or URL of a checkpoint or savepoint, a checkpoint's number, or start. By default the last "
            "checkpoint before the failure, else the last but one.",
        ),
    ] = "",
    inputs: Inputs = None,
    epochs: Epochs = None,
    old: Annotated[
        Path | None,
        typer.Option(
            "--old", metavar="PROGRAM", help="The program that the job runs now.", show_default=False, **_PROGRAM
        ),
    ] = None,
    drop: Dropped = None,
    from_now: BeginFromNow = None,
    rows: Rows = 10,
    job: JobName = "",
    option: StorageOptions = None,
    json: AsJson = False,
) -> None:
    """Try a new program with production's state and input.

    Its state is checked as at a start, and upgraded; then it runs the epochs that are recorded after the snapshot, or
    the rows of files, on this machine. With --old, the old program does the same beside it, and rows and state are
    compared; without it, the state alone, with the job's newest checkpoint among these epochs. Nothing is written to
    sinks, checkpoints or the snapshot's folder. Exit code 0: equal, 1: something differs, 2: there is no result.
    """
    _compare(old, program, args, start, inputs, epochs, drop, from_now, rows, job, option, as_json=json)


def compare(
    before: Annotated[Path, typer.Argument(metavar="PROGRAM", help="A program, APP.PY or FILE.SQL.", **_PROGRAM)],
    after: Annotated[Path, typer.Argument(metavar="OTHER", help="Another one.", **_PROGRAM)],
    args: Arguments = None,
    restore: Annotated[
        str, typer.Option(metavar="SNAPSHOT", show_default=False, help="The state of both, as --from of `test`.")
    ] = "",
    inputs: Inputs = None,
    epochs: Epochs = None,
    drop: Dropped = None,
    from_now: BeginFromNow = None,
    rows: Rows = 10,
    job: JobName = "",
    option: StorageOptions = None,
    json: AsJson = False,
) -> None:
    """Compare two programs with the same state and input.

    Rows of sinks and state are compared. Both have the same arguments. It is `strandline test OTHER --old PROGRAM`.
    """
    _compare(before, after, args, restore, inputs, epochs, drop, from_now, rows, job, option, as_json=json)


def _compare(
    before: Path | None,
    after: Path,
    args: list[str] | None,
    start: str,
    inputs: list[str] | None,
    epochs: int | None,
    drop: list[str] | None,
    from_now: list[str] | None,
    most: int,
    job: str,
    option: list[str] | None,
    *,
    as_json: bool,
) -> None:
    from strandline.cli.trying import TrialOrder, run_orders
    from strandline.replay.outcomes import compare_trials, outcome_alone

    if inputs and epochs is not None:
        raise typer.BadParameter("--epochs is for recorded epochs: each file of --input is one")
    try:
        options, files = parse_options(option), _files_of(inputs)
        orders = [
            TrialOrder(
                program=str(program), arguments=args or [], job=job, start=start, options=options, epochs=epochs,
                files=files, keys=most if before is None and files is None else None,
                # The old program has all that is stored.
                drop=(drop or []) if program is after else [], from_now=(from_now or []) if program is after else [],
            )
            for program in (before, after) if program is not None
        ]  # fmt: skip
        with Scratch("trial") as scratch:
            folders = [scratch / str(number) for number in range(len(orders))]
            with progress_bar() as report:
                results = run_orders(orders, folders, report)
            errors = {order.program: each.error for order, each in zip(orders, results, strict=True) if each.error}
            if errors:
                _refuse(errors, as_json=as_json)
            if len(results) > 1:
                outcome = compare_trials(results[0], results[1], (folders[0], folders[1]), most, scratch)
            else:
                outcome = outcome_alone(results[0])
    except StrandlineError as error:
        _refuse({"": str(error)}, as_json=as_json)
    if as_json:
        print_json(_as_data(results, outcome))
    else:
        _print(results, outcome)
    raise typer.Exit(_CODES[outcome.verdict])


def _files_of(inputs: list[str] | None) -> dict[str, list[str]] | None:
    """Return the files of each source, in order; raise ConfigurationError if there are none."""
    if not inputs:
        return None
    files: dict[str, list[str]] = {}
    for argument in inputs:
        name, sign, rest = argument.partition("=")
        # A path may have an equals sign, as in day=1/.
        source, place = (name, rest) if sign and "/" not in name else ("", argument)
        path = Path(place)
        if path.is_dir():
            paths = sorted(each for each in path.iterdir() if each.is_file() and each.name[0] not in "._")
        elif _MAGIC & set(place):
            root = Path(path.anchor)
            paths = sorted(root.glob(str(path.relative_to(root)))) if path.is_absolute() else sorted(Path().glob(place))
        else:
            paths = [path] if path.exists() else []
        if not paths:
            raise ConfigurationError(
                f"--input {argument}: there is no such file", hint="give files, a folder or a pattern"
            )
        files.setdefault(source, []).extend(map(str, paths))
    return files


def _refuse(errors: dict[str, str], *, as_json: bool) -> None:
    """Print why there is no result, and end the command."""
    for program, error in errors.items():
        say(f"error: {program}: {error}" if program else f"error: {error}")
    if as_json:
        print_json({"verdict": "unknown", "errors": errors})
    raise typer.Exit(_CODES["unknown"])


def _as_data(results: list[TrialResult], outcome: Outcome) -> dict[str, Any]:
    """Return the result as data for JSON."""
    from strandline.cli import differences

    new = results[-1]
    return {
        "verdict": outcome.verdict,
        "job": new.job,
        "snapshot": new.snapshot,
        "epochs": [new.first, max(each.last for each in results)],
        "rows_in": new.rows_in,
        "changes": new.changes,
        "failures": list(outcome.failures),
        "sinks": [{"equal": each.is_equal, **asdict(each)} for each in outcome.sinks],
        "state": None if outcome.states is None else differences.as_data(outcome.states),
        "not_compared": outcome.why_not,
        "checkpoint": new.checkpoint if len(results) == 1 else "",
        "notes": [each.notes for each in results],
    }


def _print(results: list[TrialResult], outcome: Outcome) -> None:
    from strandline.cli.differences import print_diff

    new = results[-1]
    last = max(each.last for each in results)
    epochs = f"epochs {new.first} to {last}" if last >= new.first else "no epoch"
    say(f"job '{new.job}' from {new.snapshot}: {epochs}, {max(each.rows_in for each in results):,} rows")
    for which, each in zip(("old program", "new program")[-len(results) :], results, strict=True):
        for note in each.notes:
            say(f"{which}: {note}")
    changed = [change for change in new.changes if change["action"] != "kept"]
    if changed:
        table = Table("operator", "state or aggregate", "what becomes of it", "was", "details")
        for change in changed:
            what = change["aggregate"] or change["state"] or "-"
            table.add(change["operator"], what, change["action"], change["was"], "; ".join(change["details"]))
        table.print()
    for failure in outcome.failures:
        print(failure)
    if len(results) > 1:
        print("rows")
        _print_sinks(outcome.sinks)
    else:
        print("rows: not compared, since those of the old program are not known: give it with --old")
    if outcome.states is None:
        print(f"state: not compared: {outcome.why_not}")
    else:
        print("state" if len(results) > 1 else f"state, before: {new.checkpoint}")
        print_diff(outcome.states)
    print({"equal": "equal", "differs": "different", "unknown": "not known whether it is equal"}[outcome.verdict])


def _print_sinks(sinks: tuple[SinkDiff, ...]) -> None:
    """Print a table of the sinks, then some of the rows that differ."""
    numbers = ("before", "after", "only before", "only after")
    table = Table("sink", *numbers, "", right=numbers)
    for each in sinks:
        remarks = [f"only {each.only}"] if each.only else [*each.notes]
        if each.moved:
            remarks.append(f"{each.moved} of them in another epoch")
        table.add(each.sink, each.before, each.after, each.only_before, each.only_after, "; ".join(remarks))
    table.print()
    for each in sinks:
        for row in each.rows:
            times = f" ({row.count} times)" if row.count > 1 else ""
            print(f"{each.sink}: {'-' if row.side == 'before' else '+'} epoch {row.epoch} {json_text(row.row)}{times}")
        left = each.only_before + each.only_after - sum(row.count for row in each.rows)
        if left and each.rows:
            print(f"{each.sink}: and {left} more rows")
