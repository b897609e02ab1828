"""The screens of `strandline top`, drawn from made figures at several sizes."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from strandline.cli.topview import Look, Place, render
from strandline.control.bottleneck import Bottleneck
from strandline.control.figures import Figures, FigureSeries
from strandline.control.status import GraphNode, OperatorStatus, SinkStatus, Status
from strandline.ui.jobs import Job
from tests.control.fake import GRAPH, KEEPER, OTHER, RECENT, STATS, FakeRun

JOB = Job("1", "alerts", "file:///ck/alerts")
SHOP = Job("2", "shop", "file:///ck/shop", problem="")


def status(rows: int, busy_ms: float, **more: Any) -> Status:
    keepers = [
        replace(KEEPER, all_rows_in=rows, all_rows_out=rows // 2, all_busy_ms=busy_ms, late_rows=4, failed_events=2),
        replace(OTHER, all_rows_in=rows // 9),
        replace(KEEPER, uid="top", pid=4713, all_rows_in=rows // 2, state_bytes=1024, memory_bytes=None),
    ]
    return replace(FakeRun().status(), **{"keepers": keepers, "late_rows": 4, **more})


def figures(monkeypatch: pytest.MonkeyPatch, **more: Any) -> Figures:
    """Figures of a job that has worked 90 % of the last ten seconds, and is held up by its first operator."""
    series, now_s = FigureSeries(), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    series.add(status(9_000, 1_000.0), RECENT)
    now_s = 110.0
    recent = replace(RECENT, epochs=[replace(RECENT.epochs[0], epoch=n, ended_ms=500 * n) for n in range(5)], checkpoints=[
        replace(STATS, status="completed", end_to_end_ms=2_100, uploaded_bytes=3 << 20, total_bytes=20 << 20),
        replace(STATS, checkpoint=8, sinks=(), waits_for=("detect[1]",)),
    ])  # fmt: skip
    neck = Bottleneck("operator 'detect' works 81% of each epoch: its partition 0 works 4.0 times", "operator:detect")
    return replace(series.add(status(27_000, 10_000.0, **more), recent), bottleneck=neck)


def drawn(look: Look, place: Place, *, width: int = 80, height: int = 24, **more: bool) -> list[str]:
    file = io.StringIO()
    screen = Console(file=file, width=width, height=height, highlight=False, no_color=True)
    screen.print(render(look, place, screen, **more))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def row(lines: Sequence[str], name: str) -> list[str]:
    (line,) = (line for line in lines if f" {name} " in f"{line} " and re.search("[○●□]", line))
    return line.split()


def test_the_graph_has_the_figures_of_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(Look([(JOB, None)], JOB, figures(monkeypatch)), Place("1"), width=150)
    text = "\n".join(lines)
    for part in (
        "alerts  running", "2.5/s, 1,000 rows in its life", "late 4", "restarts 1", "took 2.1 s, 3.0 MB new of 20.0 MB",
        "checkpoint 8 in progress, 0 of 2, waits for detect[1]", "epochs: Spark 28%, plan 20% · idle 20%", "last failure", "it broke",
        "bottleneck operator 'detect' works 81% of each epoch: its partition 0 works 4.0 times",
    ):  # fmt: skip
        assert part in text, text
    assert "badly" not in text, "the first line of a failure is enough"
    assert "2.0 KB, for 5 s, held back by ann" in " ".join(row(lines, "clicks"))
    detect = row(lines, "detect")
    assert detect[:5] == ["▸", "●─╯", "detect", "◀", "Detect"]
    assert detect[5:] == ["×", "2", "2,000/s", "900/s", "████░", "90%", "3.0", "MB", "4", "2", "-", "-"]
    assert row(lines, "top")[:2] == ["├─●", "top"]
    assert "1.9 s old" in text
    assert "reads dead letters" in text


@pytest.mark.parametrize("width", [24, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("place", [Place("1"), Place("1", 1, is_open=True), Place()])
def test_it_fits_any_width(monkeypatch: pytest.MonkeyPatch, width: int, place: Place) -> None:
    lines = drawn(Look([(JOB, status(1, 1)), (SHOP, None)], JOB, figures(monkeypatch)), place, width=width)
    assert max(map(len, lines)) <= width
    if place.job and not place.is_open:
        # However narrow, who holds the job up can be seen.
        assert any("detect ◀" in line and "90%" in line for line in lines) or width == 24
        assert any(line.lstrip().startswith("bottleneck") for line in lines)


def test_what_does_not_fit_is_around_the_chosen_one(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = [GRAPH[0], *(GraphNode(f"operator:o{n}", "operator", f"o{n}", "F") for n in range(40))]
    look = Look([(JOB, None)], JOB, figures(monkeypatch, graph=graph))
    for chosen in (0, 20, 39):
        lines = drawn(look, Place("1", chosen))
        assert len(lines) <= 24
        assert row(lines, f"o{chosen}")[0] == "▸"
    assert len(drawn(look, Place("1"), keys=False)) > 40, "what is printed once has all"


def test_long_names_leave_room_for_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    uid = "an-operator-with-a-very-long-uid-that-says-all-it-does"
    graph = [GraphNode(f"operator:{uid}", "operator", uid, "Detect")]
    look = Look([(JOB, None)], JOB, figures(monkeypatch, graph=graph, keepers=[replace(KEEPER, uid=uid)]))
    (line,) = (line for line in drawn(look, Place("1")) if "an-operator" in line)
    assert "…" in line
    assert "3.0 MB" in line


def test_markup_and_control_characters_in_names_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "[red]x[/red]"
    graph = [GraphNode(f"operator:{name}", "operator", name, "[bold]")]
    look = Look([(JOB, None)], JOB, figures(monkeypatch, graph=graph, last_failure="[link=x]\x1b[2Jboom"))
    text = "\n".join(drawn(look, Place("1"), width=150))
    assert name in text
    assert "\x1b" not in text
    assert "[link=x]" in text


def test_partitions_of_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(Look([(JOB, None)], JOB, figures(monkeypatch)), Place("1", 0, is_open=True), width=120)
    assert "detect: 2 partitions" in lines
    first, second = [line.split() for line in lines if line.split()[:1] in (["0"], ["1"])]
    assert first[:10] == ["0", "1,800/s", "900/s", "90%", "████░", "90%", "card=ann,", "n=7", "80", "%"]
    words = " ".join(" ".join(lines).split())
    assert (
        "Skewed: partition 0 has 90 % of the rows, 1.8 times an even share. One key, card=ann, n=7, has about 72 %"
        in words
    )
    assert (second[1], second[-2:]) == ("200/s", ["4712", "here"])
    assert lines[-1] == "esc graph · ↑↓ operator · q quit"


def test_keys_lead_from_the_jobs_to_partitions_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Look([(JOB, None), (SHOP, None)], JOB, figures(monkeypatch))
    place = Place()
    went = []
    for key in ("down", "j", "up", "j", "enter", "up", "down", "down", "enter", "k", "escape", "x", "left", "escape"):
        place = place.after(key, look)
        went.append((place.job, place.chosen, place.is_open))
    assert went == [
        ("", 1, False), ("", 1, False), ("", 0, False), ("", 1, False), ("2", 0, False), ("2", 0, False), ("2", 1, False),
        ("2", 1, False), ("2", 1, True), ("2", 0, True), ("2", 0, False), ("2", 0, False), ("", 0, False), ("", 0, False),
    ]  # fmt: skip
    # The only job has no list to go back to; one without operators has nothing to open.
    alone = replace(look, jobs=[(JOB, None)])
    assert Place("1").after("escape", alone) == Place("1")
    assert Place("1").after("enter", replace(alone, figures=None)) == Place("1")
    assert Place().after("enter", Look()) == Place()


def test_the_list_of_jobs() -> None:
    lines = drawn(Look([(JOB, FakeRun().status()), (SHOP, None)]), Place("", 1))
    (alerts,) = (line.split() for line in lines if "alerts" in line)
    (shop,) = (line.split() for line in lines if "shop" in line)
    assert alerts[:4] == ["alerts", "running", "2.5/s", "12"]
    assert shop[:4] == ["▸", "shop", "not", "here"]
    assert "no job runs here" in drawn(Look(), Place())[0]


def test_a_job_that_does_not_run_shows_its_newest_checkpoint() -> None:
    newest = {"checkpoint": 17, "operators": [
        {"uid": "detect", "parallelism": 2, "bytes": 3 << 20, "backend": "rocksdb", "key_schema": "card string"},
    ]}  # fmt: skip
    lines = drawn(Look([(SHOP, None)], SHOP, newest=newest), Place("2"))
    assert lines[:2] == ["shop  not here", "its newest checkpoint is 17, in file:///ck/shop"]
    assert any(line.split() == ["detect", "2", "3.0", "MB", "rocksdb", "card", "string"] for line in lines)
    lost = drawn(Look([(SHOP, None)], SHOP, problem="it cannot be read"), Place("2"))
    assert lost[:2] == ["shop  not here", "it cannot be read"]


def test_a_job_that_starts_has_no_graph_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = figures(monkeypatch, graph=[], operators=list[OperatorStatus](), sinks=list[SinkStatus](), keepers=[])
    lines = drawn(Look([(JOB, None)], JOB, starting, problem="the driver does not answer"), Place("1"))
    assert "the job is starting: its graph is known when it runs" in lines
    assert "the driver does not answer" in lines
