"""`strandline metrics`: the metrics of this machine's jobs for Prometheus, and for a collector of OpenTelemetry."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.api.telemetry import Telemetry
from strandline.cli.output import say
from strandline.cli.stores import JobsOrDirectories, LocalDir, StorageOptions, jobs_of
from strandline.control.client import call
from strandline.control.commands import RECENT, STATUS, NoArguments
from strandline.control.journal import ENDED
from strandline.core.errors import ConfigurationError, StrandlineError
from strandline.core.failure import without_credentials
from strandline.core.version import VERSION
from strandline.telemetry.figures import MOST_PARTITIONS, Figures, JobState

if TYPE_CHECKING:
    from strandline.ui.jobs import Job, Jobs

_PORT = 8741
_TIMEOUT_S = 5.0
_THREADS = 8
_FORGET_MS = 24 * 3_600_000
"""Without names of jobs: how long after its end a job is left out that was stopped, or has finished."""


def metrics(
    what: JobsOrDirectories = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="Prometheus' port; 0: any free one.")
    ] = _PORT,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen at. All who reach it may read the metrics.")
    ] = "127.0.0.1",
    otlp: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send metrics and spans to this collector, such as http://localhost:4318.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[str, typer.Option(metavar="DURATION", help="How often to send them.")] = "15s",
    partitions: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Sum up the partitions of each operator of jobs with more than so many."),
    ] = MOST_PARTITIONS,
    once: Annotated[
        bool, typer.Option("--once", help="Print the metrics in Prometheus' text format, and end.")
    ] = False,
    names: Annotated[bool, typer.Option("--names", help="Print the table of all metrics, and end.")] = False,
    local_dir: LocalDir = None,
    option: StorageOptions = None,
) -> None:
    """Serve metrics of jobs to Prometheus and OpenTelemetry.

    It serves running, stopped and dead jobs until Ctrl-C, on this machine only, unless --host says otherwise.
    """  # fmt: skip
    from strandline.telemetry.metrics import as_markdown

    if names:
        print(as_markdown(), end="")
        return
    interval_s = Telemetry(otlp=otlp, every=every).interval_s
    # A directory that is not there is an error now, and not in Prometheus. A server may start before its jobs.
    machine = Machine(jobs_of(what, local_dir, option, may_come=not once), partitions)
    try:
        from strandline.telemetry.otlp import Collector
        from strandline.telemetry.prometheus import MetricsServer, exposition
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("prometheus_client", "opentelemetry"):
            raise
        raise ConfigurationError(
            f"`strandline metrics` needs {error.name}, which is not installed", hint="pip install 'strandline[metrics]'"
        ) from None
    if once:
        print(exposition(machine.read), end="")
        return
    with ExitStack() as cleanup:
        server = MetricsServer.start(host, port, machine.read)
        cleanup.callback(server.end)
        print(server.address, flush=True)
        collector = Collector(otlp, int(time.time() * 1000)) if otlp is not None else None
        to = ""
        if collector is not None and otlp is not None:
            cleanup.callback(collector.close)
            to = f", and sent to {without_credentials(otlp)} every {interval_s:g} s"
        say(f"strandline: metrics are at this address{to} until Ctrl-C")
        while True:
            time.sleep(interval_s)
            if collector is not None:
                collector.send(machine.read(spans=True))


@dataclass
class Machine:
    """The jobs of a machine, asked for their figures."""

    jobs: Jobs
    most_partitions: int = MOST_PARTITIONS

    def read(self, *, spans: bool = False) -> list[Figures]:
        """Return the figures of all jobs; with `spans`, with their recent past."""
        now_ms = int(time.time() * 1000)
        jobs = [job for job in self.jobs.all() if self.jobs.wanted or not _is_long_over(job, now_ms)]
        if problem := self.jobs.problem:
            say(f"strandline: WARNING: jobs may be missing: {problem}")
        with ThreadPoolExecutor(_THREADS, "strandline-metrics") as pool:
            return list(pool.map(lambda job: self._figures(job, spans), jobs))

    def _figures(self, job: Job, spans: bool) -> Figures:
        now_ms, known = int(time.time() * 1000), job.driver or job.record
        # As the driver has it: its own metrics have the same label.
        directory = known.directory if known else job.url.rpartition("/")[0]
        since_ms = job.driver.since_ms if job.driver else job.record.since_ms if job.record else 0
        version = job.driver.engine if job.driver else job.record.engine if job.record else ""
        status = recent = None
        state: JobState = "no answer"
        if job.driver is not None and version != VERSION:
            state = "other version"
        elif job.driver is not None:
            try:
                status = call(job.driver, STATUS, NoArguments(), silence_s=_TIMEOUT_S, timeout_s=_TIMEOUT_S)
                if spans:
                    recent = call(job.driver, RECENT, NoArguments(), silence_s=_TIMEOUT_S, timeout_s=_TIMEOUT_S)
                state = status.state
            except StrandlineError:
                pass
        elif job.record is not None and job.record.fate:
            state = job.record.state if job.record.fate in ENDED else "killed"
        return Figures(
            job.name, directory, state, since_ms, now_ms, version, status, recent, self.most_partitions
        )  # fmt: skip


def _is_long_over(job: Job, now_ms: int) -> bool:
    record = job.record
    return (
        job.driver is None and record is not None and record.fate in ("stopped", "finished")
        and now_ms - record.at_ms > _FORGET_MS
    )  # fmt: skip
