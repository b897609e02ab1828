"""A job's status in a notebook: what it shows, and that it is text and not markup of the job's."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

from strandline.control.bottleneck import Bottleneck
from strandline.control.figures import Figures, FigureSeries, Rates
from strandline.control.html import figures_html, graph_html
from strandline.control.status import GraphNode, Savepoint, SinkStatus
from strandline.core.ids import CheckpointId, Epoch
from tests.control.fake import GRAPH, RECENT, STATS, FakeRun

STATUS = FakeRun().status()
EVIL = "<img src=x onerror=alert(1)>"


def plain(html: str) -> str:
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html)))


def figures(**more: object) -> Figures:
    made = FigureSeries().add(replace(STATUS, **more), RECENT)  # type: ignore[arg-type]
    neck = Bottleneck("operator 'detect' works 81% of each epoch", "operator:detect")
    rates = [Rates("detect", 0, 1500.0, 3.5, 0.9), Rates("detect", 1, 500.0, 1.5, 0.1)]
    return replace(made, rates=rates, bottleneck=neck)


def test_a_status_says_what_the_job_does() -> None:
    text = plain(STATUS._repr_html_())
    for part in (
        "alerts ● running", "rows 1,000, 2.5/s", "epoch 12, 0 rows", "restarts ● 1", "checkpoint 7, ", "last failure: it broke",
        "source clicks", "2 files, 2.0 KB, for 5 s", "operator detect Detect clicks, orders 3.0 MB 0",
        "sink out file top, detect (dead_letters)",
    ):  # fmt: skip
        assert part in text, text
    assert "badly" not in text
    assert "bottleneck" not in text
    assert len(STATUS._repr_html_()) < 4000


def test_figures_have_rates_and_the_bottleneck() -> None:
    html = figures_html(figures(sinks=[SinkStatus("out", waiting_rows=7)], failed_events=3), "it works again")
    text = plain(html)
    for part in (
        "bottleneck operator 'detect' works 81% of each epoch", "● detect Detect clicks, orders 2,000/s 5.0/s 90%",
        "failed events ● 3", "7 rows", "it works again",
    ):  # fmt: skip
        assert part in text, text
    # Who does not run is held up by nothing.
    assert "works 81%" not in plain(figures_html(figures(state="stopped")))


def test_nothing_of_a_job_is_markup() -> None:
    graph = [
        GraphNode("source:a", "source", EVIL, EVIL),
        GraphNode("operator:b", "operator", EVIL, EVIL, {"source:a": EVIL}),
    ]
    evil = figures(job=EVIL, last_failure=EVIL, graph=graph, watermark=None)
    shown = [
        figures_html(replace(evil, bottleneck=Bottleneck(EVIL, "operator:b")), EVIL),
        graph_html(graph, lambda node: {"waits": EVIL}),
        Savepoint(EVIL, EVIL, CheckpointId(1), Epoch(2), 3, 4)._repr_html_(),
        replace(STATS, failure=EVIL)._repr_html_(),
        replace(STATS, waits_for=(EVIL,))._repr_html_(),
    ]
    for html in shown:
        assert "<img" not in html
        assert "&lt;img src=x onerror=alert(1)&gt;" in html


def test_a_graph_without_figures_has_only_columns_with_values() -> None:
    html = graph_html(GRAPH)
    assert re.findall(r"<th[^>]*>([^<]*)</th>", html) == ["", "name", "what", "reads"]
    assert html.count("<tr>") == 1 + len(GRAPH)


def test_checkpoints_and_savepoints() -> None:
    done = replace(STATS, status="completed", end_to_end_ms=2_000, uploaded_bytes=1024, total_bytes=2048)
    text = plain(done._repr_html_())
    assert "7 ● completed 12 incremental " in text
    assert " 2.0 s 1.0 KB 2.0 KB 2.0 s " in text
    savepoint = Savepoint("s3://b/sp", "native", CheckpointId(7), Epoch(12), 2048, 1500)
    assert plain(savepoint._repr_html_()).split() == [
        "savepoint",
        "s3://b/sp",
        "form",
        "native",
        "checkpoint",
        "7",
        "epoch",
        "12",
        "size",
        "2.0",
        "KB",
        "took",
        "1.5",
        "s",
    ]
