"""Tools for tests: run pipelines and process functions with their real state, without Spark and other processes."""

from __future__ import annotations

from strandline.testing.events import Right, events
from strandline.testing.harness import Harness, Snapshot, from_snapshot

__all__ = ["Harness", "Right", "Snapshot", "events", "from_snapshot"]
