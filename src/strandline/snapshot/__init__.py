"""Snapshots as data: opened wherever they lie, their state as rows, savepoints. Without a job and without Spark."""
