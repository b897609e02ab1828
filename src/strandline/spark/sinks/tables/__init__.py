"""Sinks into table formats: tasks write data files, and a transaction of the table adds them after the checkpoint.

`sink.py` is common to all formats: the record of a sink's progress in the table, claims, and the cleanup of files that
no checkpoint lists. `delta.py` and `iceberg.py` are the formats. `ends/tables/datafiles.py` runs in the tasks.
"""
