"""Strandline: Flink-grade keyed state for PySpark.

Names that need Spark are imported when they are first used, so that processes which only run user functions stay small.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from strandline.api import aggregates as agg
from strandline.api.badrecords import OnError
from strandline.api.config import Changelog, Checkpoints, Continuous, KafkaLog, Restart
from strandline.api.joins import Broadcast, KeyedBroadcastProcess, KeyedCoProcess
from strandline.api.options import OperatorOptions
from strandline.api.process import BatchContext, Context, KeyedBatchProcess, KeyedProcess, Timer
from strandline.api.retries import Retry
from strandline.api.states import TTL, Aggregating, List, Map, Reducing, Value
from strandline.api.telemetry import Telemetry
from strandline.api.uids import uid
from strandline.api.windows import Early, Global, Session, Sliding, Tumbling, Window
from strandline.core import errors
from strandline.core.settings import FollowExecutors, Settings
from strandline.core.version import VERSION

if TYPE_CHECKING:
    from strandline import kafka, state
    from strandline.control.status import Status
    from strandline.spark import sinks
    from strandline.spark.base.session import session, spark_settings
    from strandline.spark.job.job import Job
    from strandline.spark.job.run import Run
    from strandline.spark.streams.filesource import files_source
    from strandline.spark.streams.stream import KeyedStream, Stream, WindowedStream, stream
    from strandline.spark.views.tables import Table, table
    from strandline.spark.views.view import View, sql

__version__ = VERSION

# Sorted as dir() does it.
__all__ = [  # noqa: RUF022
    "Aggregating",
    "BatchContext",
    "Broadcast",
    "Changelog",
    "Checkpoints",
    "Context",
    "Continuous",
    "Early",
    "FollowExecutors",
    "Global",
    "Job",
    "KafkaLog",
    "KeyedBatchProcess",
    "KeyedBroadcastProcess",
    "KeyedCoProcess",
    "KeyedProcess",
    "KeyedStream",
    "List",
    "Map",
    "OnError",
    "OperatorOptions",
    "Reducing",
    "Restart",
    "Retry",
    "Run",
    "Session",
    "Settings",
    "Sliding",
    "Status",
    "Stream",
    "TTL",
    "Table",
    "Telemetry",
    "Timer",
    "Tumbling",
    "Value",
    "View",
    "Window",
    "WindowedStream",
    "agg",
    "errors",
    "files_source",
    "kafka",
    "session",
    "sinks",
    "spark_settings",
    "sql",
    "state",
    "stream",
    "table",
    "uid",
]

_LAZY = {
    "Job": "strandline.spark.job.job",
    "KeyedStream": "strandline.spark.streams.stream",
    "Run": "strandline.spark.job.run",
    "Status": "strandline.control.status",
    "Stream": "strandline.spark.streams.stream",
    "Table": "strandline.spark.views.tables",
    "View": "strandline.spark.views.view",
    "WindowedStream": "strandline.spark.streams.stream",
    "files_source": "strandline.spark.streams.filesource",
    "kafka": "strandline.kafka",
    "session": "strandline.spark.base.session",
    "sinks": "strandline.spark.sinks",
    "spark_settings": "strandline.spark.base.session",
    "sql": "strandline.spark.views.view",
    "state": "strandline.state",
    "stream": "strandline.spark.streams.stream",
    "table": "strandline.spark.views.tables",
}
_MODULES = ("kafka", "sinks", "state")


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'strandline' has no attribute '{name}'{_meant(name)}", name=name)
    module = importlib.import_module(_LAZY[name])
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def _meant(name: str) -> str:
    """Return which name is meant, if there is one like it; of Flink's and Spark's too."""
    if name.startswith("_"):
        return ""
    import difflib

    plain = (
        name.removesuffix("Function").removesuffix("Descriptor").removesuffix("State").removesuffix("EventTimeWindows")
    )
    similar = [plain] if plain in __all__ else difflib.get_close_matches(plain, __all__, 1)
    return f": did you mean '{similar[0]}'?" if similar else ""


def __dir__() -> list[str]:
    return sorted(__all__)
