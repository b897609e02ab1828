"""The screens of `strandline top`: the jobs, the graph of one, and the partitions of an operator, as text for rich."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.text import Text

from strandline.checkpoint.history import CheckpointStats
from strandline.cli.graphlines import graph_lines
from strandline.cli.output import Table, printable
from strandline.cli.status_view import ended_text, failure_text, state_text
from strandline.control.bottleneck import time_shares
from strandline.control.figures import Figures, keepers_of, operator_figures, sink_figures, source_figures
from strandline.control.skew import key_text, share_text, skew_text
from strandline.control.status import GraphNode, KeeperStatus, Status
from strandline.control.summary import checkpoint_text, lag_text, watermark_text
from strandline.core.texts import duration_text, rate_text, size_text, time_text
from strandline.ui.jobs import Job

_BAR = 5
"""Characters of a bar of busy shares."""
_FULL = 0.8
"""The busy share from which an operator has hardly anything left."""
_LEAST_NAME = 12
_LEAST_ROWS = 3
_TABLE_LINES = 4
"""Of a table without its rows."""
_WARN, _DIM = "yellow", "dim"


@dataclass(frozen=True)
class Look:
    """The jobs at one moment, and one of them as far as it is asked for."""

    jobs: Sequence[tuple[Job, Status | None]] = ()
    """Each with its status, if its driver has given one."""
    job: Job | None = None
    figures: Figures | None = None
    newest: dict[str, Any] | None = None
    """Of a job that does not run: its newest checkpoint."""
    problem: str = ""
    """Why there is nothing newer to see."""


@dataclass(frozen=True)
class Place:
    """The part that is on the screen."""

    job: str = ""
    """The id of a job; "" for the list."""
    chosen: int = 0
    """The number of the chosen job in the list, or of the operator in the graph."""
    is_open: bool = False
    """Whether the partitions of the chosen operator are shown."""

    def after(self, key: str, look: Look) -> Place:
        """Return the place to which a key leads."""
        count = len(look.jobs if not self.job else operators_of(look))
        chosen = min(self.chosen, max(0, count - 1))
        if key in ("up", "k"):
            return replace(self, chosen=max(0, chosen - 1))
        if key in ("down", "j"):
            return replace(self, chosen=min(max(0, count - 1), chosen + 1))
        if key in ("enter", "right", "l") and count:
            return replace(self, is_open=True) if self.job else Place(look.jobs[chosen][0].id)
        if key in ("escape", "left", "back", "h"):
            return replace(self, is_open=False) if self.is_open else Place() if len(look.jobs) > 1 else self
        return self


def operators_of(look: Look) -> list[str]:
    """Return the uids of the operators of the job, in the order of the graph."""
    if look.figures is not None:
        return [node.name for node in look.figures.status.graph if node.kind == "operator"]
    return []


def render(look: Look, place: Place, screen: Console, *, keys: bool = True) -> RenderableType:
    """Return one screen; with `keys`, its last line says which keys there are, and it is as high as the console."""
    height = screen.height - 1 if keys else None
    if not place.job:
        body, hint = _job_list(look, place, screen, height), "↑↓ choose · enter open · q quit"
    elif look.figures is not None:
        body, hint = _running(look.figures, look.problem, place, screen, height)
    else:
        body, hint = _ended(look), "q quit"
    if len(look.jobs) > 1 and place.job and not place.is_open:
        hint = hint.replace("q quit", "esc jobs · q quit")
    keys_line = [Text(hint, style=_DIM, no_wrap=True, overflow="ellipsis")] if keys else []
    return _Printable(Group(*body, *keys_line))


@dataclass(frozen=True)
class _Printable:
    """A part of the screen without control characters, which names and messages of errors may have."""

    part: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.part, options):
            yield segment if segment.is_control else Segment(printable(segment.text), segment.style)


def _job_list(look: Look, place: Place, screen: Console, height: int | None) -> list[RenderableType]:
    if not look.jobs:
        return [Text("no job runs here, and none has run; a job that starts appears here")]
    output = Table("job", "state", "rows", "epoch", "checkpoint", "restarts", "since", "folder",
                   right=("rows", "epoch", "restarts"), whole=("job", "state", "checkpoint", "since", "folder"),
                   spare=("folder", "since", "restarts", "checkpoint", "epoch"))  # fmt: skip
    chosen = min(place.chosen, len(look.jobs) - 1)
    for number in _window(len(look.jobs), chosen, None if height is None else height - _TABLE_LINES):
        job, status = look.jobs[number]
        since_ms = job.driver.since_ms if job.driver else job.record.since_ms if job.record else 0
        figures = (
            (rate_text(status.rows_per_s), f"{status.epoch:,}", checkpoint_text(status), status.restarts or "-")
            if status
            else ("-",) * 4
        )
        name = _cut(f"{_mark(number == chosen, height)}{job.name}", screen)
        state = state_text(status.state if status else job.state or "not here")
        output.add(name, state, *figures, time_text(since_ms), job.url)
    return [output.fitted(screen)]


def _running(
    figures: Figures, problem: str, place: Place, screen: Console, height: int | None
) -> tuple[list[RenderableType], str]:
    head = _head(figures, problem, screen)
    if height is not None:
        height -= sum(len(screen.render_lines(each, pad=False)) for each in head) + _TABLE_LINES
    operators = [node.name for node in figures.status.graph if node.kind == "operator"]
    if place.is_open and operators:
        uid = operators[min(place.chosen, len(operators) - 1)]
        return [*head, *_partitions(figures, uid, screen, height)], "esc graph · ↑↓ operator · q quit"
    chosen = operators[min(place.chosen, len(operators) - 1)] if operators else ""
    return [*head, _graph(figures, chosen, screen, height)], "↑↓ choose · enter partitions · q quit"


def _head(figures: Figures, problem: str, screen: Console) -> list[RenderableType]:
    status = figures.status
    last = next((each for each in reversed(figures.recent.checkpoints) if each.status == "completed"), None)
    last = last or status.last_checkpoint
    going = [each for each in figures.recent.checkpoints if each.status in ("triggered", "in_progress")]
    facts = [
        Text.assemble((status.job, "bold"), "  ", state_text(status.state)),
        Text(f"{rate_text(status.rows_per_s)}, {status.rows_in:,} rows in its life"),
        Text(f"epoch {status.epoch:,}: {status.last_epoch_rows:,} rows in {duration_text(status.last_epoch_ms)}"),
        Text(f"watermark {watermark_text(status.watermark) if status.watermark else '-'}"),
        Text(f"late {status.late_rows:,}"),
        Text(f"dead letters {status.failed_events:,}", style=_WARN if status.failed_events else ""),
        Text(f"state {size_text(figures.sample.state_bytes)}"),
        *_restarts(status),
        *_times(figures),
        Text(checkpoint_text(status)),
        *([Text(_sizes(last))] if last is not None else []),
        *(Text(_in_progress(each), style=_DIM) for each in going[-1:]),
        *([Text(f"{count} checkpoints failed", style=_WARN)] if (count := status.checkpoints.get("failed", 0)) else []),
    ]
    neck = figures.bottleneck
    style = f"bold {_WARN}" if neck.node else "bold"
    lines: list[RenderableType] = [*_flow(facts, screen), Text.assemble(("bottleneck ", style), neck.text)]
    if status.last_failure:
        why = f"last failure {failure_text(status.last_failure, status.last_failure_ms)}"
        lines.append(Text(why, style=_WARN, no_wrap=True, overflow="ellipsis"))
    if problem:
        lines.append(Text(problem, style="bold red"))
    return lines


def _restarts(status: Status) -> list[Text]:
    texts = [Text(f"restarts {status.restarts}", style=_WARN if status.restarts else "")]
    if status.replaced_keepers:
        texts.append(Text(f"keepers replaced {status.replaced_keepers}", style=_WARN))
    return texts


def _times(figures: Figures) -> list[Text]:
    """Return where the time of the last epochs went."""
    if (shares := time_shares(figures.recent.epochs)) is None:
        return []
    return [Text(f"epochs: Spark {shares.spark:.0%}, plan {shares.plan:.0%}"), Text(f"idle {shares.idle:.0%}")]


def _sizes(checkpoint: CheckpointStats) -> str:
    took = "" if checkpoint.end_to_end_ms is None else f"took {duration_text(checkpoint.end_to_end_ms)}, "
    return f"{took}{size_text(checkpoint.uploaded_bytes)} new of {size_text(checkpoint.total_bytes)}"


def _in_progress(checkpoint: CheckpointStats) -> str:
    waits = f", waits for {checkpoint.waits_for[0]}" if checkpoint.waits_for else ""
    done = f"{checkpoint.acknowledged} of {checkpoint.total_partitions}"
    return f"checkpoint {checkpoint.checkpoint} in progress, {done}{waits}"


def _graph(figures: Figures, chosen: str, screen: Console, height: int | None) -> RenderableType:
    nodes = figures.status.graph
    if not nodes:
        return Text("the job is starting: its graph is known when it runs", style=_DIM)
    output = Table("graph", "what", "in", "out", "busy", "state", "late", "failed", "now", "more",
                   right=("in", "out", "state", "late", "failed"), whole=("graph", "what", "busy", "now", "more"),
                   spare=("more", "what", "late", "now", "failed", "out", "state"))  # fmt: skip
    lines = graph_lines(nodes)
    at = next((number for number, node in enumerate(nodes) if node.id == f"operator:{chosen}"), 0)
    for number in _window(len(nodes), at, height):
        node = nodes[number]
        is_neck = node.id == figures.bottleneck.node
        mark = _mark(node.id == f"operator:{chosen}", height)
        name = _cut(node.name or node.kind, screen, " ◀" if is_neck else "")
        style = f"bold {_WARN}" if is_neck else "bold" if mark.strip() else ""
        output.add(Text.assemble(mark, (lines[number], _DIM), " ", (name, style)), *_cells(node, figures))
    return output.fitted(screen)


def _cells(node: GraphNode, figures: Figures) -> tuple[object, ...]:
    """Return the cells of a node behind its name."""
    sides = ", ".join(side.replace("_", " ") for side in node.inputs.values() if side)
    reads = [f"reads {sides}"] if sides else []
    if node.kind == "operator":
        its = operator_figures(figures.status, figures.rates, node.name)
        rates = ("-" if each is None else rate_text(each) for each in (its.rows_in_per_s, its.rows_out_per_s))
        size = "-" if its.state_bytes is None else size_text(its.state_bytes)
        what = f"{node.what} × {its.partitions}" if its.partitions else node.what
        late, failed = f"{its.late_rows:,}", _count(its.failed_events)
        return (what, *rates, _busy(its.busiest), size, late, failed, "-", *(reads or ["-"]))
    now, more = _source_words(node, figures) if node.kind == "source" else _sink_words(node, figures)
    what = f"{node.what} sink" if node.kind == "sink" else node.kind
    return (what, *["-"] * 6, now or "-", ", ".join([*more, *reads]) or "-")


def _source_words(node: GraphNode, figures: Figures) -> tuple[str, list[str]]:
    source, watermark = source_figures(figures.status, node)
    now, _, more = (lag_text(source) if source is not None else "not known").partition(", ")
    held = [f"held back by {watermark.slowest}"] if watermark is not None and watermark.origins > 1 else []
    if now == "not known":
        return "", held
    verb = "waits" if now == "nothing" or now.startswith("1 ") else "wait"
    return f"{now} {verb}", [*filter(None, [more]), *held]


def _sink_words(node: GraphNode, figures: Figures) -> tuple[str, list[str]]:
    # How old its rows were when they became visible.
    sink, age_ms = sink_figures(figures.status, figures.recent, node)
    words = [f"{duration_text(age_ms)} old"] if age_ms is not None else []
    if sink is not None:
        words = [*words, f"{sink.rows:,} delivered"]
        words = [f"{sink.waiting_rows:,} rows wait", *words] if sink.waiting_rows else words
    return (words[0], words[1:]) if words else ("", [])


def _partitions(figures: Figures, uid: str, screen: Console, height: int | None) -> list[RenderableType]:
    names = ("partition", "in", "out", "share", "busy", "state", "memory", "late", "failed", "pause", "pid")
    output = Table(*names[:5], "heaviest key", *names[5:], "host", right=names, whole=("heaviest key", "host"),
                   spare=("host", "pid", "pause", "memory", "out", "late", "failed"))  # fmt: skip
    words = Text(skew_text(figures.status, uid))
    if height is not None:
        height -= len(screen.render_lines(words, pad=False))
    keepers = keepers_of(figures.status, figures.rates, uid)
    rows = sum(keeper.all_rows_in for keeper, _ in keepers)
    for number in _window(len(keepers), 0, None if height is None else height - 1):
        keeper, rates = keepers[number]
        sizes = ("-" if size is None else size_text(size) for size in (keeper.state_bytes, keeper.memory_bytes))
        flow = (rate_text(rates.rows_in_per_s), rate_text(rates.rows_out_per_s)) if rates else ("-", "-")
        output.add(
            keeper.partition, *flow,
            f"{keeper.all_rows_in / rows:.0%}" if rows else "-", _busy(rates.busy if rates else None),
            _heaviest_key(keeper), *sizes, f"{keeper.late_rows:,}", _count(keeper.failed_events),
            duration_text(keeper.pause_ms), keeper.pid, keeper.host,
        )  # fmt: skip
    left_out = len(keepers) - len(output.rows)
    count = "1 partition" if len(keepers) == 1 else f"{len(keepers)} partitions"
    title = Text.assemble((uid, "bold"), f": {count}", f", {left_out} of them below" if left_out else "")
    return [title, words, output.fitted(screen)]


def _heaviest_key(keeper: KeeperStatus) -> str:
    return next((f"{key_text(key)} {share_text(key.share)}" for key in keeper.heaviest_keys), "-")


def _ended(look: Look) -> list[RenderableType]:
    """Return what is known of a job that does not run here."""
    job = look.job
    if job is None:
        return [Text(look.problem or "looking")]
    lines: list[RenderableType] = [Text.assemble((job.name, "bold"), "  ", state_text(job.state or "not here"))]
    if job.record is not None and job.record.fate:
        lines.append(Text(ended_text(job.record)))
    if look.problem or look.newest is None:
        return [*lines, Text(look.problem or "reading its folder, or it has no checkpoint")]
    lines.append(Text(f"its newest checkpoint is {look.newest['checkpoint']}, in {job.url}"))
    output = Table("operator", "partitions", "state", "backend", "key", right=("partitions", "state"))
    for each in look.newest["operators"]:
        output.add(each["uid"], each["parallelism"], size_text(each["bytes"]), each["backend"], each["key_schema"])
    return [*lines, output._rendered(()) if output.rows else Text("it has no keyed operator")]


def _window(count: int, chosen: int, height: int | None) -> range:
    """Return the numbers of the rows that fit, the chosen one among them."""
    visible = count if height is None else min(count, max(_LEAST_ROWS, height))
    first = min(max(0, chosen - visible // 2), count - visible)
    return range(first, first + visible)


def _flow(parts: Sequence[Text], screen: Console) -> list[Text]:
    """Put parts one behind the other, in as few lines as the width allows; none is broken."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + part.cell_len + 3 <= screen.width:
            lines[-1] = Text.assemble(lines[-1], (" · ", _DIM), part, no_wrap=True, overflow="ellipsis")
        else:
            lines.append(Text.assemble(part, no_wrap=True, overflow="ellipsis"))
    return lines


def _busy(share: float | None) -> Text:
    if share is None:
        return Text("-")
    full = round(share * _BAR)
    style = _WARN if share > _FULL else "green"
    return Text.assemble(("█" * full, style), ("░" * (_BAR - full), _DIM), f"{share:>4.0%}")


def _count(number: int) -> Text:
    return Text(f"{number:,}", style=_WARN) if number else Text("-")


def _mark(is_chosen: bool, height: int | None) -> str:
    """Return the mark of a chosen row; nothing is chosen where nothing can be."""
    return "" if height is None else "▸ " if is_chosen else "  "


def _cut(name: str, screen: Console, end: str = "") -> str:
    """Return a name that leaves room for the figures, with a mark behind it."""
    most = max(_LEAST_NAME, screen.width // 3)
    return (name if len(name) <= most else f"{name[: most - 1]}…") + end
