"""Which DataFrames are refused as a job's source before anything starts, each with what to do instead.

A job may read those sources that give the same rows again after a restart. Spark tells a source that a batch is done
when it plans the next one, whether a checkpoint covers it or not. A source that deletes or acknowledges what it is told
of has lost what a restore must read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame

from strandline.core.errors import ConfigurationError
from strandline.spark.base.plans import find_cross_row_operation
from strandline.spark.base.session import check_session

_CLEANING_OPTIONS = ("cleansource", "cloudfiles.cleansource")
_QUEUE = "read a source that keeps its rows and has offsets (Kafka, files, a table), and have the queue copied into it"


@dataclass(frozen=True)
class Relation:
    """A source as it stands in a DataFrame's plan. Names of options are in lower case."""

    provider: str
    """As in format("…"), or the name of a table."""
    implementation: str
    """The class behind it."""
    is_files: bool = False
    """Whether Spark's own file source reads it, whatever the format."""
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Known:
    """Connectors that cannot be rewound: short names, how their classes begin, and why."""

    names: tuple[str, ...]
    classes: tuple[str, ...]
    reason: str
    hint: str = _QUEUE

    def is_it(self, relation: Relation) -> bool:
        return relation.provider.lower() in self.names or relation.implementation.startswith(self.classes)


_REFUSED = (
    _Known(
        ("socket", "textsocket"),
        ("org.apache.spark.sql.execution.streaming.sources.TextSocket",),
        "a socket's rows cannot be read a second time: those since the last checkpoint would be lost at every restart",
        "write the rows to files or a queue that keeps them, and read those",
    ),
    _Known(
        ("pulsar",),
        ("org.apache.spark.sql.pulsar.",),
        "the Pulsar connector acknowledges rows as soon as Spark has planned them, and removes its cursor when a query "
        "stops: the broker may delete what a restart must read again",
    ),
    _Known(
        ("pubsub", "google-pubsub", "gcp-pubsub"),
        ("com.google.cloud.spark.pubsub.", "org.apache.spark.sql.connector.pubsub."),
        "Pub/Sub has no offsets, and its connectors acknowledge messages before a checkpoint covers them",
    ),
    _Known(
        ("mqtt", "hdfs-mqtt"),
        ("org.apache.bahir.sql.streaming.mqtt.", "org.apache.spark.sql.mqtt."),
        "an MQTT client acknowledges messages when they arrive, long before a checkpoint covers them",
    ),
    _Known(
        ("s3-sqs", "sqs"),
        ("org.apache.spark.sql.streaming.sqs.",),
        "the SQS connector deletes messages when Spark plans a batch: files since the last checkpoint would be lost",
        "read the directory itself: strandline.files_source(…)",
    ),
    _Known(
        ("redis",),
        ("org.apache.spark.sql.redis.",),
        "the Redis connector acknowledges entries before a checkpoint covers them",
    ),
)
KAFKA = "org.apache.spark.sql.kafka010."
"""How the classes of Spark's connector for Kafka begin."""
_TOPICS = ("subscribe", "subscribepattern", "assign")
_SAFE = (
    "org.apache.spark.sql.execution.streaming.",  # rate, and what tests keep in the JVM's memory
    KAFKA,
    "org.apache.spark.sql.delta.",
    "io.delta.",
    "org.apache.iceberg.",
    "org.apache.spark.sql.eventhubs.",
)
_known: WeakKeyDictionary[DataFrame, list[Relation | None]] = WeakKeyDictionary()
"""What a DataFrame reads: it stays the same, and a job's start asks for it five times."""
_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]*:")
_PYTHON = "org.apache.spark.sql.execution.datasources.v2.python."


def check_source(df: Any) -> None:
    """Refuse DataFrames that cannot be a job's source."""
    if type(df).__module__.startswith("pyspark.sql.connect"):
        check_session(df.sparkSession)
    if not isinstance(df, DataFrame):
        raise ConfigurationError(f"stream() was given {df!r}, expected a Structured Streaming DataFrame")
    if not df.isStreaming:
        raise ConfigurationError(
            "stream() was given a batch DataFrame, expected a streaming one",
            hint="read it with spark.readStream instead of spark.read",
        )
    if found := find_cross_row_operation(df):
        raise ConfigurationError(
            f"stream() was given a DataFrame that holds {found.name}: what Spark keeps for it would not be in the "
            "job's checkpoints, and be lost at the first restart",
            hint=found.hint,
        )
    for relation in relations_of(df):
        check_relation(relation)
        if relation.is_files:
            _check_file_names(df, relation.options.get("path", ""))


def check_source_name(name: object) -> str:
    """Return the name that a source was given, or nothing."""
    if name is None:
        return ""
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        raise ConfigurationError(
            f"stream() was given name={name!r}, expected letters, digits, '_', '-' and '.'",
            hint='name what it brings, for the life of the job: name="payments"',
        )
    return name


def relations_of(df: DataFrame) -> list[Relation]:
    """Return the sources that a DataFrame reads, as far as its plan names them."""
    return list(filter(None, numbered_relations(df)))


def numbered_relations(df: DataFrame) -> list[Relation | None]:
    """Return the sources by Spark's numbers; None for one that its plan does not name."""
    if df not in _known:
        _known[df] = [_relation(leaf) for leaf in leaves_of(df)]
    return list(_known[df])


def leaves_of(df: DataFrame) -> Iterator[Any]:
    """Return the streaming leaves of a DataFrame's plan in the order in which Spark numbers its sources.

    One that stands in the plan twice is one source of Spark's, and given once.
    """
    leaves = df._jdf.queryExecution().analyzed().collectLeaves().distinct()
    return (leaf for at in range(leaves.size()) if (leaf := leaves.apply(at)).isStreaming())


def source_of_leaf(leaf: Any) -> Any:
    """Return what a streaming leaf reads: equal for two that read the same DataFrame's source."""
    kind = leaf.nodeName()
    return leaf.dataSource() if kind == "StreamingRelation" else leaf.table() if kind == "StreamingRelationV2" else leaf


def source_numbers(df: DataFrame) -> list[int]:
    """Return Spark's number of the source at each place in the plan where one stands."""
    distinct = list(leaves_of(df))
    leaves = df._jdf.queryExecution().analyzed().collectLeaves()
    streaming = (leaf for at in range(leaves.size()) if (leaf := leaves.apply(at)).isStreaming())
    return [next(at for at, one in enumerate(distinct) if one.equals(leaf)) for leaf in streaming]


def check_relation(relation: Relation) -> None:
    """Refuse a source that could not be read again after a restart."""
    for option in _CLEANING_OPTIONS:
        cleaning = relation.options.get(option, "off")
        if cleaning.lower() != "off":
            raise ConfigurationError(
                f"the {relation.provider} source has the option cleanSource={cleaning}: Spark takes files away when it "
                "plans the batch after theirs, before a checkpoint covers them, and a restart would not find them",
                hint='leave cleanSource out; strandline.files_source(…, clean="delete" or "archive") takes files away '
                "once no checkpoint can need them",
            )
    for known in _REFUSED:
        if known.is_it(relation):
            raise ConfigurationError(
                f"the source '{relation.provider}' cannot be rewound to a checkpoint: {known.reason}", hint=known.hint
            )


def _check_file_names(df: DataFrame, path: str) -> None:
    """Refuse local files where Java has ASCII names only: Spark lists a directory without the files of other names."""
    session: Any = df.sparkSession
    encoding = str(session._jvm.java.lang.System.getProperty("sun.jnu.encoding"))
    if encoding not in ("ANSI_X3.4-1968", "US-ASCII"):
        return
    default = session._jsc.hadoopConfiguration().get("fs.defaultFS") or "file:"
    if (path if _SCHEME.match(path) else default).startswith("file:"):
        raise ConfigurationError(
            f"the source reads {path or 'files'}, and this JVM's locale has ASCII file names only ({encoding}): Spark "
            "would pass over each file whose name has any other character",
            hint="start the program in a locale with UTF-8, as with LC_ALL=C.UTF-8 in its environment",
        )


def source_warnings(relations: Iterable[Relation]) -> list[str]:
    """Return what users should make sure of about sources that nothing is known of, each said once."""
    found = [_warning(relation) for relation in relations if not relation.is_files]
    return list(dict.fromkeys(filter(None, found)))


def _warning(relation: Relation) -> str:
    if relation.implementation.startswith(KAFKA) and "kafka.isolation.level" not in relation.options:
        topics = next((value for name, value in relation.options.items() if name in _TOPICS), "")
        return (
            f"the source of Kafka '{topics}' has no kafka.isolation.level: it also reads rows of transactions that are "
            "aborted, and counts what their writers write again twice. Set option('kafka.isolation.level', "
            "'read_committed'), as sl.kafka.read does, or 'read_uncommitted' if every row is to count"
        )
    if relation.implementation.startswith(_PYTHON):
        return (
            f"the source '{relation.provider}' is written in Python: Spark calls commit(end) of its reader before a "
            "checkpoint covers the rows. Make sure that it deletes and acknowledges nothing, and that read() gives the "
            "same rows again for the same offsets, also in another process"
        )
    if relation.implementation.startswith(_SAFE):
        return ""
    return (
        f"Strandline does not know the source '{relation.provider}' ({relation.implementation}). Make sure that its "
        "commit() deletes and acknowledges nothing, and that it gives the same rows again for the same offsets: Spark "
        "calls commit() before a checkpoint covers the rows"
    )


def _relation(leaf: Any) -> Relation | None:
    kind = leaf.nodeName()
    if kind == "StreamingRelation":
        source = leaf.dataSource()
        pairs = source.options().toList()
        options = {(pair := pairs.apply(at))._1().lower(): pair._2() for at in range(pairs.size())}
        is_files = leaf.sourceName().startswith("FileSource[")
        return Relation(source.className(), source.providingClass().getName(), is_files, options)
    if kind == "StreamingRelationV2":
        given = leaf.extraOptions().asCaseSensitiveMap()
        # Where Python goes through a map of Java's, its end is an exception, of which PySpark makes one of its own, in
        # sixty calls.
        options = {name.lower(): given[name] for name in list(given.keySet().toArray())}
        return Relation(leaf.sourceName(), leaf.table().getClass().getName(), options=options)
    # What Scala programs make for tests: MemoryStream.
    return None
