from __future__ import annotations

from tests.control.serving import serve

__all__ = ["serve"]
