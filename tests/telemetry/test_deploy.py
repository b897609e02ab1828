"""The board and the alerts use metrics and labels that there are, and the alerts fire when they must."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from strandline.telemetry.figures import JOB_STATES
from strandline.telemetry.metrics import JOB_LABELS, METRICS
from tests import promtool
from tests.telemetry.asking import Scrape, figures_of

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARD = json.loads((DEPLOY / "grafana/strandline.json").read_text())
RULES = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"][0]["rules"]
BY_NAME = {metric.name: metric for metric in METRICS}
DOCS = (Path(__file__).parents[2] / "docs/metrics.md").read_text()


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def of_board() -> list[tuple[str, str, str]]:
    """Return the title, the expression and the legend of each line of the board."""
    lines = [(p["title"], each["expr"], each["legendFormat"]) for p in panels() for each in p["targets"]]
    return lines + [(each["name"], each["expr"], each["titleFormat"]) for each in BOARD["annotations"]["list"]]


EXPRESSIONS = [(rule["alert"], rule["expr"], json.dumps(rule["annotations"])) for rule in RULES] + of_board()


def parsed(expression: str) -> Any:
    return promql.parse(expression.replace("$__rate_interval", "5m"))


def parts(node: Any) -> Iterator[Any]:
    """Return all parts of an expression."""
    yield node
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        if (child := getattr(node, name, None)) is not None and not isinstance(child, str):
            yield from parts(child)
    for argument in getattr(node, "args", None) or ():
        yield from parts(argument)


def selectors(expression: str) -> list[Any]:
    return [part for part in parts(parsed(expression)) if isinstance(part, promql.VectorSelector)]


@pytest.mark.parametrize(("title", "expression", "text"), EXPRESSIONS, ids=lambda each: each[:40])
def test_an_expression_uses_what_there_is(title: str, expression: str, text: str) -> None:
    found = selectors(expression)
    # The walk has missed none.
    assert sorted(each.name for each in found) == sorted(re.findall(r"strandline_\w+", expression))
    labels = {name for each in found for name in (*JOB_LABELS, *BY_NAME[each.name].labels)}
    for each in found:
        allowed = {*JOB_LABELS, *BY_NAME[each.name].labels}
        for matcher in each.matchers.matchers:
            assert matcher.name in allowed, (title, matcher.name)
            if matcher.name == "state":
                assert set(matcher.value.split("|")) <= set(JOB_STATES)
            if matcher.name == "status":
                assert matcher.value in ("completed", "failed", "subsumed")
    for clause in re.findall(r"\b(?:by|on|without|ignoring) \(([^)]*)\)", expression):
        assert {label.strip() for label in clause.split(",")} <= labels
    # What is aggregated away is in no text.
    for clause in re.findall(r"\bby \(([^)]*)\)", expression):
        labels &= {label.strip() for label in clause.split(",")}
    assert set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text)) - {"value"} <= labels


@pytest.mark.parametrize(("title", "expression", "text"), EXPRESSIONS, ids=lambda each: each[:40])
def test_counters_are_rated_and_gauges_are_not(title: str, expression: str, text: str) -> None:
    for part in parts(parsed(expression)):
        if isinstance(part, promql.Call) and part.func.name in ("rate", "increase", "deriv", "delta"):
            (name,) = (each.name for each in parts(part) if isinstance(each, promql.VectorSelector))
            assert (BY_NAME[name].kind == "counter") == (part.func.name in ("rate", "increase")), title
    rated = re.findall(r"(?:rate|increase|changes)\((strandline_\w+)", expression)
    counters = [each.name for each in selectors(expression) if BY_NAME[each.name].kind == "counter"]
    assert sorted(counters) == sorted(name for name in rated if BY_NAME[name].kind == "counter")


def test_a_real_answer_has_all_series_that_the_board_and_the_alerts_select() -> None:
    names = {name for name, _ in Scrape.of(figures_of()).series}
    used = {each.name for _, expression, _ in EXPRESSIONS for each in selectors(expression)}
    # The fake job has no caches.
    assert used - names <= {"strandline_partition_cache_hits_total", "strandline_partition_cache_misses_total"}
    assert len(used) > 30


def test_the_panels_of_the_board_do_not_overlap_and_have_ids_of_their_own() -> None:
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    for panel in panels():
        assert len({each["refId"] for each in panel["targets"]}) == len(panel["targets"])
        for each in panel["targets"]:
            assert "$job" in each["expr"]
            assert each["datasource"]["uid"] == "${datasource}"


def test_the_documentation_says_what_to_do_about_each_alert() -> None:
    for rule in RULES:
        assert f"| `{rule['alert']}` |" in DOCS
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} == set(rule["annotations"])


@pytest.fixture(scope="module")
def tool() -> str:
    try:
        return promtool.program()
    except promtool.UnavailableToolError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("command", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_prometheus_takes_the_rules_and_they_fire_when_they_must(tool: str, command: tuple[str, ...]) -> None:
    done = subprocess.run([tool, *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_boards_expressions(tool: str, tmp_path: Path) -> None:
    rules = [
        {"record": f"board:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, (_, expression, _) in enumerate(of_board())
    ]
    path = tmp_path / "board.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    done = subprocess.run([tool, "check", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
