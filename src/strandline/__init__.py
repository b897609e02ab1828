"""Strandline: Flink-grade keyed state for PySpark.

Names that need Spark are imported when they are first used, so that processes which only run user functions stay small.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from strandline.api import aggregates as agg
from strandline.api.config import Checkpoints, Restart
from strandline.api.joins import Broadcast, KeyedBroadcastProcess, KeyedCoProcess
from strandline.api.process import BatchContext, Context, KeyedBatchProcess, KeyedProcess, Timer
from strandline.api.states import Aggregating, List, Map, Reducing, Value
from strandline.api.ttl import TTL
from strandline.api.windows import Global, Session, Sliding, Tumbling, Window
from strandline.core import errors
from strandline.core.settings import Settings

if TYPE_CHECKING:
    from strandline.spark import sinks
    from strandline.spark.filesource import files_source
    from strandline.spark.job import Job
    from strandline.spark.run import Run
    from strandline.spark.session import session, spark_settings
    from strandline.spark.status import Status
    from strandline.spark.stream import KeyedStream, Stream, stream
    from strandline.spark.windows import WindowedStream

__version__ = "0.1.0"

# Sorted as dir() does it.
__all__ = [  # noqa: RUF022
    "Aggregating",
    "BatchContext",
    "Broadcast",
    "Checkpoints",
    "Context",
    "Global",
    "Job",
    "KeyedBatchProcess",
    "KeyedBroadcastProcess",
    "KeyedCoProcess",
    "KeyedProcess",
    "KeyedStream",
    "List",
    "Map",
    "Reducing",
    "Restart",
    "Run",
    "Session",
    "Settings",
    "Sliding",
    "Status",
    "Stream",
    "TTL",
    "Timer",
    "Tumbling",
    "Value",
    "Window",
    "WindowedStream",
    "agg",
    "errors",
    "files_source",
    "session",
    "sinks",
    "spark_settings",
    "stream",
]

_LAZY = {
    "Job": "strandline.spark.job",
    "KeyedStream": "strandline.spark.stream",
    "Run": "strandline.spark.run",
    "Status": "strandline.spark.status",
    "Stream": "strandline.spark.stream",
    "WindowedStream": "strandline.spark.windows",
    "files_source": "strandline.spark.filesource",
    "session": "strandline.spark.session",
    "sinks": "strandline.spark.sinks",
    "spark_settings": "strandline.spark.session",
    "stream": "strandline.spark.stream",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'strandline' has no attribute '{name}'")
    module = importlib.import_module(_LAZY[name])
    value = module if name == "sinks" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
