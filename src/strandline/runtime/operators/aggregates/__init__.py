"""Operators of built-in aggregates: accumulators are Arrow columns, and are merged by whole columns."""
