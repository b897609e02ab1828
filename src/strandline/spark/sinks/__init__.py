"""Sinks: where results go, and when they become visible.

`files` and `memory` show results exactly once, with the checkpoint that holds them. All others, and `files` with
`visibility="epoch"`, show them at once: at least once, because epochs after the last checkpoint are repeated after a
failure. Your own derive from `Sink`, may write on the executors with `write_tasks`, and are put on trial by
`strandline.spark.sinks.conformance`.
"""

from strandline.spark.sinks.base import Committables, Sink, SinkContext
from strandline.spark.sinks.deliver import DeliverSink
from strandline.spark.sinks.files import FileSink
from strandline.spark.sinks.simple import ConsoleSink, ForeachBatchSink, ForeachSink, MemorySink, NoopSink
from strandline.spark.sinks.target import Connection, Rows, Target, Writer
from strandline.spark.sinks.tasks import TaskAttempt, write_tasks
from strandline.spark.sinks.transactional import Transactional

console = ConsoleSink
deliver = DeliverSink
files = FileSink
foreach = ForeachSink
foreach_batch = ForeachBatchSink
memory = MemorySink
noop = NoopSink

__all__ = [
    "Committables",
    "Connection",
    "Rows",
    "Sink",
    "SinkContext",
    "Target",
    "TaskAttempt",
    "Transactional",
    "Writer",
    "console",
    "deliver",
    "files",
    "foreach",
    "foreach_batch",
    "memory",
    "noop",
    "write_tasks",
]
