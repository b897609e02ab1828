"""Chains of the operators of views, each case by its seed; `make soak-views` runs 20,000 (tests/views/random_chains.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.views import random_chains
from tests.views.expressions import Distinct, Source
from tests.views.random_chains import Case, failure, faults, smallest


@pytest.mark.parametrize("first", range(1, 41, 10))
def test_chains(first: int) -> None:
    found = faults(range(first, first + 10))
    assert not found, "\n".join(found)


def test_a_wrong_operator_is_found_and_its_case_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distinct rows that are not taken back: one table, one row that comes and goes."""
    right = Distinct.read
    monkeypatch.setattr(Distinct, "read", lambda node, output: [each for each in right(node, output) if each[1] > 0])
    table = Source((), 0, False)
    row: Any = (1, "a", 2, 0.0)
    other = (2, *row[1:])
    epochs = (((row, 1), (other, 1)), ((other, -1), (other, 1)), ((row, -1),), ((row, 1),))
    case = Case(0, Distinct((table,)), tuple((each,) for each in epochs), ("", "checkpoint", "restart", ""))
    error = failure(replace(case))
    assert isinstance(error, random_chains.WrongError)
    small, error = smallest(case, error)
    assert [changes for (changes,) in small.epochs] == [((row, 1),), (), ((row, -1),)]
    assert small.is_calm
    assert not any(small.events)
    assert "has too many {\"(1, 'a', 2, 0.0)\": 1}" in str(error)
