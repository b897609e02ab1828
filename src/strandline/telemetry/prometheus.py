"""Metrics of jobs in Prometheus' text format, and the server that Prometheus asks for them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from strandline.core.errors import ConfigurationError
from strandline.telemetry.figures import Figures
from strandline.telemetry.metrics import JOB_LABELS, METRICS, samples

Read = Callable[[], Iterable[Figures]]


class JobCollector(Collector):
    """Reads the jobs whenever Prometheus asks."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def describe(self) -> Iterable[Family]:
        """Return nothing: the registry would read the jobs to learn the names."""
        return []

    def collect(self) -> Iterator[Family]:
        families = {
            metric.name: (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
                metric.name.removesuffix("_total"), metric.meaning, labels=(*JOB_LABELS, *metric.labels)
            )
            for metric in METRICS
        }
        for figures in self._read():
            for sample in samples(figures):
                families[sample.metric.name].add_metric([*sample.labels.values()], sample.value)
        return (family for family in families.values() if family.samples)


def exposition(read: Read) -> str:
    """Return the metrics of jobs in the text format."""
    registry = CollectorRegistry()
    registry.register(JobCollector(read))
    return generate_latest(registry).decode()


@dataclass(frozen=True)
class MetricsServer:
    """A server of metrics, in a thread of its own."""

    address: str
    """The url that Prometheus asks."""
    _server: WSGIServer
    _thread: threading.Thread

    @classmethod
    def start(cls, host: str, port: int, read: Read) -> MetricsServer:
        """Listen. Raises ConfigurationError for an address that cannot be used. Port 0 is any free one."""
        registry = CollectorRegistry()
        registry.register(JobCollector(read))
        try:
            server, thread = start_http_server(port, host, registry)
        except (OSError, socket.gaierror) as error:
            raise ConfigurationError(
                f"metrics cannot be served at {host}:{port}: {error.strerror}", hint="give another port"
            ) from None
        name = f"[{host}]" if ":" in host else host
        return cls(f"http://{name}:{server.server_port}/metrics", server, thread)

    def end(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
