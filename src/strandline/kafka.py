"""Kafka as a source, `sl.kafka`: Spark's connector for the Spark that is installed, and topics as DataFrames."""

from __future__ import annotations

from strandline.spark.streams.kafkasource import read, session_settings
from strandline.spark.streams.kafkaversions import versions

__all__ = ["read", "session_settings", "versions"]
