"""Every mistake is answered at once and in words: in the place that the table says, in few lines, without our insides."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

import strandline
import tests.mistakes
from tests.mistakes.table import Mistake, Stage

_SOURCES = Path(strandline.__file__).parent
_OURS = re.compile("|".join(
    sorted({rf"\b{name}\b" for path in _SOURCES.rglob("*.py") for name in re.findall(r"class (_\w+)", path.read_text())})
))  # fmt: skip
"""Names of classes that no user knows."""
_INSIDE = (
    "__strandline",
    "Handle object",
    "strandline/runtime",
    "strandline/spark",
    "strandline/plan",
    "strandline/testing",
)
_JAVA = ("org.apache.", "java.", "scala.", "Py4J", "py4j", "\tat ", "JVM stacktrace")


def _areas() -> dict[str, list[Mistake]]:
    found = {}
    for module in pkgutil.iter_modules(tests.mistakes.__path__):
        mistakes = getattr(importlib.import_module(f"tests.mistakes.{module.name}"), "MISTAKES", None)
        if mistakes is not None:
            found[module.name] = mistakes
    return found


AREAS = _areas()
SPARK = ("spark", "queries")
"""The areas that need a session."""
WITHOUT_SPARK = [(area, each) for area, some in AREAS.items() if area not in SPARK for each in some]
WITH_SPARK = [(area, each) for area in SPARK for each in AREAS.get(area, [])]


def check(mistake: Mistake, stage: Stage) -> str:
    """Run the program; return what it was told."""
    try:
        with pytest.raises(mistake.error) as caught:
            mistake.program(stage)
    finally:
        for end in stage.after:
            end()
    assert type(caught.value) is mistake.error
    text = str(caught.value)
    assert stage.place == mistake.place, text
    for part in mistake.said:
        assert part in text
    assert len(text.splitlines()) <= mistake.lines, text
    for inside in (*_INSIDE, *_JAVA):
        assert inside not in text
    assert not _OURS.search(text), text
    assert "secret" not in text
    return text


@pytest.mark.parametrize("mistake", [pytest.param(each, id=f"{area}-{each.name}") for area, each in WITHOUT_SPARK])
def test_without_spark(mistake: Mistake, tmp_path: Path) -> None:
    check(mistake, Stage(tmp_path))


@pytest.mark.spark
@pytest.mark.parametrize("mistake", [pytest.param(each, id=f"{area}-{each.name}") for area, each in WITH_SPARK])
def test_with_spark(mistake: Mistake, tmp_path: Path, spark: Any) -> None:
    check(mistake, Stage(tmp_path, spark))


def test_the_table_is_long_and_says_each_mistake_once() -> None:
    names = [f"{area}: {each.name}" for area, some in AREAS.items() for each in some]
    assert len(names) >= 150
    assert len(set(names)) == len(names)
    assert all(each.said for some in AREAS.values() for each in some)
    assert {each.place for some in AREAS.values() for each in some} == {"declaration", "start", "run"}
