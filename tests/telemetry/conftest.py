from __future__ import annotations

from tests.cli.conftest import strandline
from tests.control.serving import serve

__all__ = ["serve", "strandline"]
