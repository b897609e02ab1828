"""Metrics and spans of jobs for Prometheus and OpenTelemetry, made of their status, and lineage for OpenLineage."""
