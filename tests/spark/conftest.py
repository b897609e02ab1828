from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.harness import Case, keepers


@pytest.fixture
def case(tmp_path: Path, local_dir: Path) -> Iterator[Case]:
    """A job's directories; when the test is over, no keeper may be left."""
    made = Case(tmp_path, local_dir)
    yield made
    alive = [app for app in made.apps if not app.ended()]
    for app in alive:
        app.kill()
    assert alive or not keepers(local_dir)
