"""Canonical files made in the test's own process: that it is another one, and may die, is for the tests of savepoints.

A process costs more than what it does for a state of some rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from strandline.snapshot.savepoints import take as taking
from strandline.snapshot.savepoints.export import ExportPart, Files, export
from strandline.snapshot.savepoints.exporters import Exporters


class _Here(Exporters):
    def export(self, part: ExportPart, report: Callable[[int], None]) -> Files:
        return export(part, report)


@contextmanager
def exporting_here() -> Iterator[None]:
    """Have savepoints begin no processes meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taking, "Exporters", _Here)
        yield


@pytest.fixture(autouse=True)
def exported_here() -> Iterator[None]:
    """Have the tests of a module that imports this begin no processes."""
    with exporting_here():
        yield
