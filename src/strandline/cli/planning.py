"""`strandline plan`: which mode and interval of checkpoints meet a goal, and what they cost."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, get_args
from urllib.parse import quote

import typer

from strandline.checkpoint import costs
from strandline.checkpoint.costs import Advice, Estimate, Failure, Goals, estimate
from strandline.cli.jobs import OfDirectory
from strandline.cli.output import Table, print_json, say
from strandline.cli.progress import progress_bar
from strandline.cli.stores import AsJson, LocalDir, StorageOptions, parse_options, root_of, snapshot_url
from strandline.control.client import Driver, find_driver
from strandline.control.wire import ProgressMessage
from strandline.control.workload import Observation, observe_job, observe_snapshot
from strandline.core.errors import ConfigurationError, NotFoundError
from strandline.core.settings import Mode, parse_duration_ms, parse_size_bytes
from strandline.core.texts import duration_text, size_text

_INPUTS = {
    "state_bytes": "size of state", "changed_per_s": "changes", "rows_per_s": "rows a second",
    "capacity_per_s": "the most rows a second", "epoch_s": "an epoch", "durable_s": "phases of checkpoints",
    "read_per_s": "reading storage", "write_per_s": "uploads", "hosts": "machines",
    "buffered_bytes": "changes in memory", "slowness": "speed of this machine",
}  # fmt: skip


def plan(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            show_default=False,
            help="A running job's name; or a snapshot, or a folder with a job's checkpoints: a path or a URL.",
        ),
    ],
    recover_within: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The longest recovery, at the worst moment.")
    ] = None,
    latency: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The age of 99 rows in 100 when a sink shows them.")
    ] = None,
    after: Annotated[
        str,
        typer.Option(metavar="FAILURE", help="keeper: a process dies; program: it is started on another machine."),
    ] = "keeper",
    changes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="How much state changes a second; by default, as it was seen.")
    ] = None,
    restart_delay: Annotated[str, typer.Option(metavar="DURATION", help="The delay of the job's Restart(…).")] = "1s",
    watch: Annotated[str, typer.Option(metavar="DURATION", help="How long to watch a running job.")] = "10s",
    directory: OfDirectory = None,
    local_dir: LocalDir = None,
    option: StorageOptions = None,
    json: AsJson = False,
) -> None:
    """Say which mode and interval of checkpoints meet a goal.

    For each mode it predicts the time of a recovery, the age of rows, uploads and storage, from the job's checkpoints,
    from what a running job shows meanwhile, and from reading at most 64 MB of the snapshot's files. It changes nothing.
    Exit code 1 if the goals cannot be met.
    """
    if after not in get_args(Failure):
        raise ConfigurationError(f"--after is '{after}', expected one of {', '.join(get_args(Failure))}")
    failure: Failure = after  # type: ignore[assignment]
    goals = Goals(_seconds(recover_within, "--recover-within"), _seconds(latency, "--latency"), failure)
    changed_per_s = None if changes is None else float(parse_size_bytes(changes, "--changes"))
    delay_s, options = parse_duration_ms(restart_delay, "--restart-delay") / 1000, parse_options(option)
    driver = None if "/" in target else _find(root_of(local_dir), target, directory)
    if driver is None:
        seen = observe_snapshot(snapshot_url(target, options), options, changed_per_s, delay_s)
    else:
        with progress_bar() as report:
            seen = observe_job(
                driver, f"{driver.directory}/{quote(target)}", options, changed_per_s, delay_s,
                parse_duration_ms(watch, "--watch") / 1000,
                lambda share: report(ProgressMessage("watching the job", round(share * 100), 100, "%")),
            )  # fmt: skip
    every = [estimate(seen.work, setting) for setting in costs.settings(seen.work)]
    advice = costs.advise(every, goals)
    now = None if seen.now is None else estimate(seen.work, seen.now, seen.work.log_bytes)
    if now is not None and seen.uploaded_per_s is not None:
        now = replace(now, uploaded_per_s=seen.uploaded_per_s)
    if json:
        print_json(_as_data(seen, now, every, advice))
    else:
        _print(seen, now, every, advice, goals)
    if not advice.is_met:
        raise typer.Exit(1)


def _find(root: Path, name: str, directory: str | None) -> Driver | None:
    """Return the driver of a job; None if there is none, but a folder of this name."""
    try:
        return find_driver(root, name, directory)
    except NotFoundError as error:
        if Path(name).exists():
            return None
        raise NotFoundError(error.message, hint=f"{error.hint}; name a snapshot with a /, as ./{name}") from error


def _seconds(text: str | None, what: str) -> float | None:
    if text is None:
        return None
    if not (ms := parse_duration_ms(text, what)):
        raise ConfigurationError(f"{what} is {text!r}, expected more than 0")
    return ms / 1000


def _as_data(seen: Observation, now: Estimate | None, every: list[Estimate], advice: Advice) -> dict[str, Any]:
    return {
        "job": seen.job, "snapshot": seen.snapshot, "workload": asdict(seen.work), "known": seen.origins,
        "uploaded_per_s": seen.uploaded_per_s, "now": now and _estimate_as_data(now),
        "is_met": advice.is_met, "misses": advice.misses, "python": advice.best.setting.code(seen.directory),
        "best": _estimate_as_data(advice.best), "estimates": [_estimate_as_data(each) for each in every],
    }  # fmt: skip


def _estimate_as_data(each: Estimate) -> dict[str, Any]:
    return asdict(each) | {"recovery_s": {failure: each.recovery_s(failure) for failure in each.recovery}}


def _print(seen: Observation, now: Estimate | None, every: list[Estimate], advice: Advice, goals: Goals) -> None:
    work = seen.work
    print(
        f"job '{seen.job}': {size_text(int(work.state_bytes))} of state in {work.partitions} partitions, of which "
        f"{size_text(int(work.changed_per_s))} a second change; {work.rows_per_s:,.0f} rows a second"
    )
    numbers = ("every", "keeper dies", "program starts", "age p50", "age p99", "uploads", "stored")
    output = Table("", "mode", *numbers, "log", right=numbers)
    chosen = [("now", now)] if now is not None else []
    chosen.append(("best" if advice.is_met else "nearest", advice.best))
    for mode in get_args(Mode):
        of_mode = [each for each in every if each.setting.mode == mode]
        if of_mode and mode != advice.best.setting.mode:
            chosen.append(("", costs.advise(of_mode, goals).best))
    for what, each in chosen:
        setting = each.setting
        output.add(
            what, setting.mode, duration_text(setting.every_s * 1000),
            *(duration_text(each.recovery_s(failure) * 1000) for failure in each.recovery),
            *(duration_text(age_s * 1000) for age_s in (each.age_p50_s, each.age_p99_s)),
            f"{size_text(int(each.uploaded_per_s))}/s", size_text(int(each.stored_bytes)), setting.log_text,
        )  # fmt: skip
    output.print()
    for miss in advice.misses:
        print(miss)
    print(f"{'' if advice.is_met else 'nearest: '}{advice.best.setting.code(seen.directory)}")
    parts = advice.best.recovery[goals.failure]
    print("its recovery: " + ", ".join(f"{name} {duration_text(s * 1000)}" for name, s in parts.items() if s))
    sure = "within a factor of two, since some of it is assumed" if seen.assumed else "most predictions are within 30 %"
    say(f"how sure: {sure}; restarts are as in docs/benchmarks.md, for the speed of this machine")
    for name, origin in seen.origins.items():
        say(f"  {_INPUTS[name]}: {origin}")
