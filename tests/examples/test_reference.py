"""The reference is what the docstrings say, of every public name."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import strandline as sl

_SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "reference.py"


def reference() -> Any:
    spec = importlib.util.spec_from_file_location("reference", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_has_every_name() -> None:
    named = [name for names in reference().GROUPS.values() for name in names if name != "testing"]
    assert sorted(named) == sorted(sl.__all__)


def test_it_is_what_docstrings_say() -> None:
    made = reference()
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), "run python scripts/reference.py"
