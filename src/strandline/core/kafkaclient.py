"""Kafka clients of sinks and logs: their settings, without secrets in messages, and the translation of their errors."""

from __future__ import annotations

import importlib.util
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

from strandline.core.errors import (
    AccessError,
    ConfigurationError,
    ConflictError,
    SinkError,
    StrandlineError,
    UnavailableError,
)

_FIXED = {
    "bootstrap.servers": "it is the first argument",
    "transactional.id": "it identifies the lane: prefix= is its first part",
    "enable.idempotence": "without it rows would be lost, or come twice",
    "enable.gapless.guarantee": "without it rows would be reordered",
    "acks": "all replicas that are in sync must have a row",
    "group.id": "the group holds the sink's progress: prefix= is its first part",
    "isolation.level": "records of uncommitted transactions must not count",
    "enable.auto.commit": "it would overwrite the record of the sink's progress",
    "partitioner": "it is murmur2_random, as in Java's clients, so that both put a key into the same partition",
}
_JAVA_ONLY = ("sasl.jaas.config", "ssl.truststore.", "ssl.keystore.location")
TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
"""Names of topics."""
_SERVERS = re.compile(r"[^\s,]+:\d+(,[^\s,]+:\d+)*")


T = TypeVar("T")


class Cluster:
    """The address of a Kafka cluster and the client options. Executors get a copy; `repr` has no secrets."""

    def __init__(self, servers: str, options: Mapping[str, str] | None = None, what: str = "sinks.kafka()") -> None:
        """`what` names the user's call in messages."""
        self.what = what
        if not isinstance(servers, str) or not _SERVERS.fullmatch(servers):
            raise ConfigurationError(
                f"{what}: servers is {servers!r:.200}, expected addresses with ports, as 'one:9092,two:9092'"
            )
        self.servers = servers
        self.options = _check_options(options or {}, what)
        self.answer_s = 10.0
        """Timeout of one request to the brokers."""

    def ask(self, call: Callable[..., T], *args: Any, timeout_s: float | None = None) -> T:
        """Call a method of a client that takes a timeout as its last argument, by default `answer_s`."""
        timeout_s = self.answer_s if timeout_s is None else timeout_s
        return call_within(timeout_s + 5, call, *args, timeout_s)

    def __repr__(self) -> str:
        return f"Cluster({self.servers!r})"

    def settings(self, errors: ClientErrors, **more: Any) -> dict[str, Any]:
        """Return a client's settings. `more` are further ones, with `_` in place of `.`."""
        return {
            "bootstrap.servers": self.servers,
            "client.id": "strandline",
            # `error_cb` reports the same errors as the log.
            "log_level": 0,
            "error_cb": errors.add,
            "socket.connection.setup.timeout.ms": 5000,
            # A client reconnects when it has learned the broker's advertised address.
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 1000,
            **self.options,
            **{name.replace("_", "."): value for name, value in more.items()},
        }


def _check_options(options: Mapping[str, str], what: str) -> dict[str, str]:
    if not isinstance(options, Mapping):
        raise ConfigurationError(
            f"{what}: options are not a dict",
            hint='give client settings by name: options={"security.protocol": "SASL_SSL", …}',
        )
    # Spark's Kafka source takes the client's options with this prefix.
    settings = {str(name).removeprefix("kafka."): value for name, value in options.items()}
    for name in settings:
        if name in _FIXED:
            raise ConfigurationError(f"{what}: options has '{name}', which is set already: {_FIXED[name]}")
        if name.startswith(_JAVA_ONLY):
            raise ConfigurationError(
                f"{what}: options has '{name}', which only Java's clients know",
                hint="the client is librdkafka: sasl.mechanism, sasl.username and sasl.password say who, "
                "ssl.ca.location which certificates are trusted",
            )
    return settings


def check_installed(what: str = "sinks.kafka") -> None:
    """Raise ConfigurationError if the client is not installed."""
    if importlib.util.find_spec("confluent_kafka") is None:
        raise ConfigurationError(
            f"{what} needs the package confluent-kafka, which is not installed",
            hint="pip install 'strandline[kafka]', also where executors run",
        )


def create_client(kind: Any, cluster: Cluster, settings: Mapping[str, Any]) -> Any:
    """Create a client of this class. Raises ConfigurationError for settings that it refuses, without their secrets."""
    from confluent_kafka import KafkaException

    try:
        return kind(dict(settings))
    except KafkaException as error:
        text = error.args[0].str()
        for name, value in cluster.options.items():
            if any(word in name for word in ("password", "secret", "key", "token", "config")) and value:
                text = text.replace(str(value), "…")
        raise ConfigurationError(f"{cluster.what}: the client refuses its options: {text}") from None


def get_answer(future: Any, client: Any, errors: ClientErrors, cluster: Cluster) -> Any:
    """Return the result of an admin client's request; raise the authentication error that occurs meanwhile."""
    from confluent_kafka import KafkaException

    until = time.monotonic() + cluster.answer_s + 1
    while not future.done() and time.monotonic() < until:
        client.poll(0.005)
        if errors.rejection is not None:
            raise KafkaException(errors.rejection)
    return future.result(0.1)


def read_setting(name: str, topic: str, admin: Any, errors: ClientErrors, cluster: Cluster) -> str | None:
    """Return a setting of a topic; None if the user may not describe it. The user may still be allowed to write."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, topic)
    (config,) = admin.describe_configs([resource], request_timeout=cluster.answer_s).values()
    try:
        return str(get_answer(config, admin, errors, cluster)[name].value)
    except KafkaException as error:
        if error.args[0].code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
            return None
        raise


class ClientErrors:
    """Errors that a client reports by callback, such as a wrong password: its calls only time out."""

    def __init__(self) -> None:
        self._last: Any = None
        self.count = 0
        self.rejection: Any = None
        """The error that says that the brokers reject the client."""
        self._lock = threading.Lock()

    def add(self, error: Any) -> None:
        with self._lock:
            self.count += 1
            if error.code() in _codes("_AUTHENTICATION") and "Broker transport failure" in error.str():
                # The connection broke during authentication: the broker has not rejected the client.
                return
            self._last = error
            if error.code() in _codes("_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED"):
                self.rejection = error

    def cause_of(self, error: Any) -> Any:
        """Return the reported error behind a timeout; any other error itself."""
        is_late = error.code() in _codes("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_MSG_TIMED_OUT")
        return self.rejection or self._last or error if is_late else error


def translate_error(error: Any, label: str, cluster: Cluster, errors: ClientErrors | None = None) -> StrandlineError:
    """Return a client's error as a StrandlineError. Only UnavailableError and ConflictError are worth another attempt.

    `error` is a KafkaError, or a KafkaException that holds one.
    """
    error = error.args[0] if isinstance(error, BaseException) and not hasattr(error, "code") else error
    error = errors.cause_of(error) if errors is not None else error
    code, text = error.code(), error.str()
    where = f"{label}: Kafka at {cluster.servers}"
    if code in _codes("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM"):
        return AccessError(
            f"{where} does not let it in: {text}",
            hint="see to sasl.mechanism, sasl.username and sasl.password in the sink's options",
        )
    if code in _codes("_SSL"):
        return AccessError(
            f"{where}: no secure connection: {text}",
            hint="see to security.protocol and the ssl.… settings in the sink's options",
        )
    if name := _names(_DENIED).get(code):
        return AccessError(f"{where} does not allow it: {text}", hint=_DENIED[name])
    if code in _codes("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"):
        return SinkError(f"{where}: a topic or partition is not there: {text}", hint="create it, and start again")
    if code in _codes("INVALID_TIMESTAMP"):
        # What has no time of its own has the clock's.
        return UnavailableError(
            f"{where} refuses the time of the clock of {socket.gethostname()}: {text}",
            hint="set the clock: see message.timestamp.after.max.ms of the topic, an hour unless it was changed",
        )
    if code in _codes("INVALID_TRANSACTION_TIMEOUT"):
        return ConfigurationError(
            f"{where} refused: {text}",
            hint='set options={"transaction.timeout.ms": "10000"} of the sink, at most the brokers\' '
            "transaction.max.timeout.ms; or raise that: the sink needs a minute",
        )
    if code in _codes(*_FENCED) or error.fatal():
        return ConflictError(f"{where}: another task or driver writes in its place: {text}")
    if error.retriable() or code in _codes(*_RETRIABLE):
        return UnavailableError(f"{where} does not answer: {text}")
    if error.txn_requires_abort():
        hint = "raise max.message.bytes of the sink's record topic, whose name ends in -marks"
        is_size = code in _codes("MSG_SIZE_TOO_LARGE")
        return UnavailableError(f"{where} does not take the transaction: {text}", hint=hint if is_size else "")
    return SinkError(f"{where} refused: {text}", hint="the rows stay staged, and are tried again with the next start")


_DENIED = {
    "TOPIC_AUTHORIZATION_FAILED": "allow its user to Write and Describe the topics, and to Read and Create the "
    "sink's record topic, whose name ends in -marks",
    "GROUP_AUTHORIZATION_FAILED": "allow its user to Read groups whose names begin with the sink's prefix, "
    "'strandline'",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "allow its user to Write and Describe transactional ids that begin with "
    "the sink's prefix, 'strandline'",
    "CLUSTER_AUTHORIZATION_FAILED": "allow its user IdempotentWrite on the cluster",
}
_FENCED = (
    "_FENCED", "_STATE", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING", "INVALID_TXN_STATE",
    "CONCURRENT_TRANSACTIONS", "UNKNOWN_PRODUCER_ID", "OUT_OF_ORDER_SEQUENCE_NUMBER", "PRODUCER_FENCED",
)  # fmt: skip
_RETRIABLE = (
    "_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_MSG_TIMED_OUT", "_RESOLVE", "_WAIT_COORD", "_PURGE_QUEUE",
    "_PURGE_INFLIGHT", "_DESTROY", "_QUEUE_FULL", "_TIMED_OUT_QUEUE", "REQUEST_TIMED_OUT", "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION", "BROKER_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE", "NETWORK_EXCEPTION",
    "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "OFFSET_NOT_AVAILABLE", "LISTENER_NOT_FOUND",
    "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "KAFKA_STORAGE_ERROR", "UNSTABLE_OFFSET_COMMIT", "NOT_CONTROLLER",
    "THROTTLING_QUOTA_EXCEEDED", "UNKNOWN_TOPIC_ID", "INCONSISTENT_TOPIC_ID", "TRANSACTION_ABORTABLE",
    "REASSIGNMENT_IN_PROGRESS", "PREFERRED_LEADER_NOT_AVAILABLE", "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    "REBALANCE_IN_PROGRESS", "STALE_BROKER_EPOCH", "STALE_CTRL_EPOCH", "REBOOTSTRAP_REQUIRED", "UNKNOWN",
    "FETCH_SESSION_ID_NOT_FOUND", "INVALID_FETCH_SESSION_EPOCH", "_DESTROY_BROKER", "_FAIL", "_UNKNOWN_BROKER",
    "_INVALID_DIFFERENT_RECORD",
    "_WAIT_CACHE", "_ISR_INSUFF", "_RETRY", "_INTR", "_IN_PROGRESS", "_PREV_IN_PROGRESS", "_OUTDATED", "_NODE_UPDATE",
)  # fmt: skip


def _names(names: Mapping[str, Any] | tuple[str, ...]) -> dict[int, str]:
    from confluent_kafka import KafkaError

    # Some exist only in later versions of the client.
    return {getattr(KafkaError, name): name for name in names if hasattr(KafkaError, name)}


def _codes(*names: str) -> set[int]:
    return set(_names(names))


def call_within(seconds: float, call: Callable[..., T], *args: Any) -> T:
    """Call a method of the client in a thread, with a timeout: some never return after a broker's restart.

    The caller then abandons the client and its thread. Later effects are fenced: another client takes the lane.
    """
    results: list[tuple[T | None, BaseException | None]] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append((call(*args), None))
        except BaseException as error:
            results.append((None, error))
        done.set()

    threading.Thread(target=run, name="strandline-kafka", daemon=True).start()
    if not done.wait(seconds):
        raise UnavailableError(f"Kafka's client does not return from {call.__name__}")
    value, error = results.pop()
    try:
        if error is not None:
            raise error
        return cast(T, value)
    finally:
        # The traceback refers to this frame and to the client: this breaks the cycle.
        del error


@contextmanager
def ignoring_errors() -> Iterator[None]:
    """Ignore errors of a client that is not used any more."""
    try:
        yield
    except Exception as error:
        drop_frames(error)


def drop_frames(error: BaseException) -> None:
    """Drop the tracebacks of a client's error: it never releases a SystemError, whose frames would keep all clients."""
    for each in (error, error.__cause__, error.__context__):
        if each is not None:
            each.__traceback__ = None


def discard(client: Any) -> None:
    """Destroy a client in a thread of its own, when no other reference is left.

    librdkafka waits for its own threads there, and may never return.
    """
    # From Python 3.12 on, no thread can start while the interpreter shuts down.
    with suppress(RuntimeError):
        threading.Thread(target=_destroy, args=([client],), name="strandline-kafka", daemon=True).start()


def _destroy(box: list[Any]) -> None:
    # A call that hangs holds a reference. librdkafka crashes if its client is destroyed during a call.
    while sys.getrefcount(box[0]) > 2:
        time.sleep(0.05)
    box.clear()


class Stall:
    """Detects that a queue has not become shorter for some time."""

    def __init__(self, left: int, seconds: float) -> None:
        self._left, self._seconds = left, seconds
        self._since = time.monotonic()

    def is_reached(self, left: int) -> bool:
        if left < self._left:
            self._left, self._since = left, time.monotonic()
        return time.monotonic() - self._since > self._seconds
