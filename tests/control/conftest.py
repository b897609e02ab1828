from __future__ import annotations

from tests.control.serving import local_dir, serve

__all__ = ["local_dir", "serve"]
