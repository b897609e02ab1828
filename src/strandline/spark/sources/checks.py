"""Checks of DataFrames as sources of a job, before anything starts.

A source must return the same rows again after a restart. Spark calls commit() of a source for a batch when it plans the
next one, whether or not a checkpoint covers the batch. If commit() deletes or acknowledges rows, a restore cannot read
them again.
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
_QUEUE = "read a source that keeps its rows and has offsets (Kafka, files, a table), and copy the queue into it"


@dataclass(frozen=True)
class Relation:
    """A source in a DataFrame's plan. Names of options are in lower case."""

    provider: str
    """The argument of format("…"), or the name of a table."""
    implementation: str
    """Its class."""
    is_files: bool = False
    """Whether it is Spark's file source, with any format."""
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Refusal:
    """A connector that cannot be rewound: its short names, prefixes of its classes, and the reason."""

    names: tuple[str, ...]
    classes: tuple[str, ...]
    reason: str
    hint: str = _QUEUE

    def matches(self, relation: Relation) -> bool:
        return relation.provider.lower() in self.names or relation.implementation.startswith(self.classes)


_REFUSALS = (
    _Refusal(
        ("socket", "textsocket"),
        ("org.apache.spark.sql.execution.streaming.sources.TextSocket",),
        "a socket's rows cannot be read a second time: those since the last checkpoint would be lost at every restart",
        "write the rows to files or a queue that keeps them, and read those",
    ),
    _Refusal(
        ("pulsar",),
        ("org.apache.spark.sql.pulsar.",),
        "the Pulsar connector acknowledges rows as soon as Spark has planned them, and removes its cursor when a query "
        "stops: the broker may delete what a restart must read again",
    ),
    _Refusal(
        ("pubsub", "google-pubsub", "gcp-pubsub"),
        ("com.google.cloud.spark.pubsub.", "org.apache.spark.sql.connector.pubsub."),
        "Pub/Sub has no offsets, and its connectors acknowledge messages before a checkpoint covers them",
    ),
)
KAFKA = "org.apache.spark.sql.kafka010."
"""The prefix of the classes of Spark's connector for Kafka."""
DELTA = ("org.apache.spark.sql.delta.", "io.delta.")
"""The prefixes of the classes of Delta's connector."""
_TOPICS = ("subscribe", "subscribepattern", "assign")
_SAFE = (
    "org.apache.spark.sql.execution.streaming.",  # rate, and MemoryStream in tests
    KAFKA,
    *DELTA,
    "org.apache.iceberg.",
    "org.apache.spark.sql.eventhubs.",
)
_relations: WeakKeyDictionary[DataFrame, list[Relation | None]] = WeakKeyDictionary()
"""The sources of a DataFrame, which do not change: a job's start needs them five times."""
_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]*:")
_PYTHON = "org.apache.spark.sql.execution.datasources.v2.python."


def check_source(df: Any) -> None:
    """Raise ConfigurationError for a DataFrame that cannot be a job's source."""
    if type(df).__module__.startswith("pyspark.sql.connect"):
        check_session(df.sparkSession)
    if not isinstance(df, DataFrame):
        raise ConfigurationError(f"stream() was given {df!r}, expected a Structured Streaming DataFrame")
    if not df.isStreaming:
        raise ConfigurationError(
            "stream() was given a batch DataFrame, expected a streaming one",
            hint="read it with spark.readStream instead of spark.read",
        )
    if operation := find_cross_row_operation(df):
        raise ConfigurationError(
            f"stream() was given a DataFrame with {operation.name}: its state would not be in the job's checkpoints, "
            "and be lost at the first restart",
            hint=operation.hint,
        )
    for relation in relations_of(df):
        check_relation(relation)
        if relation.is_files:
            _check_file_names(df, relation.options.get("path", ""))


def check_source_name(name: object) -> str:
    """Check the name of a source, and return it, "" for None."""
    if name is None:
        return ""
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        raise ConfigurationError(
            f"stream() was given name={name!r}, expected letters, digits, '_', '-' and '.'",
            hint='choose a name that never changes, for its content: name="payments"',
        )
    return name


def relations_of(df: DataFrame) -> list[Relation]:
    """Return the sources that a DataFrame's plan names."""
    return list(filter(None, numbered_relations(df)))


def numbered_relations(df: DataFrame) -> list[Relation | None]:
    """Return the sources in the order of Spark's numbers; None for a source that the plan does not name."""
    if df not in _relations:
        _relations[df] = [_relation(leaf) for leaf in leaves_of(df)]
    return list(_relations[df])


def leaves_of(df: DataFrame) -> Iterator[Any]:
    """Return the streaming leaves of a DataFrame's plan in the order in which Spark numbers its sources.

    A leaf that is in the plan twice is one source, and returned once.
    """
    leaves = df._jdf.queryExecution().analyzed().collectLeaves().distinct()
    return (leaf for at in range(leaves.size()) if (leaf := leaves.apply(at)).isStreaming())


def source_of_leaf(leaf: Any) -> Any:
    """Return the source of a streaming leaf, equal for two leaves of the same DataFrame's source."""
    kind = leaf.nodeName()
    return leaf.dataSource() if kind == "StreamingRelation" else leaf.table() if kind == "StreamingRelationV2" else leaf


def source_numbers(df: DataFrame) -> list[int]:
    """Return Spark's number of the source of each streaming leaf, in the order of the plan."""
    distinct = list(leaves_of(df))
    leaves = df._jdf.queryExecution().analyzed().collectLeaves()
    streaming = (leaf for at in range(leaves.size()) if (leaf := leaves.apply(at)).isStreaming())
    return [next(at for at, each in enumerate(distinct) if each.equals(leaf)) for leaf in streaming]


def check_relation(relation: Relation) -> None:
    """Raise ConfigurationError for a source that cannot be read again after a restart."""
    for option in _CLEANING_OPTIONS:
        cleaning = relation.options.get(option, "off")
        if cleaning.lower() != "off":
            raise ConfigurationError(
                f"the {relation.provider} source has the option cleanSource={cleaning}: Spark removes files when it "
                "plans the next batch, before a checkpoint covers them, and a restart would not find them",
                hint='leave cleanSource out; strandline.files_source(…, clean="delete" or "archive") removes files '
                "once no checkpoint can need them",
            )
    if relation.implementation.startswith(DELTA) and relation.options.get("startingversion", "").lower() == "latest":
        raise ConfigurationError(
            f"the Delta source '{relation.provider}' has startingVersion=latest: Delta does not store which version "
            "that was, and a restart from a checkpoint before the first rows would leave out rows",
            hint="give the number of a version that exists, as DESCRIBE HISTORY shows it: its rows are read, too",
        )
    for refusal in _REFUSALS:
        if refusal.matches(relation):
            raise ConfigurationError(
                f"the source '{relation.provider}' cannot be rewound to a checkpoint: {refusal.reason}",
                hint=refusal.hint,
            )


def _check_file_names(df: DataFrame, path: str) -> None:
    """Raise ConfigurationError for local files if Java supports only ASCII names: Spark ignores all other files."""
    session: Any = df.sparkSession
    encoding = str(session._jvm.java.lang.System.getProperty("sun.jnu.encoding"))
    if encoding not in ("ANSI_X3.4-1968", "US-ASCII"):
        return
    default = session._jsc.hadoopConfiguration().get("fs.defaultFS") or "file:"
    if (path if _SCHEME.match(path) else default).startswith("file:"):
        raise ConfigurationError(
            f"the source reads {path or 'files'}, and this JVM's locale supports only ASCII file names ({encoding}): "
            "Spark would ignore each file whose name has another character",
            hint="start the program in a UTF-8 locale, as with LC_ALL=C.UTF-8 in its environment",
        )


def source_warnings(relations: Iterable[Relation]) -> list[str]:
    """Return the distinct warnings about sources for which users must check that rows can be read again."""
    warnings = [_warning(relation) for relation in relations if not relation.is_files]
    return list(dict.fromkeys(filter(None, warnings)))


def _warning(relation: Relation) -> str:
    if relation.implementation.startswith(KAFKA) and "kafka.isolation.level" not in relation.options:
        topics = next((value for name, value in relation.options.items() if name in _TOPICS), "")
        return (
            f"the Kafka source '{topics}' has no kafka.isolation.level: it also reads rows of aborted transactions, "
            "and so counts rows twice that their writers write again. Set option('kafka.isolation.level', "
            "'read_committed'), as sl.kafka.read does, or 'read_uncommitted' if every row should count"
        )
    if relation.implementation.startswith(_PYTHON):
        return (
            f"the source '{relation.provider}' is written in Python: Spark calls commit(end) of its reader before a "
            "checkpoint covers the rows. Make sure that it deletes and acknowledges nothing, and that read() returns "
            "the same rows again for the same offsets, also in another process"
        )
    if relation.implementation.startswith(_SAFE):
        return ""
    return (
        f"Strandline does not know the source '{relation.provider}' ({relation.implementation}). Make sure that its "
        "commit() deletes and acknowledges nothing, and that it returns the same rows again for the same offsets: "
        "Spark calls commit() before a checkpoint covers the rows"
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
        extra = leaf.extraOptions().asCaseSensitiveMap()
        # Not by Python's iteration over a Java map, which ends with an exception that costs sixty calls of the JVM.
        options = {name.lower(): extra[name] for name in list(extra.keySet().toArray())}
        return Relation(leaf.sourceName(), leaf.table().getClass().getName(), options=options)
    # MemoryStream, in tests of Scala programs.
    return None
