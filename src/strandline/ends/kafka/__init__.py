"""Kafka as a target: transactions of librdkafka, with a compacted topic as the record."""
