"""Exactly-once delivery to other systems, without Spark.

Rows of an epoch are staged in the checkpoints' storage, the manifest lists them, and after the checkpoint they are
written to a `Target` in short transactions, each with a record of how far it came.
"""
