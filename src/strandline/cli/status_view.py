"""A job's status for people: what it does, its sources, its keepers; and of a job that does nothing any more, why."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from rich.text import Text

from strandline.cli.liveline import checkpoint_text, watermark_text
from strandline.cli.output import add_row, age_text, console, duration_text, rate_text, size_text, table, time_text
from strandline.control.client import Driver
from strandline.control.journal import JournalEntry
from strandline.control.status import SinkStatus, SourceStatus, Status

STATE_STYLES = {
    "running": "green", "starting": "yellow", "restarting": "yellow", "rescaling": "yellow", "failed": "bold red",
    "killed": "bold red",
}  # fmt: skip
_MOST_OFFSETS = 80


def state_text(state: str) -> Text:
    """Return a state as it stands in tables."""
    return Text(state, style=STATE_STYLES.get(state, ""))


def print_status(driver: Driver, found: Status) -> None:
    """Print all that is known of a job that runs."""
    made = table("what", "now")
    for what, now in _facts(driver, found):
        add_row(made, what, now)
    console().print(made)
    if found.source_progress:
        _print_sources(found.source_progress)
    if found.sinks:
        _print_sinks(found.sinks)
    if found.keepers:
        _print_keepers(found)


def parallelism_text(found: Status) -> str:
    """Return the job's parallelism, and that of operators that have another one."""
    others = [f"{one.uid} {one.parallelism}" for one in found.operators if one.parallelism != found.parallelism]
    return f"{found.parallelism} ({', '.join(others)})" if others else str(found.parallelism)


def failure_text(failure: str, failure_ms: int | None) -> str:
    """Return when something failed and, in a line, why."""
    when = f"{time_text(failure_ms)}: " if failure_ms else ""
    return f"{when}{failure.partition(chr(10))[0]}" if failure else "-"


def _facts(driver: Driver, found: Status) -> list[tuple[str, object]]:
    last, counts = found.last_checkpoint, found.checkpoints
    newest = f"{time_text(last.completed_ms or 0)}, {size_text(last.total_bytes)}; " if last else ""
    named = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in counts.items() if count)
    state_bytes = sum(one.state_bytes or 0 for one in found.keepers)
    memory_bytes = sum(one.memory_bytes or 0 for one in found.keepers)
    facts: list[tuple[str, object]] = [
        ("job", found.job),
        ("state", state_text(found.state)),
        ("driver", f"process {driver.pid}, since {time_text(driver.since_ms)}"),
        ("checkpoint directory", driver.directory),
        ("generation", found.generation),
        ("restored from", "-" if found.restored_from is None else f"checkpoint {found.restored_from}"),
        *([("depends on", found.depends_on)] if found.depends_on else []),
        ("restarts", found.restarts),
        ("last failure", failure_text(found.last_failure, found.last_failure_ms)),
        ("parallelism", parallelism_text(found) + (", follows the executors" if found.follows else "")),
        ("epoch", f"{found.epoch}: {found.last_epoch_rows:,} rows in {duration_text(found.last_epoch_ms)}"),
        ("rows", f"{found.rows_in:,} in its life; now {rate_text(found.rows_per_s)}"),
        ("watermark", watermark_text(found.watermark) if found.watermark else "-"),
        ("late rows", f"{found.late_rows:,}"),
        ("failed events", f"{found.failed_events:,}"),
        ("last checkpoint", f"{newest}{checkpoint_text(found)}"),
        ("not in a checkpoint", f"for {age_text(found.uncovered_ms / 1000)}" if found.uncovered_ms else "nothing"),
        ("checkpoints", named or "-"),
        ("size of state", f"{size_text(state_bytes)}, in keepers of {size_text(memory_bytes)} of memory"),
    ]
    return facts


def _print_sources(sources: list[SourceStatus]) -> None:
    made = table("source", "what it is", "behind", "read to")
    for one in sources:
        add_row(made, one.name or "-", one.what or "-", behind_text(one), _offsets_text(one.read_to))
    console().print(made)


def _print_sinks(sinks: list[SinkStatus]) -> None:
    made = table("sink", "delivered", "refused", "waits", "why", right=("delivered", "refused"))
    for one in sinks:
        size, age = size_text(one.waiting_bytes), age_text(one.waiting_ms / 1000)
        waits = f"{one.waiting_rows:,} rows, {size}, for {age}" if one.waiting_rows else "nothing"
        add_row(made, one.name, f"{one.rows:,}", f"{one.refused_rows:,}", waits, one.failure or "-")
    console().print(made)


def behind_text(one: SourceStatus) -> str:
    """Return what waits in a source."""
    if one.files_behind is not None:
        if not one.files_behind:
            return "nothing"
        files = "1 file" if one.files_behind == 1 else f"{one.files_behind:,} files"
        return f"{files}, {size_text(one.bytes_behind or 0)}, for {age_text((one.waiting_ms or 0) / 1000)}"
    if one.offsets_behind is not None:
        return f"{one.offsets_behind:,} offsets" if one.offsets_behind else "nothing"
    return "not known"


def _offsets_text(offsets: Any) -> str:
    text = "-" if offsets is None else json.dumps(offsets)
    return text if len(text) <= _MOST_OFFSETS else text[: _MOST_OFFSETS - 1] + "…"


def _print_keepers(found: Status) -> None:
    numbers = ("partition", "pid", "epoch", "rows in", "share", "rows out", "time", "pause", "state", "memory")
    made = table("operator", *numbers[:2], "host", *numbers[2:], right=numbers)
    rows: Counter[str] = Counter()
    for one in found.keepers:
        rows[one.uid] += one.all_rows_in
    for one in found.keepers:
        share = f"{100 * one.all_rows_in / rows[one.uid]:.0f} %" if rows[one.uid] else "-"
        state, memory = ("-" if size is None else size_text(size) for size in (one.state_bytes, one.memory_bytes))
        add_row(
            made, one.uid, one.partition, one.pid, one.host, one.epoch, f"{one.all_rows_in:,}", share,
            f"{one.all_rows_out:,}", duration_text(one.all_ms), duration_text(one.pause_ms), state, memory,
        )  # fmt: skip
    console().print(made)


def ended_as_data(record: JournalEntry) -> dict[str, Any]:
    """Return what is known of a job that runs no more."""
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
    """Return what became of a job, in a line."""
    since = f"(process {record.pid}, since {time_text(record.since_ms)})"
    if record.fate == "killed":
        was = "" if record.state == "running" else f" while it was {record.state}"
        return f"its driver {since} is gone without a word{was}: killed, perhaps for want of memory, or crashed"
    why = f": {record.failure.partition(chr(10))[0]}" if record.fate == "failed" else ""
    return f"its driver {since} has {_ENDED[record.fate]} at {time_text(record.at_ms)}{why}"


_ENDED = {"failed": "failed", "stopped": "been stopped", "finished": "come to the end of its sources"}
