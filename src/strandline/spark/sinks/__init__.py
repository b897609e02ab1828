"""Sinks: the destinations of results, and when results become visible there.

`files`, `memory`, and `postgres` and `sqlite` for tables of databases, show results exactly once, with the checkpoint
that holds them. All others, and `files` with `visibility="epoch"`, show them at least once, because epochs after the
last checkpoint are repeated after a failure. Other sinks derive from `Sink`, may write on the executors with
`write_tasks`, and are tested by `strandline.testing.sinks.conformance`.
"""

from typing import TYPE_CHECKING, Any

from strandline.ends.committables import TaskAttempt
from strandline.ends.target import Connection, Rows, Target, Writer
from strandline.spark.sinks.base import Committables, Sink, SinkContext
from strandline.spark.sinks.databases import postgres, sqlite
from strandline.spark.sinks.deliver import DeliverSink
from strandline.spark.sinks.files import FileSink
from strandline.spark.sinks.kafkasink import kafka
from strandline.spark.sinks.simple import ConsoleSink, ForeachBatchSink, ForeachSink, MemorySink, NoopSink
from strandline.spark.sinks.tables.delta import DeltaSink
from strandline.spark.sinks.tables.iceberg import IcebergSink
from strandline.spark.sinks.tasks import write_tasks
from strandline.spark.sinks.transactional import Transactional

console = ConsoleSink
delta = DeltaSink
deliver = DeliverSink
files = FileSink
foreach = ForeachSink
foreach_batch = ForeachBatchSink
iceberg = IcebergSink
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
    "delta",
    "files",
    "foreach",
    "foreach_batch",
    "iceberg",
    "kafka",
    "memory",
    "noop",
    "postgres",
    "sqlite",
    "write_tasks",
]

_FORMATS = ("avro", "csv", "json", "orc", "parquet", "text")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Raise AttributeError with the existing sinks, for one that does not exist."""
        existing = [known for known in __all__ if known.islower() and known != "write_tasks"]
        if name in _FORMATS:
            instead = f"write sinks.files(path, format={name!r})"
        else:
            instead = (
                f"there are {', '.join(existing)}; foreach_batch uses Spark's batch writers: "
                f"sinks.foreach_batch(lambda df, epoch: df.write.format({name!r}).mode('append').save())"
            )
        raise AttributeError(f"there is no sink {name!r}: {instead}", name=name)
