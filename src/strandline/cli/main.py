"""Entry point of `strandline`: its commands, and the handling of errors."""

from __future__ import annotations

import signal
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from strandline.cli import (
    comparing,
    doctor,
    driver,
    jobs,
    logs,
    lookup,
    metrics,
    new,
    planning,
    profile,
    replaying,
    rollback,
    snapshots,
    sqlshell,
    state,
    top,
    ui,
    upgrades,
    warming,
)
from strandline.cli.output import print_result, say
from strandline.core.errors import StrandlineError
from strandline.core.version import VERSION

_PROGRAMS, _JOBS, _SNAPSHOTS = "Projects and programs", "Running jobs", "Snapshots and state"


class Commands(TyperGroup):
    """All commands: help lists them below titles; an error is a message with a next step, and exit code 1."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands below the title that each was registered with, each with its whole first sentence."""
        width = max(map(len, self.commands))
        for title in (_PROGRAMS, _JOBS, _SNAPSHOTS):
            of_title = [item for item in self.commands.items() if getattr(item[1], "rich_help_panel", None) == title]
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), command.get_short_help_str(200)) for name, command in of_title])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except StrandlineError as error:
            say(f"error: {error}")
            raise typer.Exit(1) from None
        except driver.Terminated as terminated:
            raise typer.Exit(128 + terminated.args[0]) from None


app = typer.Typer(
    name="strandline",
    cls=Commands,
    help="Run programs with Strandline jobs, and look after the jobs, their snapshots and their machines.",
    no_args_is_help=True,
    rich_markup_mode=None,  # Its boxes would be in files and pipes, too.
    pretty_exceptions_enable=False,  # They show local variables, and so storage options.
)
_add_program = partial(app.command, rich_help_panel=_PROGRAMS)
_add_job = partial(app.command, rich_help_panel=_JOBS)
_add_program("new")(new.new)
_add_program("run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})(driver.run)
_add_program("sql")(sqlshell.sql)
_add_program("explain")(sqlshell.explain)
_add_program("check-upgrade")(upgrades.check_upgrade)
_add_program("test")(comparing.try_out)
_add_program("compare")(comparing.compare)
_add_program("replay")(replaying.replay)
_add_program("bundle")(replaying.bundle)
_add_program("history")(replaying.history)
_add_program("why")(replaying.why)
_add_program("doctor")(doctor.doctor)
_add_program("warm-up")(warming.warm_up)
_add_job("jobs")(jobs.jobs)
_add_job("status")(jobs.status)
_add_job("logs")(logs.logs)
_add_job("lookup")(lookup.lookup)
_add_job("profile")(profile.profile)
_add_job("checkpoint")(jobs.checkpoint)
_add_job("savepoint")(jobs.savepoint)
_add_job("rescale")(jobs.rescale)
_add_job("rollback")(rollback.rollback)
_add_job("stop")(jobs.stop)
_add_job("plan")(planning.plan)
_add_job("top")(top.top)
_add_job("ui")(ui.ui)
_add_job("metrics")(metrics.metrics)
app.add_typer(snapshots.app, name="snapshots", rich_help_panel=_SNAPSHOTS)
app.add_typer(state.app, name="state", rich_help_panel=_SNAPSHOTS)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"strandline {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print Strandline's version; `version` has more."
        ),
    ] = False,
) -> None:
    pass


@_add_program("version")
def version(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Print the versions of Strandline and of its packages."""
    versions = doctor.versions()
    print_result(versions, " ".join(f"{name} {number}" for name, number in versions.items()), json=json)


def main() -> None:
    """Run the command line: exit code 0, 1 for an error or problems found, 2 for wrong usage, 128 + a signal's number.

    SIGTERM and SIGHUP end a command like Ctrl-C: it cleans up as after an error.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        # `nohup` has SIGHUP ignored.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, driver.terminate)
    app(prog_name="strandline")


if __name__ == "__main__":
    main()
