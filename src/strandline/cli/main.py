"""Entry point of `strandline`: its commands, and the handling of errors."""

from __future__ import annotations

import signal
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from strandline.cli import (
    checkpoints,
    doctor,
    driver,
    jobs,
    logs,
    lookup,
    new,
    rollback,
    snapshots,
    state,
    upgrades,
    warming,
)
from strandline.cli.output import print_json, say
from strandline.core.errors import StrandlineError
from strandline.core.version import VERSION


class ErrorsAsMessages(TyperGroup):
    """Prints our errors as message and next step, and ends with exit code 1."""

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
    cls=ErrorsAsMessages,
    help="Look after Strandline jobs, running or not: their snapshots, logs and machines; run their programs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # They show local variables, and so storage options.
)
app.command("new")(new.new)
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(snapshots.app, name="snapshots")
app.add_typer(state.app, name="state")
app.command("jobs")(jobs.jobs)
app.command("status")(jobs.status)
app.command("checkpoint")(jobs.checkpoint)
app.command("savepoint")(jobs.savepoint)
app.command("rescale")(jobs.rescale)
app.command("stop")(jobs.stop)
app.command("rollback")(rollback.rollback)
app.command("lookup")(lookup.lookup)
app.command("logs")(logs.logs)
app.command("run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})(driver.run)
app.command("check-upgrade")(upgrades.check_upgrade)
app.command("doctor")(doctor.doctor)
app.command("warm-up")(warming.warm_up)


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


@app.command("version")
def version(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Print the versions of Strandline and of the packages that it builds on."""
    versions = doctor.versions()
    if json:
        print_json(versions)
    else:
        print(" ".join(f"{name} {number}" for name, number in versions.items()))


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
