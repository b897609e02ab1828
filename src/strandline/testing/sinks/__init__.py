"""Conformance checks for custom sinks and targets, the same that the built-in sinks pass."""
