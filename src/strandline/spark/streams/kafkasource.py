"""Reads Kafka topics as streaming DataFrames, with Spark's connector."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

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
"""Modules that Maven Central does not have for a release of Spark, with the last version that it has."""
_SERVERS = re.compile(r"[^\s,]+:\d+(,[^\s,]+:\d+)*")
_EXCLUDED = (
    "org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime", "org.slf4j:slf4j-api",
    "com.google.code.findbugs:jsr305", "org.xerial.snappy:snappy-java", "org.scala-lang:scala-library",
)  # fmt: skip
"""Dependencies of the connector that Spark already has: 60 MB less to download."""


def session_settings(*, avro: bool = False, version: str | None = None) -> dict[str, str]:
    """Return the settings of a session with Spark's connector for Kafka and, with `avro`, with from_avro.

    Spark downloads it from Maven Central when the session is created, and caches it. `version` is the connector's
    version, by default that of the installed Spark.

    >>> spark = session("payments", **kafka.session_settings())
    """
    installed = pyspark.__version__
    versions = {
        module: version or _NOT_PUBLISHED.get((module, installed), installed)
        for module in (_KAFKA, *([_AVRO] if avro else []))
    }
    return {
        "spark.jars.packages": ",".join(
            f"org.apache.spark:{name}_{_SCALA}:{number}" for name, number in versions.items()
        ),
        "spark.jars.excludes": ",".join(_EXCLUDED),
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
    """Return topics, by name or by a pattern, as a streaming DataFrame.

    Its columns are key and value (binary), topic, partition, offset, timestamp, timestampType, and headers. A new job
    starts at `starting`: "earliest", "latest", or offsets in Spark's format; later starts use its checkpoints. With
    `commit_to`, each checkpoint commits its offsets for that consumer group, for tools that monitor lag. `options` are
    Spark's; those that begin with "kafka." are the client's.

    Rows of a transaction are read after its commit, and never if it is aborted. A partition is read up to the first row
    of an open transaction. With `options={"kafka.isolation.level": "read_uncommitted"}`, all rows are read at once,
    also those of aborted transactions.

    >>> payments = stream(kafka.read(spark, "one:9092", "payments"), name="payments")
    """
    selection = _selection(servers, topics)
    if max_rows_per_epoch is not None and (not isinstance(max_rows_per_epoch, int) or max_rows_per_epoch < 1):
        raise ConfigurationError(
            f"kafka.read(): max_rows_per_epoch is {max_rows_per_epoch!r:.200}, expected 1 or more",
            hint="write it like max_rows_per_epoch=100_000, or leave it out: an epoch then has all available rows",
        )
    if not isinstance(starting, str) or not (starting in ("earliest", "latest") or starting.lstrip().startswith("{")):
        raise ConfigurationError(
            f"kafka.read(): starting is {starting!r:.200}, expected 'earliest', 'latest', or offsets",
            hint='offsets are JSON in Spark\'s format: \'{"payments": {"0": 1200, "1": -2}}\'',
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
    settings = {
        "kafka.bootstrap.servers": servers,
        **selection,
        "startingOffsets": starting,
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        **({"maxOffsetsPerTrigger": str(max_rows_per_epoch)} if max_rows_per_epoch else {}),
        **({COMMIT_GROUP: commit_to} if commit_to else {}),
        **(options or {}),
    }
    with _missing_connector(servers), suppress_error_logs():
        return spark.readStream.format("kafka").options(**settings).load()


def read_present(
    spark: SparkSession,
    servers: str,
    topics: str | Sequence[str] | re.Pattern[str],
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the rows that topics have now, with the columns of `read`."""
    settings = {
        "kafka.bootstrap.servers": servers,
        **_selection(servers, topics),
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        **(options or {}),
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
    }
    with _missing_connector(servers), suppress_error_logs():
        return spark.read.format("kafka").options(**settings).load()


@contextlib.contextmanager
def _missing_connector(servers: str) -> Iterator[None]:
    """Raise ConfigurationError with the next step if Spark cannot read Kafka."""
    try:
        yield
    except PySparkException as error:
        if "kafka" in (reason := first_line(error)) and "Failed to find" in reason:
            raise ConfigurationError(
                "kafka.read(): the session lacks Spark's connector for Kafka",
                hint="create it with the connector's settings: sl.session('…', **sl.kafka.session_settings())",
            ) from None
        raise ConfigurationError(f"kafka.read() cannot read {servers}: {reason}") from None


def _selection(servers: str, topics: str | Sequence[str] | re.Pattern[str]) -> dict[str, str]:
    """Check addresses and topics; return Spark's options that select the topics."""
    if not isinstance(servers, str) or not _SERVERS.fullmatch(servers):
        raise ConfigurationError(
            f"kafka.read(): servers is {servers!r:.200}, expected addresses with ports, as 'one:9092,two:9092'",
            hint="write it like kafka.read(spark, 'one:9092', 'payments')",
        )
    if isinstance(topics, re.Pattern):
        return {"subscribePattern": topics.pattern}
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
    return {"subscribe": ",".join(names)}
