"""`strandline replay`: runs recorded epochs of a job again in this process, and stops where something happens."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.driver import prepare
from strandline.cli.jobs import OfDirectory
from strandline.cli.output import json_text, print_json, programs_on_stderr, say
from strandline.cli.stores import AsJson, LocalDir, root_of
from strandline.cli.upgrades import run_until_job
from strandline.control.client import is_directory
from strandline.control.journal import records
from strandline.core.errors import ConfigurationError, NotFoundError
from strandline.core.times import as_datetime

if TYPE_CHECKING:
    from strandline.replay.breaks import Breaks
    from strandline.replay.history import Change
    from strandline.replay.recorded import Recorded
    from strandline.replay.session import EpochReplay, Replay
    from strandline.replay.why import Cause, Explanation
    from strandline.spark.job.job import Job

_BUNDLE = ".zip"
_MOST_SHOWN = 10


Program = Annotated[
    Path,
    typer.Argument(
        metavar="PROGRAM", exists=True, dir_okay=False, readable=True, help="The job's program, APP.PY or FILE.SQL."
    ),
]
ProgramOrJob = Annotated[
    str, typer.Argument(metavar="PROGRAM|JOB", help="The job's program, APP.PY or FILE.SQL, or the job's name.")
]
Arguments = Annotated[list[str] | None, typer.Argument(metavar="[-- ARGS]...", help="Its arguments, behind a `--`.")]
Start = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="SNAPSHOT",
        show_default=False,
        help="A checkpoint's number, the path or URL of a checkpoint or savepoint, or start. By default the last "
        "checkpoint before the failure, else the last but one.",
    ),
]
To = Annotated[int | None, typer.Option(metavar="EPOCH", help="The last epoch to run.", show_default=False)]
JobName = Annotated[str, typer.Option(metavar="NAME", show_default=False, help="Which of the program's jobs.")]


def replay(
    program: Annotated[
        Path,
        typer.Argument(
            metavar="PROGRAM", exists=True, dir_okay=False, readable=True, help="APP.PY, FILE.SQL, or a BUNDLE.ZIP."
        ),
    ],
    args: Arguments = None,
    start: Start = "",
    to: To = None,
    break_on: Annotated[
        str,
        typer.Option(
            metavar="CONDITION",
            show_default=False,
            help="Stop in a debugger: error, key=KEY, or a Python expression that becomes true by an event, as "
            "'state.total > 100'; it may use state, key, event, epoch, watermark and now.",
        ),
    ] = "",
    operator: Annotated[str, typer.Option(metavar="UID", show_default=False, help="Stop in this operator alone.")] = "",
    key: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            show_default=False,
            help="Run the rows of this key alone; commas between the parts of a key. No state is compared then.",
        ),
    ] = "",
    debugger: Annotated[str, typer.Option(metavar="pdb|debugpy", help="Which debugger.")] = "pdb",
    port: Annotated[int, typer.Option(help="Where debugpy waits for a debugger to attach, on loopback.")] = 5678,
    check: Annotated[
        bool,
        typer.Option("--check", help="Run each epoch three times, and name functions that do not repeat themselves."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", show_default=False, help="Write the rows of the sinks there, as JSON lines."),
    ] = None,
    with_program: Annotated[
        Path | None,
        typer.Option(
            "--program",
            metavar="APP",
            exists=True,
            dir_okay=False,
            show_default=False,
            help="The program in place of the one in the bundle.",
        ),
    ] = None,
    job: JobName = "",
    json: AsJson = False,
) -> None:
    """Run recorded epochs of a job again, and stop in a debugger.

    The program is run up to where it uses a job that it has started: no job starts. The epochs after a snapshot get the
    rows, the clock and the watermarks that they had, up to the one that failed; their state is compared with the
    checkpoints that the job has of them. Nothing is written to sinks and checkpoints. Exit code 1 if the state differs,
    if a function is not repeatable, or if an epoch fails that had not failed.
    """
    if debugger not in ("pdb", "debugpy"):
        raise typer.BadParameter(f"--debugger is {debugger}, expected pdb or debugpy")
    from strandline.replay.breaks import Breaks, Condition

    condition = Condition.parse(break_on) if break_on else None
    breaks = Breaks(condition, debugger, port, operator)  # type: ignore[arg-type]
    if key:
        say(
            f"only rows of the key {key} run: the state of other keys stays as in the snapshot, their timers fire on "
            "it, and no state is compared"
        )
    if program.suffix.lower() == _BUNDLE:
        passed = _replay_bundle(program, with_program, start, to, breaks, check, output, key, as_json=json)
    else:
        if with_program is not None:
            raise typer.BadParameter("--program is for a bundle")
        passed = _replay_job(job_of(program, args or [], job), start, to, breaks, check, output, key, as_json=json)
    if not passed:
        raise typer.Exit(1)


def _replay_job(
    job: Job, start: str, to: int | None, breaks: Breaks, check: bool, output: Path | None, key: str, *, as_json: bool
) -> bool:
    from strandline.replay.session import Replay

    with Replay(job, _recorded(job, start, to), breaks, check, key=key) as run:
        return report(run, output, as_json=as_json)


def _replay_bundle(
    path: Path,
    program: Path | None,
    start: str,
    to: int | None,
    breaks: Breaks,
    check: bool,
    output: Path | None,
    key: str,
    *,
    as_json: bool,
) -> bool:
    from strandline.replay.bundle import Bundle
    from strandline.replay.session import Replay
    from strandline.replay.stubs import stubbed_reads

    if start:
        raise typer.BadParameter("--from: a bundle begins with the snapshot that is in it")
    with contextlib.closing(Bundle(path)) as bundle:
        program = program or bundle.program
        if program is None:
            raise ConfigurationError(
                f"{path} has no program: it was written with --without-program", hint="give it with --program APP.PY"
            )
        with stubbed_reads(bundle.index.schemas):
            job = job_of(program, bundle.index.arguments, bundle.index.job)
        with Replay(job, bundle.recorded(job, to), breaks, check, bundle, key) as run:
            return report(run, output, as_json=as_json)


def bundle(
    program: Program,
    args: Arguments = None,
    start: Start = "",
    to: To = None,
    key: Annotated[
        str,
        typer.Option(metavar="KEY", show_default=False, help="Only the rows and the state of this key."),
    ] = "",
    hash_values: Annotated[
        bool,
        typer.Option("--hash-values", help="Replace texts and bytes in rows and state by hashes, equal ones alike."),
    ] = False,
    without_program: Annotated[bool, typer.Option("--without-program", help="Leave the program's files out.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.ZIP", show_default=False, help="By default JOB.zip.")
    ] = None,
    job: JobName = "",
) -> None:
    """Write all that repeats an error elsewhere into one file.

    It has the snapshot, the input of the epochs after it up to the one that failed, logs, versions, the plan and the
    program; no storage option, no option of a source, and no variable of the environment. Rows, state, logs and the
    program may be confidential: see --key, --hash-values and --without-program.
    """
    from strandline.cli.doctor import versions
    from strandline.replay.bundle import BundleOptions, write_bundle
    from strandline.replay.stubs import recorded_reads

    with recorded_reads() as schemas:
        chosen = job_of(program, args or [], job)
    recorded = _recorded(chosen, start, to)
    path = output or Path(f"{chosen.name}.zip")
    options = BundleOptions(program, args or [], schemas, versions(), key, hash_values, not without_program)
    counts = write_bundle(path, chosen, recorded, options)
    rows, size = sum(counts.values()), path.stat().st_size
    say(f"{path}: {len(recorded.epochs)} epochs after {recorded.origin.url}, {rows:,} rows, {size:,} bytes")
    say(f"  next step: strandline replay {path} --break-on error")


def history(
    program: ProgramOrJob,
    state: Annotated[
        str, typer.Argument(metavar="STATE", help="UID.STATE, STATE alone, or UID: all states of the operator.")
    ],
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Plain text; of several columns, a JSON list, or commas between.")
    ],
    args: Arguments = None,
    start: Start = "",
    to: To = None,
    last: Annotated[
        int | None, typer.Option(metavar="N", min=1, show_default=False, help="Show the last changes, so many.")
    ] = None,
    progress: Annotated[
        bool, typer.Option("--progress", help="With --json: also lines with the number of epochs that have run.")
    ] = False,
    job: JobName = "",
    directory: OfDirectory = None,
    local_dir: LocalDir = None,
    json: AsJson = False,
) -> None:
    """Show each change of a key's state and the event behind it.

    Of a job that was started on this machine, its name is enough: its program runs with the arguments of that start.
    The epochs between the job's checkpoints run again; begin with an older one by --from.
    """
    start = _from_here(start)
    chosen = job_named(program, args, job, root_of(local_dir), directory)
    from strandline.replay.history import history_of

    count = 0
    newest: deque[Change] = deque(maxlen=last)

    def show(change: Change) -> None:
        if json:
            print_json(_change_as_data(change))
        else:
            _print_change(change)

    with programs_on_stderr() as output:

        def report(done: int, total: int) -> None:
            if json and progress:
                with contextlib.redirect_stdout(output):
                    print_json({"progress": {"done": done, "total": total, "changes": count}})

        for change in history_of(chosen, _recorded(chosen, start, to), state, key, report):
            count += 1
            if last is not None:
                newest.append(change)
                continue
            with contextlib.redirect_stdout(output):
                show(change)
    if newest and count > len(newest) and not json:
        say(f"{count - len(newest)} earlier changes are left out")
    for change in newest:
        show(change)
    if not count and not json:
        say(f"no change of {state} for the key {key} in these epochs")


def _print_change(change: Change) -> None:
    print(f"epoch {change.epoch}, {_time(change.now_us)}, {change.call}")
    for event in change.event if change.call == "epoch" else [change.event]:
        print(f"  by    {event!r}")
    print(f"  from  {change.before!r}")
    print(f"  to    {change.after!r}")
    call = change.made_by
    for what, (at, is_processing) in call.timer_changes if call else ():
        print(f"  {what} a timer{' of the clock' if is_processing else ''} for {at.isoformat()}")
    for row in change.rows:
        print(f"  gave  {row!r}")
    for side, row in call.emitted if call else ():
        print(f"  gave  {row!r} to '{side}'")


def why(
    program: ProgramOrJob,
    sink: Annotated[str, typer.Argument(metavar="SINK", help="The sink's name.")],
    condition: Annotated[str, typer.Argument(metavar="CONDITION", help="An SQL condition on its columns.")],
    args: Arguments = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="SNAPSHOT",
            show_default=False,
            help="Where the replay begins, as of `replay`. By default as early as epochs can be run again.",
        ),
    ] = "",
    to: To = None,
    calls: Annotated[int, typer.Option(metavar="N", min=1, help="Show the last calls of the key, so many.")] = 20,
    job: JobName = "",
    directory: OfDirectory = None,
    local_dir: LocalDir = None,
    json: AsJson = False,
) -> None:
    """Explain an output row by the events and state behind it.

    The recorded epochs run again, and the first row for which CONDITION is true is followed back to the sources, as in
    `strandline why app.py rows "card = 'c1' and total > 100"`. Of a job that was started on this machine, its name is
    enough: its program runs with the arguments of that start. Exit code 1 if no recorded epoch gives such a row.
    """
    start = _from_here(start)
    chosen = job_named(program, args, job, root_of(local_dir), directory)
    from strandline.replay.why import explain_row, explain_since_oldest

    if start or to is not None:
        recorded = _recorded(chosen, start, to)
        explanation = explain_row(chosen, recorded, sink, condition)
    else:
        options = dict(chosen.checkpoints.storage_options)
        explanation, recorded = explain_since_oldest(chosen, options, sink, condition)
    if explanation is None:
        first, last = recorded.epochs[0], recorded.epochs[-1]
        say(
            f"no row of '{sink}' matches in the epochs {first.epoch} to {last.epoch}, from {_time(first.now_us)} to "
            f"{_time(last.now_us)}"
        )
        if recorded.origin.manifest is not None:
            say(
                "  an older row cannot be explained: the epochs before are not recorded, their input is gone, or no "
                "checkpoint before them is left; Checkpoints(retain=…) keeps more"
            )
        raise typer.Exit(1)
    if json:
        print_json(_explanation_as_data(explanation))
    else:
        _print_explanation(explanation, recorded, calls)


def _print_explanation(explanation: Explanation, recorded: Recorded, calls: int) -> None:
    if explanation.matches > 1:
        say(f"{explanation.matches} rows match: this is about the first one")
    reached = "" if explanation.watermark_us is None else f", watermark {_time(explanation.watermark_us)}"
    print(f"epoch {explanation.epoch}, {_time(explanation.now_us)}{reached}")
    print(f"  row   {explanation.row!r}")
    last = explanation.last
    if last is not None:
        print(f"  from  operator '{last.name}' ({last.function})")
        if last.key is not None:
            print(f"  key   {last.key!r}")
        if last.call is not None:
            print(f"  by    {last.call.call} {last.call.event!r}")
    print("what it comes of")
    _print_causes(explanation.cause, "  ")
    if last is None or last.key is None:
        return
    history = explanation.history[-calls:]
    left_out = len(explanation.history) - len(history)
    before = f"; {left_out} earlier calls are left out" if left_out else ""
    print(f"what this key had from epoch {history[0].epoch if history else explanation.epoch} on{before}")
    for change in history:
        _print_change(change)
    if recorded.origin.manifest is not None:
        say(f"what was before epoch {recorded.origin.epoch + 1} is not recorded: it is in the first state")


def _print_causes(cause: Cause, indent: str) -> None:
    """Print what a row comes of, below it."""
    for note in cause.notes:
        print(f"{indent}{note}")
    if cause.read is not None:
        print(f"{indent}{cause.read} rows of its key in these epochs")
    for each in cause.causes:
        named = f" '{each.name}'" if each.name else ""
        if each.kind == "source":
            print(f"{indent}epoch {each.epoch}, source{named}: {each.row!r}")
            continue
        key = "" if each.key is None else f", key {each.key!r}"
        by = "" if each.call is None else f", {each.call.call} {each.call.event!r}"
        print(f"{indent}epoch {each.epoch}, operator{named} ({each.function}){key}{by}")
        if each.call is not None:
            print(f"{indent}  state {each.call.before!r} to {each.call.after!r}")
        print(f"{indent}  gave {each.row!r}" if each.row is not None else f"{indent}  set the timer")
        _print_causes(each, f"{indent}  ")
    if cause.left_out:
        print(f"{indent}and {cause.left_out} more, which are not followed")


def _explanation_as_data(explanation: Explanation) -> dict[str, Any]:
    from strandline.types.jsonforms import to_json

    last = explanation.last
    call = last.call if last is not None else None
    return {
        "sink": explanation.sink,
        "row": to_json(explanation.row),
        "matches": explanation.matches,
        "epoch": explanation.epoch,
        "now_us": explanation.now_us,
        "watermark_us": explanation.watermark_us,
        "operator": last.name if last else "",
        "function": last.function if last else "",
        "key": to_json(last.key) if last else None,
        "call": call.call if call else "",
        "event": to_json(call.event) if call else None,
        **_causes_as_data(explanation.cause),
        "history": [_change_as_data(change) for change in explanation.history],
    }


def _causes_as_data(cause: Cause) -> dict[str, Any]:
    from strandline.types.jsonforms import to_json

    causes = [
        {
            "kind": each.kind,
            "name": each.name,
            "epoch": each.epoch,
            "row": to_json(each.row),
            "function": each.function,
            "key": to_json(each.key),
            "call": _change_as_data(each.call) if each.call else None,
            **_causes_as_data(each),
        }
        for each in cause.causes
    ]
    return {"notes": cause.notes, "rows_of_key": cause.read, "causes": causes, "left_out": cause.left_out}


def _time(us: int) -> str:
    return as_datetime(us).isoformat(timespec="milliseconds")


def _change_as_data(change: Change) -> dict[str, Any]:
    from strandline.types.jsonforms import to_json

    call = change.made_by
    return {
        "epoch": change.epoch,
        "now_us": change.now_us,
        "call": change.call,
        "event": to_json(change.event),
        "before": to_json(change.before),
        "after": to_json(change.after),
        "timers": [
            {"change": what, "at": to_json(at), "clock": is_processing}
            for what, (at, is_processing) in (call.timer_changes if call else ())
        ],
        "rows": [to_json(row) for row in change.rows],
        "sides": [{"side": side, "row": to_json(row)} for side, row in (call.emitted if call else ())],
    }


def _recorded(job: Job, start: str, to: int | None) -> Recorded:
    from strandline.replay.recorded import find_recorded
    from strandline.replay.session import jobdir_of

    return find_recorded(jobdir_of(job), start, to, dict(job.checkpoints.storage_options))


def _from_here(start: str) -> str:
    """Return where a replay begins; a path is made absolute, as the job of a name is in its program's directory."""
    return str(Path(start).absolute()) if "/" in start and "://" not in start else start


def job_named(named: str, args: list[str] | None, name: str, root: Path, directory: str | None) -> Job:
    """Return the job of a program, or the job of a name that was started on this machine, by its program then.

    Relative paths are then those of the directory that the program was started in.
    """
    if Path(named).is_file():
        return job_of(Path(named), args or [], name)
    if "/" in named or Path(named).suffix.lower() in (".py", ".sql"):
        raise NotFoundError(f"{named}: there is no such program", hint="give its path, or a job's name")
    started = [each for each in records(root, named) if is_directory(each.directory, directory)]
    if not started:
        raise NotFoundError(
            f"'{named}' is no file, and no job of this name was started on this machine with the local_dir {root}",
            hint="give the job's program, APP.PY or FILE.SQL, or its local_dir with --local-dir",
        )
    if len({each.directory for each in started}) > 1:
        raise ConfigurationError(
            f"jobs with the name '{named}' were started with the checkpoint directories "
            f"{', '.join(sorted(each.directory for each in started))}",
            hint="say which one with --directory",
        )
    program = started[0].program
    if program is None or not (Path(program.path).is_file() and Path(program.folder).is_dir()):
        why = "was started by no program file"
        if program is not None:
            why = f"was started by {program.path} in the directory {program.folder}: one of them is gone"
        raise NotFoundError(f"job '{named}' {why}", hint="give its program, APP.PY or FILE.SQL, in place of its name")
    is_changed = Path(program.path).stat().st_mtime * 1000 > started[0].since_ms
    say(f"job '{named}' is that of {program.path}{', which has changed since that start' if is_changed else ''}")
    os.chdir(program.folder)
    return job_of(Path(program.path), args if args is not None else program.arguments, name or named)


def job_of(program: Path, args: list[str], name: str) -> Job:
    """Run a program up to its jobs, with a local Spark; return the only job, or the one of this name."""
    # The session of the program's own choice may be a cluster's.
    os.environ["MASTER"] = f"local[{os.cpu_count() or 2}]"
    prepare(program, args)
    from strandline.spark.job.checking import JobCollector

    collector = JobCollector()
    with programs_on_stderr():
        code = run_until_job(program, collector)
    if code:
        raise typer.Exit(code)
    jobs = collector.jobs
    if len(jobs) != 1 and not name:
        raise ConfigurationError(
            f"the program makes {f'{len(jobs)} jobs: ' + ', '.join(sorted(jobs)) if jobs else 'no job'}",
            hint="name one with --job" if jobs else "it must come to its Job(…) without waiting for one",
        )
    if name and name not in jobs:
        raise ConfigurationError(
            f"the program makes no job '{name}'", hint=f"its jobs are {', '.join(sorted(jobs)) or 'none'}"
        )
    return jobs[name] if name else next(iter(jobs.values()))


def report(run: Replay, output: Path | None, *, as_json: bool) -> bool:
    """Run a replay, and print each epoch; return whether all is as recorded."""
    recorded = run.recorded
    last = recorded.epochs[-1].epoch
    if not as_json:
        say(f"replay of job '{run.job.name}' from {recorded.origin.url}: epochs {recorded.origin.epoch + 1} to {last}")
    passed = True
    for result in run:
        passed &= _is_as_recorded(run, result)
        if output is not None:
            write_rows(output, result)
        if as_json:
            print_json(as_data(run, result))
        else:
            _print(run, result)
    for finding in {str(finding.error): finding for finding in run.findings}.values():
        passed &= not finding.is_certain
        say(f"{'not repeatable' if finding.is_certain else 'perhaps not repeatable'}: {finding.error}")
    return passed


def _is_as_recorded(run: Replay, result: EpochReplay) -> bool:
    is_expected = result.error is None or result.record.epoch == run.recorded.failed
    return is_expected and not result.differences and not result.unequal


def as_data(run: Replay, result: EpochReplay) -> dict[str, Any]:
    """Return an epoch's replay as data for JSON."""
    record = result.record
    return {
        "epoch": record.epoch,
        "batch": record.batch,
        "now_us": record.now_us,
        "watermark_us": record.watermark_us,
        "rows_in": result.rows_in,
        "rows_out": {name: rows.num_rows for name, rows in result.output.sinks.items()} if result.output else {},
        "error": str(result.error) if result.error else "",
        "failed_before": record.epoch == run.recorded.failed,
        "checkpoint": run.recorded.checkpoints[record.epoch].checkpoint if result.differences is not None else None,
        "differences": None if result.differences is None else [str(each) for each in result.differences],
        "not_repeatable": [f"{each.what} {'; '.join(each.details)}".strip() for each in result.unequal],
    }


def _print(run: Replay, result: EpochReplay) -> None:
    record, data = result.record, as_data(run, result)
    rows = ", ".join(f"{count} to {name}" for name, count in data["rows_out"].items() if count)
    print(f"epoch {record.epoch}: {result.rows_in} rows{f'; {rows}' if rows else ''}")
    if result.error is not None:
        print(f"  failed{', as in the job' if data['failed_before'] else ', and did not in the job'}: {result.error}")
    elif data["failed_before"]:
        print(f"  did not fail, and failed in the job: {run.recorded.failure.failure if run.recorded.failure else ''}")
    if result.differences is not None:
        checkpoint = f"checkpoint {data['checkpoint']}"
        print(f"  the state {'differs from' if result.differences else 'equals'} {checkpoint}, byte for byte")
        for difference in result.differences[:_MOST_SHOWN]:
            print(f"    {difference}")
    for unequal in result.unequal:
        print(f"  {unequal.what}{'' if unequal.details else ' other rows'}")
        for detail in unequal.details[:_MOST_SHOWN]:
            print(f"    {detail}")


def write_rows(directory: Path, result: EpochReplay) -> None:
    """Write the rows of each sink, a file for each epoch."""
    from strandline.types.jsonforms import to_json

    for name, rows in (result.output.sinks if result.output else {}).items():
        folder = directory / name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"epoch-{result.record.epoch}.jsonl").open("w") as file:
            file.writelines(json_text(to_json(row)) + "\n" for row in rows.to_pylist())
