"""Exactly-once delivery to other systems, without Spark.

The rows of an epoch are staged in the checkpoints' storage, and the manifest lists them. After the checkpoint they are
written to a `Target` in short transactions, each of which also records the progress.
"""
