"""Metrics and spans of jobs for a collector of OpenTelemetry, by OTLP over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from strandline.core.failure import without_credentials
from strandline.core.version import VERSION
from strandline.telemetry.figures import Figures
from strandline.telemetry.metrics import Metric, Sample, samples
from strandline.telemetry.spans import Span, SpanMaker

log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_SCOPE = InstrumentationScope("strandline", VERSION)
_UNITS = {"seconds": "s", "bytes": "By", "": ""}
_ids = RandomIdGenerator()


class Collector:
    """A collector at the base of its addresses, such as http://localhost:4318.

    Headers, such as those for access, and certificates come from the environment variables of OpenTelemetry
    (`OTEL_EXPORTER_OTLP_HEADERS`, …).
    """

    def __init__(self, url: str, since_ms: int) -> None:
        """Make spans only of what ends after `since_ms`."""
        base = url.rstrip("/")
        self._place, self._since_ms = without_credentials(base), since_ms
        self._metrics = OTLPMetricExporter(f"{base}/v1/metrics", timeout=_TIMEOUT_S)
        self._spans = OTLPSpanExporter(f"{base}/v1/traces", timeout=_TIMEOUT_S)
        self._makers: dict[tuple[str, str], SpanMaker] = {}
        self._accepts = True

    def send(self, jobs: Iterable[Figures], *, is_last: bool = False) -> bool:
        """Send the metrics of jobs, and the spans since the last call. Return False if the collector refuses them.

        That never fails: metrics are sent again next time, and spans are lost.
        """
        jobs = list(jobs)
        spans = [span for each in jobs for span in self._spans_of(each, is_last)]
        try:
            accepted = self._metrics.export(metrics_data(jobs)) is export.MetricExportResult.SUCCESS
            if spans:
                accepted &= self._spans.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:
            log.debug("the collector at %s: %s", self._place, type(error).__name__)
            accepted = False
        if self._accepts and not accepted:
            log.warning("the collector at %s does not take metrics and spans; jobs go on without it", self._place)
        self._accepts = accepted
        return accepted

    def close(self) -> None:
        """Close the connections."""
        self._metrics.shutdown()
        self._spans.shutdown()  # type: ignore[no-untyped-call]

    def _spans_of(self, figures: Figures, is_last: bool) -> Iterator[ReadableSpan]:
        if figures.recent is None:
            return
        maker = self._makers.setdefault((figures.job, figures.directory), SpanMaker(self._since_ms))
        for span in maker.take(figures.recent, figures.at_ms, is_last=is_last):
            yield from readable_spans(span, _resource(figures))


def metrics_data(jobs: Sequence[Figures]) -> export.MetricsData:
    """Return the metrics of jobs, each job a resource of its own."""
    return export.MetricsData([
        export.ResourceMetrics(
            _resource(each), [export.ScopeMetrics(_SCOPE, list(_metrics(each)), "")], ""
        )
        for each in jobs
    ])  # fmt: skip


def name_of(metric: Metric) -> str:
    """Return the name of a metric: Prometheus' name without `_total` and unit, which collectors add for Prometheus."""
    name = metric.name.removesuffix("_total").removesuffix(f"_{metric.unit}" if metric.unit else "")
    return name.replace("strandline_", "strandline.", 1)


def _metrics(figures: Figures) -> Iterator[export.Metric]:
    by_metric: dict[str, list[Sample]] = {}
    for sample in samples(figures):
        by_metric.setdefault(sample.metric.name, []).append(sample)
    for group in by_metric.values():
        metric = group[0].metric
        points = [_point(sample, figures.at_ms) for sample in group]
        data: Any = export.Gauge(points)
        if metric.kind == "counter":
            data = export.Sum(points, export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        yield export.Metric(name_of(metric), metric.meaning, _UNITS[metric.unit], data)


def _point(sample: Sample, at_ms: int) -> export.NumberDataPoint:
    # The name of the job is that of the resource, from which collectors make the label `job`.
    labels = {name: value for name, value in sample.labels.items() if name != "job"}
    return export.NumberDataPoint(labels, _ns(sample.since_ms or 0), _ns(at_ms), sample.value)


def _resource(figures: Figures) -> Resource:
    return Resource({
        "service.name": figures.job, "service.instance.id": figures.directory, "service.version": figures.version,
        "telemetry.sdk.language": "python",
    })  # fmt: skip


def readable_spans(span: Span, resource: Resource, parent: SpanContext | None = None) -> Iterator[ReadableSpan]:
    """Return a span and those within it, with new ids."""
    trace_id = _ids.generate_trace_id() if parent is None else parent.trace_id
    context = SpanContext(trace_id, _ids.generate_span_id(), is_remote=False, trace_flags=TraceFlags(1))
    yield ReadableSpan(
        span.name, context, parent, resource, span.attributes,
        [Event(each.name, each.attributes, _ns(span.end_ms)) for each in span.moments],
        kind=SpanKind.INTERNAL, status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
        start_time=_ns(span.start_ms), end_time=_ns(max(span.start_ms, span.end_ms)), instrumentation_scope=_SCOPE,
    )  # fmt: skip
    for child in span.children:
        yield from readable_spans(child, resource, context)


def _ns(ms: float) -> int:
    return int(ms * 1_000_000)
