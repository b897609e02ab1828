"""Lowers a job's graph to DataFrames, once an epoch."""
