"""Checks, progress, lag and cleaning of a job's sources."""
