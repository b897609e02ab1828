"""`strandline run`: runs a user's program as a driver; checks Java before, prints progress, and stops jobs cleanly."""

from __future__ import annotations

import contextlib
import logging
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from strandline.cli.liveline import showing_progress
from strandline.cli.orders import Drop, FromNow, Restore, by_job, restores, split
from strandline.cli.output import say
from strandline.cli.sqlfiles import SUFFIX, run_file
from strandline.core.errors import StrandlineError


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, by its number, raised like Ctrl-C: `with` blocks and `finally` clauses run."""


class ShortLines(logging.Handler):
    """Prints each record in one line. Hints and stack traces go only to the program's logging and to the job's log."""

    def emit(self, record: logging.LogRecord) -> None:
        # Through the current sys.stderr: the live progress line may have replaced the stream.
        say(f"strandline: {record.levelname}: {record.getMessage()}".partition("\n")[0])


def run(
    program: Annotated[
        Path, typer.Argument(metavar="PROGRAM", exists=True, dir_okay=False, readable=True, help="APP.PY, or FILE.SQL.")
    ],
    args: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Its arguments.")] = None,
    restore: Restore = None,
    claim: Annotated[
        bool, typer.Option("--claim", help="The savepoint is the job's: deleted once the job stands on its own.")
    ] = False,
    again: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Restore once more what was restored before: once under each name that is given here.",
        ),
    ] = "",
    drop: Drop = None,
    from_now: FromNow = None,
    reopen: Annotated[
        bool, typer.Option("--reopen", help="Go on with a job that was drained: event time begins anew.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Say nothing of what goes well: warnings and errors alone.")
    ] = False,
) -> None:
    """Run a program that starts jobs, and say what they do.

    PROGRAM is an SQL file, whose job is run until it ends, or Python. It runs like `python APP.PY`, but Java is checked
    first, Strandline's errors are messages with a next step, its warnings short lines, modules beside the program can
    be imported on executors of this machine, and SIGTERM or Ctrl-C stops the jobs cleanly (exit code 143 or 130). On
    standard error it says when a job starts, works and ends; between, a terminal has a line that shows what each job
    does, anything else a line a minute.

    --restore, --claim, --again, --drop, --from-now and --reopen may also stand directly behind PROGRAM; a `--` behind
    them ends them. They go before what the program itself gives to Job.start().
    """
    ours, flags, own_args = split(args or [])
    claim, reopen = claim or "--claim" in flags, reopen or "--reopen" in flags
    to_restore = restores([*(restore or []), *ours["--restore"]])
    to_drop = by_job([*(drop or []), *ours["--drop"]])
    begin = by_job([*(from_now or []), *ours["--from-now"]])
    if claim and not to_restore:
        raise typer.BadParameter("--claim is said of a savepoint that --restore names")
    again = next(reversed(ours["--again"]), again)
    if again and not to_restore:
        raise typer.BadParameter("--again is said of a snapshot that --restore names")
    if own_args and program.suffix.lower() == SUFFIX:
        raise typer.BadParameter(f"an SQL file takes no arguments, and has got {own_args[0]!r}: use ${{NAME}} in it")
    from strandline.spark.base.session import check_java

    check_java()
    prepare(program, own_args)
    with _signals(terminate, signal.SIGTERM), showing_progress(quiet=quiet):
        try:
            code = _ordered_outcome(program, to_restore, to_drop, begin, claim=claim, again=again, reopen=reopen)
        except KeyboardInterrupt as interrupt:
            code = 128 + (interrupt.args[0] if isinstance(interrupt, Terminated) else signal.SIGINT)
        # A further signal ends the process at once; keepers then end by themselves.
        with _signals(signal.SIG_DFL, signal.SIGTERM, signal.SIGINT):
            raise typer.Exit(code if _stop_everything(code) else code or 1)


def prepare(program: Path, args: list[str]) -> None:
    """Set up the process for a program: its arguments, its modules, and our warnings as short lines."""
    folder = str(program.absolute().parent)
    sys.argv = [str(program), *args]
    sys.path.insert(0, folder)
    # The JVM passes its environment on to workers and keepers, so that they find the program's modules, too.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Progress, which is no warning, is announced (see control/announcements.py).
    handler = ShortLines(logging.WARNING)
    # If the program sets up logging itself, only its handlers take our records.
    handler.addFilter(lambda _: not logging.getLogger().handlers)
    logging.getLogger("strandline").addHandler(handler)
    # py4j logs a stack trace when a signal interrupts it.
    logging.getLogger().addFilter(lambda record: "while sending command" not in record.getMessage())
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


def _ordered_outcome(
    program: Path,
    restore: dict[str, str],
    drop: dict[str, list[str]],
    from_now: dict[str, list[str]],
    *,
    claim: bool,
    again: str,
    reopen: bool,
) -> int:
    """Run the program with the options for its jobs. If a job that an option names never starts, it is an error."""
    if not (restore or drop or from_now or reopen):
        return outcome(program)
    from strandline.spark.job.program_jobs import StartOverrides, intercept_jobs

    overrides = StartOverrides(restore, drop, claim=claim, again=again, reopen=reopen, from_now=from_now)
    with intercept_jobs(overrides):
        code = outcome(program)
    for job in overrides.unused if not code else ():
        say(f"error: the program has not started {f'job {job!r}' if job else 'a job'}: nothing was restored")
        say("  next step: give the name of a job that it starts, or leave --restore and --drop out")
        code = 1
    return code


def outcome(program: Path) -> int:
    """Run the program; return its exit code. Print our errors as messages, and others with a traceback."""
    try:
        if program.suffix.lower() == SUFFIX:
            run_file(program)
        else:
            runpy.run_path(str(program), run_name="__main__")
    except SystemExit as exit_:
        if isinstance(exit_.code, str):
            say(exit_.code)
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except StrandlineError as error:
        say(f"error: {error}")
        return 1
    except Exception as error:
        _show_traceback(error, program)
        return 1
    return 0


def _show_traceback(error: Exception, program: Path) -> None:
    """Print the traceback from the program's first frame on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(program):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def _stop_everything(code: int) -> bool:
    """Stop the jobs that still run, and Spark; return False if a job did not stop cleanly."""
    if "strandline.spark.job.run" not in sys.modules:
        return True  # The program has started no job, and Spark, if it runs, is the program's own.
    from pyspark import SparkContext

    from strandline.spark.job.run import live_runs

    context = SparkContext._active_spark_context
    if context is not None:
        # A signal to the whole process group ends the JVM, too: do not report its broken connection.
        accumulators: Any = getattr(context, "_accumulatorServer", None) or context
        accumulators.handle_error = lambda *_: None
    stopped = True
    for live in live_runs():
        job = live.status().job
        if code:
            say(f"strandline: stopping job '{job}'")
        else:
            say(f"strandline: the program ended while job '{job}' was running: it is stopped")
            say("  next step: end the program with run.await_termination()")
        try:
            live.stop()
        except Exception as error:
            say(f"strandline: job '{job}' did not stop cleanly: {error}")
            stopped = False
    if context is not None:
        with contextlib.suppress(Exception):
            context.stop()
    return stopped


def terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal; a further one ends the process at once."""
    signal.signal(number, signal.SIG_DFL)
    raise Terminated(number)


@contextlib.contextmanager
def _signals(handler: Callable[[int, FrameType | None], NoReturn] | signal.Handlers, *numbers: int) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
