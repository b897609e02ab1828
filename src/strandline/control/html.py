"""A job's status as HTML, for notebooks: its figures, its graph as a table and, while it runs, rates and bottleneck."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strandline.control.figures import Figures, operator_figures, source_figures
from strandline.control.status import GraphNode, Status
from strandline.control.summary import checkpoint_text, lag_text, watermark_text
from strandline.core.html import BAD, GOOD, QUIET, UNSURE, Html, bar, card, facts, line, mark, render, strong, table
from strandline.core.texts import duration_text, rate_text, size_text

_COLOURS = {"running": GOOD, "failed": BAD, "finished": QUIET, "stopped": QUIET}
_FIGURES = ("in", "out", "busy", "state", "late", "failed", "waits")
_NUMBERS = ("in", "out", "state", "late", "failed")
_FULL = 0.8

Cells = Callable[[GraphNode], dict[str, object]]


@render.register(Status)
def status_html(status: Status) -> Html:
    """Return a status."""
    return _panel(status, None, "")


def figures_html(figures: Figures, note: str = "") -> Html:
    """Return the figures of a running job, with a note on what happens to it."""
    return _panel(figures.status, figures, note)


def _panel(status: Status, figures: Figures | None, note: str) -> Html:
    last = status.last_checkpoint
    sizes = f"{size_text(last.uploaded_bytes)} new of {size_text(last.total_bytes)}" if last is not None else None
    took = duration_text(last.end_to_end_ms) if last is not None and last.end_to_end_ms is not None else None
    values = {
        "rows": f"{status.rows_in:,}, {rate_text(status.rows_per_s)}",
        "epoch": f"{status.epoch:,}, {status.last_epoch_rows:,} rows in {duration_text(status.last_epoch_ms)}",
        "watermark": watermark_text(status.watermark) if status.watermark else None,
        "late rows": f"{status.late_rows:,}" if status.late_rows else None,
        "failed events": mark(UNSURE, f"{status.failed_events:,}") if status.failed_events else None,
        "restarts": mark(UNSURE, status.restarts) if status.restarts else None,
        "": f"{checkpoint_text(status)}{f', took {took}' if took else ''}{f', {sizes}' if sizes else ''}",
    }
    failure = status.last_failure.partition("\n")[0]
    neck = figures.bottleneck.text if figures is not None and status.state == "running" else ""
    marked = figures.bottleneck.node if figures is not None else ""
    title = Html(f"{strong(status.job)} {mark(_COLOURS.get(status.state, UNSURE), status.state)}")
    return card(
        title,
        facts(values),
        facts({"bottleneck": neck}) if neck else None,
        line(f"last failure: {failure}") if failure else None,
        graph_html(status.graph, lambda node: _cells(node, status, figures), marked) if status.graph else None,
        line(note) if note else None,
    )


def graph_html(nodes: Sequence[GraphNode], cells: Cells = lambda node: {}, marked: str = "") -> Html:
    """Return a graph as a table: what each node reads, and more cells of it; one may be marked."""
    names = {each.id: each.name or each.kind for each in nodes}
    rows = []
    for node in nodes:
        reads = ", ".join(f"{names.get(id_, id_)}{f' ({side})' if side else ''}" for id_, side in node.inputs.items())
        name: object = mark(UNSURE, names[node.id]) if node.id == marked else names[node.id]
        rows.append({"": node.kind, "name": name, "what": node.what, "reads": reads, **cells(node)})
    columns = [name for name in ("", "name", "what", "reads", *_FIGURES) if any(row.get(name) for row in rows)]
    return table(columns, [[row.get(name, "") for name in columns] for row in rows], right=_NUMBERS)


def _cells(node: GraphNode, status: Status, figures: Figures | None) -> dict[str, object]:
    if node.kind == "operator":
        return _operator(node.name, status, figures)
    if node.kind == "source":
        progress, _ = source_figures(status, node)
        lag = lag_text(progress) if progress is not None else ""
        return {"waits": lag if lag != "not known" else ""}
    sink = next((each for each in status.sinks if each.name == node.name), None)
    return {"waits": f"{sink.waiting_rows:,} rows" if sink is not None and sink.waiting_rows else ""}


def _operator(uid: str, status: Status, figures: Figures | None) -> dict[str, object]:
    its = operator_figures(status, figures.rates if figures is not None else (), uid)
    if not its.partitions:
        return {}
    return {
        "in": "" if its.rows_in_per_s is None else rate_text(its.rows_in_per_s),
        "out": "" if its.rows_out_per_s is None else rate_text(its.rows_out_per_s),
        "busy": "" if its.busiest is None else bar(its.busiest, UNSURE if its.busiest > _FULL else GOOD),
        "state": "" if its.state_bytes is None else size_text(its.state_bytes),
        "late": f"{its.late_rows:,}",
        "failed": f"{its.failed_events:,}" if its.failed_events else "",
    }
