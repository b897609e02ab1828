"""`strandline state patch`: makes a savepoint of a snapshot with changes, without a JVM and without a job."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.checkpoint.folder import folder_at
from strandline.cli.output import Table, print_json
from strandline.cli.progress import progress_bar
from strandline.cli.stores import AsJson, StorageOptions, parse_options
from strandline.control.wire import ProgressMessage
from strandline.core.errors import ConfigurationError
from strandline.core.texts import size_text

# Modules that need Arrow are imported where they are used: importing it takes longer than most commands.
if TYPE_CHECKING:
    from strandline.format.manifest import Manifest
    from strandline.snapshot.opening.snapshot import Snapshot
    from strandline.snapshot.savepoints.progress import PatchProgress
    from strandline.snapshot.tools.patch import AppliedPatch, Source


def _repeated(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, show_default=False, help=help)


def patch(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="A savepoint, a checkpoint (…/job/chk-17), or a job's folder: its newest checkpoint."
        ),
    ],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The savepoint to make: a folder that is not there yet.")],
    drop: Annotated[
        list[str] | None, _repeated("--drop", "UID[.STATE]", "Leave out an operator or a state. May be repeated.")
    ] = None,
    rename: Annotated[
        list[str] | None,
        _repeated("--rename", "UID[.STATE]=NEW", "Call an operator, or a state, something else: of a state, its name."),
    ] = None,
    max_parallelism: Annotated[
        list[str] | None,
        _repeated("--max-parallelism", "[UID=]N", "Put state into other key groups: of all operators, or of one."),
    ] = None,
    delete: Annotated[
        list[str] | None,
        _repeated("--delete", "UID.STATE=CONDITION", "Leave out rows for which a condition of SQL is true."),
    ] = None,
    transform: Annotated[
        list[str] | None,
        _repeated("--transform", "UID.STATE=SELECT", "Replace a state's rows by a SELECT … FROM rows, by DuckDB."),
    ] = None,
    rows: Annotated[
        list[str] | None,
        _repeated("--rows", "UID.STATE=FILE", "Replace a state's rows by those of a file: .parquet, .csv or .json."),
    ] = None,
    option: StorageOptions = None,
    json: AsJson = False,
) -> None:
    """Make a savepoint of a snapshot with some of its state changed.

    What is at URL stays as it is. All else is taken over: the place in the sources, watermarks, what sinks have
    pending. Nothing is at OUT unless all fits. What a name may be two things of is written with quotes: '"a.b"' is an
    operator, '"a"."b"' a state.
    """
    from strandline.snapshot.opening.snapshot import pinned_snapshot, savepoint_place
    from strandline.snapshot.tools.patch import Patch, make_patched

    started = time.monotonic()
    options = parse_options(option)
    with pinned_snapshot(url, options) as snapshot:
        target = savepoint_place(out, options)
        changes = Patch(
            sources=dict(_reject_duplicates(_sources(snapshot, options, delete or (), transform or (), rows or ()))),
            drop=drop or (), rename=dict(_reject_duplicates(_pairs("--rename", rename or ()))),
            max_parallelism=_parse_max_parallelism(max_parallelism or ()),
        )  # fmt: skip
        if changes == Patch():
            raise ConfigurationError(
                "nothing is to be changed",
                hint="give --drop, --rename, --max-parallelism, --delete, --transform or --rows; "
                "`strandline snapshots copy --canonical` makes a savepoint without a change",
            )
        plan = changes.plan(snapshot.manifest.operators)
        with progress_bar() as report:

            def report_states(at: PatchProgress) -> None:
                step = f"{at.step}, {at.rows} rows" if at.rows else at.step
                report(ProgressMessage(step, at.done, at.states, "states"))

            source = snapshot.folder.place(options)
            manifest = make_patched(snapshot.manifest, source, target, changes, report=report_states)
    data = _as_data(folder_at(target).url, manifest, plan)
    data["duration_ms"] = round((time.monotonic() - started) * 1000)
    if json:
        print_json(data)
    else:
        _print(data)


def _pairs(flag: str, options: Sequence[str]) -> Iterator[tuple[str, str]]:
    for option in options:
        name, equals, value = option.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise typer.BadParameter(f"{option!r}: expected NAME=…", param_hint=flag)
        yield name.strip(), value.strip()


def _reject_duplicates(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for name, value in pairs:
        if name in seen:
            raise ConfigurationError(f"'{name}' is to be changed in two ways", hint="leave one out")
        seen.add(name)
        yield name, value


def _parse_max_parallelism(options: Sequence[str]) -> int | dict[str, int] | None:
    """Return the max_parallelism of all operators, or of some by uid."""
    numbers: dict[str, int] = {}
    for option in options:
        uid, _, number = option.rpartition("=")
        if not number.strip().isdecimal() or uid in numbers or (numbers and (not uid or "" in numbers)):
            raise typer.BadParameter(
                f"{option!r}: expected one number for all, or UID=N once for each operator",
                param_hint="--max-parallelism",
            )
        numbers[uid] = int(number)
    return numbers.get("", numbers or None)


def _sources(
    snapshot: Snapshot, options: dict[str, str], delete: Sequence[str], transform: Sequence[str], rows: Sequence[str]
) -> Iterator[tuple[str, Source]]:
    """Yield the source of each state's new rows. Raises the errors of unknown names and missing files."""
    from strandline.cli.rowfiles import rows_in
    from strandline.snapshot.savepoints.builder import find_state
    from strandline.snapshot.tools.transform import delete as leave_out
    from strandline.snapshot.tools.transform import transform as select

    for name, condition in _pairs("--delete", delete):
        yield name, leave_out(snapshot, name, condition, options)
    for name, sql in _pairs("--transform", transform):
        yield name, select(snapshot, name, sql, options)
    for name, path in _pairs("--rows", rows):
        yield name, rows_in(Path(path).expanduser(), *find_state(snapshot.manifest.operators, name))


def _as_data(url: str, manifest: Manifest, plan: AppliedPatch) -> dict[str, Any]:
    counts = {
        (operator.uid, state): sum(file.rows for file in files)
        for operator in manifest.operators
        for state, files in (operator.tables or {}).items()
    }
    states = []
    for named, operator, info in plan.tables():
        uid, state = plan.now(named)
        was = plan.name(named)
        is_changed = named in plan.sources
        done = "changed" if is_changed else "kept" if plan.is_kept(named, operator, info) else "regrouped"
        states.append({"table": f"{uid}.{state}", "was": was, "action": done, "rows": counts.get((uid, state), 0)})
    operators = [{"uid": op.uid, "max_parallelism": op.max_parallelism} for op in manifest.operators]
    return {
        "url": url, "job": manifest.job, "checkpoint": manifest.checkpoint, "epoch": manifest.epoch,
        "bytes": manifest.total_bytes, "operators": operators, "states": states,
    }  # fmt: skip


def _print(data: dict[str, Any]) -> None:
    output = Table("table", "was", "what became of it", "rows", right=("rows",))
    for state in data["states"]:
        was = state["was"] if state["was"] != state["table"] else ""
        output.add(state["table"], was, state["action"], state["rows"])
    if data["states"]:
        output.print()
    print(f"{data['url']}: a savepoint of checkpoint {data['checkpoint']}, {size_text(data['bytes'])}")
