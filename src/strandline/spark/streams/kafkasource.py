"""Topics of Kafka as streaming DataFrames, by Spark's own connector."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from strandline.core.errors import ConfigurationError
from strandline.spark.base.ddl import first_line
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.base.session import check_session
from strandline.spark.sources.kafka import COMMIT_GROUP

_SCALA = "2.13"
_KAFKA, _AVRO = "spark-sql-kafka-0-10", "spark-avro"
_NOT_PUBLISHED = {(_KAFKA, "4.3.0"): "4.2.0", (_AVRO, "4.3.0"): "4.1.1", (_AVRO, "4.2.0"): "4.1.1"}
"""What is not in Maven's central repository for a release of Spark, and the newest before it that is."""
_SERVERS = re.compile(r"[^\s,]+:\d+(,[^\s,]+:\d+)*")
_THERE = (
    "org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime", "org.slf4j:slf4j-api",
    "com.google.code.findbugs:jsr305", "org.xerial.snappy:snappy-java", "org.scala-lang:scala-library",
)  # fmt: skip
"""What the connector names and Spark has itself: 60 MB that need not be fetched."""


def session_settings(*, avro: bool = False, version: str | None = None) -> dict[str, str]:
    """Return the settings with which a session has Spark's connector for Kafka; with `avro`, from_avro, too.

    Spark fetches it from Maven's central repository when the session is made, and keeps it. `version` is the
    connector's, if it shall be another than that of the Spark that is installed.

    >>> spark = session("payments", **kafka.session_settings())
    """
    own = pyspark.__version__
    found = {
        module: version or _NOT_PUBLISHED.get((module, own), own) for module in (_KAFKA, *([_AVRO] if avro else []))
    }
    return {
        "spark.jars.packages": ",".join(f"org.apache.spark:{module}_{_SCALA}:{at}" for module, at in found.items()),
        "spark.jars.excludes": ",".join(_THERE),
    }


def read(
    spark: SparkSession,
    servers: str,
    topics: str | Sequence[str] | re.Pattern[str],
    *,
    starting: str = "earliest",
    commit_to: str | None = None,
    max_rows_per_epoch: int | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return topics, named or by a pattern, as a streaming DataFrame.

    Its columns: key and value (binary), topic, partition, offset, timestamp, timestampType, and headers. `starting` is
    where the job's life begins: "earliest", "latest", or offsets as Spark takes them; from then on, its checkpoints
    say. With `commit_to`, each checkpoint commits how far it came as the offsets of that group, for tools that watch
    lag. `options` are Spark's; those that begin with "kafka." are the client's.

    Rows of transactions are read when these are committed, and those of aborted ones never. A partition is read up to
    the first row of a transaction that is still open. With `options={"kafka.isolation.level": "read_uncommitted"}`
    all rows are read at once, those of aborted transactions too.

    >>> payments = stream(kafka.read(spark, "one:9092", "payments"), name="payments")
    """
    if not isinstance(servers, str) or not _SERVERS.fullmatch(servers):
        raise ConfigurationError(
            f"kafka.read(): servers is {servers!r:.200}, expected addresses with ports, as 'one:9092,two:9092'",
            hint="write it like kafka.read(spark, 'one:9092', 'payments')",
        )
    if isinstance(topics, re.Pattern):
        which = {"subscribePattern": topics.pattern}
    else:
        names = [topics] if isinstance(topics, str) else topics
        if (
            not isinstance(names, list | tuple)
            or not names
            or not all(isinstance(name, str) and re.fullmatch(r"[\w.-]+", name) for name in names)
        ):
            raise ConfigurationError(
                f"kafka.read(): topics is {topics!r:.200}, expected a name, several, or a pattern: re.compile('…')",
                hint="write it like 'payments' or ['payments', 'refunds']",
            )
        which = {"subscribe": ",".join(names)}
    if max_rows_per_epoch is not None and (not isinstance(max_rows_per_epoch, int) or max_rows_per_epoch < 1):
        raise ConfigurationError(
            f"kafka.read(): max_rows_per_epoch is {max_rows_per_epoch!r:.200}, expected 1 or more",
            hint="write it like max_rows_per_epoch=100_000, or leave it out: an epoch then has all that is there",
        )
    if not isinstance(starting, str) or not (starting in ("earliest", "latest") or starting.lstrip().startswith("{")):
        raise ConfigurationError(
            f"kafka.read(): starting is {starting!r:.200}, expected 'earliest', 'latest', or offsets",
            hint='offsets are JSON, as Spark has them: \'{"payments": {"0": 1200, "1": -2}}\'',
        )
    if commit_to is not None and (not isinstance(commit_to, str) or not commit_to.strip()):
        raise ConfigurationError(
            f"kafka.read(): commit_to is {commit_to!r:.200}, expected the name of a group",
            hint="write it like commit_to='fraud', or leave it out: then no offsets are committed",
        )
    if options is not None and not isinstance(options, Mapping):
        raise ConfigurationError(
            f"kafka.read(): options is of type {type(options).__name__}, expected a dict",
            hint='write it like options={"kafka.security.protocol": "SASL_SSL", …}',
        )
    check_session(spark, "kafka.read()")
    given = {
        "kafka.bootstrap.servers": servers,
        **which,
        "startingOffsets": starting,
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        **({"maxOffsetsPerTrigger": str(max_rows_per_epoch)} if max_rows_per_epoch else {}),
        **({COMMIT_GROUP: commit_to} if commit_to else {}),
        **(options or {}),
    }
    try:
        with suppress_error_logs():
            return spark.readStream.format("kafka").options(**given).load()
    except PySparkException as error:
        if "kafka" in (said := first_line(error)) and "Failed to find" in said:
            raise ConfigurationError(
                "kafka.read(): the session lacks Spark's connector for Kafka",
                hint="make it with the connector's settings: sl.session('…', **sl.kafka.session_settings())",
            ) from None
        raise ConfigurationError(f"kafka.read() cannot read {servers}: {said}") from None
