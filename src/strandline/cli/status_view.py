"""A job's status as tables: the job, its sources, sinks and keepers; for an ended job, how it ended."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from rich.text import Text

from strandline.checkpoint.history import CheckpointStats
from strandline.cli.output import Table
from strandline.control.client import Driver
from strandline.control.journal import JournalEntry
from strandline.control.status import SinkStatus, SourceStatus, StandbyStatus, Status
from strandline.control.summary import checkpoint_text, lag_text, watermark_text
from strandline.core.texts import age_text, duration_text, rate_text, size_text, time_text

STATE_STYLES = {
    "running": "green", "starting": "yellow", "restarting": "yellow", "rescaling": "yellow", "failed": "bold red",
    "killed": "bold red",
}  # fmt: skip
_MAX_OFFSETS_CHARS = 80


def state_text(state: str) -> Text:
    """Return a state, coloured for tables."""
    return Text(state, style=STATE_STYLES.get(state, ""))


def print_status(driver: Driver, status: Status) -> None:
    """Print the status of a running job."""
    output = Table("what", "now")
    for name, value in _facts(driver, status):
        output.add(name, value)
    output.print()
    if status.source_progress:
        _print_sources(status.source_progress)
    if status.sinks:
        _print_sinks(status.sinks)
    if status.keepers:
        _print_keepers(status)
    if status.standbys:
        _print_standbys(status.standbys)


def parallelism_text(status: Status) -> str:
    """Return the job's parallelism, and that of each operator with another one."""
    others = [f"{op.uid} {op.parallelism}" for op in status.operators if op.parallelism != status.parallelism]
    return f"{status.parallelism} ({', '.join(others)})" if others else str(status.parallelism)


def failure_text(failure: str, failure_ms: int | None) -> str:
    """Return the time of a failure and, in one line, its reason."""
    when = f"{time_text(failure_ms)}: " if failure_ms else ""
    return f"{when}{failure.partition(chr(10))[0]}" if failure else "-"


def _facts(driver: Driver, status: Status) -> list[tuple[str, object]]:
    last, counts = status.last_checkpoint, status.checkpoints
    newest = f"{time_text(last.completed_ms or 0)}, {size_text(last.total_bytes)}; " if last else ""
    named = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in counts.items() if count)
    state_bytes = sum(keeper.state_bytes or 0 for keeper in status.keepers)
    memory_bytes = sum(keeper.memory_bytes or 0 for keeper in status.keepers)
    facts: list[tuple[str, object]] = [
        ("job", status.job),
        ("state", state_text(status.state)),
        ("driver", f"process {driver.pid}, since {time_text(driver.since_ms)}"),
        ("checkpoint directory", driver.directory),
        ("generation", status.generation),
        ("restored from", "-" if status.restored_from is None else f"checkpoint {status.restored_from}"),
        *([("depends on", status.depends_on)] if status.depends_on else []),
        ("restarts", status.restarts),
        *([("replaced keepers", status.replaced_keepers)] if status.replaced_keepers else []),
        ("last failure", failure_text(status.last_failure, status.last_failure_ms)),
        ("parallelism", parallelism_text(status) + (", follows the executors" if status.follows else "")),
        ("epoch", f"{status.epoch}: {status.last_epoch_rows:,} rows in {duration_text(status.last_epoch_ms)}"),
        ("rows", f"{status.rows_in:,} in its life; now {rate_text(status.rows_per_s)}"),
        ("watermark", watermark_text(status.watermark) if status.watermark else "-"),
        ("late rows", f"{status.late_rows:,}"),
        ("failed events", f"{status.failed_events:,}"),
        ("last checkpoint", f"{newest}{checkpoint_text(status)}"),
        *_age_facts(last),
        ("not in a checkpoint", f"for {age_text(status.uncovered_ms / 1000)}" if status.uncovered_ms else "nothing"),
        ("checkpoints", named or "-"),
        ("size of state", f"{size_text(state_bytes)}, in keepers of {size_text(memory_bytes)} of memory"),
    ]
    return facts


def _age_facts(checkpoint: CheckpointStats | None) -> list[tuple[str, object]]:
    """Return the phases of a checkpoint, and of its sinks the one that showed the oldest rows."""
    facts: list[tuple[str, object]] = []
    if checkpoint is not None and (phases := checkpoint.phases) is not None:
        named = {
            "waits": phases.waits_ms, "epoch": phases.epoch_ms, "durable": phases.durable_ms,
            "published": phases.published_ms,
        }  # fmt: skip
        facts.append(("its phases", ", ".join(f"{name} {duration_text(ms)}" for name, ms in named.items())))
        if checkpoint.sinks:
            sink = max(checkpoint.sinks, key=lambda each: each.age_ms)
            age, took = duration_text(sink.age_ms), duration_text(sink.shown_ms)
            facts.append(("its oldest rows", f"{age} old when visible; sink '{sink.name}' took {took}"))
    return facts


def _print_sources(sources: list[SourceStatus]) -> None:
    output = Table("source", "what it is", "behind", "read to")
    for source in sources:
        output.add(source.name or "-", source.what or "-", lag_text(source), _offsets_text(source.read_to))
    output.print()


def _print_sinks(sinks: list[SinkStatus]) -> None:
    output = Table("sink", "delivered", "refused", "waits", "why", right=("delivered", "refused"))
    for sink in sinks:
        size, age = size_text(sink.waiting_bytes), age_text(sink.waiting_ms / 1000)
        waits = f"{sink.waiting_rows:,} rows, {size}, for {age}" if sink.waiting_rows else "nothing"
        output.add(sink.name, f"{sink.rows:,}", f"{sink.refused_rows:,}", waits, sink.failure or "-")
    output.print()


def _offsets_text(offsets: Any) -> str:
    text = "-" if offsets is None else json.dumps(offsets)
    return text if len(text) <= _MAX_OFFSETS_CHARS else text[: _MAX_OFFSETS_CHARS - 1] + "…"


def _print_keepers(status: Status) -> None:
    numbers = ("partition", "pid", "epoch", "rows in", "share", "rows out", "time", "pause", "state", "memory")
    spare = ("rows out", "time", "pid", "host", "share")
    output = Table("operator", *numbers[:2], "host", *numbers[2:], right=numbers, spare=spare)
    rows: Counter[str] = Counter()
    for keeper in status.keepers:
        rows[keeper.uid] += keeper.all_rows_in
    for keeper in status.keepers:
        share = f"{100 * keeper.all_rows_in / rows[keeper.uid]:.0f} %" if rows[keeper.uid] else "-"
        state, memory = ("-" if size is None else size_text(size) for size in (keeper.state_bytes, keeper.memory_bytes))
        output.add(
            keeper.uid, keeper.partition, keeper.pid, keeper.host, keeper.epoch,
            f"{keeper.all_rows_in:,}", share, f"{keeper.all_rows_out:,}",
            duration_text(keeper.all_ms), duration_text(keeper.pause_ms), state, memory,
        )  # fmt: skip
    output.print()


def _print_standbys(standbys: list[StandbyStatus]) -> None:
    numbers = ("partition", "checkpoint", "size", "downloaded", "cpu")
    output = Table("standby of", "partition", "host", *numbers[1:], "failure", right=numbers, spare=("cpu", "failure"))
    for each in standbys:
        sizes = map(size_text, (each.total_bytes, each.downloaded_bytes))
        output.add(
            each.uid,
            each.partition,
            each.host or "no second host",
            each.checkpoint,
            *sizes,
            duration_text(each.cpu_ms),
            each.failure or "-",
        )
    output.print()


def ended_as_data(record: JournalEntry) -> dict[str, Any]:
    """Return the record of an ended job as data for JSON."""
    ended_ms = None if record.fate == "killed" else record.at_ms
    return {
        "job": record.job,
        "pid": record.pid,
        "since_ms": record.since_ms,
        "directory": record.directory,
        "engine": record.engine,
        "state": record.fate,
        "ended_ms": ended_ms,
        "last_failure": record.failure,
        "last_failure_ms": record.failure_ms,
    }


def ended_text(record: JournalEntry) -> str:
    """Return how a job ended, in one line."""
    since = f"(process {record.pid}, since {time_text(record.since_ms)})"
    if record.fate == "killed":
        was = "" if record.state == "running" else f" while it was {record.state}"
        return f"its driver {since} is gone without a word{was}: killed, perhaps for want of memory, or crashed"
    why = f": {record.failure.partition(chr(10))[0]}" if record.fate == "failed" else ""
    return f"its driver {since} has {_ENDED[record.fate]} at {time_text(record.at_ms)}{why}"


_ENDED = {"failed": "failed", "stopped": "been stopped", "finished": "come to the end of its sources"}
