"""A collector of OpenTelemetry, and a server of OpenLineage: they keep what they are sent."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collecting:
    """What came, by address."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.code = 200
        self.url = ""

    def bodies(self, path: str) -> list[bytes]:
        return [body for each, _, body in self.requests if each == path]

    def json(self, path: str) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies(path)]

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Return the metrics of the newest message by name, of its first resource."""
        message = ExportMetricsServiceRequest.FromString(self.bodies("/v1/metrics")[-1])
        (scope,) = message.resource_metrics[0].scope_metrics
        return {metric.name: MessageToDict(metric) for metric in scope.metrics}

    @property
    def resource(self) -> dict[str, str]:
        message = ExportMetricsServiceRequest.FromString(self.bodies("/v1/metrics")[-1])
        return {each.key: each.value.string_value for each in message.resource_metrics[0].resource.attributes}

    @property
    def spans(self) -> list[Any]:
        messages = map(ExportTraceServiceRequest.FromString, self.bodies("/v1/traces"))
        return [
            span
            for message in messages
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[Collecting]:
    kept = Collecting()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            kept.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(kept.code)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        kept.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield kept
        finally:
            server.shutdown()
            thread.join()
