"""Where rows come from and go to: Kafka, databases, tables of files, targets of one's own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.spark.sinks import Connection, Target, Transactional, Writer
from strandline.storage.remote import open_store
from tests.mistakes.table import Mistake, Stage, mistake

BROKER = "one:9092"
DSN = "postgresql://etl:secret@127.0.0.1:1/bank"
ROWS = pa.schema([("account", pa.string()), ("cents", pa.int64()), ("parts", pa.list_(pa.int64()))])


class Results(Target):
    """A system of the user's own."""

    def claim(self, writer: Writer) -> None: ...

    def connect(self, writer: Writer, lane: int) -> Connection:
        return Connection()


class Locked(Results):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def made(
    name: str, make: Callable[[], Any], *said: str, error: type[Exception] = sl.errors.ConfigurationError
) -> Mistake:
    """Return the mistake of something that is refused when it is made."""
    return mistake(name, "declaration", lambda s: make(), *said, error=error)


def kafka(name: str, *said: str, **given: Any) -> Mistake:
    """Return the mistake of a sink of Kafka."""
    return made(name, lambda: sl.sinks.kafka(**{"servers": BROKER, "topic": "alerts", **given}), "sinks.kafka()", *said)


def read(name: str, *said: str, **given: Any) -> Mistake:
    """Return the mistake of reading Kafka."""
    whole: dict[str, Any] = {"spark": None, "servers": BROKER, "topics": "payments", **given}
    return made(name, lambda: sl.kafka.read(**whole), "kafka.read()", *said)


def postgres(name: str, *said: str, **given: Any) -> Mistake:
    """Return the mistake of a sink of PostgreSQL."""
    whole = {"dsn": DSN, "table": "balances", **given}
    return made(f"postgres: {name}", lambda: sl.sinks.postgres(**whole), "sinks.postgres()", *said)


def sqlite(name: str, *said: str, **given: Any) -> Mistake:
    """Return the mistake of a sink of SQLite."""
    whole = {"path": "bank.db", "table": "balances", **given}
    return made(f"sqlite: {name}", lambda: sl.sinks.sqlite(**whole), "sinks.sqlite()", *said)


def tried(name: str, make: Callable[[Stage], Any], *said: str) -> Mistake:
    """Return the mistake of a target that a start finds out."""

    def program(stage: Stage) -> None:
        sink = make(stage)
        stage.place = "start"
        sink.target.try_out(ROWS)

    return mistake(name, "start", program, *said)


def delta(name: str, *said: str, **given: Any) -> Mistake:
    """Return the mistake of a Delta table."""
    return made(f"delta: {name}", lambda: sl.sinks.delta(**{"url": "/tables/orders", **given}), "sinks.delta(", *said)


def iceberg(name: str, *said: str, **given: Any) -> Mistake:
    """Return the mistake of an Iceberg table."""
    whole = {"catalog": "prod", "table": "shop.orders", **given}
    return made(f"iceberg: {name}", lambda: sl.sinks.iceberg(**whole), "sinks.iceberg(", *said)


def deliver(name: str, *said: str, **given: Any) -> Mistake:
    """Return the mistake of a delivery."""
    whole = {"function": lambda rows, ids: None, **given}
    return made(f"deliver: {name}", lambda: sl.sinks.deliver(**whole), "sinks.deliver()", *said)


def transactional(name: str, *said: str, **given: Any) -> Mistake:
    """Return the mistake of a target of one's own."""
    whole = {"target": Results(), **given}
    return made(f"transactional: {name}", lambda: Transactional(**whole), "sinks.Transactional()", *said)


def without_credentials(stage: Stage) -> None:
    """Write into a bucket from a machine without credentials, whose metadata service is not there either."""
    patch = pytest.MonkeyPatch()
    stage.after.append(patch.undo)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    stage.place = "start"
    open_store("s3://bucket/ck", {"metadata_endpoint": "http://127.0.0.1:9"}).put("claim", b"")


MISTAKES = [
    mistake(
        "a bucket without credentials",
        "start",
        without_credentials,
        "s3://bucket/ck/claim: there are no credentials: storage_options and the environment have none",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for the driver and the executors",
        "storage_options={…}",
        error=sl.errors.AccessError,
    ),
    # -- into Kafka
    kafka(
        "servers without a port",
        "servers is 'one', expected addresses with ports",
        "'one:9092,two:9092'",
        servers="one",
    ),
    kafka("servers as a list", "servers is ['one:9092'], expected addresses", servers=[BROKER]),
    kafka("no topic", "both or none of topic and topic_column", "topic_column='kind'", topic=None),
    kafka("a topic with a blank", "topic is 'my alerts', expected letters, digits", topic="my alerts"),
    kafka("several topics", "topic is ['a', 'b'], expected", topic=["a", "b"]),
    kafka("an empty prefix", "prefix is '', expected letters", prefix=""),
    kafka("a key that is a number", "key is 5, expected names of columns", "key=['shop', 'day']", key=5),
    kafka("deletions without a key", "delete='gone' needs key=[…]", delete="gone"),
    kafka("an empty key", "key is [], expected names of columns", "leave it out", key=[]),
    kafka("a value twice", "value is ['a', 'a'], expected names of columns, each once", value=["a", "a"]),
    kafka(
        "headers as a list", "headers is ['kind'], expected a column, or a dict", "headers={'kind'", headers=["kind"]
    ),
    kafka("a header that is a number", "headers['v'] is 1, expected the name of a column", headers={"v": 1}),
    kafka("the number of a partition", "partition is 3, expected the name of a column", ".with_column(", partition=3),
    kafka(
        "a visibility that is not there",
        "visibility is 'commit', expected 'checkpoint' or 'epoch'",
        visibility="commit",
    ),
    kafka("options as text", "options are not a dict", 'options={"security.protocol"', options="acks=all"),
    kafka("a setting that the sink makes", "options has 'acks', which is set already", options={"acks": "1"}),
    kafka(
        "a setting of Java's",
        "only Java's clients know",
        "sasl.username",
        options={"kafka.sasl.jaas.config": "secret"},
    ),
    kafka("an on_error of another system", "on_error is 'ignore', expected 'fail', 'skip'", on_error="ignore"),
    kafka("dead letters nowhere", "dead_letters is None: one needs the other", on_error="dead-letter"),
    made(
        "dead letters of what does not wait",
        lambda: sl.sinks.kafka(BROKER, "alerts", visibility="epoch", on_error="skip"),
        "keeps no dead letters",
        "leave on_error and dead_letters out",
    ),
    # -- from Kafka
    read("no session", "was given None, expected a SparkSession"),
    read("brokers without a port", "servers is 'one', expected addresses with ports", servers="one"),
    read("topics that are none", "topics is [], expected a name, several, or a pattern", "'payments'", topics=[]),
    read("a pattern as text", "topics is 'pay.*', expected", "re.compile(", topics="pay.*"),
    read("topics as a number", "topics is 5, expected", topics=5),
    read(
        "a start that is not there", "starting is 'lates', expected 'earliest', 'latest', or offsets", starting="lates"
    ),
    read("offsets as a dict", "starting is {'payments': 5}, expected", "offsets are JSON", starting={"payments": 5}),
    read("no rows in an epoch", "max_rows_per_epoch is 0, expected 1 or more", "leave it out", max_rows_per_epoch=0),
    read("a group without a name", "commit_to is '', expected the name of a group", commit_to=""),
    read("options of a reader as text", "options is of type str, expected a dict", options="x"),
    # -- into databases
    postgres("a dsn that cannot be read", "the dsn cannot be read", "postgresql://user@host:5432", dsn="bank at one"),
    postgres("JDBC's url", "the dsn cannot be read", "not JDBC's", dsn="jdbc:postgresql://one/bank?password=secret"),
    postgres("no dsn", "the dsn is NoneType, expected a text", "a function that returns it", dsn=None),
    postgres(
        "a function that gives no dsn", "the function of the dsn returned NoneType, expected a text", dsn=lambda: None
    ),
    postgres("no table", "table is '', expected its name", "table='bank.table'", table=""),
    postgres("a key that is a number", "key is 5, expected names of columns, each once", "key=['shop', 'day']", key=5),
    postgres("delete without a key", "delete='gone' needs key=", "say which columns", delete="gone"),
    postgres("delete for all rows", "delete is True, expected the name of a column", key="account", delete=True),
    postgres(
        "the key's column deletes",
        "is in key=, and is that of delete=",
        "another column, a boolean",
        key="a",
        delete="a",
    ),
    postgres("no writers", "writers is 0, expected a number from 1", "leave it out", writers=0),
    postgres("writers without a key", "writers=4 needs key=", "with writers=1, one connection", writers=4),
    postgres("a time without unit", "timeout is 'soon', expected a duration", "'10s'", timeout="soon"),
    postgres("hardly any time", "timeout is '10ms', expected at least a second", timeout="10ms"),
    postgres("create as text", "create is 'yes', expected True or False", create="yes"),
    postgres("a record without a name", "record is '', expected its name", record=""),
    postgres("rows wait in a number", "staging is 5, expected a directory or url", staging=5),
    postgres(
        "on_error of another system",
        "on_error is 'ignore', expected 'fail', 'skip' or 'dead-letter'",
        on_error="ignore",
    ),
    made(
        "an option of Spark's JDBC",
        lambda: sl.sinks.postgres(DSN, "balances", mode="append"),  # type: ignore[call-arg]
        "sinks.postgres() got an unexpected keyword argument 'mode'",
        "further options are name, staging",
        error=TypeError,
    ),
    tried(
        "a server that is not there",
        lambda s: sl.sinks.postgres(DSN, "balances"),
        "PostgreSQL at 127.0.0.1:1, database bank cannot be reached",
        "check the host and the port in the dsn",
    ),
    tried(
        "a key that the rows do not have",
        lambda s: sl.sinks.postgres(DSN, "balances", key="user"),
        "its key names the column 'user', which the rows do not have; they have account, cents, parts",
    ),
    tried(
        "a key of lists",
        lambda s: sl.sinks.sqlite(s.directory / "bank.db", "balances", key="parts", create=True),
        "the key's column 'parts' is list",
        "one value each",
    ),
    sqlite("no path", "path is None, expected that of a file", "'results.db'", path=None),
    sqlite("a url", "path is 'sqlite:///bank.db', expected that of a file", path="sqlite:///bank.db"),
    sqlite("in memory", "path is ':memory:', expected", "would end with the driver", path=":memory:"),
    sqlite("a record that is a number", "record is 5, expected its name", record=5),
    sqlite("storage options as text", "storage_options is of type str, expected a dict", storage_options="x"),
    sqlite(
        "an option that is a number",
        "storage_options has 'port' of type int, expected text",
        storage_options={"port": 1},
    ),
    made(
        "several writers of a file",
        lambda: sl.sinks.sqlite("bank.db", "balances", writers=2),  # type: ignore[call-arg]
        "sinks.sqlite() got an unexpected keyword argument 'writers'",
        error=TypeError,
    ),
    tried(
        "a directory that is not there",
        lambda s: sl.sinks.sqlite(s.directory / "no" / "bank.db", "balances"),
        "there is no such directory",
        "create it:",
    ),
    tried(
        "a database that is not there",
        lambda s: sl.sinks.sqlite(s.directory / "bank.db", "balances"),
        "bank.db does not exist",
        "create=True",
    ),
    tried(
        "a directory as a database",
        lambda s: sl.sinks.sqlite(s.directory, "balances"),
        "cannot be used: unable to open database file",
        "set the path of a database",
    ),
    # -- into tables of files
    delta("no url", "url is None, expected a directory or url", url=None),
    delta(
        "a web address",
        "a table cannot be at http://",
        "give a directory, or one of file://, s3://",
        url="http://one/t",
    ),
    delta(
        "a percent code in a directory's name",
        "the directory's name has '%20', which the library takes for another character",
        "name the directory without a '%'",
        url="/data/a%20b",
    ),
    delta("key that is a number", "key is 5, expected names of columns, each once", key=5),
    delta("deletions without a key", "delete='gone' needs key=[…]", "rows are deleted by their keys", delete="gone"),
    delta("a key that marks deletions", "the column 'k' is in key=, and is that of delete=", key="k", delete="k"),
    delta("a column of the partitioning twice", "partition_by is ['a', 'a'], expected", partition_by=["a", "a"]),
    delta("Spark's way with new columns", "new_columns is 'merge', expected 'refuse' or 'add'", new_columns="merge"),
    delta("a mode", "existing is 'overwrite', expected 'refuse' or 'keep'", existing="overwrite"),
    delta("a size as text", "target_bytes is '64MB', expected a number of bytes", "64 << 20", target_bytes="64MB"),
    delta("compaction by time", "compact_every is '1h', expected a number of commits", compact_every="1h"),
    delta("options for storage as text", "storage_options is of type str, expected a dict", storage_options="x"),
    iceberg(
        "no namespace", "the table is 'orders', expected 'namespace.table'", "the catalog comes first", table="orders"
    ),
    iceberg(
        "the catalog in the table's place",
        "the table is of type dict, expected 'namespace.table'",
        "the catalog comes first",
        table={"uri": "postgresql://etl:secret@one/catalog"},
    ),
    iceberg("a catalog without anything", "the catalog is {}, expected its name, or its properties", catalog={}),
    iceberg("a catalog that is a number", "the catalog is int, expected its name", "'warehouse'", catalog=5),
    iceberg("a key that is a number", "key is 5, expected names of columns, each once", key=5),
    # -- into what is the user's own
    deliver("no function", "the function is None, expected a function", "of (rows, ids)", function=None),
    deliver("a function of rows alone", "called with (rows, ids), and it takes (rows)", function=lambda rows: None),
    deliver("batches of none", "batch_size is 0, expected 1 or more", batch_size=0),
    deliver("attempts as text", "attempts is 'many', expected 1 or more", attempts="many"),
    deliver("a pause without unit", "pause is 'soon', expected a duration", "'500ms'", pause="soon"),
    deliver("one error that passes", "passing is <class 'OSError'>, expected types", "passing=[", passing=OSError),
    deliver("the name of an error", "passing is ['OSError'], expected types of exceptions", passing=["OSError"]),
    deliver("dead letters, and rows that end the job", "on_error is 'fail', and dead_letters is 'x'", dead_letters="x"),
    transactional("no target", "target is None, expected a sinks.Target", "derive a class", target=None),
    transactional("a class for a target", "expected a sinks.Target", "create one: Results(…)", target=Results),
    transactional("a lock", "the target Locked cannot be sent to other processes", target=Locked()),
    transactional("whose fault it is", "does not say which of its errors", "refusing = (TheError, …)", on_error="skip"),
    made(
        "a sink's name that is a number",
        lambda: Transactional(Results(), name=5),  # type: ignore[arg-type]
        "the sink's name is 5, expected a text",
        "name='alerts'",
    ),
]
